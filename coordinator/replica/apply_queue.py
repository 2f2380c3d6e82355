"""Committed entries on their way to the mux: in op order, from the journal where need be.

The core holds the bodies of recent entries only. The queue reads other entries back from the
journal. If the record of an entry is damaged, the queue tells the core, which gets the entry from a
peer and commits it once more; all later entries wait. If an entry needs a feature level that this
build does not know, the replica does not execute it and halts.

If nobody waits for the commits, as on a backup, the queue hands them over in runs. Entries that are
applied together cost less, and delay the next write to the disk less.

The queue decodes an entry of thousands of requests or spans in slices, and the loop does other work
between two slices.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from coordinator import vsr
from coordinator.base.errors import HaltedError
from coordinator.base.slices import SlicedWork, Steps
from coordinator.journal import CorruptRecord
from coordinator.replica.ports import Progress
from viewstamp import limits
from viewstamp.limits import UNAPPLIED_PREPARES_MAX

# How long a commit waits for others at most, and how many may wait. The stages may meanwhile hold
# the other half of the commits that the core hands out.
RUN_DELAY_MS: Final = 20
RUN_PREPARES_MAX: Final = UNAPPLIED_PREPARES_MAX // 2


@dataclass(frozen=True, slots=True)
class ApplyQueuePorts:
    """What the apply queue acts through.

    `read` returns an entry of the journal, or None, and raises CorruptRecord. `take_apart` prepares
    the second argument of `hand_over` from an entry, in steps that change nothing. `faulty` is told
    of an op whose record is damaged, and why. `start` runs work in the background and `guard` runs
    an action; a failure of either ends the process. `is_urgent` says whether somebody waits for the
    effect of a commit.
    """

    read: Callable[[int], Awaitable[Any | None]]
    take_apart: Callable[[vsr.Prepare], Steps[Any]]
    hand_over: Callable[[vsr.Prepare, Any], None]
    faulty: Callable[[int, CorruptRecord], None]
    start: Callable[[Coroutine[Any, Any, None]], None]
    guard: Callable[[Callable[[], None]], None]
    is_urgent: Callable[[], bool] = lambda: True


class ApplyQueue:
    """The queue of commits that the mux has not been given."""

    def __init__(self, ports: ApplyQueuePorts, progress: Progress) -> None:
        self._ports = ports
        self._progress = progress
        self._commits: deque[vsr.Commit] = deque()
        # The first is being read, is fetched from a peer, or takes long to decode.
        self._is_blocked = False
        self._work: tuple[vsr.Commit, SlicedWork[Any]] | None = (
            None  # of the first, if it was begun
        )
        self._last_op = 0  # handed over
        self._timer: asyncio.TimerHandle | None = None

    @property
    def next_op(self) -> int | None:
        """The first waiting op; None if none waits."""
        return self._commits[0].op if self._commits else None

    def has_given(self, op: int, revision: int) -> bool:
        """Return whether the stages were given the log up to both."""
        waiting_op = self.next_op
        given_op = self._progress.committed_op if waiting_op is None else waiting_op - 1
        return op <= given_op and revision <= self._progress.committed_revision

    def add(self, commit: vsr.Commit) -> None:
        """Take a commit: the next, or a damaged one again.

        A read for a peer may find an entry damaged that still waits here, or was handed over.
        """
        if commit.op <= self._last_op:
            return
        position = 0 if self.next_op is None else commit.op - self.next_op
        if position == len(self._commits):
            self._commits.append(commit)
        else:
            self._commits[position] = commit  # ops have no gap
            self._is_blocked = self._is_blocked and position > 0
        if self._may_wait(commit):
            self._wait()
        else:
            self._advance()

    def hurry(self) -> None:
        """Hand over the waiting commits now: somebody waits for them, or they waited long
        enough."""
        if self._timer is not None:
            self._ports.guard(self._advance)

    def _may_wait(self, commit: vsr.Commit) -> bool:
        """Return whether to wait for more commits. A log that is read back does not wait."""
        is_whole = commit.prepare is not None and len(self._commits) < RUN_PREPARES_MAX
        return is_whole and not self._ports.is_urgent()

    def _wait(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(RUN_DELAY_MS / 1000, self.hurry)

    def _advance(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._commits and not self._is_blocked:
            commit = self._commits[0]
            if commit.prepare is None:
                self._is_blocked = True
                self._ports.start(self._read(commit))
                return
            work = self._work_of(commit, commit.prepare)
            if not work.go_on():
                self._is_blocked = True
                self._ports.start(self._finish(commit, work))
                return
            self._commits.popleft()
            self._last_op = commit.op
            self._work = None
            self._ports.hand_over(commit.prepare, work.result)

    def _work_of(self, commit: vsr.Commit, prepare: vsr.Prepare) -> SlicedWork[Any]:
        if self._work is None or self._work[0] is not commit:
            _check_level(prepare)
            self._work = commit, SlicedWork(self._ports.take_apart(prepare))
        return self._work[1]

    async def _finish(self, commit: vsr.Commit, work: SlicedWork[Any]) -> None:
        await asyncio.sleep(0)
        await work.finish()
        if self._is_first(commit):
            self._is_blocked = False
            self._ports.guard(self._advance)

    async def _read(self, commit: vsr.Commit) -> None:
        try:
            prepare = await self._ports.read(commit.op)
        except CorruptRecord as damage:
            if self._is_first(commit):
                self._ports.faulty(commit.op, damage)
            return
        if not self._is_first(commit):
            return
        if prepare is None:
            raise HaltedError(f"committed op {commit.op} is not in the journal")
        self._is_blocked = False
        self._commits[0] = vsr.Commit(commit.op, prepare)
        self._ports.guard(self._advance)

    def _is_first(self, commit: vsr.Commit) -> bool:
        """Return whether a commit is still the first.

        If another read found it damaged, it may have come again and been handed over meanwhile.
        """
        return bool(self._commits) and self._commits[0] is commit


def check_decided(level: int) -> None:
    """Raise HaltedError if the log has decided for a level that this build does not know.

    The decision comes before any entry of that level, and so before this replica could make one.
    """
    check_known(level, "the log has decided for feature level")


def _check_level(prepare: vsr.Prepare) -> None:
    """Raise HaltedError for an entry that this build would execute differently from others."""
    header = prepare.header
    check_known(header.feature_level, f"op {header.op} is of feature level")


def check_known(level: int, what: str) -> None:
    """Raise HaltedError for a feature level that this build does not know."""
    if level > limits.FEATURE_LEVEL_MAX:
        raise HaltedError(
            f"{what} {level}, and this build knows levels up to {limits.FEATURE_LEVEL_MAX}:"
            " start a newer one; the data directory is good"
        )
