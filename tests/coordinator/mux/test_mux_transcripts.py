"""Transcripts of the mux: each file in `transcripts` tells one story."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.coordinator.mux.transcript import MuxRunner, parse_blocks

FOLDER = Path(__file__).parent / "transcripts"
REWRITE = os.environ.get("REWRITE_TRANSCRIPTS") == "1"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    """The mux answers every event of the story with the trace that the file holds."""
    runner = MuxRunner()
    told = []
    for block in parse_blocks(path.read_text()):
        trace = runner.run(block.event)
        told.append(block.text(trace))
        if not REWRITE:
            assert trace == block.expected, f"{path.name}: {block.event[0]}"
    if REWRITE:
        path.write_text("".join(told))
