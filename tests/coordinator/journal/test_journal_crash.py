"""Crashes at every I/O step, failing syncs, and what must survive them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from coordinator.journal import Journal, JournalFailed, JournalNotFound, Recovery
from testkit.journal_builders import chain, create, filled, reopen, segment
from testkit.journal_reading import entries
from testkit.memory_storage import Loss, MemoryStorage, SimulatedCrash
from viewstamp.format.record import SECTOR_BYTES

GROUP_SIZES = (1, 4, 2, 5, 3, 7, 2)
PREPARES = chain(sum(GROUP_SIZES), bodies={4: bytes(5000), 12: bytes(range(256)) * 20})
TRUNCATED_OP = 5
VARIANTS = [(Loss.DROP, 0), (Loss.KEEP, 0), *((Loss.PARTLY, seed) for seed in range(4))]


@dataclass
class Progress:
    """How far the run came: the acknowledged entries, and the op where replay would start."""

    created: bool = False
    acknowledged: int = 0
    replay_op: int = 1
    attempted: int = field(default=0)


def run(storage: MemoryStorage, progress: Progress, replica_count: int) -> None:
    """Create a journal, append groups over several segments, and truncate."""
    journal = create(storage, replica_count=replica_count)
    progress.created = True
    start = 0
    for size in GROUP_SIZES:
        progress.attempted = start + size
        journal.append(PREPARES[start : start + size])
        start = progress.acknowledged = start + size
        journal.prepare_spares()
    progress.replay_op = TRUNCATED_OP
    journal.truncate_before(TRUNCATED_OP)
    journal.close()


def total_steps(replica_count: int) -> int:
    """How many I/O steps a run without a crash takes."""
    storage = MemoryStorage()
    run(storage, Progress(), replica_count)
    return storage.steps


def crashes(replica_count: int) -> Iterator[tuple[MemoryStorage, Progress]]:
    """The state of the disk after a crash at every step of the run, in every variant."""
    for step in range(total_steps(replica_count)):
        for loss, seed in VARIANTS:
            storage, progress = MemoryStorage(), Progress()
            storage.crash_at = step
            with pytest.raises(SimulatedCrash):
                run(storage, progress, replica_count)
            storage.crash(loss, seed)
            yield storage, progress


def check(journal: Journal, recovery: Recovery, progress: Progress) -> None:
    """Check that everything acknowledged is there, and nothing that was never appended."""
    first_op = max(recovery.first_op, 1)
    assert first_op <= progress.replay_op
    held = [journal.read(op) for op in range(first_op, len(PREPARES) + 1)]
    acknowledged = progress.acknowledged - first_op + 1
    assert held[:acknowledged] == PREPARES[first_op - 1 : progress.acknowledged]
    for prepare in held[acknowledged:]:
        assert prepare is None or prepare == PREPARES[prepare.op - 1]
        assert prepare is None or prepare.op <= progress.attempted
    assert recovery.faults == ()
    assert recovery.holes == ()
    assert not recovery.head_uncertain
    head_op = recovery.head.op if recovery.head else 0
    assert held[head_op - first_op + 1 :] == [None] * (len(PREPARES) - head_op)
    assert None not in held[: head_op - first_op + 1]
    assert recovery.repaired_headers == ()


def test_a_single_replica_survives_a_crash_at_every_step() -> None:
    """Acknowledged prepares are never lost, the unacknowledged tail is cut, and work goes on."""
    for storage, progress in crashes(replica_count=1):
        if not progress.created:
            create(storage).close()
        journal, recovery = reopen(
            storage, commit_max=progress.acknowledged, replay_op=progress.replay_op
        )
        check(journal, recovery, progress)
        head_op = recovery.head.op if recovery.head else 0
        assert recovery.prepare_count == head_op - max(recovery.first_op, 1) + 1
        continued = PREPARES[head_op : head_op + 2]
        journal.append(continued)
        journal.close()
        storage.crash(Loss.DROP)
        journal, recovery = reopen(storage, replay_op=progress.replay_op)
        assert recovery.cut is None
        assert recovery.faults == ()
        assert list(entries(journal, recovery.first_op)) == (
            PREPARES[recovery.first_op - 1 : head_op + len(continued)] if recovery.first_op else []
        )


def test_a_cluster_member_survives_a_crash_at_every_step() -> None:
    """A member keeps its acknowledged entries and cuts a torn tail without reporting a fault."""
    for storage, progress in crashes(replica_count=3):
        if not progress.created:
            create(storage, replica_count=3).close()
        journal, recovery = reopen(
            storage,
            replica_count=3,
            commit_max=progress.acknowledged,
            replay_op=progress.replay_op,
        )
        check(journal, recovery, progress)
        head_op = recovery.head.op if recovery.head else 0
        rest = PREPARES[head_op : head_op + 3]
        journal.append(rest)
        assert journal.mark_repaired()
        journal.close()
        storage.crash(Loss.DROP)
        journal, recovery = reopen(storage, replica_count=3, replay_op=progress.replay_op)
        assert [journal.read(prepare.op) for prepare in rest] == rest
        assert (recovery.faults, recovery.cut) == ((), None)


@pytest.mark.long
@pytest.mark.parametrize("replica_count", [1, 3])
def test_recovery_survives_a_crash_at_each_of_its_own_steps(replica_count: int) -> None:
    """A crash while the tail is cut or made durable leaves the same work to the next recovery.

    An entry that recovery returned once counts as acknowledged: no later crash may take it back.
    """
    for storage, progress in crashes(replica_count):
        if not progress.created:
            continue
        for step in range(20):
            storage.crash_at = storage.steps + step
            try:
                journal, recovery = reopen(
                    storage, replica_count=replica_count, replay_op=progress.replay_op
                )
            except SimulatedCrash:
                storage.crash(Loss.PARTLY, seed=step)
                continue
            break
        check(journal, recovery, progress)
        storage.crash(Loss.DROP)
        again = reopen(storage, replica_count=replica_count, replay_op=progress.replay_op)[1]
        assert again.head == recovery.head


def test_a_crash_while_bootstrap_leaves_either_nothing_or_a_journal() -> None:
    """Creating is repeatable after a crash at any of its steps."""
    steps = MemoryStorage()
    create(steps).close()
    for step in range(steps.steps):
        for loss, seed in VARIANTS:
            storage = MemoryStorage()
            storage.crash_at = step
            with pytest.raises(SimulatedCrash):
                create(storage)
            storage.crash(loss, seed)
            journal = create(storage)
            journal.append(PREPARES[:3])
            journal.close()
            assert reopen(storage)[1].prepare_count == 3


@pytest.mark.parametrize("replica_count", [1, 3])
def test_a_failed_sync_ends_the_journal(replica_count: int) -> None:
    """After a failing sync nothing is tried again: every call raises, and nothing is written."""
    storage = MemoryStorage()
    journal = create(storage, replica_count=replica_count)
    journal.append(PREPARES[:1])
    storage.failing_syncs = {storage.syncs}
    with pytest.raises(JournalFailed, match="process must end"):
        journal.append(PREPARES[1:2])
    before, steps = storage.snapshot(), storage.steps
    attempts: list[Callable[[], object]] = [
        lambda: journal.append(PREPARES[1:2]),
        lambda: journal.read(1),
        lambda: list(entries(journal, 1)),
        journal.prepare_spares,
        journal.mark_repaired,
        lambda: journal.truncate_before(1),
        lambda: journal.discard_after(1),
    ]
    for attempt in attempts:
        with pytest.raises(JournalFailed, match="process must end"):
            attempt()
    assert (storage.snapshot(), storage.steps) == (before, steps)
    journal.close()


def test_what_a_failed_sync_left_in_the_page_cache_is_not_believed() -> None:
    """A restarted process that reads an unsynced record makes it durable before showing it."""
    storage = MemoryStorage()
    journal = create(storage)
    journal.append(PREPARES[:1])
    storage.failing_syncs = {storage.syncs}
    with pytest.raises(JournalFailed):
        journal.append(PREPARES[1:2])
    storage.restart_process()

    journal, recovery = reopen(storage)
    assert recovery.head == PREPARES[1].header
    assert recovery.rewritten_count > 0

    storage.crash(Loss.DROP)
    assert reopen(storage)[1].head == PREPARES[1].header


@pytest.mark.parametrize("failing", [0, 1])
def test_recovery_that_cannot_sync_fails(failing: int) -> None:
    """A sync that fails during recovery ends the process, as it does later."""
    storage = MemoryStorage()
    filled(storage, [PREPARES[:1], PREPARES[1:3]])
    storage.flip(segment(1), 3 * SECTOR_BYTES + 300)
    storage.failing_syncs = {storage.syncs + failing}
    with pytest.raises(JournalFailed, match="recovering"):
        reopen(storage)
    reopen(storage)


def test_a_failing_spare_ends_the_journal() -> None:
    """An I/O error other than a full disk is fatal, even while making a segment."""
    storage = MemoryStorage()
    journal = create(storage)
    journal.append(PREPARES[:3])
    journal.append([])
    journal.append(PREPARES[3:4])
    storage.failing_syncs = {storage.syncs}
    with pytest.raises(JournalFailed, match="making segment"):
        journal.prepare_spares()
    with pytest.raises(JournalFailed):
        journal.append(PREPARES[4:5])


def test_a_failing_truncation_ends_the_journal() -> None:
    """If a removal cannot be made durable, the process ends rather than guess."""

    class Failing(MemoryStorage):
        def sync_directory(self, path: str) -> None:
            if self.failing:
                raise OSError(errno.EIO, "Input/output error")
            super().sync_directory(path)

        failing = False

    storage = Failing()
    journal = create(storage)
    for one in PREPARES:
        journal.append([one])
    storage.failing = True
    with pytest.raises(JournalFailed, match="dropping segment 1"):
        journal.truncate_before(10)


def test_unreadable_sectors_count_as_damage() -> None:
    """A sector that the disk cannot read is a damaged record, not an unreadable journal."""

    class Unreadable(MemoryStorage):
        bad: tuple[str, int] | None = None

        def check_read(self, path: str, offset: int, size: int) -> None:
            if self.bad and path == self.bad[0] and offset <= self.bad[1] < offset + size:
                raise OSError(errno.EIO, "Input/output error")

    storage = Unreadable()
    filled(storage, [PREPARES[:1], PREPARES[1:3]], replica_count=3)
    storage.bad = (segment(1), SECTOR_BYTES)

    journal, recovery = reopen(storage, replica_count=3)

    assert [fault.first_sequence for fault in recovery.faults] == [1]
    assert [journal.read(op) for op in (2, 3)] == PREPARES[1:3]


def test_opening_without_a_directory_creates_nothing() -> None:
    """Opening nothing is an error; the crash tests above rest on it."""
    with pytest.raises(JournalNotFound):
        reopen(MemoryStorage())
