"""A ring written anew while entries are lost: what shows a loss is never left behind."""

from __future__ import annotations

import pytest

from coordinator.journal import CorruptRecord, NoSpace
from coordinator.journal.ring_journal import RingJournal
from testkit.journal_builders import JOURNAL_ID, chain
from testkit.journal_kinds import place_of
from testkit.journal_reading import entries
from testkit.memory_storage import Loss, MemoryStorage
from testkit.ring_builders import LAYOUT, RING, create_ring, reopen_ring, side_of
from viewstamp.format.prepare import SealedPrepare, encode_prepare
from viewstamp.format.record import SECTOR_BYTES, Frame, RecordKind
from viewstamp.format.ring import SLOT_BYTES, RingLayout, RingSlot, encode_slot

KEPT = chain(3)
# A view change each: in all, entries for several rounds of the ring.
VIEWS = 14
DISCARDED = 3


def of_view(view: int) -> list[SealedPrepare]:
    """Entries that the primary of a view admits behind those that are kept."""
    return chain(DISCARDED, after=KEPT[-1], view=view)


def reopened(storage: MemoryStorage, journal: RingJournal) -> tuple[int, ...]:
    """What is missing after a restart."""
    journal.close()
    again, recovery = reopen_ring(storage, replica_count=3)
    again.close()
    return recovery.holes


def with_rot(both: bool) -> MemoryStorage:
    """A ring whose entry 2 has rotted; with its slot, too, nothing says any more what it was."""
    storage = MemoryStorage()
    journal = create_ring(storage, replica_count=3)
    journal.append(KEPT)
    _, offset, _ = place_of(journal, 2)
    journal.close()
    storage.flip(RING, offset + 200)
    if both:
        storage.flip(RING, offset + 20)
        storage.flip(RING, LAYOUT.slots_start + LAYOUT.slot_of(2) * SLOT_BYTES + 40)
    return storage


def test_a_loss_is_copied_as_what_is_known_of_it() -> None:
    """An entry that is missing takes no other entry's room, and is missing in the copy, with its
    checksum, until it is written again."""
    storage = with_rot(both=False)
    for _ in range(2):
        journal, recovery = reopen_ring(storage, replica_count=3)
        assert (recovery.holes, journal.missing_checksums) == ((2,), {2: KEPT[1].checksum})
        for view in range(1, VIEWS):
            journal.append(of_view(view))
            journal.discard_after(len(KEPT))
        assert journal.records_copied > len(KEPT)
        journal.truncate_before(3)
        journal.close()
        storage.crash(Loss.DROP)
    journal, _ = reopen_ring(storage, replica_count=3)
    journal.append(KEPT[1:2])
    assert journal.mark_repaired()
    assert reopened(storage, journal) == ()
    journal, _ = reopen_ring(storage, replica_count=3)
    assert list(entries(journal, 1)) == KEPT


def test_what_shows_a_loss_holds_nothing_else_back() -> None:
    """Behind a copy, too, a snapshot frees what lies before the loss, and that alone."""
    log, storage = chain(10), MemoryStorage()
    journal = create_ring(storage, replica_count=3)
    journal.append(log)
    _, offset, _ = place_of(journal, 8)
    journal.close()
    storage.flip(RING, offset + 200)
    journal, _ = reopen_ring(storage, replica_count=3)
    journal.append(chain(3, after=log[-1], view=2), use_reserve=True)
    journal.discard_after(10)
    journal.append(chain(3, after=log[-1], view=3), use_reserve=True)
    assert (side_of(storage), journal.first_op) == (1, 1)
    journal.truncate_before(11)
    assert journal.first_op == 9
    base = log[7].checksum
    journal.close()
    journal, recovery = reopen_ring(storage, replica_count=3, replay_op=8, base_checksum=None)
    assert (recovery.holes, journal.missing_checksums) == ((8,), {8: base})


def test_what_shows_an_unknown_loss_is_never_left_behind() -> None:
    """While nobody can say what was lost nothing is written anew, and no room is promised for
    that."""
    storage = with_rot(both=True)
    journal, recovery = reopen_ring(storage, replica_count=3)
    assert recovery.head_uncertain
    before_bytes = journal.entry_bytes
    journal.append([*KEPT[1:2], *of_view(1)])
    journal.discard_after(len(KEPT))
    assert journal.entry_bytes == before_bytes - (DISCARDED + 2) * SECTOR_BYTES
    with pytest.raises(NoSpace):
        for view in range(2, VIEWS):
            journal.append(of_view(view))
            journal.discard_after(len(KEPT))
    assert side_of(storage) == 0
    journal.close()
    journal, recovery = reopen_ring(storage, replica_count=3)
    assert recovery.head_uncertain
    assert journal.mark_repaired()
    journal.append(of_view(VIEWS))
    assert side_of(storage) == 1
    journal.close()
    journal, recovery = reopen_ring(storage, replica_count=3)
    assert (recovery.head_uncertain, recovery.holes) == (False, ())
    assert list(entries(journal, 1)) == [*KEPT, *of_view(VIEWS)]


def test_an_end_that_stays_unused_lets_no_evidence_go() -> None:
    """Room in two pieces is too little for a large record; beside an unknown loss that is final."""
    log = chain(10, bodies=dict.fromkeys(range(5, 10), bytes(5000)) | {10: b""})
    storage = MemoryStorage()
    journal = create_ring(storage, replica_count=3)
    journal.append(log, use_reserve=True)
    _, offset, _ = place_of(journal, 4)
    journal.close()
    for place in (offset + 20, LAYOUT.slots_start + LAYOUT.slot_of(4) * SLOT_BYTES + 40):
        storage.flip(RING, place)
    base = log[2].checksum
    journal, _ = reopen_ring(storage, replica_count=3, replay_op=4, base_checksum=base)
    journal.truncate_before(11)
    assert journal.index.free_after() == 5 * SECTOR_BYTES
    with pytest.raises(NoSpace):
        journal.append(chain(1, after=log[-1], bodies={11: bytes(13_000)}), use_reserve=True)
    journal.close()
    _, recovery = reopen_ring(storage, replica_count=3, replay_op=4, base_checksum=base)
    assert recovery.head_uncertain


def rot_and_fill(journal: RingJournal, storage: MemoryStorage) -> None:
    """Let entry 2 rot in a ring that is nearly full of what was discarded."""
    journal.append(KEPT)
    for view in range(5, 8):
        journal.append(of_view(view)[:2])
        journal.discard_after(len(KEPT))
    _, offset, _ = place_of(journal, 2)
    storage.flip(RING, offset + 200)


@pytest.mark.parametrize("is_alone", [False, True])
def test_an_entry_that_has_rotted_meanwhile_ends_the_copy(is_alone: bool) -> None:
    """It changes nothing, so what only seemed to be rot is read the next time."""
    storage = MemoryStorage()
    journal = create_ring(storage, replica_count=3)
    rot_and_fill(journal, storage)
    journal.is_alone = is_alone
    with pytest.raises(CorruptRecord, match="op 2"):
        journal.append(of_view(3))
    assert side_of(storage) == 0
    storage.flip(RING, place_of(journal, 2)[1] + 200)
    assert reopened(storage, journal) == ()
    journal, _ = reopen_ring(storage, replica_count=3)
    journal.append(of_view(3))
    assert side_of(storage) == 1
    assert list(entries(journal, 1)) == [*KEPT, *of_view(3)]


def test_the_start_after_that_tells_the_loss_and_has_room_for_its_repair() -> None:
    """The others are asked for the entry, which fits as any other one does."""
    storage = MemoryStorage()
    journal = create_ring(storage, replica_count=3)
    rot_and_fill(journal, storage)
    assert reopened(storage, journal) == (2,)
    journal, _ = reopen_ring(storage, replica_count=3)
    journal.append(of_view(3))
    assert (side_of(storage), journal.missing_ops) == (1, (2,))
    journal.append(KEPT[1:2])
    assert journal.mark_repaired()
    assert reopened(storage, journal) == ()
    journal, _ = reopen_ring(storage, replica_count=3)
    assert list(entries(journal, 1)) == [*KEPT, *of_view(3)]


def with_slots_of_a_copy(content: bytes, layout: RingLayout, first_sequence: int) -> bytes:
    """The file after the slots of a copy of all kept entries went one side astray."""
    image = bytearray(layout.slots * SLOT_BYTES)
    for index, each in enumerate(KEPT):
        sequence, length = first_sequence + index, len(encode_prepare(each))
        kind, checksum = RecordKind.PREPARE, each.checksum
        frame = Frame(kind, sequence, sequence - 1, each.op, length, checksum)
        slot = RingSlot(frame, layout.other.start + index * SECTOR_BYTES)
        number = layout.slot_of(sequence)
        raw = encode_slot(slot, journal_id=JOURNAL_ID, number=number)
        image[number * SLOT_BYTES : (number + 1) * SLOT_BYTES] = raw
    end = layout.slots_start + len(image)
    return content[: layout.slots_start] + bytes(image) + content[end:]


@pytest.mark.parametrize(("side", "replica_count"), [(0, 1), (0, 3), (1, 3)])
def test_slots_of_a_copy_that_lie_over_those_in_use_are_none_of_them(
    side: int, replica_count: int
) -> None:
    """The disk wrote them one side off, and the process died: they name places of the other side.
    So those in use are damaged, and their records are there; the next one goes behind these."""
    storage = MemoryStorage()
    journal = create_ring(storage, replica_count=3)
    journal.append(KEPT)
    for view in range(1, VIEWS if side else 1):
        journal.append(of_view(view))
        journal.discard_after(len(KEPT))
        if side_of(storage) == side:
            break
    journal.append(of_view(VIEWS))
    assert side_of(storage) == side
    last_sequence = journal.last_sequence
    journal.close()
    layout = LAYOUT.other if side else LAYOUT
    content = with_slots_of_a_copy(storage.content(RING), layout, last_sequence + 1)
    storage.replace(RING, content)
    journal, recovery = reopen_ring(storage, replica_count=replica_count)
    assert (recovery.faults, recovery.holes) == ((), ())
    assert layout.start < journal.index.tail <= layout.end
    assert list(entries(journal, 1)) == [*KEPT, *of_view(VIEWS)]
