"""Segments are read in pieces, and as they were when the survey ended."""

from __future__ import annotations

import random
from pathlib import Path

from testkit.journal_builders import chain, create
from testkit.memory_storage import MemoryStorage
from tests.viewstamp.journals.dumped_journals import dump, live_entries_of
from viewstamp.journals.log_reading import read_log
from viewstamp.journals.segment_window import READ_BYTES, opened_segment

FILE_BYTES = 3 * READ_BYTES + 777


def test_every_piece_of_a_segment_is_its_content(tmp_path: Path) -> None:
    """Pieces of all sizes, forward and backward, are what the file holds there."""
    source = random.Random(1)
    content = source.randbytes(FILE_BYTES)
    path = tmp_path / "segment"
    path.write_bytes(content)
    with opened_segment(path) as window:
        assert len(window) == FILE_BYTES
        for _ in range(200):
            start = source.randrange(FILE_BYTES)
            end = start + source.choice((1, 4096, READ_BYTES, 2 * READ_BYTES))
            assert window[start:end] == content[start:end]


def test_a_file_that_shrinks_reads_as_zeros(tmp_path: Path) -> None:
    """What a file has lost since it was opened is zeros, not an error."""
    path = tmp_path / "segment"
    path.write_bytes(b"x" * FILE_BYTES)
    with opened_segment(path) as window:
        path.write_bytes(b"x" * 10)
        assert window[0:20] == b"x" * 10 + bytes(10)


def test_later_entries_are_not_shown(tmp_path: Path) -> None:
    """What a writer appends behind the end of the survey waits for the next reading."""
    storage = MemoryStorage()
    journal = create(storage, replica_count=3)
    entries = chain(8)
    journal.append(entries[:4])
    data = dump(storage, tmp_path)
    reading = read_log(data)
    journal.append(entries[4:])
    (data / "superblock").unlink()
    dump(storage, tmp_path)
    assert live_entries_of(reading.survey).keys() == {1, 2, 3, 4}
    assert live_entries_of(read_log(data).survey).keys() == set(range(1, 9))
