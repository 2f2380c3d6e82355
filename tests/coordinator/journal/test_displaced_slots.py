"""Slots that the disk wrote to a wrong place of a ring still show which records were durable."""

from __future__ import annotations

import pytest

from testkit.journal_builders import chain
from testkit.journal_kinds import place_of
from testkit.journal_reading import entries
from testkit.memory_storage import MemoryStorage
from testkit.ring_builders import FILE_BYTES, LAYOUT, RING, create_ring, reopen_ring
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.format.ring import SLOT_BYTES

PREPARES = chain(40)
COUNT = 5
FREE = LAYOUT.end - 2 * SECTOR_BYTES


def with_displaced_slots(to_offset: int | None, group: int) -> tuple[MemoryStorage, int]:
    """A ring whose last group's slots lie elsewhere, over its first record for None, and that
    record's place."""
    storage = MemoryStorage()
    journal = create_ring(storage, replica_count=3)
    for each in PREPARES[: COUNT - group]:
        journal.append([each])
    before = storage.content(RING)
    journal.append(PREPARES[COUNT - group : COUNT])
    _, place, _ = place_of(journal, COUNT - group + 1)
    journal.close()
    after = storage.content(RING)
    slots, end = LAYOUT.slots_start, LAYOUT.slots_start + SECTOR_BYTES
    content = after[:slots] + before[slots:end] + after[end:]
    at = place if to_offset is None else to_offset
    content = content[:at] + after[slots:end] + content[at + SECTOR_BYTES :]
    storage.replace(RING, content)
    return storage, place


@pytest.mark.parametrize("group", [1, 2, 3])
def test_slots_over_the_records_that_they_name_prove_them_durable(group: int) -> None:
    """The record is gone, and told as lost at each start until another replica gives it again; what
    came with it in its group stays."""
    storage, _ = with_displaced_slots(None, group)
    lost = COUNT - group + 1
    for _ in range(2):
        journal, recovery = reopen_ring(storage, replica_count=3)
        assert (recovery.cut, journal.missing_ops) == (None, (lost,))
        assert journal.missing_checksums == {lost: PREPARES[lost - 1].checksum}
        for each in PREPARES[lost:COUNT]:
            assert journal.read(each.op) == each
        journal.close()
    journal, _ = reopen_ring(storage, replica_count=3)
    journal.append([PREPARES[lost - 1]])
    assert journal.mark_repaired()
    journal.close()
    journal, recovery = reopen_ring(storage, replica_count=3)
    assert (recovery.holes, list(entries(journal, 1))) == ((), PREPARES[:COUNT])


@pytest.mark.parametrize("to_offset", [0, SECTOR_BYTES, FREE, FILE_BYTES - SECTOR_BYTES])
def test_displaced_slots_are_written_to_their_place(to_offset: int) -> None:
    """They are mended at the next start, before what they lie over is: later damage to a record is
    told although their bytes are gone by then."""
    storage, place = with_displaced_slots(to_offset, 1)
    journal, recovery = reopen_ring(storage, replica_count=3)
    assert (recovery.holes, recovery.repaired_headers) == ((), (RING,))
    assert list(entries(journal, 1)) == PREPARES[:COUNT]
    journal.close()
    content = storage.content(RING)
    blank = bytes(SECTOR_BYTES)
    storage.replace(RING, content[:place] + blank + content[place + SECTOR_BYTES :])
    content = storage.content(RING)
    storage.replace(RING, content[:FREE] + blank + content[FREE + SECTOR_BYTES :])
    assert reopen_ring(storage, replica_count=3)[1].holes == (COUNT,)


def test_a_displaced_slot_and_a_rotten_record_are_told() -> None:
    """The slot in the wrong place alone names the record, and is in its place after the start."""
    storage, place = with_displaced_slots(FREE, 1)
    storage.flip(RING, place + 200)
    for _ in range(2):
        journal, recovery = reopen_ring(storage, replica_count=3)
        assert (recovery.cut, journal.missing_ops) == (None, (COUNT,))
        journal.close()
        content = storage.content(RING)
        blank = bytes(SECTOR_BYTES)
        storage.replace(RING, content[:FREE] + blank + content[FREE + SECTOR_BYTES :])


def test_slots_of_no_known_place_prove_nothing() -> None:
    """Bytes that only look like slots, and slots of another journal, leave a torn end torn."""
    storage, place = with_displaced_slots(FREE, 1)
    storage.flip(RING, place + 200)
    storage.flip(RING, FREE + LAYOUT.slot_of(COUNT) * SLOT_BYTES + 40)
    journal, recovery = reopen_ring(storage, replica_count=3)
    assert recovery.cut is not None
    assert (journal.missing_ops, list(entries(journal, 1))) == ((), PREPARES[: COUNT - 1])
