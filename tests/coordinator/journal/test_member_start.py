"""A member's start: each finding of the review of Iggy's bootstrap has its counterpart here.

The review is that of apache/iggy's pull request 3163, "implement replica bootstrap". The tests of
services, routing and replies have the counterparts of its other findings.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator import vsr
from coordinator.journal import (
    Journal,
    JournalFailed,
    JournalNotFound,
    MissingSegment,
    SuperblockFailed,
)
from coordinator.journal.errors import JournalError
from coordinator.replica.data_directory import DirectoryOptions, ReplicaFiles, open_replica
from coordinator.replica.start import SnapshotCut, WrongDirectoryError, join, start_event
from coordinator.vsr.log import LOG_TAIL_PREPARES
from testkit.journal_builders import CLUSTER_ID, SEGMENT_BYTES, chain, create, place, reopen
from testkit.journal_reading import entries
from testkit.memory_storage import MemoryStorage
from viewstamp.format.prepare import SealedPrepare
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.format.superblock import NOT_ADMITTED

OPTIONS = DirectoryOptions(Path("data"), 0, 3, CLUSTER_ID, SEGMENT_BYTES)
STATE = vsr.CoreState(view=4, log_view=3, commit_max=9)
LOG = chain(20, commit=9, bodies={op: bytes(range(256)) for op in range(1, 21)})


def started(storage: MemoryStorage) -> ReplicaFiles:
    """Open the directory of a member."""
    return open_replica(OPTIONS, storage)


def served(prepares: list[SealedPrepare] = LOG, state: vsr.CoreState = STATE) -> MemoryStorage:
    """The directory of a member that journaled these entries, one group each, and then stopped."""
    storage = MemoryStorage()
    storage.make_directory("data")
    files = started(storage)
    for prepare in prepares:
        files.journal.append([prepare])
    files.superblock.write_core(state)
    files.close()
    return storage


# --- The findings ---


def test_fsync_errors_propagate() -> None:
    """When any sync of a start fails, the start fails, and the next start has everything.

    Iggy threw the result of `sync_all` away and went on with a stale view of the disk.
    """
    storage = served()
    storage.syncs = 0
    started(storage.copy()).close()
    counting = storage.copy()
    started(counting).close()
    assert counting.syncs >= 4
    for failing in range(counting.syncs):
        broken = storage.copy()
        broken.failing_syncs = {failing}
        with pytest.raises((JournalFailed, SuperblockFailed)):
            started(broken)
        broken.restart_process()
        files = started(broken)
        assert files.journal.head == LOG[-1].header
        files.close()


def test_failing_directory_syncs_propagate() -> None:
    """When a sync of names fails, the start fails, and the next start has everything."""

    class Failing(MemoryStorage):
        def sync_directory(self, path: str) -> None:
            raise OSError(errno.EIO, f"Input/output error: {path}")

    storage = Failing()
    with pytest.raises((OSError, JournalError)):
        started(storage)


def test_the_position_comes_from_records() -> None:
    """The records themselves tell the place and the op of the next record.

    Iggy took it from an index that could lag behind the messages, and gave offsets out twice.
    """
    storage = served()
    for number in range(3):
        files = started(storage)
        head = files.journal.head
        assert head is not None
        assert head.op == len(LOG) + number
        before = dict(storage.snapshot())
        files.journal.append(chain(1, after=files.journal.read(head.op)))
        for path, content in before.items():
            old, new = content[SECTOR_BYTES:], storage.content(path)[SECTOR_BYTES:]
            if "segment" in path:
                assert all(a in (0, b) for a, b in zip(old, new, strict=True)), "overwritten"
        files.close()


def test_nothing_is_clamped_in_silence() -> None:
    """A commit beyond the log is handed on unchanged: the core asks the others for the rest.

    Iggy moved consumer offsets down to where its log happened to end.
    """
    files = started(served(LOG[:12], replace(STATE, commit_max=15)))
    assert files.start.superblock == replace(STATE, commit_max=15)
    assert files.start.suffix[-1].op == 12


@pytest.mark.parametrize("voting_view", [0, 7, NOT_ADMITTED])
def test_commit_and_view_are_restored(voting_view: int) -> None:
    """Every number of the core comes back; none begins at zero again.

    Iggy's partitions started with view, commit and sequencer all 0.
    """
    state = replace(STATE, voting_view=voting_view)
    storage = served(state=state)
    files = started(storage)
    assert files.start.superblock == state
    assert [header.op for header in files.start.suffix] == [
        entry.op for entry in LOG[-LOG_TAIL_PREPARES:]
    ]
    assert (files.start.faulty, files.start.head_uncertain) == ((), False)
    files.close()


@pytest.mark.parametrize(
    ("missing", "error"),
    [
        (["segment-0000000000000002.log"], MissingSegment),
        ([f"segment-{n:016d}.log" for n in range(1, 11)], JournalNotFound),
    ],
)
def test_missing_files_fail_loudly(missing: list[str], error: type[JournalError]) -> None:
    """An existing file is opened without creating it, and one that vanished is named.

    Iggy opened active segments with create=true, and wrote into a new file at old offsets.
    """
    storage = served()
    gone = [path for path in storage.paths() if path.rpartition("/")[2] in missing]
    for path in gone:
        storage.remove(path)
    before = storage.snapshot()
    with pytest.raises(error):
        started(storage)
    assert storage.snapshot() == before


def test_the_order_that_recovery_relies_on() -> None:
    """The journal is durable before the first superblock, which says that there is one.

    Iggy's recovery rested on the order in which snapshots are written, and nothing said so.
    """
    storage = MemoryStorage()
    storage.make_directory("data")
    files = started(storage)
    assert not files.superblock.exists
    files.journal.append(LOG[:1])
    synced = len(storage.log)
    files.superblock.write_core(STATE)
    made = next(i for i, step in enumerate(storage.log) if step.startswith("create data/superbl"))
    assert made >= synced


def test_damage_never_bricks_a_member() -> None:
    """A member starts after any damage to a record, and says which ops are missing.

    Iggy's replay ended with the first error, at every start again. A single replica does refuse,
    and the operations manual says what to do then.
    """
    pristine = served()
    for index in range(len(LOG)):
        for within in (5, 30, 90, 230, 400, SECTOR_BYTES - 1):
            storage = pristine.copy()
            path, offset = place(index)
            storage.flip(path, offset + within)
            for _ in range(2):
                files = started(storage)
                # Without its frame the last record might have held any op, even one above it.
                unknown = within < 80 and index == len(LOG) - 1
                assert files.start.head_uncertain == unknown
                assert unknown or files.start.faulty == (index + 1,)
                held = {op for op in range(1, 21) if files.journal.header(op) is not None}
                assert held | set(files.start.faulty) >= set(range(1, 20))
                assert not held & set(files.start.faulty)
                files.close()


WITHIN_BODY = 230
WITHIN_FRAME = 30


def damaged(*places: tuple[int, int]) -> ReplicaFiles:
    """Start a member of `LOG` with bytes flipped: each the index of a record and a byte in it."""
    storage = served()
    for index, within in places:
        path, offset = place(index)
        storage.flip(path, offset + within)
    return started(storage)


def test_the_frame_of_a_damaged_record_tells_which_entry_it_was() -> None:
    """When the last record is damaged but its frame is not, peers are asked for that very entry.

    In front of other damaged records the next entry tells nothing either.
    """
    start = damaged((17, WITHIN_BODY), (18, WITHIN_BODY), (19, WITHIN_BODY)).start
    assert start.faulty == (18, 19, 20)
    assert dict(start.faulty_checksums) == {op: LOG[op - 1].checksum for op in (18, 19, 20)}


def test_a_frame_before_a_record_of_unknown_op_is_not_believed() -> None:
    """A lost record of unknown op may have replaced any entry before it, even a damaged one."""
    start = damaged((18, WITHIN_BODY), (19, WITHIN_FRAME)).start
    assert start.head_uncertain
    assert dict(start.faulty_checksums) == {}


def test_a_damaged_record_that_was_written_again_is_forgotten() -> None:
    """Once an entry is appended again, or discarded, nothing is reported of its old record."""
    files = damaged((18, WITHIN_BODY), (19, WITHIN_BODY))
    assert set(files.journal.missing_checksums) == {19, 20}
    files.journal.append([LOG[18]])
    assert set(files.journal.missing_checksums) == {20}
    files.journal.discard_after(19)
    assert files.journal.missing_checksums == {}


def test_entries_are_never_evicted_in_silence() -> None:
    """An append never pushes an older entry out; only truncation does, and readers are told.

    Iggy's journal had 1,024 slots, and what did not fit vanished from it.
    """
    journal = create(MemoryStorage(), replica_count=3)
    prepares = chain(300)
    for prepare in prepares:
        journal.append([prepare])
    assert [prepare.op for prepare in entries(journal, 1)] == list(range(1, 301))
    assert journal.truncate_before(200) > 0
    assert journal.first_available_op > 1
    assert journal.read(journal.first_available_op - 1) is None
    assert journal.read(journal.first_available_op) is not None


def test_entries_of_newer_views_are_no_damage() -> None:
    """A log that was being adopted when the replica crashed has views above its log view."""
    newer = [*LOG[:12], *chain(3, after=LOG[11], view=9, commit=11)]
    files = started(served(newer, replace(STATE, view=9)))
    assert [header.view for header in files.start.suffix[-3:]] == [9, 9, 9]
    assert (files.start.faulty, files.start.head_uncertain) == ((), False)


# --- With a snapshot ---


def member(prepares: list[SealedPrepare]) -> Journal:
    """A member's journal with these entries, each in its group."""
    journal = create(MemoryStorage(), replica_count=3)
    for prepare in prepares:
        journal.append([prepare])
    return journal


def cut_at(prepare: SealedPrepare) -> SnapshotCut:
    """The cut of generation 2 at an entry."""
    return SnapshotCut(2, prepare.op, prepare.checksum)


OTHER = [*LOG[:8], *chain(12, after=LOG[7], view=5, commit=8)]
COMMITTED = [*LOG[:8], *chain(12, after=LOG[7], view=5, commit=14)]


@pytest.mark.parametrize(
    ("journaled", "cut", "head_op", "suffix"),
    [
        (LOG[:20], LOG[9], 20, range(11, 21)),
        (LOG[:10], LOG[9], 10, range(2, 11)),
        (LOG[:5], LOG[9], 0, ()),
        ([], LOG[9], 0, ()),
        (LOG[:15], OTHER[11], 0, ()),
        (LOG[:12], OTHER[11], 0, ()),
    ],
)
def test_a_member_takes_a_snapshot_over(
    journaled: list[SealedPrepare], cut: SealedPrepare, head_op: int, suffix: range | tuple[()]
) -> None:
    """A log that reaches the cut stays; one that ends before it, or had an uncommitted other
    entry there, is forgotten."""
    journal = member(journaled)
    join(journal, cut_at(cut), single=False)
    assert (journal.head.op if journal.head else 0) == head_op
    start = start_event(STATE, journal, cut_at(cut))
    assert [header.op for header in start.suffix] == list(suffix)
    assert (start.base_op, start.faulty, start.head_uncertain) == (cut.op, (), False)
    before = journal.restart_op
    join(journal, cut_at(cut), single=False)
    assert journal.restart_op == before == (0 if head_op else cut.op)


@pytest.mark.parametrize(
    ("journaled", "single"), [(COMMITTED[:16], False), (COMMITTED[:15], True), (OTHER[:15], True)]
)
def test_a_committed_entry_is_never_forgotten_for_a_snapshot(
    journaled: list[SealedPrepare], single: bool
) -> None:
    """If the journal knows that its different entry at the cut is committed, there are two
    histories."""
    journal = member(journaled)
    with pytest.raises(WrongDirectoryError, match="different histories"):
        join(journal, cut_at(LOG[9]), single=single)
    assert journal.restart_op == 0


def test_damage_up_to_the_cut_does_not_matter() -> None:
    """Entries that a snapshot covers are not missed; those above it are, whatever the cut is."""
    storage = MemoryStorage()
    journal = create(storage, replica_count=3)
    for prepare in LOG:
        journal.append([prepare])
    journal.close()
    for index in (6, 9, 10, 15):
        path, offset = place(index)
        storage.flip(path, offset + 230)
    cut = cut_at(LOG[9])
    journal, _ = reopen(
        storage, replica_count=3, commit_max=15, replay_op=11, base_checksum=cut.checksum
    )
    join(journal, cut, single=False)
    start = start_event(STATE, journal, cut)
    assert start.faulty == (11, 16)
    assert [header.op for header in start.suffix] == [12, 13, 14, 15, 17, 18, 19, 20]
