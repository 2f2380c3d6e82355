"""The scrubber reads the journal and the superblock: what rots is mended or told."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from coordinator.journal import JournalFailed, SuperblockFailed
from coordinator.scrub.journal_scrub import MEND_MS
from coordinator.scrub.ports import ScrubAlarm
from coordinator.scrub.remedies import DamagedPart
from testkit.journal_builders import SEGMENT_BYTES, chain, place, reopen, segment
from tests.coordinator.scrub.scrub_trial import ENTRIES, SUPERBLOCK, ScrubTrial
from viewstamp.format.record import FRAME_BYTES, SECTOR_BYTES, decode_segment_header
from viewstamp.format.superblock import COPIES, COPY_BYTES

RECORD = DamagedPart.RECORD
BODY = FRAME_BYTES + 130


def rot_record(trial: ScrubTrial, op: int) -> None:
    """Flip a byte of the record of an op."""
    path, offset = place(op - 1)
    trial.storage.flip(path, offset + BODY)


async def test_nothing_is_found_where_nothing_is_damaged() -> None:
    """A pass over an intact disk reads all of it, tells nothing and changes nothing."""
    trial = ScrubTrial()
    before = trial.storage.snapshot()
    await trial.passes(2)
    assert trial.storage.snapshot() == before
    assert not trial.alarms.ever
    assert trial.tally.found.total() == 0
    assert trial.tally.completed_us == 1
    read = {path for path, _, _ in trial.storage.drops}
    assert read == {path for path in before if not path.endswith(("reserve", "IDENTITY"))} - {
        segment(number) for number in range(3, 8)
    }


async def test_each_read_asks_the_disk() -> None:
    """What memory holds of a file is dropped before it is read, or rot would never be seen."""
    trial = ScrubTrial()
    read: list[str] = []
    trial.storage.before_read = lambda path: read.append(
        path if path in {dropped for dropped, _, _ in trial.storage.drops} else f"{path}!"
    )
    await trial.until(lambda: trial.tally.passes > 0)
    layers = [path for path in read if "/layers/" in path]
    assert layers
    assert not [path for path in layers if path.endswith("!")]


async def test_a_damaged_record_goes_to_the_core() -> None:
    """The core is told once; when the log has the entry elsewhere, the damage is mended."""
    trial = ScrubTrial()
    rot_record(trial, 3)

    def rewrite(op: int) -> None:
        trial.faulty.append(op)
        trial.journal.append([chain(ENTRIES)[op - 1]])

    trial.found_faulty = rewrite
    await trial.until(lambda: trial.tally.mended[RECORD] == 1)
    await trial.passes()
    assert trial.faulty == [3]
    assert trial.tally.standing[RECORD] == 0
    assert not trial.alarms.raised


@pytest.mark.parametrize("is_lone", [True, False])
async def test_who_mends_a_record_depends_on_the_voters_of_the_moment(is_lone: bool) -> None:
    """A replica that became the only voter does not ask its core; one that ceased to be does."""
    trial = ScrubTrial(replica_count=3 if is_lone else 1)
    trial.is_lone = is_lone
    rot_record(trial, 3)
    await trial.until(lambda: bool(trial.alarms.texts(ScrubAlarm.JOURNAL_DAMAGED)))
    (text,) = trial.alarms.texts(ScrubAlarm.JOURNAL_DAMAGED)
    assert trial.faulty == ([] if is_lone else [3])
    assert ("do not restart" in text) is is_lone


async def test_people_are_told_if_nobody_sends_a_record() -> None:
    """After a while without a repair there is an alarm, which ends with the damage."""
    trial = ScrubTrial()
    rot_record(trial, 3)
    await trial.until(lambda: bool(trial.alarms.texts(ScrubAlarm.JOURNAL_DAMAGED)))
    assert trial.faulty == [3]
    assert trial.now_ms >= MEND_MS
    assert trial.tally.standing[RECORD] == 1
    assert "records of ops 3 are damaged" in trial.alarms.texts(ScrubAlarm.JOURNAL_DAMAGED)[0]
    trial.journal.append([chain(ENTRIES)[2]])
    await trial.until(lambda: not trial.alarms.raised)
    assert trial.tally.standing[RECORD] == 0


async def test_an_unreadable_record_counts_as_damaged() -> None:
    """An error of the disk is treated as rot is."""
    trial = ScrubTrial()
    trial.storage.unreadable.add(segment(1))
    await trial.until(lambda: len(trial.faulty) == 3)
    assert sorted(trial.faulty) == [1, 2, 3]


@pytest.mark.parametrize(
    ("cut_op", "advice"), [(0, "take a snapshot now"), (3, "refuses to start")]
)
async def test_a_lone_replica_tells_people_at_once(cut_op: int, advice: str) -> None:
    """Without peers the core is not told; the alarm says when it may be restarted."""
    trial = ScrubTrial(replica_count=1)
    trial.cut_op = cut_op
    rot_record(trial, 3)
    await trial.passes()
    (text,) = trial.alarms.texts(ScrubAlarm.JOURNAL_DAMAGED)
    assert advice in text
    assert "before this alarm has ended" in text
    assert not trial.faulty


async def test_a_covered_record_is_left_to_the_next_snapshot() -> None:
    """The core is not told of records up to the cut, for which peers would send a snapshot."""
    trial = ScrubTrial()
    trial.cut_op = 3
    rot_record(trial, 3)
    rot_record(trial, 4)
    await trial.passes()
    assert trial.faulty == [4]
    assert trial.tally.standing[DamagedPart.COVERED_RECORD] == 1
    trial.journal.truncate_before(ENTRIES)
    trial.journal.discard_after(2)
    await trial.passes()
    assert not trial.alarms.raised


@pytest.mark.parametrize("meanwhile", ["dropped", "discarded"])
async def test_what_went_while_it_was_read_is_no_damage(
    meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that is dropped, or an entry that is discarded, during the read tells nothing."""
    monkeypatch.setattr("coordinator.journal.journal.PREPARES_KEPT_MIN", 1)
    trial = ScrubTrial()
    rot_record(trial, 3 if meanwhile == "dropped" else 6)

    def before_read(path: str) -> None:
        if path == segment(2):
            trial.storage.before_read = lambda path: None
            trial.journal.discard_after(5)

    def dropped(path: str) -> None:
        if path == segment(1):
            trial.storage.before_read = lambda path: None
            assert trial.journal.truncate_before(ENTRIES) == 1

    trial.storage.before_read = dropped if meanwhile == "dropped" else before_read
    await trial.passes()
    assert not trial.faulty
    assert not trial.alarms.ever


async def test_a_header_is_written_anew() -> None:
    """A damaged header of a segment is what it was after a pass; nobody has to restart for it."""
    trial = ScrubTrial()
    before = trial.storage.content(segment(1))
    trial.storage.flip(segment(1), 50)
    await trial.passes()
    assert trial.storage.content(segment(1)) == before
    assert trial.tally.mended[DamagedPart.SEGMENT_HEADER] == 1


def test_each_segment_has_a_size_of_its_own() -> None:
    """Segments that were made with another setting keep theirs, and so do their headers."""
    trial = ScrubTrial()
    trial.journal.close()
    journal, _ = reopen(trial.storage, replica_count=3, segment_bytes=2 * SEGMENT_BYTES)
    held = journal.kept_records.held(1)
    assert held is not None
    sector = trial.storage.content(held.path)[:SECTOR_BYTES]
    assert held.header == decode_segment_header(sector)


async def test_a_failed_write_of_a_header_ends_the_process() -> None:
    """What is durable is unknown then, as after any failed sync of the journal."""
    trial = ScrubTrial()
    trial.storage.flip(segment(1), 50)
    trial.storage.failing_syncs.add(trial.storage.syncs)
    with pytest.raises(JournalFailed, match="header of segment 1"):
        await trial.passes()


@pytest.mark.parametrize("copies", [(0,), (3,), (1, 2)])
async def test_copies_of_the_superblock_are_written_anew(copies: tuple[int, ...]) -> None:
    """Bad copies are as they were after a pass."""
    trial = ScrubTrial()
    before = trial.storage.content(SUPERBLOCK)
    for copy in copies:
        trial.storage.flip(SUPERBLOCK, copy * COPY_BYTES + 60)
    await trial.passes()
    assert trial.storage.content(SUPERBLOCK) == before
    assert trial.tally.mended[DamagedPart.SUPERBLOCK] == len(copies)
    assert not trial.alarms.raised


async def test_a_superblock_that_cannot_be_mended_is_told() -> None:
    """Copies that do not read back raise an alarm, and the replica goes on."""
    trial = ScrubTrial()
    trial.storage.unreadable.add(SUPERBLOCK)
    await trial.passes()
    (text,) = trial.alarms.texts(ScrubAlarm.SUPERBLOCK_DAMAGED)
    assert "another disk" in text
    assert trial.tally.standing[DamagedPart.SUPERBLOCK] == COPIES
    trial.storage.unreadable.clear()
    await trial.passes()
    assert not trial.alarms.raised


async def test_a_failed_sync_of_the_superblock_ends_the_process() -> None:
    """As after any write of it."""
    trial = ScrubTrial()
    trial.storage.flip(SUPERBLOCK, 60)
    trial.storage.failing_syncs.add(trial.storage.syncs)
    with pytest.raises(SuperblockFailed):
        await trial.passes()


async def test_a_write_under_way_is_no_damage() -> None:
    """A superblock that is written between the two looks is left alone."""
    trial = ScrubTrial()
    reads: list[str] = []

    def write(path: str) -> None:
        if path == SUPERBLOCK and not reads:
            reads.append(path)
            trial.superblock.record_commit(ENTRIES + 1)

    trial.storage.before_read = write
    await trial.passes()
    assert reads
    assert trial.tally.found.total() == 0


async def test_a_disk_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An alarm says that nothing is scrubbed; it ends when the disk answers, and so does the
    wait."""
    monkeypatch.setattr("coordinator.scrub.patience.STALL_MS", 1)
    trial = ScrubTrial()
    trial.thread.hangs = True
    await trial.until(lambda: bool(trial.alarms.texts(ScrubAlarm.STALLED)))
    trial.thread.hangs = False
    await trial.passes()
    assert not trial.alarms.raised


async def test_a_held_scrubber_comes_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that always has better things to do is scrubbed all the same."""
    monkeypatch.setattr("coordinator.scrub.slow_disk.HOLD_LOOK_MS", 1)
    monkeypatch.setattr("coordinator.scrub.slow_disk.HOLD_MS_MAX", 3)
    trial = ScrubTrial()
    trial.is_held = True
    rot_record(trial, 3)
    await trial.until(lambda: bool(trial.faulty))
    assert trial.faulty == [3]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
async def test_a_process_short_of_something_tries_again(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of the process are no damage; the pass goes on, and the next one finds what is."""
    trial = ScrubTrial()
    real: Callable[[str], object] = trial.storage.open
    failed: list[str] = []

    def opened(path: str) -> object:
        if "segment" in path and not failed:
            failed.append(path)
            raise OSError(number, "short of it")
        return real(path)

    monkeypatch.setattr(trial.storage, "open", opened)
    rot_record(trial, 1)
    await trial.until(lambda: bool(trial.faulty))
    assert failed
    assert trial.faulty == [1]
