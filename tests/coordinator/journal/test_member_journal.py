"""A member's log over view changes, repairs, lost records and adopted snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.journal import CorruptJournal, Journal, NoSpace, Recovery, SuperblockOlder
from coordinator.replica.start import SnapshotCut, join
from testkit.journal_builders import (
    append_unchecked,
    chain,
    create,
    place,
    refused,
    reopen,
    segment,
)
from testkit.journal_reading import entries
from testkit.memory_storage import Loss, MemoryStorage, SimulatedCrash
from viewstamp.format.prepare import SealedPrepare
from viewstamp.limits import PIPELINE_PREPARES_MAX

MEMBER: Any = {"replica_count": 3}
VARIANTS = [(Loss.DROP, 0), (Loss.KEEP, 0), *((Loss.PARTLY, seed) for seed in range(6))]
IN_FRAME, IN_BODY = 30, 300


def damage(storage: MemoryStorage, index: int, within: int = IN_FRAME) -> None:
    """Flip a byte of the record appended as number `index`."""
    path, offset = place(index)
    storage.flip(path, offset + within)


def held(journal: Journal, last_op: int) -> dict[int, SealedPrepare]:
    """Return what the journal holds up to an op."""
    found = {op: journal.read(op) for op in range(1, last_op + 1)}
    return {op: prepare for op, prepare in found.items() if prepare is not None}


# --- Lost records of unknown op ---


def replaced_log() -> tuple[MemoryStorage, list[SealedPrepare], list[SealedPrepare]]:
    """Ops 1 to 5, of which a view change replaced 4 and 5; record 5 is the cut between."""
    storage = MemoryStorage()
    journal = create(storage, **MEMBER)
    old = [*chain(2), *chain(3, after=chain(2)[-1], commit=2)]
    new = chain(2, after=old[2], view=2, commit=2)
    for prepare in old:
        journal.append([prepare])
    journal.discard_after(3)
    for prepare in new:
        journal.append([prepare])
    journal.close()
    return storage, old, new


def test_a_lost_cut_does_not_bring_back_what_it_removed() -> None:
    """Entries that may have been replaced count as missing; the chain of hashes saves op 3."""
    storage, old, new = replaced_log()
    damage(storage, 5)
    journal, recovery = reopen(storage, **MEMBER)
    assert held(journal, 6) == {1: old[0], 2: old[1], 3: old[2], 4: new[0], 5: new[1]}
    assert (recovery.holes, recovery.doubtful, recovery.head_uncertain) == ((), (), True)
    journal.close()

    damage(storage, 6, IN_BODY)
    damage(storage, 7, IN_BODY)
    journal, recovery = reopen(storage, **MEMBER)
    # Old 3 says that 2 is committed; nothing ties 3 to the entries after the lost record.
    assert held(journal, 6) == {1: old[0], 2: old[1]}
    assert (recovery.holes, recovery.doubtful, recovery.head_uncertain) == ((3, 4, 5), (3,), True)


def test_a_damaged_newer_entry_hides_the_one_that_it_replaced() -> None:
    """The op is missing; the entry of the earlier view is not offered in its place."""
    storage = MemoryStorage()
    journal = create(storage, **MEMBER)
    old, new = chain(3), chain(1, after=chain(2)[-1], view=2, bodies={3: bytes(range(256)) * 2})
    journal.append(old)
    append_unchecked(journal, new)
    journal.append(chain(1, after=new[0], view=2))
    journal.close()
    damage(storage, 3, IN_BODY)
    journal, recovery = reopen(storage, **MEMBER)
    assert journal.read(3) is None
    assert recovery.holes == (3,)


def test_what_was_in_doubt_does_not_come_back_once_the_doubt_is_gone() -> None:
    """The lost record is forgiven only once all entries that it made doubtful are appended or
    discarded.

    A crash at any step leaves the doubt, or the settled log.
    """

    def settle(storage: MemoryStorage, old: list[SealedPrepare]) -> None:
        journal, _ = reopen(storage, **MEMBER)
        journal.append(old[2:3])
        assert not journal.mark_repaired()
        journal.discard_after(3)
        assert journal.mark_repaired()
        assert journal.is_settled
        journal.close()

    counting, old, _ = replaced_log()
    for index in (5, 6, 7):
        damage(counting, index)
    pristine = counting.copy()
    counting = pristine.copy()
    settle(counting, old)
    steps = counting.steps
    assert reopen(counting, **MEMBER)[1].head == old[2].header
    for step in range(steps):
        for loss, seed in VARIANTS:
            storage = pristine.copy()
            storage.crash_at = step
            with pytest.raises(SimulatedCrash):
                settle(storage, old)
            storage.crash(loss, seed)
            journal, recovery = reopen(storage, **MEMBER)
            assert held(journal, 9) == dict(enumerate(old[: len(held(journal, 9))], start=1))
            assert 4 not in held(journal, 9)
            settled = not recovery.head_uncertain
            assert settled == (recovery.faults == ())
            assert not settled or recovery.head == old[2].header


def test_what_a_snapshot_covers_does_not_come_back_either() -> None:
    """A lost cut is forgiven once all above the base is held; below the base the chain decides
    alone.

    Nobody repairs what a snapshot covers. So the entry that the cut removed is still on the disk,
    and must neither be shown nor make the journal look like one of two histories.
    """
    storage, _, new = replaced_log()
    damage(storage, 5)
    damage(storage, 6)
    journal, _ = reopen(storage, **MEMBER, replay_op=5, base_checksum=new[0].checksum)
    assert journal.mark_repaired()
    journal.append(chain(1, after=new[1], view=2))
    journal.close()
    journal, recovery = reopen(storage, **MEMBER, replay_op=5, base_checksum=new[0].checksum)
    assert (recovery.holes, recovery.head_uncertain) == ((), False)
    assert journal.read(4) is None
    assert journal.first_available_op == 5
    assert journal.read(5) == new[1]


def test_a_segment_that_shows_a_fault_is_not_dropped() -> None:
    """Truncation must not make a replica forget that it may have lost something."""
    storage = MemoryStorage()
    journal = create(storage, **MEMBER)
    prepares = chain(40, commit=39)
    # The middle one is written twice: counting does not tell what the second record was.
    for prepare in (*prepares[:4], prepares[3], *prepares[4:]):
        journal.append([prepare])
    journal.close()
    damage(storage, 4)
    journal, recovery = reopen(storage, **MEMBER, replay_op=20, base_checksum=prepares[18].checksum)
    assert recovery.holes == ()
    assert journal.truncate_before(20) == 1
    assert journal.truncate_before(20) == 0
    assert journal.mark_repaired()
    assert journal.truncate_before(20) > 1


# --- Taking over a snapshot ---


LOG = chain(60, commit=0)
CUT = LOG[49]


def taken_over(storage: MemoryStorage) -> Recovery:
    """Open behind the cut, as a start with that snapshot does."""
    journal, recovery = reopen(
        storage, **MEMBER, commit_max=CUT.op, replay_op=CUT.op + 1, base_checksum=CUT.checksum
    )
    journal.close()
    return recovery


def short_log() -> tuple[MemoryStorage, Journal]:
    """Twelve entries, one in each group."""
    storage = MemoryStorage()
    journal = create(storage, **MEMBER)
    for prepare in LOG[:12]:
        journal.append([prepare])
    return storage, journal


@pytest.mark.parametrize("first", [50, 51])
def test_a_log_goes_on_behind_a_snapshot(first: int) -> None:
    """Earlier entries are forgotten and their space is freed; the log begins at the cut or next."""
    storage, journal = short_log()
    assert journal.restart_at(CUT.op, CUT.checksum) == 4
    assert (journal.head, journal.first_available_op, journal.read(12)) == (None, 51, None)
    wrong = [*LOG[51:52], *chain(51, view=9)[49:]]
    for prepare in wrong:
        with pytest.raises(ValueError, match=r"does not continue|cut at another"):
            journal.append([prepare])
    journal.append(LOG[first - 1 : 53])
    journal.close()
    assert storage.paths()[0] == segment(5)

    journal, recovery = reopen(
        storage, **MEMBER, commit_max=50, replay_op=51, base_checksum=CUT.checksum
    )
    assert list(entries(journal, first)) == LOG[first - 1 : 53]
    assert (recovery.faults, recovery.holes, recovery.cut) == ((), (), None)
    journal.append(LOG[53:54])


def test_taking_over_survives_a_crash_at_every_step() -> None:
    """After a crash the old log is whole or gone, and the log goes on behind the cut."""

    def restart(storage: MemoryStorage) -> None:
        journal, _ = reopen(storage, **MEMBER, commit_max=50, replay_op=51)
        if journal.restart_op < CUT.op:
            journal.restart_at(CUT.op, CUT.checksum)
        journal.append(LOG[50:52])
        journal.close()

    counting, journal = short_log()
    journal.close()
    pristine = counting.copy()
    counting = pristine.copy()
    restart(counting)
    for step in range(counting.steps):
        for loss, seed in VARIANTS:
            storage = pristine.copy()
            storage.crash_at = step
            with pytest.raises(SimulatedCrash):
                restart(storage)
            storage.crash(loss, seed)
            recovery = taken_over(storage)
            assert (recovery.faults, recovery.holes, recovery.head_uncertain) == ((), (), False)
            head_op = recovery.head.op if recovery.head else 0
            assert head_op in (0, 12, 51, 52)
            restart_again(storage, head_op)


def restart_again(storage: MemoryStorage, head_op: int) -> None:
    """Go on from what a crash left, and find everything again."""
    journal, _ = reopen(storage, **MEMBER, commit_max=50, replay_op=51, base_checksum=CUT.checksum)
    if journal.restart_op < CUT.op:
        journal.restart_at(CUT.op, CUT.checksum)
        head_op = 0
    journal.append(LOG[max(head_op, 50) : 54])
    journal.close()
    journal, recovery = reopen(storage, **MEMBER, commit_max=50, replay_op=51)
    assert list(entries(journal, 51)) == LOG[50:54]
    assert (journal.read(12), recovery.faults) == (None, ())
    journal.close()


def crowded() -> tuple[MemoryStorage, int]:
    """A disk without room for one more record, not even in the reserve, and the head of its log."""
    storage, journal = short_log()
    storage.capacity_bytes -= storage.free_bytes("")
    op = 12
    with pytest.raises(NoSpace):
        while True:
            journal.append(LOG[op : op + 1], use_reserve=True)
            op += 1
    journal.close()
    return storage, op


def test_a_log_without_any_room_goes_on_behind_a_snapshot() -> None:
    """When not one more record fits, even in the reserve, the entries that the snapshot covers make
    way.

    A crash at any step leaves a log that can do it again.
    """

    def restart(storage: MemoryStorage) -> None:
        journal, _ = reopen(storage, **MEMBER, commit_max=50, replay_op=51)
        if journal.restart_op < CUT.op:
            assert journal.restart_at(CUT.op, CUT.checksum) > 0
        journal.append(LOG[50:52])
        journal.close()

    pristine, head_op = crowded()
    assert head_op < CUT.op
    counting = pristine.copy()
    restart(counting)
    for step in range(counting.steps):
        storage = pristine.copy()
        storage.crash_at = step
        with pytest.raises(SimulatedCrash):
            restart(storage)
        storage.crash(Loss.DROP, 0)
        restart(storage)
        journal, recovery = reopen(storage, **MEMBER, commit_max=50, replay_op=51)
        assert (list(entries(journal, 51)), recovery.faults) == (LOG[50:52], ())
        journal.close()


def go_on_behind(storage: MemoryStorage, cut: SealedPrepare, following: SealedPrepare) -> None:
    """Start from a snapshot, as a member does, and journal the entry after it."""
    options = {**MEMBER, "replay_op": cut.op + 1, "base_checksum": cut.checksum}
    journal, _ = reopen(storage, **options)
    join(journal, SnapshotCut(1, cut.op, cut.checksum), single=False)
    if journal.header(following.op) is None:
        journal.append([following])
    journal.close()


@pytest.mark.parametrize("behind", [2, 5, 8])
def test_what_is_left_of_another_log_does_not_pass_for_the_one_behind_the_snapshot(
    behind: int,
) -> None:
    """Entries that were never committed lie behind the cut, and a full disk has to drop segments
    first. A crash in between must not leave those entries alone."""
    pristine, head_op = crowded()
    cut, following = chain(2, after=LOG[head_op - behind - 1], view=2)
    counting = pristine.copy()
    go_on_behind(counting, cut, following)
    assert counting.steps > 0
    for step in range(counting.steps):
        for loss, seed in VARIANTS[:4]:
            storage = pristine.copy()
            storage.crash_at = step
            with pytest.raises(SimulatedCrash):
                go_on_behind(storage, cut, following)
            storage.crash(loss, seed)
            go_on_behind(storage, cut, following)
            journal, recovery = reopen(storage, **MEMBER, replay_op=cut.op + 1)
            assert list(entries(journal, cut.op + 1)) == [following]
            assert (recovery.faults, recovery.holes) == ((), ())
            journal.close()


def test_without_room_and_with_nothing_to_drop_the_log_stays_as_it_was() -> None:
    """All segments but the first lie behind the cut, and the first shows which log they are of."""
    storage, head_op = crowded()
    (cut,) = chain(1, after=LOG[0], view=2)
    options = {**MEMBER, "replay_op": cut.op + 1, "base_checksum": cut.checksum}
    journal, _ = reopen(storage, **options)

    with pytest.raises(NoSpace):
        journal.restart_at(cut.op, cut.checksum)

    assert list(entries(journal, 3)) == LOG[2:head_op]


@pytest.mark.parametrize("within", [IN_FRAME, IN_BODY])
def test_taking_over_forgets_no_loss_above_the_cut(within: int) -> None:
    """A damaged entry above the cut may have been acknowledged, and stays known."""
    storage = MemoryStorage()
    journal = create(storage, **MEMBER)
    large = [*LOG[:10], *chain(1, after=LOG[9], bodies={11: bytes(range(256)) * 2})]
    for prepare in large:
        journal.append([prepare])
    journal.close()
    damage(storage, 10, within)
    options = {**MEMBER, "replay_op": 11, "base_checksum": LOG[9].checksum}
    for index in (8, 9):
        damage(storage, index)
    journal, before = reopen(storage, **options)
    journal.restart_at(10, LOG[9].checksum)
    missing_ops = journal.missing_ops
    journal.close()

    for _ in range(2):
        journal, recovery = reopen(storage, **options)
        assert journal.missing_ops == missing_ops
        # Counting tells less where segments were dropped: even more entries may have been there.
        assert recovery.head_uncertain
        assert list(journal.missing_ops) == ([11] if within == IN_BODY else [])
        journal.close()
    assert before.head_uncertain == (within == IN_FRAME)


@pytest.mark.parametrize(("damaged_op", "missing"), [(9, ()), (10, ()), (11, (11,))])
def test_a_snapshot_covers_the_entry_at_its_cut(damaged_op: int, missing: tuple[int, ...]) -> None:
    """An entry up to the cut is needed no more, and the one after it still is, after a restart
    too."""
    storage = MemoryStorage()
    journal = create(storage, **MEMBER)
    log = chain(11, bodies={op: bytes(range(256)) * 2 for op in range(1, 12)})
    for prepare in log:
        journal.append([prepare])
    journal.close()
    damage(storage, damaged_op - 1, IN_BODY)
    options = {**MEMBER, "replay_op": 11, "base_checksum": log[9].checksum}
    journal, recovery = reopen(storage, **MEMBER)
    assert recovery.holes == (damaged_op,)
    journal.restart_at(10, log[9].checksum)
    assert journal.missing_ops == missing
    journal.close()
    journal, recovery = reopen(storage, **options)
    assert (journal.missing_ops, recovery.holes) == (missing, missing)
    assert tuple(fault.op for fault in recovery.faults) == missing


def test_a_restart_beyond_the_superblock_is_refused() -> None:
    """The journal adopted a snapshot that the superblock does not name: the superblock is older."""
    storage, journal = short_log()
    journal.restart_at(CUT.op, CUT.checksum)
    journal.close()
    refused(
        storage, SuperblockOlder, "behind op 50.*committed beyond op 49", commit_max=49, **MEMBER
    )
    refused(
        storage,
        CorruptJournal,
        "behind op 50.*reaches op 0: the superblock",
        commit_max=50,
        **MEMBER,
    )
    assert taken_over(storage).head is None


def test_a_single_replica_never_forgets_its_log() -> None:
    """A single replica never forgets its log: its entries are committed and exist nowhere else."""
    journal = create(MemoryStorage())
    with pytest.raises(ValueError, match="single replica never forgets"):
        journal.restart_at(CUT.op, CUT.checksum)


# --- Appending ---


def test_a_faulty_op_is_written_again_and_nothing_else_in_its_place() -> None:
    """A repair must be the entry that its neighbours name."""
    storage = MemoryStorage()
    journal = create(storage, **MEMBER)
    prepares = chain(4, bodies={2: bytes(range(256)) * 2})
    journal.append(prepares)
    journal.close()
    damage(storage, 1, IN_BODY)
    journal, _ = reopen(storage, **MEMBER)
    assert list(journal.missing_ops) == [2]
    assert not journal.mark_repaired()
    for wrong in (chain(2, view=5)[1], chain(1, after=prepares[0], view=5)[0]):
        with pytest.raises(ValueError, match=r"would replace|does not continue"):
            journal.append([wrong])
    journal.append([prepares[1]])
    assert list(journal.missing_ops) == []
    assert journal.mark_repaired()
    assert list(entries(journal, 1)) == prepares


def test_discarding_nothing_writes_nothing() -> None:
    """Without entries above, and without doubt, there is nothing to make durable."""
    storage = MemoryStorage()
    journal = create(storage, **MEMBER)
    journal.append(LOG[:PIPELINE_PREPARES_MAX])
    before = storage.steps
    journal.discard_after(PIPELINE_PREPARES_MAX)
    assert storage.steps == before
