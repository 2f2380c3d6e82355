"""A ring written anew: what the log no longer needs never takes the room of what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from threading import Event, Thread

import pytest

from coordinator.journal import NoSpace, SuperblockOlder
from coordinator.journal.ring_journal import RingJournal
from coordinator.journal.superblock import SuperblockMark
from coordinator.replica.ports import JournalRoom
from coordinator.replica.ring_room import RingWatch
from testkit.journal_builders import chain
from testkit.journal_reading import entries
from testkit.memory_storage import Loss, MemoryStorage, SimulatedCrash
from testkit.ring_builders import (
    DATA_SECTORS,
    FILE_BYTES,
    RECORD_BYTES_MAX,
    RING,
    create_ring,
    reopen_ring,
    side_of,
)
from viewstamp.format.prepare import SealedPrepare
from viewstamp.format.record import SECTOR_BYTES

KEPT = chain(3)
# A view change each: in all, entries for several rounds of the ring.
VIEWS = 14
DISCARDED = 3
VARIANTS = [(Loss.DROP, 0), (Loss.KEEP, 0), *((Loss.PARTLY, seed) for seed in range(3))]


def of_view(view: int, count: int = DISCARDED) -> list[SealedPrepare]:
    """Entries that the primary of a view admits behind those that are kept."""
    return chain(count, after=KEPT[-1], view=view)


@dataclass
class ViewsProgress:
    """The view whose entries may be there; those of earlier ones were discarded durably."""

    created: bool = False
    kept: int = 0
    view: int = 0
    settled_views: int = 0
    sides: set[int] = field(default_factory=set)


def run(storage: MemoryStorage, progress: ViewsProgress) -> None:
    """Let one view change after another discard what the primary before it has admitted."""
    journal = create_ring(storage, replica_count=3)
    progress.created = True
    for each in KEPT:
        journal.append([each])
        progress.kept = each.op
    for view in range(1, VIEWS + 1):
        progress.view = view
        journal.append(of_view(view))
        journal.discard_after(len(KEPT))
        progress.settled_views = view
        progress.sides.add(side_of(storage))
    journal.close()


def test_discarded_entries_never_fill_a_ring() -> None:
    """Fourteen pipelines are discarded without a snapshot, which is three rounds of the ring. All
    sides are used, and the room is what it was before."""
    storage, progress = MemoryStorage(), ViewsProgress()
    run(storage, progress)
    assert VIEWS * (DISCARDED + 1) > 3 * DATA_SECTORS
    assert progress.sides == {0, 1}
    journal, recovery = reopen_ring(storage, replica_count=3)
    assert (recovery.faults, recovery.holes) == ((), ())
    assert list(entries(journal, 1)) == KEPT
    other = create_ring(MemoryStorage(), replica_count=3)
    other.append(KEPT)
    assert journal.entry_bytes == other.entry_bytes
    assert len(storage.content(RING)) == FILE_BYTES


def crashes() -> Iterator[tuple[MemoryStorage, ViewsProgress]]:
    """The disk after a crash at every step of the run, in every variant."""
    whole = MemoryStorage()
    run(whole, ViewsProgress())
    for step in range(whole.steps):
        for loss, seed in VARIANTS:
            storage, progress = MemoryStorage(), ViewsProgress()
            storage.crash_at = step
            with pytest.raises(SimulatedCrash):
                run(storage, progress)
            storage.crash(loss, seed)
            yield storage, progress


def log_of(journal: RingJournal, progress: ViewsProgress) -> list[SealedPrepare]:
    """The log, which has everything acknowledged, and entries of at most one view behind it."""
    found = list(entries(journal, 1))
    assert found[: progress.kept] == KEPT[: progress.kept]
    behind = found[len(KEPT) :]
    views = {each.header.view for each in behind}
    assert views <= {progress.view} - set(range(progress.settled_views + 1))
    assert behind == of_view(max(views, default=0), len(behind))
    return found


@pytest.mark.long
def test_a_crash_at_any_step_leaves_one_side_or_the_other() -> None:
    """What was acknowledged is there, what was discarded durably is not, and the ring can be
    written anew again, whatever the attempt before it has left."""
    for storage, progress in crashes():
        if not progress.created:
            continue
        journal, recovery = reopen_ring(storage, replica_count=3)
        assert (recovery.faults, recovery.holes) == ((), ())
        assert (recovery.head_uncertain, recovery.repaired_headers) == (False, ())
        found = log_of(journal, progress)
        if len(found) < len(KEPT):
            continue
        journal.discard_after(len(KEPT))
        later = progress.view + 1
        for view in range(later, later + 5):
            journal.append(of_view(view))
            journal.discard_after(len(KEPT))
        journal.append(of_view(later + 5))
        journal.close()
        storage.crash(Loss.DROP)
        journal, recovery = reopen_ring(storage, replica_count=3)
        assert (recovery.faults, recovery.holes) == ((), ())
        assert list(entries(journal, 1)) == [*KEPT, *of_view(later + 5)]


def test_an_attempt_that_a_crash_ended_leaves_no_record_behind() -> None:
    """The next attempt writes fewer records under the same sequences: those of the first one that
    lie behind them are gone."""
    log, attempts = chain(10), 0
    for step in range(2, 24):
        storage = MemoryStorage()
        journal = create_ring(storage, replica_count=3)
        journal.append(log, use_reserve=True)
        journal.append(chain(3, after=log[-1]), use_reserve=True)
        journal.discard_after(10)
        storage.crash_at = storage.steps + step
        crashed = _is_crashed(journal, chain(3, after=log[-1], view=2))
        storage.crash(Loss.KEEP)
        if not crashed or side_of(storage):
            continue
        journal, _ = reopen_ring(storage, replica_count=3)
        journal.discard_after(1)
        later = chain(2, after=log[0], view=9)
        journal.append(later)
        assert side_of(storage) == 1
        journal.close()
        journal, recovery = reopen_ring(storage, replica_count=3)
        assert (recovery.faults, recovery.holes, recovery.head) == ((), (), later[-1].header)
        assert list(entries(journal, 1)) == [log[0], *later]
        attempts += 1
    assert attempts > 10


def _is_crashed(journal: RingJournal, group: list[SealedPrepare]) -> bool:
    try:
        journal.append(group)
    except SimulatedCrash:
        return True
    return False


@pytest.mark.long
def test_flipped_bytes_of_either_side_are_repaired_or_told() -> None:
    """In a ring that was written anew, too, one damage changes no log: it is mended, or one entry
    is told to be missing."""
    whole = MemoryStorage()
    run(whole, ViewsProgress())
    told = 0
    for place in range(7, FILE_BYTES, 61):
        storage = whole.copy()
        storage.flip(RING, place, 0x10)
        journal, recovery = reopen_ring(storage, replica_count=3)
        assert not recovery.head_uncertain
        assert len(recovery.holes) <= 1
        for each in KEPT:
            assert journal.read(each.op) == (None if each.op in recovery.holes else each)
        told += len(recovery.holes)
    assert told > 0


def test_every_lost_sector_after_that_is_repaired_or_told() -> None:
    """Zeros and garbage in place of any one sector, too."""
    whole = MemoryStorage()
    run(whole, ViewsProgress())
    for sector in range(0, FILE_BYTES, SECTOR_BYTES):
        for filling in (b"\0", b"\xa7"):
            storage = whole.copy()
            content = storage.content(RING)
            spoilt = content[:sector] + filling * SECTOR_BYTES + content[sector + SECTOR_BYTES :]
            storage.replace(RING, spoilt)
            journal, recovery = reopen_ring(storage, replica_count=3)
            for each in KEPT:
                assert journal.read(each.op) == (None if each.op in recovery.holes else each)
            assert recovery.holes or recovery.head_uncertain or journal.head == KEPT[-1].header


def test_a_superblock_that_knows_the_records_before_is_no_older_one() -> None:
    """Sequences go on behind those of the other side: what the superblock knew to be durable still
    is, and a later start finds nothing missing."""
    storage = MemoryStorage()
    run(storage, ViewsProgress())
    journal, _ = reopen_ring(storage, replica_count=3)
    known = journal.durable_sequence
    journal.close()
    mark = SuperblockMark(1, journal_sequence=known)
    journal, recovery = reopen_ring(storage, replica_count=3, superblock=mark)
    assert (recovery.faults, journal.durable_sequence) == ((), known)
    assert known > VIEWS * DISCARDED


def test_the_restart_of_a_log_is_written_anew_too() -> None:
    """A superblock older than the snapshot behind which the log goes on is still refused."""
    storage = MemoryStorage()
    journal = create_ring(storage, replica_count=3)
    later = chain(6)
    journal.append(later[:1])
    journal.restart_at(4, later[3].checksum)
    for view in range(1, VIEWS):
        journal.append(chain(3, after=later[3], view=view))
        journal.discard_after(4)
    journal.append(later[4:])
    journal.close()
    assert DATA_SECTORS < VIEWS * 4
    journal, recovery = reopen_ring(
        storage, replica_count=3, replay_op=5, base_checksum=later[3].checksum
    )
    assert (recovery.faults, recovery.holes, journal.restart_op) == ((), (), 4)
    assert list(entries(journal, 5)) == later[4:]
    journal.close()
    with pytest.raises(SuperblockOlder, match="older copy"):
        reopen_ring(storage, replica_count=3, commit_max=2)


def test_a_log_of_which_nothing_is_left_frees_all_that_was_discarded() -> None:
    """Without any entry there is nothing to write anew: the floor rises to the last cut."""
    storage = MemoryStorage()
    journal = create_ring(storage, replica_count=3)
    for view in range(1, VIEWS):
        journal.append(chain(DISCARDED, view=view))
        journal.discard_after(0)
    journal.append(KEPT)
    journal.close()
    journal, recovery = reopen_ring(storage, replica_count=3)
    assert (recovery.faults, list(entries(journal, 1))) == ((), KEPT)


def test_the_sector_of_a_restart_is_counted() -> None:
    """A copy that would make no room is not begun: a ring that is full to its last sector refuses
    a record each time without copying the log each time."""
    storage = MemoryStorage()
    journal = create_ring(storage, replica_count=3)
    log = chain(30)
    journal.restart_at(4, log[3].checksum)
    journal.append(log[4:7])
    journal.append(chain(3, after=log[6], view=2))
    journal.discard_after(7)
    op = 7
    with pytest.raises(NoSpace):
        while True:
            journal.append([log[op]], use_reserve=True)
            op += 1
    copied = journal.records_copied
    assert copied > 0
    with pytest.raises(NoSpace):
        journal.append([log[op]], use_reserve=True)
    assert journal.records_copied == copied
    assert list(entries(journal, 5)) == log[4:op]


def test_a_restart_copies_no_log_that_it_forgets() -> None:
    """It drops what its snapshot covers instead."""
    journal = create_ring(MemoryStorage(), replica_count=3)
    log = chain(40)
    journal.append(log[: DATA_SECTORS - 4], use_reserve=True)
    journal.append(chain(3, after=log[DATA_SECTORS - 5], view=2), use_reserve=True)
    journal.discard_after(DATA_SECTORS - 4)
    assert journal.restart_at(30, log[29].checksum) > 0
    assert journal.records_copied == 0
    journal.append(log[30:32])
    assert list(entries(journal, 31)) == log[30:32]


def test_headers_are_there_while_a_ring_is_written_anew() -> None:
    """The loop looks headers up while the thread of the journal copies: each op that is held has
    one at any time."""
    journal = create_ring(MemoryStorage(), replica_count=3, ring_bytes=400 * SECTOR_BYTES)
    log = chain(250)
    journal.append(log, use_reserve=True)
    is_over, missed = Event(), list[int]()

    def look() -> None:
        while not is_over.is_set():
            missed.extend(op for op in (1, 125, 250) if journal.header(op) is None)

    looking = Thread(target=look)
    looking.start()
    for view in range(2, 120):
        journal.append(chain(5, after=log[-1], view=view), use_reserve=True)
        journal.discard_after(250)
    is_over.set()
    looking.join()
    assert journal.records_copied > 0
    assert missed == []


def test_covered_and_discarded_entries_both_count_as_free() -> None:
    """What stays for replicas a little behind goes first, and then the ring is written anew."""
    log = chain(8)
    ring, plain = (create_ring(MemoryStorage(), replica_count=3) for _ in range(2))
    for each in (ring, plain):
        each.append(log)
        each.truncate_before(8)
    ring.append(chain(3, after=log[-1], view=2))
    ring.discard_after(8)
    assert ring.first_op < 8
    assert ring.entry_bytes == plain.entry_bytes > 0
    later = chain(ring.entry_bytes // SECTOR_BYTES, after=log[-1], view=3)
    ring.append(later)
    assert list(entries(ring, 8)) == [log[-1], *later]


@pytest.mark.parametrize("seed", range(12))
def test_a_replica_takes_all_that_a_primary_with_an_equal_log_admits(seed: int) -> None:
    """Whatever a replica has discarded and been sent again, as often as it likes, it takes what
    the primary admits, and what the snapshot journals then. This is the bound that has no number.
    """
    random = Random(seed)
    rings = [
        create_ring(MemoryStorage(), replica_count=3, ring_bytes=80 * SECTOR_BYTES)
        for _ in range(2)
    ]
    watches = [RingWatch(ring, lambda _: None, lambda: None, RECORD_BYTES_MAX) for ring in rings]
    replica = rings[1]
    log: list[SealedPrepare] = []
    while watches[0].room() is JournalRoom.FREE:
        body = random.choice((5, 3000, 6000))
        (admitted,) = chain(1, after=log[-1] if log else None, bodies={len(log) + 1: bytes(body)})
        _lead_astray(replica, log, random)
        assert watches[1].entry_room() is JournalRoom.FREE
        for each in rings:
            each.append([admitted])
        log.append(admitted)
    assert len(log) > 20
    for command in chain(2, after=log[-1]):
        _lead_astray(replica, log, random)
        replica.append([command], use_reserve=True)
        log.append(command)
    assert list(entries(replica, 1)) == log


def _lead_astray(replica: RingJournal, log: list[SealedPrepare], random: Random) -> None:
    """Append and discard entries of primaries that nobody followed, while there is room."""
    for view in range(random.randrange(6)):
        wrong = chain(1, after=log[-1] if log else None, view=view + 1)
        if replica.entry_bytes >= 3 * RECORD_BYTES_MAX:
            replica.append(wrong)
            replica.discard_after(len(log))
