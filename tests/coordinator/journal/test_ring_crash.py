"""Crashes of a ring at every I/O step, and every flipped byte: what must survive them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from coordinator.journal import CorruptJournal, JournalError, JournalFailed, Recovery
from coordinator.journal.ring_journal import RingJournal
from testkit.journal_builders import chain
from testkit.memory_storage import Loss, MemoryStorage, SimulatedCrash
from testkit.ring_builders import FILE_BYTES, LAYOUT, RING, create_ring, reopen_ring
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.format.ring import SLOT_BYTES

# Sizes of groups, and the op before which the log is freed behind each.
GROUPS = ((1, 1), (4, 1), (2, 5), (5, 6), (3, 12), (6, 16), (2, 20), (4, 22))
PREPARES = chain(
    sum(size for size, _ in GROUPS),
    bodies={4: bytes(5000), 12: bytes(range(256)) * 20, 17: b"x" * 6000},
)
VARIANTS = [(Loss.DROP, 0), (Loss.KEEP, 0), *((Loss.PARTLY, seed) for seed in range(4))]


@dataclass
class RingProgress:
    """How far the run came: the acknowledged entries, and the op where replay would start."""

    created: bool = False
    acknowledged: int = 0
    replay_op: int = 1
    attempted: int = field(default=0)


def run(storage: MemoryStorage, progress: RingProgress, replica_count: int) -> None:
    """Create a ring, append groups over more than one round, and free room for each."""
    journal = create_ring(storage, replica_count=replica_count)
    progress.created = True
    start = 0
    for size, freed_op in GROUPS:
        progress.attempted = start + size
        journal.append(PREPARES[start : start + size], use_reserve=True)
        start = progress.acknowledged = start + size
        progress.replay_op = freed_op
        journal.truncate_before(freed_op)
    journal.close()


def crashes(replica_count: int) -> Iterator[tuple[MemoryStorage, RingProgress]]:
    """The state of the disk after a crash at every step of the run, in every variant."""
    whole = MemoryStorage()
    run(whole, RingProgress(), replica_count)
    for step in range(whole.steps):
        for loss, seed in VARIANTS:
            storage, progress = MemoryStorage(), RingProgress()
            storage.crash_at = step
            with pytest.raises(SimulatedCrash):
                run(storage, progress, replica_count)
            storage.crash(loss, seed)
            yield storage, progress


def opened(
    storage: MemoryStorage, progress: RingProgress, replica_count: int
) -> tuple[RingJournal, Recovery]:
    """Open the ring as the replica would that has come so far."""
    cut = progress.replay_op - 1
    return reopen_ring(
        storage,
        replica_count=replica_count,
        commit_max=progress.acknowledged,
        replay_op=progress.replay_op,
        base_checksum=PREPARES[cut - 1].checksum if cut else None,
    )


def check(journal: RingJournal, recovery: Recovery, progress: RingProgress) -> None:
    """Check that everything acknowledged is there, and nothing that was never appended."""
    assert (recovery.faults, recovery.holes) == ((), ())
    assert not recovery.head_uncertain
    assert recovery.repaired_headers == ()
    head_op = 0 if recovery.head is None else recovery.head.op
    assert progress.acknowledged <= head_op <= progress.attempted
    for prepare in PREPARES:
        held = journal.read(prepare.op)
        assert held in (None, prepare)
        if progress.replay_op <= prepare.op <= head_op:
            assert held == prepare
        assert held is None or prepare.op <= head_op


def test_a_run_goes_round_more_than_once() -> None:
    """The run of the crash tests writes over freed records; otherwise they would prove little."""
    storage = MemoryStorage()
    run(storage, RingProgress(), 1)
    assert len(PREPARES) + 3 > 1.5 * LAYOUT.slots
    assert len(storage.content(RING)) == FILE_BYTES


@pytest.mark.parametrize("replica_count", [1, 3])
def test_a_ring_survives_a_crash_at_every_step(replica_count: int) -> None:
    """Acknowledged prepares are never lost, a torn tail is cut, and work goes on."""
    for storage, progress in crashes(replica_count):
        if not progress.created:
            create_ring(storage, replica_count=replica_count).close()
        journal, recovery = opened(storage, progress, replica_count)
        check(journal, recovery, progress)
        head_op = 0 if recovery.head is None else recovery.head.op
        journal.free_covered(progress.replay_op)
        journal.append(PREPARES[head_op : head_op + 1], use_reserve=True)
        progress.attempted = max(progress.attempted, head_op + 1)
        progress.acknowledged = min(head_op + 1, len(PREPARES))
        journal.close()
        storage.crash(Loss.DROP)
        journal, recovery = opened(storage, progress, replica_count)
        assert recovery.cut is None
        check(journal, recovery, progress)


@pytest.mark.long
@pytest.mark.parametrize("replica_count", [1, 3])
def test_opening_a_ring_survives_a_crash_at_each_of_its_own_steps(replica_count: int) -> None:
    """A crash while the tail is cut or made durable leaves the same work to the next opening."""
    for storage, progress in crashes(replica_count):
        if not progress.created:
            continue
        for step in range(20):
            storage.crash_at = storage.steps + step
            try:
                journal, recovery = opened(storage, progress, replica_count)
            except SimulatedCrash:
                storage.crash(Loss.PARTLY, seed=step)
                continue
            break
        check(journal, recovery, progress)
        storage.crash(Loss.DROP)
        again = opened(storage, progress, replica_count)[1]
        assert again.head == recovery.head


def test_a_crash_while_a_ring_is_made_leaves_either_nothing_or_a_ring() -> None:
    """Creating is repeatable after a crash at any of its steps."""
    steps = MemoryStorage()
    create_ring(steps).close()
    for step in range(steps.steps):
        for loss, seed in VARIANTS:
            storage = MemoryStorage()
            storage.crash_at = step
            with pytest.raises(SimulatedCrash):
                create_ring(storage)
            storage.crash(loss, seed)
            journal = create_ring(storage)
            journal.append(PREPARES[:3])
            journal.close()
            assert reopen_ring(storage)[1].prepare_count == 3


def test_a_failed_sync_leaves_nothing_to_believe() -> None:
    """A restart makes durable what the page cache shows after a failed sync, of records and of
    slots, before it shows that to anybody."""
    for failing in range(2):
        storage = MemoryStorage()
        journal = create_ring(storage)
        journal.append(PREPARES[:1])
        storage.failing_syncs = {storage.syncs + failing}
        with pytest.raises(JournalFailed, match="process must end"):
            journal.append(PREPARES[1:2])
        storage.restart_process()
        recovery = reopen_ring(storage)[1]
        assert recovery.head == PREPARES[1].header
        storage.crash(Loss.DROP)
        journal, recovery = reopen_ring(storage)
        assert recovery.head == PREPARES[1].header
        assert recovery.faults == ()


# --- Flipped bytes ---

FLIPPED_SLOTS = LAYOUT.slots * SLOT_BYTES


def flipped_places() -> list[int]:
    """Return every byte of the parts in which each counts, and some of each unit of records."""
    floors = [LAYOUT.floor_offset(copy) + byte for copy in (0, 1) for byte in range(96)]
    header = list(range(96))
    slots = list(range(LAYOUT.slots_start, LAYOUT.slots_start + FLIPPED_SLOTS, 5))
    records = [
        sector + byte
        for sector in range(LAYOUT.start, LAYOUT.end, SECTOR_BYTES)
        for byte in (0, 17, 25, 41, 50, 79, 81, 200, 511, 700, 4095)
    ]
    return [*header, *floors, *slots, *records]


def lost_by_flip(
    whole: MemoryStorage, progress: RingProgress, replica_count: int, place: int
) -> int:
    """Flip a byte, and check that the log is the same, or that one entry is told to be missing, or
    that a lone replica refuses it; return how many entries were told."""
    storage = whole.copy()
    storage.flip(RING, place, 0x10)
    try:
        journal, recovery = opened(storage, progress, replica_count)
    except CorruptJournal:
        assert replica_count == 1
        return 1
    missing = set(journal.missing_ops)
    assert not recovery.head_uncertain
    assert len(missing) == len(recovery.faults) <= 1
    for prepare in PREPARES[progress.replay_op - 1 :]:
        held = journal.read(prepare.op)
        assert held == (None if prepare.op in missing else prepare)
    for op in missing:
        assert recovery.faults[0].checksum == PREPARES[op - 1].checksum
    journal.close()
    again = opened(storage, progress, replica_count)[1]
    assert again.repaired_headers == ()
    assert again.holes == recovery.holes
    return len(missing)


@pytest.mark.long
@pytest.mark.parametrize("replica_count", [1, 3])
def test_flipped_bytes_are_repaired_or_told(replica_count: int) -> None:
    """A ring with one flipped byte holds the same log, or says which entry is missing; a lone
    replica refuses instead. It is never another log."""
    whole, progress = MemoryStorage(), RingProgress()
    run(whole, progress, replica_count)
    places = flipped_places()
    assert sum(lost_by_flip(whole, progress, replica_count, each) for each in places) > 20


@pytest.mark.exhaustive
@pytest.mark.parametrize("replica_count", [1, 3])
def test_every_flipped_byte_is_repaired_or_told(replica_count: int) -> None:
    """The same, for each byte of the file."""
    whole, progress = MemoryStorage(), RingProgress()
    run(whole, progress, replica_count)
    for place in range(FILE_BYTES):
        lost_by_flip(whole, progress, replica_count, place)


@pytest.mark.parametrize("replica_count", [1, 3])
def test_every_lost_sector_is_repaired_or_told(replica_count: int) -> None:
    """Zeros and garbage in place of any one sector change no log either, or are told."""
    whole, progress = MemoryStorage(), RingProgress()
    run(whole, progress, replica_count)
    for sector in range(0, FILE_BYTES, SECTOR_BYTES):
        for filling in (b"\0", b"\xa7"):
            storage = whole.copy()
            content = storage.content(RING)
            spoilt = content[:sector] + filling * SECTOR_BYTES + content[sector + SECTOR_BYTES :]
            storage.replace(RING, spoilt)
            try:
                journal, recovery = opened(storage, progress, replica_count)
            except JournalError:
                assert replica_count == 1
                continue
            missing = set(journal.missing_ops)
            for prepare in PREPARES[progress.replay_op - 1 :]:
                held = journal.read(prepare.op)
                assert held == (None if prepare.op in missing else prepare)
            assert recovery.head is not None
            assert missing or recovery.head.op == len(PREPARES)
