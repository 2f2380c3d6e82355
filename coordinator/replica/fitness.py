"""Whether this replica is fit to lead: stages apply, disk and clock are as they should be.

An unfit primary gives up its view if another replica is fitter, and leads no later view until the
reason is gone. A lone replica cannot hand over. Any replica is not ready while its stages make no
progress.

A service that returns and replays makes progress, however long the replay takes, and is no reason.
A service that hangs or stays away is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from coordinator import vsr
from viewstamp.limits import APPLY_STALL_MS, DISK_STALL_MS

LOOK_INTERVAL_MS: Final = 250
PAUSE_MS_MAX: Final = 2 * LOOK_INTERVAL_MS


class ServiceState(Enum):
    """How a domain service stands."""

    UP = "up"
    COMING_BACK = "coming_back"  # it is being sent its state, or the batches after it
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at the replica finds. `has_fit_peer`: another replica could lead.
    `writes_done` counts the writes that the journal's thread has finished; `is_writing` says
    whether it has more to do. `clock` says what is wrong with the clock, empty for nothing.
    `is_alone`: no other replica has a vote, so this one leads in any case.
    """

    committed_op: int
    applied_op: int
    services: Mapping[str, ServiceState]
    is_full: bool
    is_writing: bool
    writes_done: int
    has_fit_peer: bool
    clock: str = ""
    is_alone: bool = False


class StallWatch:
    """How long the stages, or the disk, have made no progress.

    Time between looks counts, but only a little of a long pause: a process that was stopped, or
    starved, has not seen whether its stages stood still.
    """

    def __init__(self) -> None:
        self._looked_ms = 0
        self._applied_op = -1
        self._still_ms = 0
        self._writes_done = -1
        self._writing_ms = 0
        self._away_ms: dict[str, int] = {}

    def look(self, seen: Seen, now_ms: int) -> str:
        """Return what has been standing still for too long, and where; empty if nothing has."""
        elapsed_ms = min(now_ms - self._looked_ms, PAUSE_MS_MAX)
        self._looked_ms = now_ms
        self._count(seen, elapsed_ms)
        self._count_disk(seen, elapsed_ms)
        if self._writing_ms >= DISK_STALL_MS:
            return "the disk does not finish a write"
        for name, away_ms in self._away_ms.items():
            if away_ms >= APPLY_STALL_MS:
                return f"service {name} does not answer"
        if self._still_ms >= APPLY_STALL_MS:
            return f"op {seen.applied_op + 1} does not get through its stages"
        return ""

    def _count(self, seen: Seen, elapsed_ms: int) -> None:
        away = [name for name, state in seen.services.items() if state is ServiceState.DOWN]
        before = self._away_ms
        self._away_ms = {name: before[name] + elapsed_ms if name in before else 0 for name in away}
        is_waited_for = ServiceState.COMING_BACK in seen.services.values()
        stands = seen.applied_op < seen.committed_op and seen.applied_op == self._applied_op
        self._still_ms = self._still_ms + elapsed_ms if stands and not is_waited_for else 0
        self._applied_op = seen.applied_op

    def _count_disk(self, seen: Seen, elapsed_ms: int) -> None:
        stands = seen.is_writing and seen.writes_done == self._writes_done
        self._writing_ms = self._writing_ms + elapsed_ms if stands else 0
        self._writes_done = seen.writes_done


def reason_of(stalled: str, is_full: bool, clock: str) -> str:
    """Return what speaks against this replica as primary; empty if nothing does."""
    if stalled:
        return stalled
    return "the disk of its journal is full" if is_full else clock


@dataclass(frozen=True, slots=True)
class FitnessPorts:
    """What is looked at, and who is told of every new reason, empty for none.

    `said` is told what speaks against leading, `stalled` of stages or a disk without progress.
    """

    look: Callable[[], Seen]
    step: Callable[[vsr.Event], None]
    said: Callable[[str], None]
    stalled: Callable[[str], None]
    clock_ms: Callable[[], int]


class Fitness:
    """Looks at one replica, and tells its core when it should not lead.

    `reason` is what speaks against it, empty for nothing, whether or not another is fitter. Nothing
    speaks against one that is alone.
    """

    def __init__(self, ports: FitnessPorts) -> None:
        self.reason = ""
        self._ports = ports
        self._stalls = StallWatch()
        self._stalled = ""
        self._is_unfit = False  # as the core was told
        self._leaves = False

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_INTERVAL_MS / 1000)

    def leave(self, reason: str) -> None:
        """Let this replica lead no more, for good: its process is about to end.

        A view change that this begins leaves no fit peer for a moment. That takes nothing back.
        """
        self._leaves = True
        self.reason = self.reason or reason
        self._ports.step(vsr.Unfit(reason))

    def look(self) -> None:
        """Look once, and report changes."""
        if self._leaves:
            return
        seen = self._ports.look()
        stalled = self._stalls.look(seen, self._ports.clock_ms())
        if stalled != self._stalled:
            self._stalled = stalled
            self._ports.stalled(stalled)
        reason = "" if seen.is_alone else reason_of(stalled, seen.is_full, seen.clock)
        if reason != self.reason:
            self.reason = reason
            self._ports.said(reason)
        is_unfit = bool(reason) and seen.has_fit_peer
        if is_unfit != self._is_unfit:
            self._is_unfit = is_unfit
            self._ports.step(vsr.Unfit(reason) if is_unfit else vsr.Fit())
