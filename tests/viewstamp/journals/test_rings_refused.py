"""Readers of a journal beside its replica know segments, and say so of a ring."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.journal_builders import chain
from testkit.memory_storage import MemoryStorage
from testkit.ring_builders import create_ring
from tests.viewstamp.cli.conftest import CommandLine
from tests.viewstamp.journals.dumped_journals import dump
from viewstamp.journals.journal_errors import RingNotRead
from viewstamp.journals.log_reading import read_log


@pytest.fixture
def command(tmp_path: Path) -> CommandLine:
    """The command line, without a cluster."""
    return CommandLine("127.0.0.1:1", tmp_path)


def test_a_ring_is_refused_at_the_edge(command: CommandLine, tmp_path: Path) -> None:
    """The log command and whatever reads a log for a restore name the ring and the next step."""
    storage = MemoryStorage()
    journal = create_ring(storage, replica_count=3)
    journal.append(chain(3))
    journal.close()
    data = dump(storage, tmp_path)
    with pytest.raises(RingNotRead, match="which only its replica reads"):
        read_log(data)
    said = command("log", "--data", str(data))
    assert said.code == 2
    assert "error: RING_JOURNAL: the journal in" in said.err
