"""The transcripts in `transcripts/`: each is a story, told in commands and their exact effects.

`REWRITE_TRANSCRIPTS=1 pytest tests/coordinator/vsr/test_vsr_transcripts.py` records the current
effects. Commit such a diff only if you understand and intend every line of it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.coordinator.vsr.transcript_runner import check_file, parse, run

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
REWRITE = os.environ.get("REWRITE_TRANSCRIPTS") == "1"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    """Every command of the story has exactly the effects that the transcript says."""
    check_file(path, rewrite=REWRITE)


def test_transcripts_are_found() -> None:
    """A moved directory does not turn the transcripts into an empty set that passes."""
    assert len(TRANSCRIPTS) >= 8


def test_a_transcript_that_tells_otherwise_fails(tmp_path: Path) -> None:
    """The comparison sees a single changed line."""
    path = tmp_path / "wrong.txt"
    path.write_text(run("cluster 1\nstart 0\n----\n").replace("blank", "normal"), encoding="utf-8")

    with pytest.raises(AssertionError, match=r"wrong\.txt"):
        check_file(path, rewrite=False)


def test_commands_need_their_separator() -> None:
    """A block that forgot its trace is an error, not a block without effects."""
    with pytest.raises(ValueError, match="commands without"):
        parse("cluster 1\nstart 0\n")
