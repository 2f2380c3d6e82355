"""What a journal promises, whatever kind it is: every test here runs against all kinds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.journal import (
    CorruptJournal,
    CorruptRecord,
    JournalExists,
    JournalFailed,
    JournalNotFound,
    NoSpace,
    SuperblockOlder,
    WrongCluster,
    WrongReplica,
)
from coordinator.journal.interface import ReplicaJournal
from coordinator.storage import DirectoryInUse
from testkit.journal_builders import OTHER_CLUSTER_ID, SEGMENT_BYTES, chain, prepare
from testkit.journal_kinds import KINDS, JournalKind, place_of
from testkit.journal_reading import entries
from testkit.memory_storage import Loss, MemoryStorage, SimulatedCrash

pytestmark = pytest.mark.parametrize("kind", KINDS, ids=[each.name for each in KINDS])
PREPARES = chain(12, bodies={3: b"x" * 900})


def written(kind: JournalKind, count: int, replica_count: int = 3) -> MemoryStorage:
    """A journal with so many entries, in groups of two, closed."""
    storage = MemoryStorage()
    journal = kind.create(storage, replica_count=replica_count)
    for start in range(0, count, 2):
        journal.append(PREPARES[start : min(start + 2, count)])
    journal.close()
    return storage


def flipped(kind: JournalKind, storage: MemoryStorage, op: int, byte: int) -> None:
    """Damage one byte of the record of an op."""
    journal, _ = kind.reopen_member(storage)
    path, offset, _ = place_of(journal, op)
    journal.close()
    storage.flip(path, offset + byte)


def test_appended_prepares_are_read_back(kind: JournalKind) -> None:
    """An entry is found by op, as a header and in order, before and after a restart."""
    storage = MemoryStorage()
    journal = kind.create(storage)
    journal.append(PREPARES[:2])
    journal.append(PREPARES[2:5])
    before: ReplicaJournal = journal
    for opened in (before, None):
        if opened is None:
            before.close()
            opened, recovery = kind.reopen(storage)
            assert (recovery.head, recovery.faults) == (PREPARES[4].header, ())
        assert list(entries(opened, 1)) == PREPARES[:5]
        assert opened.head == PREPARES[4].header
        assert (opened.first_op, opened.last_sequence, opened.durable_sequence) == (1, 5, 5)
        assert opened.headers(4, 9) == [each.header for each in PREPARES[3:5]]
        assert opened.read(6) is None


def test_a_new_journal_is_empty(kind: JournalKind) -> None:
    """Nothing is held, nothing is missing, and a second process cannot open it."""
    storage = MemoryStorage()
    journal = kind.create(storage)
    assert (journal.head, journal.first_op, journal.first_available_op) == (None, 0, 1)
    assert (journal.missing_ops, journal.is_settled, journal.last_sequence) == ((), True, 0)
    with pytest.raises(DirectoryInUse):
        kind.reopen(storage)


def test_what_does_not_continue_the_log_is_refused(kind: JournalKind) -> None:
    """Gaps, other parents and other clusters raise, and leave nothing behind."""
    storage = MemoryStorage()
    journal = kind.create(storage, replica_count=3)
    journal.append(PREPARES[:2])
    for wrong in (
        PREPARES[3],
        prepare(3, b"p" * 16),
        prepare(3, PREPARES[1].checksum, cluster_id=OTHER_CLUSTER_ID),
        prepare(2, PREPARES[0].checksum, view=7),
    ):
        with pytest.raises(ValueError, match=f"op {wrong.op}"):
            journal.append([wrong])
    assert list(entries(journal, 1)) == PREPARES[:2]


def test_what_was_discarded_stays_away(kind: JournalKind) -> None:
    """A restart finds the entries that took the place of discarded ones, never those."""
    storage = written(kind, 4)
    journal, _ = kind.reopen_member(storage)
    journal.discard_after(2)
    other = chain(2, after=PREPARES[1], view=3)
    journal.append(other[:1])
    journal.close()
    storage.crash(Loss.DROP)
    journal, recovery = kind.reopen_member(storage)
    assert recovery.faults == ()
    assert list(entries(journal, 1)) == [*PREPARES[:2], other[0]]


def test_a_journal_continues_behind_a_snapshot(kind: JournalKind) -> None:
    """A restart at a cut forgets the log, durably, and takes the entry behind the cut."""
    storage = written(kind, 4)
    journal, _ = kind.reopen_member(storage)
    cut = PREPARES[7]
    journal.restart_at(cut.op, cut.checksum)
    assert (journal.restart_op, journal.head, journal.first_available_op) == (8, None, 9)
    journal.append(PREPARES[8:10])
    journal.close()
    storage.crash(Loss.DROP)
    journal, recovery = kind.reopen(
        storage, replica_count=3, replay_op=9, base_checksum=cut.checksum
    )
    assert (recovery.faults, recovery.holes, journal.restart_op) == ((), (), 8)
    assert list(entries(journal, 9)) == PREPARES[8:10]


def test_a_superblock_older_than_a_restart_is_refused(kind: JournalKind) -> None:
    """The superblock names a snapshot before the log restarts there; one that does not is old."""
    storage = written(kind, 2)
    journal, _ = kind.reopen_member(storage)
    journal.restart_at(8, PREPARES[7].checksum)
    journal.close()
    before = storage.snapshot()
    with pytest.raises(SuperblockOlder, match="older copy"):
        kind.reopen(storage, replica_count=3, commit_max=2)
    assert storage.snapshot() == before


@pytest.mark.parametrize("op", [1, 3, 6])
def test_a_member_misses_what_has_rotted_until_it_is_written_again(
    kind: JournalKind, op: int
) -> None:
    """Rot is told with op and checksum, at each start until the entry was appended again."""
    storage = written(kind, 6)
    flipped(kind, storage, op, 300)
    for _ in range(2):
        journal, recovery = kind.reopen_member(storage)
        assert recovery.holes == journal.missing_ops == (op,)
        assert [fault.checksum for fault in recovery.faults] == [PREPARES[op - 1].checksum]
        assert not journal.mark_repaired()
        journal.close()
    journal, _ = kind.reopen_member(storage)
    journal.append([PREPARES[op - 1]])
    assert journal.mark_repaired()
    journal.close()
    storage.crash(Loss.DROP)
    journal, recovery = kind.reopen_member(storage)
    assert (recovery.faults, recovery.holes, journal.is_settled) == ((), (), True)
    assert list(entries(journal, 1)) == PREPARES[:6]


def test_a_lone_replica_refuses_what_has_rotted(kind: JournalKind) -> None:
    """Nobody can supply the entry, so nothing is served, and nothing is changed."""
    storage = written(kind, 6, replica_count=1)
    flipped(kind, storage, 3, 300)
    before = storage.snapshot()
    with pytest.raises(CorruptJournal, match="op 3"):
        kind.reopen(storage)
    assert storage.snapshot() == before


def test_a_member_cuts_what_is_torn(kind: JournalKind) -> None:
    """An entry of which a loss of power left a part was never acknowledged, and is no fault."""
    cuts = 0
    for seed in range(12):
        storage = written(kind, 2)
        journal, _ = kind.reopen_member(storage)
        storage.crash_at = storage.steps + 1  # the write, not its sync
        with pytest.raises(SimulatedCrash):
            journal.append([PREPARES[2]])
        storage.crash(Loss.PARTLY, seed)
        journal, recovery = kind.reopen_member(storage)
        assert (recovery.faults, recovery.holes) == ((), ())
        assert journal.read(3) in (None, PREPARES[2])
        cuts += recovery.cut is not None
        journal.append(PREPARES[len(list(entries(journal, 1))) : 4])
        journal.close()
        assert list(entries(kind.reopen_member(storage)[0], 1)) == PREPARES[:4]
    assert cuts > 0


def test_rot_that_a_read_finds_is_told(kind: JournalKind) -> None:
    """A read verifies the record, and never gives another one."""
    storage = written(kind, 4)
    journal, _ = kind.reopen_member(storage)
    path, offset, _ = place_of(journal, 2)
    storage.flip(path, offset + 200)
    with pytest.raises(CorruptRecord, match="op 2"):
        journal.read(2)
    assert journal.read(3) == PREPARES[2]


def test_the_reserve_is_for_snapshots(kind: JournalKind) -> None:
    """A full journal refuses entries, changes nothing, and takes those that may use the reserve;
    room that a snapshot frees is used again."""
    storage = MemoryStorage()
    journal = kind.create(storage, replica_count=3)
    storage.capacity_bytes -= storage.free_bytes("") - 8 * SEGMENT_BYTES
    prepares = chain(60)
    op = 0
    with pytest.raises(NoSpace):
        while True:
            journal.append([prepares[op]])
            op += 1
    space = journal.space()
    assert space.reserve_intact
    assert journal.head == prepares[op - 1].header
    journal.append([prepares[op]], use_reserve=True)
    assert journal.truncate_before(op) > 0
    journal.prepare_spares()
    journal.append([prepares[op + 1]])
    journal.close()
    journal, recovery = kind.reopen(
        storage, replica_count=3, replay_op=op, base_checksum=prepares[op - 2].checksum
    )
    assert (recovery.faults, recovery.holes) == ((), ())
    assert list(entries(journal, op)) == prepares[op - 1 : op + 2]


def test_truncation_keeps_what_no_snapshot_covers(kind: JournalKind) -> None:
    """Whatever is dropped, the entries from the given op on and the last one stay."""
    for op in (1, 4, 10, 40):
        storage = written(kind, 10)
        journal, _ = kind.reopen_member(storage)
        journal.truncate_before(op)
        assert list(entries(journal, min(op, 10))) == PREPARES[min(op, 10) - 1 : 10]


def test_a_failed_sync_ends_a_journal(kind: JournalKind) -> None:
    """After it every call raises, and nothing is written."""
    storage = MemoryStorage()
    journal = kind.create(storage, replica_count=3)
    journal.append(PREPARES[:1])
    storage.failing_syncs = {storage.syncs}
    with pytest.raises(JournalFailed, match="process must end"):
        journal.append(PREPARES[1:2])
    before, steps = storage.snapshot(), storage.steps
    for attempt in (
        lambda: journal.append(PREPARES[1:2]),
        lambda: journal.read(1),
        lambda: journal.truncate_before(9),
        lambda: journal.free_covered(9),
        lambda: journal.restart_at(5, PREPARES[4].checksum),
        journal.prepare_spares,
        journal.mark_repaired,
    ):
        with pytest.raises(JournalFailed, match="process must end"):
            attempt()
    assert (storage.snapshot(), storage.steps) == (before, steps)


def test_a_journal_of_somebody_else_is_refused(kind: JournalKind) -> None:
    """Another cluster's and another replica's journals are named, and left as they are."""
    storage = written(kind, 2)
    before = storage.snapshot()
    with pytest.raises(WrongCluster):
        kind.reopen(storage, replica_count=3, cluster_id=OTHER_CLUSTER_ID)
    with pytest.raises(WrongReplica):
        kind.reopen(storage, replica_count=3, replica_id=2)
    assert storage.snapshot() == before


def test_a_journal_is_never_made_twice(kind: JournalKind) -> None:
    """Creating over records raises, creating over a blank one starts over, and opening none
    creates none."""
    storage = written(kind, 2)
    with pytest.raises(JournalExists):
        kind.create(storage)
    blank = MemoryStorage()
    kind.create(blank).close()
    kind.create(blank).close()
    with pytest.raises(JournalNotFound):
        kind.reopen(MemoryStorage())


def test_the_scrubber_sees_every_record(kind: JournalKind) -> None:
    """What is held can be read again record by record, and says when the log has it elsewhere."""
    storage = written(kind, 6)
    journal, _ = kind.reopen_member(storage)
    records = journal.kept_records
    held = [records.held(segment) for segment, _ in records.segments()]
    found = [record for each in held if each is not None for record in each.records]
    assert sorted(record.header.op for record in found) == [1, 2, 3, 4, 5, 6]
    assert all(records.is_in_place(record) for record in found)
    assert not records.is_in_place(replace(found[0], offset=found[0].offset + 1))
    first, _ = records.segments()[0]
    storage.flip(records.path(first), 20)
    records.rewrite_header(first)
    journal.close()
    assert kind.reopen_member(storage)[1].repaired_headers == ()
