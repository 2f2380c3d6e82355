"""The journal that a snapshot frees, and keeps for replicas that lag behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from coordinator.snapshot import log_retention
from coordinator.snapshot.log_retention import (
    NONE_AT_ALL,
    Follower,
    LogRetention,
    RetentionRoom,
    keep_from,
)
from viewstamp.limits import (
    PIPELINE_PREPARES_MAX,
    RETAIN_FOR_BACKUP_BYTES_MAX,
    RETAIN_FOR_BACKUP_MS,
)

CUT = 1_000
PREPARE_BYTES = RETAIN_FOR_BACKUP_BYTES_MAX // 500
LATE_MS = RETAIN_FOR_BACKUP_MS


def bytes_from(op: int) -> int:
    """Return the size of a journal whose entries are equally large, with its head at op 2000."""
    return (2_000 - op) * PREPARE_BYTES


def lags(ops: int, silent_ms: int = 0) -> Follower:
    """Return a replica that may ask for so many ops before the cut."""
    return Follower(CUT - ops + PIPELINE_PREPARES_MAX - 1, silent_ms)


@pytest.mark.parametrize(
    ("followers", "room", "kept_ops"),
    [
        ([], RetentionRoom(), 0),
        ([lags(0)], RetentionRoom(), 0),
        ([lags(-100)], RetentionRoom(), 0),
        ([lags(1)], RetentionRoom(), 1),
        ([lags(40), lags(30)], RetentionRoom(), 40),
        ([lags(40, LATE_MS - 1)], RetentionRoom(), 40),
        ([lags(40, LATE_MS)], RetentionRoom(), 0),
        ([lags(40, LATE_MS), lags(30)], RetentionRoom(), 30),
        ([lags(500)], RetentionRoom(), 500),
        ([lags(501)], RetentionRoom(), 0),
        ([lags(501), lags(30)], RetentionRoom(), 30),
        ([lags(40)], NONE_AT_ALL, 0),
        ([Follower(0, 0)], RetentionRoom(), 0),
    ],
)
def test_for_whom_the_journal_is_kept(
    followers: Sequence[Follower], room: RetentionRoom, kept_ops: int
) -> None:
    """The journal is kept for a replica that was heard lately and lags a little, unless the disk
    is full."""
    assert keep_from(CUT, followers, bytes_from, room) == CUT - kept_ops


def test_who_has_nothing_yet_needs_all() -> None:
    """A replica that has committed nothing needs all ops from 1."""
    assert keep_from(9, [Follower(0, 0)], bytes_from, RetentionRoom()) == 1


class RetainedJournal:
    """A journal that remembers from which op it was kept."""

    def __init__(self) -> None:
        self.kept_from: list[int] = []

    def bytes_from(self, op: int) -> int:
        """Return its size."""
        return bytes_from(op)

    def truncate_before(self, op: int) -> int:
        """Remember the op, and drop one segment."""
        self.kept_from.append(op)
        return 1


async def test_what_was_kept_goes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the other replica has caught up, its part is dropped."""
    monkeypatch.setattr(log_retention, "LOOK_INTERVAL_MS", 1)
    journal, followers, looked = RetainedJournal(), [lags(40)], asyncio.Event()

    async def call(function: Callable[[], int]) -> int:
        looked.set()
        return function()

    kept = LogRetention(journal, lambda: followers, RetentionRoom)
    running = asyncio.create_task(kept.run(call))
    assert kept.truncate_before(CUT) == 1
    await looked.wait()
    followers[:] = [lags(0)]
    while journal.kept_from[-1] != CUT:
        looked.clear()
        await looked.wait()
    running.cancel()
    assert set(journal.kept_from[:-1]) == {CUT - 40}
