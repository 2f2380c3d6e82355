"""Opening a journal whose files are missing, swapped, foreign, shortened or newer."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest

from coordinator.journal import (
    CorruptJournal,
    Journal,
    JournalNotFound,
    MissingSegment,
    WrongCluster,
    WrongReplica,
)
from coordinator.storage import DirectoryInUse
from testkit.journal_builders import (
    DIRECTORY,
    JOURNAL_ID,
    OTHER_CLUSTER_ID,
    SEGMENT_BYTES,
    append_unchecked,
    chain,
    create,
    filled,
    intact_records,
    prepare,
    refused,
    reopen,
    reopen_and_close,
    segment,
)
from testkit.journal_reading import entries
from testkit.memory_storage import MemoryStorage
from viewstamp.format import FormatVersionError
from viewstamp.format.prepare import NO_PARENT, checksum_of
from viewstamp.format.record import FRAME_BYTES, SECTOR_BYTES
from viewstamp.limits import MIB


@pytest.mark.parametrize("replica_count", [1, 3])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_damaged_segment_header_is_repaired(number: int, replica_count: int) -> None:
    """Any other segment identifies the journal, so a damaged header loses nothing."""
    storage = MemoryStorage()
    prepares = filled(storage, [chain(4)], replica_count=replica_count)
    pristine = storage.snapshot()
    storage.flip(segment(number), 40)

    journal, recovery = reopen(storage, replica_count=replica_count)

    assert recovery.repaired_headers == (segment(number),)
    assert storage.snapshot() == pristine
    assert list(entries(journal, 1)) == prepares


def test_without_any_segment_header_nothing_can_be_verified() -> None:
    """When every header is damaged, records and garbage look alike, and opening refuses."""
    storage = MemoryStorage()
    filled(storage, [chain(4)], replica_count=3)
    for number in (1, 2, 3, 4):
        storage.flip(segment(number), 40)
    refused(storage, CorruptJournal, "no segment has an intact header", replica_count=3)


@pytest.mark.parametrize("replica_count", [1, 3])
def test_a_missing_segment_is_noticed(replica_count: int) -> None:
    """A gap in the segment numbers is refused: spares ahead cover the active segment."""
    storage = MemoryStorage()
    filled(storage, [chain(4)], replica_count=replica_count)
    storage.remove(segment(2))
    refused(storage, MissingSegment, "segment-0000000000000002", replica_count=replica_count)


def test_a_missing_first_segment_is_noticed() -> None:
    """The op that replay needs reveals the loss of the oldest segment."""
    storage = MemoryStorage()
    filled(storage, [chain(4)])
    storage.remove(segment(1))
    refused(storage, CorruptJournal, "must be replayed from 1")


def test_an_emptied_log_is_noticed() -> None:
    """Blank segments alone, after others were dropped, are a lost log."""
    storage = MemoryStorage()
    filled(storage, [chain(3)])
    storage.remove(segment(1))
    refused(storage, CorruptJournal, "a record is missing")
    assert reopen_and_close(storage).head_uncertain


@pytest.mark.parametrize("size", [SEGMENT_BYTES - 1, SEGMENT_BYTES - SECTOR_BYTES, SECTOR_BYTES, 0])
def test_a_shortened_segment_is_noticed(size: int) -> None:
    """A file that lost its end is refused even where that end was blank."""
    storage = MemoryStorage()
    filled(storage, [chain(1)])
    storage.replace(segment(1), storage.content(segment(1))[:size])
    refused(storage, CorruptJournal, "bytes")


def test_swapped_segments_are_noticed() -> None:
    """A segment under another one's name is refused."""
    storage = MemoryStorage()
    filled(storage, [chain(6)])
    first, second = storage.content(segment(1)), storage.content(segment(2))
    storage.replace(segment(1), second)
    storage.replace(segment(2), first)
    refused(storage, CorruptJournal, "the header says segment 2")


def test_a_segment_of_another_journal_is_noticed() -> None:
    """A segment of an earlier journal of the same replica is refused by its journal id."""
    storage, other = MemoryStorage(), MemoryStorage()
    filled(storage, [chain(4)])
    identity: Any = {"cluster_id": bytes(range(16)), "replica_id": 0, "replica_count": 1}
    Journal.create(other, DIRECTORY, segment_bytes=SEGMENT_BYTES, **identity)
    storage.replace(segment(2), other.content(segment(2)))
    refused(storage, CorruptJournal, "of journal")


def test_the_journal_of_another_cluster_or_replica_is_refused() -> None:
    """A data directory given to the wrong process is refused, with both names."""
    storage = MemoryStorage()
    filled(storage, [chain(2)], replica_count=3)
    with pytest.raises(WrongCluster, match=OTHER_CLUSTER_ID.hex()):
        reopen(storage, cluster_id=OTHER_CLUSTER_ID)
    refused(storage, WrongReplica, "replica 0, this process is replica 2", replica_id=2)


def test_a_prepare_of_another_cluster_is_refused() -> None:
    """A record whose prepare is of another cluster is not corruption, and must not be replayed."""
    storage = MemoryStorage()
    filled(storage, [[prepare(1, NO_PARENT)]], replica_count=3)
    record = intact_records(storage.content(segment(1)), 1)[0]
    journal, _ = reopen(storage, replica_count=3)
    foreign = prepare(2, record.frame.content_checksum, cluster_id=OTHER_CLUSTER_ID)
    append_unchecked(journal, [foreign])
    journal.close()
    refused(storage, WrongCluster, OTHER_CLUSTER_ID.hex(), replica_count=3)


def test_no_journal_is_not_a_new_journal() -> None:
    """Opening never creates: without segments it says so and makes nothing."""
    storage = MemoryStorage()
    refused(storage, JournalNotFound, "no journal segments")
    storage.make_directory(DIRECTORY)
    refused(storage, JournalNotFound, "no journal segments")
    assert storage.paths() == []


def test_a_newer_journal_is_refused_as_such() -> None:
    """A segment of a later format version is named, not called corrupt."""
    storage = MemoryStorage()
    filled(storage, [chain(1)])
    content = storage.content(segment(2))
    checked = content[16:20] + b"\x02\0" + content[22:SECTOR_BYTES]
    storage.replace(segment(2), checksum_of(checked) + checked + content[SECTOR_BYTES:])
    refused(storage, FormatVersionError, "segment-0000000000000002.*version 2 is unknown")


def test_a_newer_record_is_refused_as_such() -> None:
    """An intact record of a later version is named with its file, and never cut as if torn."""
    storage = MemoryStorage()
    filled(storage, [chain(1)])
    content = storage.content(segment(1))
    frame = content[SECTOR_BYTES : SECTOR_BYTES + FRAME_BYTES]
    checked = frame[16:20] + b"\x04\0" + frame[22:]
    checksum = checksum_of(struct.pack("<16sQQ", JOURNAL_ID, 1, SECTOR_BYTES) + checked)
    rest = content[SECTOR_BYTES + FRAME_BYTES :]
    storage.replace(segment(1), content[:SECTOR_BYTES] + checksum + checked + rest)
    refused(storage, FormatVersionError, "segment-0000000000000001.*record format version 4")


def test_a_directory_in_use_is_refused() -> None:
    """Two processes never share a journal, and the second one learns who holds it."""
    storage = MemoryStorage()
    journal = create(storage)
    with pytest.raises(DirectoryInUse, match=f"{DIRECTORY} is in use by process"):
        reopen(storage)
    journal.close()
    reopen(storage)


def test_half_made_segments_are_removed() -> None:
    """A crash in the making of a segment leaves a file that opening removes without a trace."""
    storage = MemoryStorage()
    filled(storage, [chain(1)])
    storage.replace(segment(5) + ".tmp", b"half")
    reopen(storage)
    assert segment(5) + ".tmp" not in storage.paths()


def test_opening_holds_no_segment_in_the_heap() -> None:
    """Segments go through memory that the system gets back, however large and many they are."""
    storage = MemoryStorage()
    create(storage, segment_bytes=8 * MIB).close()
    tracemalloc.start()
    journal, _ = reopen(storage, segment_bytes=8 * MIB)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    journal.close()
    assert peak_bytes < 4 * MIB
