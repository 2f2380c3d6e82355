"""The scrubber notices files that are gone, and forgets nothing of much damage."""

from __future__ import annotations

import errno
import os

import pytest

from coordinator.scrub.ports import ScrubAlarm
from coordinator.scrub.remedies import DamagedPart
from testkit.journal_builders import chain, place, segment
from tests.coordinator.scrub.scrub_trial import ENTRIES, SUPERBLOCK, ScrubTrial
from tests.coordinator.scrub.test_scrub_journal import rot_record
from viewstamp.format.superblock import COPIES

FILE = DamagedPart.SEGMENT_FILE


@pytest.fixture(autouse=True)
def _small_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a journal of a few records drop segments."""
    monkeypatch.setattr("coordinator.journal.journal.PREPARES_KEPT_MIN", 1)


@pytest.mark.parametrize("replica_count", [1, 3])
@pytest.mark.parametrize("how", ["gone", "unreadable"])
async def test_a_segment_that_does_not_open_is_told(
    how: str, replica_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica reads on; the alarm names the file, and ends once the log has dropped it."""
    trial = ScrubTrial(replica_count=replica_count)
    number = errno.ENOENT if how == "gone" else errno.EIO
    real = trial.storage.open

    def opened(path: str) -> object:
        if path == segment(1):
            error = FileNotFoundError if how == "gone" else OSError
            raise error(number, os.strerror(number))
        return real(path)

    monkeypatch.setattr(trial.storage, "open", opened)
    await trial.passes(2)
    (text,) = trial.alarms.texts(ScrubAlarm.JOURNAL_DAMAGED)
    assert segment(1) in text
    assert "do not restart" in text
    assert (trial.tally.found[FILE], trial.tally.standing[FILE]) == (1, 1)
    assert trial.journal.truncate_before(ENTRIES) == 1
    await trial.until(lambda: not trial.alarms.raised)
    assert trial.tally.standing[FILE] == 0


async def test_a_segment_dropped_before_it_is_opened_is_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the log has dropped between a look at it and the read is not missed."""
    trial = ScrubTrial()
    real = trial.storage.open
    dropped: list[int] = []

    def opened(path: str) -> object:
        if path == segment(1) and not dropped:
            dropped.append(trial.journal.truncate_before(ENTRIES))
        return real(path)

    monkeypatch.setattr(trial.storage, "open", opened)
    await trial.passes()
    assert dropped == [1]
    assert not trial.alarms.ever
    assert trial.tally.found.total() == 0


async def test_a_superblock_that_is_gone_is_told() -> None:
    """An open file says nothing of its name; the alarm ends when the file is back."""
    trial = ScrubTrial(replica_count=1)
    content = trial.storage.content(SUPERBLOCK)
    trial.storage.remove(SUPERBLOCK)
    await trial.passes(2)
    (text,) = trial.alarms.texts(ScrubAlarm.SUPERBLOCK_DAMAGED)
    assert "is gone" in text
    assert trial.tally.found[DamagedPart.SUPERBLOCK] == COPIES
    trial.storage.replace(SUPERBLOCK, content)
    await trial.until(lambda: not trial.alarms.raised)


async def test_more_damage_than_can_be_noted_goes_to_the_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of it is told in one pass; what was not noted is noted when there is room."""
    monkeypatch.setattr("coordinator.scrub.journal_scrub.STANDING_MAX", 2)
    trial = ScrubTrial()
    for op in range(1, ENTRIES):
        rot_record(trial, op)
    await trial.passes()
    assert set(trial.faulty) == set(range(1, ENTRIES))
    assert trial.tally.standing[DamagedPart.RECORD] == 2
    trial.journal.append(chain(ENTRIES)[:2])
    await trial.until(lambda: trial.tally.found[DamagedPart.RECORD] == ENTRIES - 2)
    trial.journal.append(chain(ENTRIES)[2:])
    await trial.until(lambda: trial.tally.standing[DamagedPart.RECORD] == 0)


async def test_a_record_discarded_at_the_second_look_does_not_go_to_the_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The core is told of records that are in their place after the read, too."""
    trial = ScrubTrial()
    rot_record(trial, ENTRIES)
    path, offset = place(ENTRIES - 1)
    reads: list[int] = []

    def check_read(read: str, start: int, size: int) -> None:
        if read == path and start <= offset < start + size:
            reads.append(start)
            if len(reads) == 2:
                trial.journal.discard_after(ENTRIES - 1)

    monkeypatch.setattr(trial.storage, "check_read", check_read)
    await trial.passes()
    assert len(reads) == 2
    assert not trial.faulty


async def test_a_pass_that_left_something_out_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a free descriptor nothing was read, so the gauge of passes must not say so."""
    trial = ScrubTrial()
    real = trial.storage.open
    refused: list[str] = []

    def opened(path: str) -> object:
        if path == segment(1) and len(refused) < 3:
            refused.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path)

    monkeypatch.setattr(trial.storage, "open", opened)
    await trial.until(lambda: len(refused) == 3)
    assert trial.tally.passes == 0
    await trial.passes()
