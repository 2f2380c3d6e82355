"""Opening a damaged journal: what is cut, marked, refused and repaired."""

from __future__ import annotations

import pytest

from coordinator.journal import (
    CorruptJournal,
    Fault,
    JournalError,
)
from testkit.journal_builders import (
    append_unchecked,
    chain,
    create,
    filled,
    place,
    prepare,
    refused,
    reopen,
    reopen_and_close,
    segment,
)
from testkit.journal_reading import entries
from testkit.memory_storage import MemoryStorage
from viewstamp.format.record import FRAME_BYTES, SECTOR_BYTES

IN_FRAME, IN_BODY, IN_PADDING = 30, FRAME_BYTES + 130, SECTOR_BYTES - 1


def damage(storage: MemoryStorage, index: int, within: int) -> tuple[str, int]:
    """Flip a byte of the record appended as number `index`, and return where the record is."""
    path, offset = place(index)
    storage.flip(path, offset + within)
    return path, offset


def blank(storage: MemoryStorage, index: int) -> None:
    """Lose the write of a record."""
    path, offset = place(index)
    content = bytearray(storage.content(path))
    content[offset : offset + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    storage.replace(path, bytes(content))


# --- A single replica ---


@pytest.mark.parametrize("within", [IN_FRAME, IN_BODY, IN_PADDING])
def test_a_single_replica_cuts_a_torn_tail(within: int) -> None:
    """Damage in the last group, not known to be committed, is cut, zeroed and overwritten."""
    storage = MemoryStorage()
    prepares = filled(storage, [chain(2), chain(2, after=chain(2)[-1])])
    path, offset = damage(storage, 2, within)

    journal, recovery = reopen(storage)

    assert recovery.cut is not None
    assert (recovery.cut.path, recovery.cut.offset, recovery.cut.op) == (path, offset, 3)
    assert recovery.head == prepares[1].header
    assert not any(storage.content(path)[offset:])
    assert not any(storage.content(segment(2))[SECTOR_BYTES:])
    journal.append(chain(2, after=prepares[1], view=2))
    journal.close()
    journal, recovery = reopen(storage)
    assert recovery.cut is None
    assert list(entries(journal, 1)) == [*prepares[:2], *chain(2, after=prepares[1], view=2)]


def test_a_lost_write_before_a_kept_one_is_a_torn_tail() -> None:
    """A later record of an unsynced group may survive alone; it is cut with the lost one."""
    storage = MemoryStorage()
    prepares = filled(storage, [chain(1), chain(4, after=chain(1)[0])])
    blank(storage, 2)

    _, recovery = reopen(storage)

    assert recovery.head == prepares[1].header
    assert recovery.cut is not None
    assert (recovery.cut.path, recovery.cut.offset, recovery.cut.op) == (*place(2), 3)
    assert not any(storage.content(segment(2))[SECTOR_BYTES:])


@pytest.mark.parametrize("within", [IN_FRAME, IN_BODY, IN_PADDING])
@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_a_single_replica_refuses_damage_below_a_later_group(index: int, within: int) -> None:
    """Damage is named exactly and never cut if a later group proves that it was synced."""
    storage = MemoryStorage()
    prepares = chain(5)
    filled(storage, [prepares[:2], prepares[2:4], prepares[4:]])
    path, offset = damage(storage, index, within)

    error = refused(storage, CorruptJournal, "Ways out: .*copy.*disaster restore")

    assert isinstance(error, CorruptJournal)
    assert (error.path, error.offset, error.op) == (path, offset, index + 1)


@pytest.mark.parametrize("commit_max", [3, 4])
def test_a_single_replica_refuses_damage_that_the_superblock_knows_committed(
    commit_max: int,
) -> None:
    """A damaged last record is corruption if the superblock says that its op was committed."""
    storage = MemoryStorage()
    filled(storage, [chain(3)])
    damage(storage, 2, IN_BODY)
    refused(storage, CorruptJournal, "op 3", commit_max=commit_max)


def test_a_single_replica_refuses_damage_that_a_record_knows_committed() -> None:
    """A commit that a later record of the same group mentions protects an op as a sync does."""
    storage = MemoryStorage()
    filled(storage, [chain(3, commit=2)])
    damage(storage, 1, IN_BODY)
    refused(storage, CorruptJournal, "op 2")


@pytest.mark.parametrize("lost", [[4], [3, 4], [0, 1, 2, 3, 4]])
def test_committed_records_that_vanished_are_corruption(lost: list[int]) -> None:
    """The superblock's commit_max reveals writes that the disk lost without a trace."""
    storage = MemoryStorage()
    filled(storage, [chain(5)])
    for index in lost:
        blank(storage, index)
    refused(storage, CorruptJournal, "op 5 was committed", commit_max=5)


def test_the_log_must_reach_back_to_the_snapshot() -> None:
    """A log is refused if it begins after the op that replay needs, or ends before it."""
    storage = MemoryStorage()
    journal = create(storage)
    for one in chain(30):
        journal.append([one])
    journal.truncate_before(12)
    journal.close()
    refused(storage, CorruptJournal, "must be replayed from 9", replay_op=9)
    refused(storage, CorruptJournal, "op 31 was committed", replay_op=32)
    assert reopen(storage, replay_op=10)[1].first_op == 10


def test_a_broken_chain_is_corruption() -> None:
    """A single replica refuses intact records that do not chain, and names the op."""
    storage = MemoryStorage()
    journal = create(storage, replica_count=3)
    append_unchecked(journal, [*chain(2), prepare(3, bytes(range(16)))])
    journal.close()
    refused(storage, CorruptJournal, "op 3 does not continue")
    refused(storage, CorruptJournal, "op 3 is intact, but is not the child", replica_count=3)


def test_a_gap_in_ops_is_corruption() -> None:
    """A single replica has every op from its first to its head."""
    storage = MemoryStorage()
    journal = create(storage, replica_count=3)
    prepares = chain(4)
    append_unchecked(journal, [prepares[0], prepares[3]])
    journal.close()
    refused(storage, CorruptJournal, "op 4 does not continue")


# --- A cluster member ---


@pytest.mark.parametrize(("index", "torn"), [(0, False), (1, False), (2, True), (3, True)])
@pytest.mark.parametrize("within", [IN_BODY, IN_PADDING])
def test_a_cluster_member_marks_damage_and_keeps_the_rest(
    index: int, torn: bool, within: int
) -> None:
    """A damaged record is reported with op and identity, and nothing around it is changed."""
    storage = MemoryStorage()
    prepares = chain(4)
    filled(storage, [prepares[:2], prepares[2:]], replica_count=3)
    path, offset = damage(storage, index, within)
    before = storage.snapshot()

    journal, recovery = reopen(storage, replica_count=3)

    assert [f.torn for f in recovery.faults] == [torn]
    (fault,) = recovery.faults
    assert fault == Fault(
        path, offset, index + 1, index + 1, index + 1, prepares[index].checksum, torn, fault.reason
    )
    assert recovery.holes == (index + 1,)
    assert not recovery.head_uncertain
    assert storage.snapshot() == before
    assert journal.read(index + 1) is None
    assert [journal.read(p.op) for p in prepares if p.op != index + 1] == [
        p for p in prepares if p.op != index + 1
    ]


def test_a_repaired_op_is_no_fault_any_more() -> None:
    """Appending the op again ends its fault, even for later restarts."""
    storage = MemoryStorage()
    prepares = filled(storage, [chain(2), chain(2, after=chain(2)[-1])], replica_count=3)
    damage(storage, 1, IN_BODY)
    journal, recovery = reopen(storage, replica_count=3)
    assert [fault.op for fault in recovery.faults] == [2]
    journal.append([prepares[1]])
    journal.close()

    journal, recovery = reopen(storage, replica_count=3)

    assert recovery.faults == ()
    assert list(entries(journal, 1)) == prepares


def test_a_fault_of_unknown_op_makes_the_head_uncertain_until_repaired() -> None:
    """A record whose frame is gone may have held any op, until the cluster's log is held again."""
    storage = MemoryStorage()
    prepares = filled(storage, [chain(2), chain(1, after=chain(2)[-1])], replica_count=3)
    damage(storage, 2, IN_FRAME)
    journal, recovery = reopen(storage, replica_count=3)
    (fault,) = recovery.faults
    assert (fault.op, fault.checksum, fault.first_sequence) == (None, None, 3)
    assert recovery.head_uncertain
    journal.append(prepares)
    journal.close()
    assert reopen_and_close(storage).head_uncertain

    journal, _ = reopen(storage, replica_count=3)
    journal.mark_repaired()
    journal.close()

    journal, recovery = reopen(storage, replica_count=3)
    assert recovery.faults == ()
    assert not recovery.head_uncertain
    before = storage.snapshot()
    journal.mark_repaired()
    assert storage.snapshot() == before
    assert list(entries(journal, 1)) == prepares


def test_later_rot_is_not_covered_by_an_old_repair() -> None:
    """A repair forgives only the sequences lost at that time; new damage is a new fault."""
    storage = MemoryStorage()
    prepares = filled(storage, [chain(2), chain(2, after=chain(2)[-1])], replica_count=3)
    damage(storage, 3, IN_FRAME)
    journal, _ = reopen(storage, replica_count=3)
    journal.append(prepares)
    assert journal.mark_repaired()
    journal.close()
    assert reopen_and_close(storage).faults == ()
    damage(storage, 2, IN_FRAME)
    assert [f.first_sequence for f in reopen_and_close(storage).faults] == [3]


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1), (1, 2, 3), (0, 2, 4), (3, 4)])
def test_frames_that_rot_in_the_middle_leave_the_head_certain(lost: tuple[int, ...]) -> None:
    """A gap of so many records makes the same number of ops behind it faulty, and no others.

    Appending them again ends the fault; a repaired record is not needed for that.
    """
    storage = MemoryStorage()
    prepares = filled(storage, [chain(2), chain(4, after=chain(2)[-1])], replica_count=3)
    for index in lost:
        damage(storage, index, IN_FRAME)
    ops = tuple(index + 1 for index in lost)

    journal, recovery = reopen(storage, replica_count=3)

    assert tuple((fault.first_sequence, fault.op) for fault in recovery.faults) == tuple(
        zip(ops, ops, strict=True)
    )
    assert (recovery.holes, recovery.doubtful, recovery.head_uncertain) == (ops, (), False)
    assert (journal.missing_ops, journal.head_uncertain) == (ops, False)
    for op in ops:
        journal.append([prepares[op - 1]])
    assert journal.mark_repaired()
    journal.close()
    journal, recovery = reopen(storage, replica_count=3)
    assert (recovery.faults, recovery.head_uncertain) == ((), False)
    assert list(entries(journal, 1)) == prepares


@pytest.mark.parametrize(("within", "known"), [(IN_FRAME, False), (IN_BODY, True)])
def test_a_cluster_member_appends_behind_a_damaged_tail(within: int, known: bool) -> None:
    """New records never overwrite damaged ones, whose loss is known until their op is replaced."""
    storage = MemoryStorage()
    prepares = filled(storage, [chain(1), chain(1, after=chain(1)[0])], replica_count=3)
    path, offset = damage(storage, 1, within)
    damaged = storage.content(path)[offset : offset + SECTOR_BYTES]

    journal, recovery = reopen(storage, replica_count=3)
    assert recovery.faults[0].torn
    assert recovery.head_uncertain != known
    assert recovery.holes == ((2,) if known else (1,))
    extra = chain(1, after=prepares[0], view=2)
    journal.append([prepares[0], *extra])
    journal.close()

    assert storage.content(path)[offset : offset + SECTOR_BYTES] == damaged
    journal, recovery = reopen(storage, replica_count=3)
    faults = [] if known else [(2, 2)]
    assert [(f.first_sequence, f.last_sequence) for f in recovery.faults] == faults
    assert recovery.head_uncertain != known
    assert journal.head == extra[0].header


def test_a_cluster_member_reports_what_its_dropped_records_leave() -> None:
    """Garbage where nothing was ever written is reported, and harms nothing."""
    storage = MemoryStorage()
    large = bytes(2 * SECTOR_BYTES)
    prepares = filled(storage, [chain(2, bodies={2: large})])
    storage.flip(segment(1), 2 * SECTOR_BYTES + 5)

    journal, recovery = reopen(storage)

    assert recovery.stray_sectors == ((segment(1), 2 * SECTOR_BYTES),)
    assert list(entries(journal, 1)) == prepares


# --- Every byte ---


def interesting_bytes() -> list[tuple[str, int]]:
    """Every byte that is not plain padding, and a sample of the padding."""
    storage = MemoryStorage()
    filled(storage, [chain(2), chain(2, after=chain(2)[-1])])
    positions = []
    for path in storage.paths():
        content = storage.content(path)
        positions += [
            (path, offset)
            for offset in range(len(content))
            if content[offset] or offset % SECTOR_BYTES < 256 or offset % 509 == 0
        ]
    return positions


@pytest.mark.long
@pytest.mark.parametrize("replica_count", [1, 3])
def test_no_flipped_byte_goes_unnoticed(replica_count: int) -> None:
    """Whatever byte of a journal flips, opening refuses or reports it, and never shows other data.

    A single replica may lose the last group alone, which it cannot tell from a torn one.
    """
    groups = [chain(2), chain(2, after=chain(2)[-1])]
    storage = MemoryStorage()
    prepares = filled(storage, groups, replica_count=replica_count)
    pristine = storage.snapshot()
    for path, offset in interesting_bytes():
        storage.replace(path, pristine[path])
        storage.flip(path, offset, 1 << offset % 8)
        try:
            journal, recovery = reopen(storage, replica_count=replica_count)
        except JournalError:
            assert replica_count == 1
            storage.restart_process()
        else:
            reported = (recovery.faults, recovery.cut, recovery.repaired_headers)
            assert any(reported) or recovery.stray_sectors, (path, offset)
            held = [journal.read(op) for op in range(1, 5)]
            expected = [p if h is not None else None for p, h in zip(prepares, held, strict=True)]
            assert held == expected
            assert held[:2] == prepares[:2] or replica_count > 1
            journal.close()
        for other, content in pristine.items():
            storage.replace(other, content)
