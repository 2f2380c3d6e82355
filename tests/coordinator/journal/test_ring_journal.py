"""The ring journal: what its parts prove together, how it goes round, and what it keeps free."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from coordinator.journal import CorruptJournal, NoSpace
from coordinator.journal.ring_index import RingIndex
from coordinator.journal.ring_journal import RingJournal, entry_reserve_bytes_of, reserve_bytes_of
from coordinator.journal.ring_table import (
    RING_DECISIONS,
    PlaceState,
    RingVerdict,
    SlotState,
    ring_verdict,
)
from coordinator.journal.superblock import SuperblockMark
from testkit.journal_builders import chain
from testkit.journal_kinds import place_of
from testkit.journal_reading import entries
from testkit.memory_storage import Loss, MemoryStorage
from testkit.ring_builders import (
    DATA_SECTORS,
    FILE_BYTES,
    LAYOUT,
    RECORD_BYTES_MAX,
    RING,
    RING_BYTES,
    create_ring,
    reopen_ring,
)
from viewstamp.format.prepare import SealedPrepare
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.format.ring import SLOT_BYTES

RESERVE_SECTORS = reserve_bytes_of(RING_BYTES, RECORD_BYTES_MAX) // SECTOR_BYTES
ENTRY_RESERVE_SECTORS = entry_reserve_bytes_of(RING_BYTES, RECORD_BYTES_MAX) // SECTOR_BYTES
PREPARES = chain(60)


def filled_ring(count: int, replica_count: int = 3) -> MemoryStorage:
    """A ring with so many entries of one sector each, closed."""
    storage = MemoryStorage()
    journal = create_ring(storage, replica_count=replica_count)
    for each in PREPARES[:count]:
        journal.append([each])
    journal.close()
    return storage


def slot_offset(sequence: int) -> int:
    """Where the slot of a record lies."""
    return LAYOUT.slots_start + LAYOUT.slot_of(sequence) * SLOT_BYTES


def sector_filled(storage: MemoryStorage, offset: int, filling: bytes) -> None:
    """Replace a sector of the ring."""
    content = storage.content(RING)
    spoilt = content[:offset] + filling * SECTOR_BYTES + content[offset + SECTOR_BYTES :]
    storage.replace(RING, spoilt)


def test_exactly_one_row_of_the_table_matches_any_facts() -> None:
    """The table is complete and without overlap."""
    for slot, place, is_mark in product(SlotState, PlaceState, (False, True)):
        rows = [row for row in RING_DECISIONS if row.matches(slot, place, is_mark)]
        assert len(rows) == 1
        assert ring_verdict(slot, place, is_mark=is_mark) is rows[0].verdict


def test_only_what_no_slot_names_is_torn() -> None:
    """A record that a slot names was durable: whatever is left of it, it is not cut off."""
    torn = {row.slot for row in RING_DECISIONS if row.verdict is RingVerdict.TORN}
    assert torn == {SlotState.EARLIER}
    rotten = {row.slot for row in RING_DECISIONS if row.verdict is RingVerdict.ROTTEN}
    assert rotten == {SlotState.NAMES}


def test_slots_are_written_behind_their_records() -> None:
    """An append is a write and a sync of the records, then a write and a sync of the slots."""
    storage = MemoryStorage()
    journal = create_ring(storage)
    storage.log.clear()
    journal.append(PREPARES[:3])
    assert storage.log == [f"write {RING}", f"sync {RING}"] * 2


def test_the_floor_rises_in_both_copies_before_anything_is_written_over() -> None:
    """Freeing is two writes, each with its sync, and changes no record."""
    storage = filled_ring(8)
    journal, _ = reopen_ring(storage, replica_count=3)
    before = storage.content(RING)
    storage.log.clear()
    assert journal.truncate_before(6) > 0
    assert storage.log == [f"write {RING}", f"sync {RING}"] * 2
    after = storage.content(RING)
    changed = {at // SECTOR_BYTES for at in range(FILE_BYTES) if before[at] != after[at]}
    assert changed == {1, FILE_BYTES // SECTOR_BYTES - 1}


def test_a_full_ring_changes_nothing_and_keeps_its_reserve() -> None:
    """Ordinary entries stop in the middle of the reserve; what a snapshot journals still fits, and
    a snapshot makes room for more. The file never grows."""
    storage = MemoryStorage()
    journal = create_ring(storage, replica_count=3)
    usable = DATA_SECTORS - ENTRY_RESERVE_SECTORS
    for each in PREPARES[:usable]:
        journal.append([each])
        # Commands of clients leave a band free for entries of other primaries.
        left_bytes = (DATA_SECTORS - each.op) * SECTOR_BYTES
        assert journal.entry_bytes == left_bytes - ENTRY_RESERVE_SECTORS * SECTOR_BYTES
        for_clients_bytes = left_bytes - 2 * RESERVE_SECTORS * SECTOR_BYTES
        assert journal.space().free_bytes == max(0, for_clients_bytes)
        assert journal.space().reserve_intact
    assert journal.band_bytes == RESERVE_SECTORS * SECTOR_BYTES
    before = storage.content(RING)
    with pytest.raises(NoSpace, match="no snapshot covers"):
        journal.append([PREPARES[usable]])
    assert storage.content(RING) == before
    assert journal.space().free_bytes == 0
    for each in PREPARES[usable : usable + ENTRY_RESERVE_SECTORS - 1]:
        journal.append([each], use_reserve=True)
    assert not journal.space().reserve_intact
    journal.truncate_before(usable)
    journal.append(PREPARES[DATA_SECTORS - 1 : DATA_SECTORS + 2])
    assert list(entries(journal, usable)) == PREPARES[usable - 1 : DATA_SECTORS + 2]
    assert len(storage.content(RING)) == FILE_BYTES


def test_a_snapshot_is_due_at_half_of_the_ring() -> None:
    """The other half lasts until the snapshot completes."""
    storage = MemoryStorage()
    journal = create_ring(storage, replica_count=3)
    due = []
    for each in PREPARES[: DATA_SECTORS // 2]:
        due.append(journal.is_snapshot_due)
        journal.append([each])
    assert not any(due)
    assert journal.is_snapshot_due


@pytest.mark.parametrize("seed", range(6))
def test_no_needed_record_is_written_over(seed: int) -> None:
    """Entries of any size go round many times, are freed and reopened: what is not freed is there,
    and the room that is told is the room that there is."""
    random = Random(seed)
    bodies = {op: random.randbytes(random.choice((5, 3000, 6000))) for op in range(1, 200)}
    prepares = chain(199, bodies=bodies)
    storage = MemoryStorage()
    journal: RingJournal = create_ring(storage, replica_count=3)
    head, freed, refused = 0, 1, 0
    while head < len(prepares) - 4:
        group = prepares[head : head + random.randint(1, 4)]
        try:
            journal.append(group)
            head += len(group)
        except NoSpace:
            refused += 1
            freed = random.randint(min(freed + 1, head), head)
            journal.truncate_before(freed)
        assert list(entries(journal, freed)) == prepares[freed - 1 : head]
        assert 0 <= journal.index.free_after() <= LAYOUT.end - LAYOUT.start
        if random.random() < 0.2:
            journal.close()
            journal, recovery = _reopened(storage, prepares, freed)
            assert recovery == ((), ())
    assert refused > 10


def _reopened(
    storage: MemoryStorage, prepares: list[SealedPrepare], freed: int
) -> tuple[RingJournal, tuple[tuple[object, ...], tuple[int, ...]]]:
    checksum = prepares[freed - 2].checksum if freed > 1 else None
    journal, recovery = reopen_ring(
        storage, replica_count=3, replay_op=freed, base_checksum=checksum
    )
    return journal, (recovery.faults, recovery.holes)


def test_a_ring_full_to_its_last_sector_differs_from_an_empty_one() -> None:
    """One sector always stays free, wherever the oldest record lies."""
    for start in range(DATA_SECTORS):
        storage = MemoryStorage()
        journal = create_ring(storage, replica_count=3)
        for each in PREPARES[:start]:
            journal.append([each], use_reserve=True)
            journal.truncate_before(each.op)
        head = start
        with pytest.raises(NoSpace):
            while True:
                journal.append([PREPARES[head]], use_reserve=True)
                head += 1
        index: RingIndex = journal.index
        assert index.free_after() <= SECTOR_BYTES
        needed = max(start, 1)
        assert list(entries(journal, needed)) == PREPARES[needed - 1 : head]


def test_covered_entries_stay_until_their_room_is_needed() -> None:
    """The last ones stay for replicas a little behind, count as free, and go before an append is
    refused."""
    storage = MemoryStorage()
    journal = create_ring(storage, replica_count=3)
    for each in PREPARES[:8]:
        journal.append([each])
    journal.truncate_before(8)
    kept = DATA_SECTORS // 4
    assert journal.first_op == 8 - kept + 1
    usable = DATA_SECTORS - ENTRY_RESERVE_SECTORS - 1
    assert journal.entry_bytes == usable * SECTOR_BYTES
    for each in PREPARES[8 : 8 + usable]:
        journal.append([each])
    assert journal.first_op == 8
    assert list(entries(journal, 8)) == PREPARES[7 : 8 + usable]
    with pytest.raises(NoSpace):
        journal.append([PREPARES[8 + usable]])


@pytest.mark.parametrize("lost", [(3,), (3, 10)])
def test_the_end_of_a_repair_frees_what_it_held_back(lost: tuple[int, ...]) -> None:
    """A snapshot covers records that an unsettled loss still needs: they go once it is settled, by
    a repair or by a cut, although nobody says again what is covered."""
    storage = filled_ring(10)
    journal, _ = reopen_ring(storage, replica_count=3)
    places = [place_of(journal, op)[1] for op in lost]
    journal.close()
    for offset in places:
        sector_filled(storage, offset, b"\x55")
    journal, _ = reopen_ring(storage, replica_count=3)
    journal.truncate_before(9)
    assert (journal.missing_ops, journal.header(5)) == (lost, PREPARES[4].header)
    journal.append(PREPARES[2:3])
    assert journal.is_settled == (lost == (3,))
    assert (journal.header(5) is None) == journal.is_settled
    journal.discard_after(9)
    assert journal.is_settled
    assert journal.header(5) is None
    assert list(entries(journal, 9)) == PREPARES[8:9]
    assert journal.entry_bytes > 0


# --- Damage ---


def test_a_cut_that_has_rotted_is_restored_from_its_slot() -> None:
    """A mark is whole in its slot, so that what was discarded stays away."""
    storage = filled_ring(4)
    journal, _ = reopen_ring(storage, replica_count=3)
    offset = journal.index.tail
    journal.discard_after(2)
    journal.close()
    for byte in (0, 30, 60):
        spoilt = storage.copy()
        spoilt.flip(RING, offset + byte)
        for _ in range(2):
            journal, recovery = reopen_ring(spoilt, replica_count=3)
            assert (recovery.faults, recovery.holes) == ((), ())
            assert list(entries(journal, 1)) == PREPARES[:2]
            journal.close()
        spoilt.flip(RING, slot_offset(5) + 40)
        journal, recovery = reopen_ring(spoilt, replica_count=3)
        assert recovery.repaired_headers == (RING,)
        assert list(entries(journal, 1)) == PREPARES[:2]


def test_a_restart_that_has_rotted_is_restored_from_its_slot() -> None:
    """The content of a restart is in its slot, too."""
    storage = filled_ring(4)
    journal, _ = reopen_ring(storage, replica_count=3)
    offset = journal.index.tail
    journal.restart_at(9, PREPARES[8].checksum)
    journal.append(PREPARES[9:11])
    journal.close()
    sector_filled(storage, offset, b"\x55")
    for _ in range(2):
        journal, recovery = reopen_ring(
            storage, replica_count=3, replay_op=10, base_checksum=PREPARES[8].checksum
        )
        assert (recovery.faults, journal.restart_op) == ((), 9)
        assert list(entries(journal, 10)) == PREPARES[9:11]
        journal.close()


def test_a_record_and_its_slot_both_rotten_are_told() -> None:
    """Two damages leave no identity, so a member does not vote as if it knew its end."""
    for filling in (b"\0", b"\x55"):
        storage = filled_ring(5)
        journal, _ = reopen_ring(storage, replica_count=3)
        _, offset, _ = place_of(journal, 3)
        journal.close()
        sector_filled(storage, offset, filling)
        storage.flip(RING, slot_offset(3) + 40)
        for _ in range(2):
            journal, recovery = reopen_ring(storage, replica_count=3)
            assert recovery.head_uncertain
            assert 3 in recovery.holes
            journal.close()


def test_a_last_record_that_may_have_rotted_is_told_at_each_start() -> None:
    """With its slot damaged, too, it may be torn; a start does not turn that doubt into a tear."""
    storage = filled_ring(5)
    journal, _ = reopen_ring(storage, replica_count=3)
    _, offset, _ = place_of(journal, 5)
    journal.close()
    storage.flip(RING, slot_offset(5) + 40)
    storage.flip(RING, offset + 200)
    for _ in range(3):
        journal, recovery = reopen_ring(storage, replica_count=3)
        assert recovery.cut is None
        assert (recovery.holes, journal.missing_checksums) == ((5,), {5: PREPARES[4].checksum})
        journal.close()
    # Nobody else can say: a lone replica cuts, as with segments, unless somebody knows of it.
    assert reopen_ring(storage.copy(), commit_max=1)[1].cut is not None
    with pytest.raises(CorruptJournal):
        reopen_ring(storage, commit_max=5)


def test_the_last_record_and_its_slot_both_rotten_are_told() -> None:
    """Garbage behind a damaged slot may have been a record; only a place that provably holds an
    earlier record, or none, is taken for one that was never written, unless the slot itself tells
    what it held."""
    storage = filled_ring(5)
    journal, _ = reopen_ring(storage, replica_count=3)
    _, offset, _ = place_of(journal, 5)
    journal.close()
    for filling, damaged, is_told in (
        (b"\x55", 1, True),
        (b"\0", 1, True),
        (b"\x55", 2, True),
        (b"\0", 2, False),
    ):
        spoilt = storage.copy()
        for byte in range(damaged):
            spoilt.flip(RING, slot_offset(5) + 40 + byte)
        sector_filled(spoilt, offset, filling)
        journal, recovery = reopen_ring(spoilt, replica_count=3)
        assert recovery.head_uncertain == is_told
        journal.append([PREPARES[op - 1] for op in sorted({*recovery.holes, 5})])
        assert journal.mark_repaired()
        journal.close()
        spoilt.crash(Loss.DROP)
        journal, recovery = reopen_ring(spoilt, replica_count=3)
        assert (recovery.head_uncertain, recovery.holes) == (False, ())
        assert list(entries(journal, 1)) == PREPARES[:5]


def test_a_record_that_the_superblock_knows_of_and_the_ring_does_not_is_told() -> None:
    """The disk lost what it had synced: a member may have acknowledged it."""
    storage = filled_ring(5)
    journal, _ = reopen_ring(storage, replica_count=3)
    _, offset, _ = place_of(journal, 5)
    journal.close()
    sector_filled(storage, offset, b"\0")
    content = storage.content(RING)
    slot = slot_offset(5)
    storage.replace(RING, content[:slot] + bytes(SLOT_BYTES) + content[slot + SLOT_BYTES :])
    assert reopen_ring(storage.copy(), replica_count=3)[1].faults == ()
    _, recovery = reopen_ring(
        storage, replica_count=3, superblock=SuperblockMark(1, journal_sequence=5)
    )
    assert recovery.head_uncertain


def test_a_ring_far_behind_its_superblock_is_refused() -> None:
    """Up to a quarter of a ring may have been lost with its end; more is an older copy."""
    storage = filled_ring(5)
    before = storage.snapshot()
    quarter = DATA_SECTORS // 4
    with pytest.raises(CorruptJournal, match="older copy of the ring"):
        reopen_ring(
            storage, replica_count=3, superblock=SuperblockMark(1, journal_sequence=6 + quarter)
        )
    assert storage.snapshot() == before
    mark = SuperblockMark(1, journal_sequence=5 + quarter)
    for _ in range(2):
        journal, recovery = reopen_ring(storage, replica_count=3, superblock=mark)
        assert [(each.first_sequence, each.last_sequence) for each in recovery.faults] == [
            (6, 5 + quarter)
        ]
        journal.close()
    # No ring has records of which the first is still needed and the last had no slot.
    storage = filled_ring(3)
    journal, _ = reopen_ring(storage, replica_count=3)
    for each in PREPARES[3 : DATA_SECTORS - 1]:
        journal.append([each], use_reserve=True)
    journal.close()
    for known, is_refused in ((DATA_SECTORS, False), (DATA_SECTORS + 1, True)):
        refusals = list[CorruptJournal]()
        try:
            mark = SuperblockMark(1, journal_sequence=known)
            reopen_ring(storage.copy(), replica_count=3, superblock=mark)
        except CorruptJournal as error:
            refusals.append(error)
        assert bool(refusals) == is_refused


def test_nothing_is_looked_for_behind_a_ring_without_free_slots() -> None:
    """The slot behind the last one is that of the first record, and no doubt if it is damaged."""
    storage = MemoryStorage()
    journal = create_ring(storage, replica_count=3)
    for each in PREPARES[: DATA_SECTORS - 1]:
        journal.append([each], use_reserve=True)
    sector_filled(storage, journal.index.tail, b"\x55")
    journal.close()
    for byte in (40, 41):
        storage.flip(RING, slot_offset(1) + byte)
    mark = SuperblockMark(1, journal_sequence=DATA_SECTORS)
    _, recovery = reopen_ring(storage, replica_count=3, superblock=mark)
    assert [each.first_sequence for each in recovery.faults] == [DATA_SECTORS]


def test_a_ring_cut_to_almost_nothing_is_refused() -> None:
    """However short the file is, the start says so."""
    for sectors in range(6):
        storage = filled_ring(2)
        storage.replace(RING, storage.content(RING)[: sectors * SECTOR_BYTES])
        with pytest.raises(CorruptJournal):
            reopen_ring(storage, replica_count=3)


def test_damage_to_what_a_snapshot_covers_stops_no_lone_replica() -> None:
    """Nothing of it is needed, and a ring has no segment that has to go first."""
    storage = filled_ring(8, replica_count=1)
    for op in (1, 4, 5):
        spoilt = storage.copy()
        journal, _ = reopen_ring(spoilt)
        _, offset, _ = place_of(journal, op)
        journal.close()
        sector_filled(spoilt, offset, b"\x55")
        with pytest.raises(CorruptJournal):
            reopen_ring(spoilt)
        journal, recovery = reopen_ring(spoilt, replay_op=6, base_checksum=PREPARES[4].checksum)
        assert recovery.faults == ()
        assert list(entries(journal, 6)) == PREPARES[5:8]


def test_a_lone_replica_refuses_rot_of_its_very_last_record() -> None:
    """Its slot says that it was durable; the superblock need not know of it."""
    storage = filled_ring(5, replica_count=1)
    journal, _ = reopen_ring(storage)
    _, offset, _ = place_of(journal, 5)
    journal.close()
    storage.flip(RING, offset + 200)
    with pytest.raises(CorruptJournal, match="op 5"):
        reopen_ring(storage, commit_max=1)


def test_evidence_of_a_loss_is_not_freed() -> None:
    """Until a loss is repaired, no room is freed that would let a restart forget it."""
    storage = filled_ring(8)
    storage.flip(RING, slot_offset(4) + 40)
    journal, _ = reopen_ring(storage, replica_count=3)
    _, offset, _ = place_of(journal, 4)
    journal.close()
    sector_filled(storage, offset, b"\0")
    storage.flip(RING, slot_offset(4) + 40)
    journal, recovery = reopen_ring(storage, replica_count=3)
    assert recovery.head_uncertain
    journal.truncate_before(8)
    journal.close()
    assert reopen_ring(storage, replica_count=3)[1].head_uncertain
