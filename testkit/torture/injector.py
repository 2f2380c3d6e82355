"""Carries out faults on a cluster, and undoes all of them in the end."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from testkit.torture.cluster import REPLICAS, TortureCluster
from testkit.torture.hurt_coordinator import FULL, JUMP
from testkit.torture.recorder import Recorder
from testkit.torture.schedule import ScheduledFault, TortureFault
from viewstamp.cluster.local import COORDINATOR
from viewstamp.routing import SERVICE_NAMES

# Before the next fault so many transactions are to be answered; a cluster without an answer for
# this long is hit again nevertheless.
ANSWERED_MIN: Final = 10
PATIENCE_S: Final = 4.0
NS_PER_S: Final = 1_000_000_000
# A supervisor gives up a process that dies five times in a row before it was ready.
KILLS_BEFORE_READY_MAX: Final = 3


class FaultInjector:
    """Hurts a cluster as planned. `kills` counts processes, `faults` what was done."""

    def __init__(
        self, cluster: TortureCluster, recorder: Recorder, faults: Sequence[ScheduledFault]
    ) -> None:
        self.kills: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._cluster = cluster
        self._recorder = recorder
        self._planned = faults
        self._lasting: set[asyncio.Task[None]] = set()
        # One cut at a time: healing heals all links.
        self._is_cut = False
        self._killed_unready: Counter[tuple[int, str]] = Counter()

    async def run(self) -> None:
        """Carry out the faults in order, and undo those that last."""
        try:
            for fault in self._planned:
                await asyncio.sleep(fault.gap_s)
                await self._recorder.until_answered(ANSWERED_MIN, PATIENCE_S)
                await self._inject(fault)
        finally:
            await self._undo_all()

    async def _inject(self, fault: ScheduledFault) -> None:
        target = fault.replica
        if fault.on_primary:
            primary = await self._cluster.primary()
            target = target if primary is None else primary
        if self._act(fault, target):
            self.faults[fault.kind] += 1

    def _act(self, fault: ScheduledFault, target: int) -> bool:
        """Carry out a fault; return whether anything was done."""
        all_names, lasts_s = (COORDINATOR, *SERVICE_NAMES), fault.lasts_s
        jump = str(int(fault.jump_s * NS_PER_S))
        actions: dict[TortureFault, Callable[[], bool]] = {
            TortureFault.KILL_COORDINATOR: lambda: self._kill([COORDINATOR], [target]),
            TortureFault.KILL_SERVICE: lambda: self._kill([fault.service], [target]),
            TortureFault.KILL_REPLICA: lambda: self._kill(all_names, [target]),
            TortureFault.KILL_COORDINATORS: lambda: self._kill([COORDINATOR], range(REPLICAS)),
            TortureFault.PAUSE_COORDINATOR: lambda: self._pause(COORDINATOR, target, lasts_s),
            TortureFault.PAUSE_SERVICE: lambda: self._pause(fault.service, target, lasts_s),
            TortureFault.ISOLATE: lambda: self._cut(_from(target) + _to(target), lasts_s),
            TortureFault.SILENCE: lambda: self._cut(_from(target), lasts_s),
            TortureFault.DEAFEN: lambda: self._cut(_to(target), lasts_s),
            TortureFault.FILL_DISK: lambda: self._mark(target, FULL, "", lasts_s),
            TortureFault.JUMP_CLOCK: lambda: self._mark(target, JUMP, jump, lasts_s),
        }
        return actions[fault.kind]()

    def _kill(self, names: Sequence[str], targets: Sequence[int]) -> bool:
        killed = [
            name
            for target in targets
            for name in names
            if self._may_die(target, name) and self._signal(target, name, signal.SIGKILL)
        ]
        self.kills.update(killed)
        return bool(killed)

    def _may_die(self, target: int, name: str) -> bool:
        """Whether a process has been ready lately, or may still die while it starts."""
        self._killed_unready[target, name] += 1
        if self._cluster.replicas.replicas[target].supervised[name].is_ready:
            self._killed_unready[target, name] = 0
        return self._killed_unready[target, name] <= KILLS_BEFORE_READY_MAX

    def _signal(self, target: int, name: str, number: signal.Signals) -> bool:
        try:
            self._cluster.replicas.replicas[target].kill(name, number)
        except ProcessLookupError:  # it has just died, and is not up again
            return False
        return True

    def _pause(self, name: str, target: int, lasts_s: float) -> bool:
        is_paused = self._signal(target, name, signal.SIGSTOP)
        if is_paused:
            self._later(lasts_s, lambda: self._signal(target, name, signal.SIGCONT))
        return is_paused

    def _cut(self, pairs: Sequence[tuple[int, int]], lasts_s: float) -> bool:
        if self._is_cut:
            return False
        self._is_cut = True
        for source, target in pairs:
            self._cluster.links.cut(source, target)
        self._later(lasts_s, self._heal)
        return True

    def _heal(self) -> None:
        self._cluster.links.heal()
        self._is_cut = False

    def _mark(self, target: int, marker: str, content: str, lasts_s: float) -> bool:
        path = self._cluster.replicas.replica_directory(target) / marker
        beside = path.with_suffix(".new")
        beside.write_text(content)
        beside.replace(path)
        self._later(lasts_s, lambda: path.unlink(missing_ok=True))
        return True

    def _later(self, delay_s: float, undo: Callable[[], object]) -> None:
        async def wait() -> None:
            try:
                await asyncio.sleep(delay_s)
            finally:
                undo()

        task = asyncio.create_task(wait())
        self._lasting.add(task)
        task.add_done_callback(self._lasting.discard)

    async def _undo_all(self) -> None:
        tasks = list(self._lasting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._heal()
        for target in range(REPLICAS):
            # A task that was cancelled before it began has undone nothing.
            for marker in (FULL, JUMP):
                (self._cluster.replicas.replica_directory(target) / marker).unlink(missing_ok=True)
            for name in (COORDINATOR, *SERVICE_NAMES):
                self._signal(target, name, signal.SIGCONT)


def _from(target: int) -> list[tuple[int, int]]:
    return [(target, other) for other in range(REPLICAS) if other != target]


def _to(target: int) -> list[tuple[int, int]]:
    return [(other, target) for other in range(REPLICAS) if other != target]
