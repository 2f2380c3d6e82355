"""Observations of the cluster from outside: memory and restarts of processes, and the view.

A view that changed while the machine stalled is reported, and proves nothing (`stalls`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

import grpc.aio
import psutil

from tests.abuse.stalls import Stalls, Waited, now_ms, waited_of_main_threads
from viewstamp.client import Client, ClientError, Refusal
from viewstamp.cluster import LocalReplicas

SAMPLE_S: Final = 0.5
MIB: Final = 1 << 20
COORDINATOR: Final = "coordinator"


@dataclass(slots=True)
class Memory:
    """Resident memory of one process, in MiB."""

    first: float
    peak: float
    last: float


@dataclass(slots=True)
class Observation:
    """Samples of a cluster. `views` are the views in the order of their appearance.

    `excuses` has the stall of each view that began while the machine stalled.
    """

    replicas: LocalReplicas
    admin: Client
    memory: dict[str, Memory] = field(default_factory=dict)
    views: list[int] = field(default_factory=list)
    excuses: dict[int, str] = field(default_factory=dict)
    unanswered_status: int = 0
    _seen_ms: float = 0.0  # when the newest view was last seen

    async def run(self) -> None:
        """Sample until cancelled."""
        stalls = Stalls(self._waited)
        stalls.start()
        try:
            while True:
                self.sample_memory()
                await self._sample_view(stalls)
                await asyncio.sleep(SAMPLE_S)
        finally:
            stalls.stop()

    def _waited(self) -> Waited:
        pids = {
            f"the coordinator of replica {index}": pid
            for index, replica in enumerate(self.replicas.replicas)
            for name, pid in replica.pids.items()
            if name == COORDINATOR
        }
        return waited_of_main_threads(pids)

    @property
    def unexcused_views(self) -> list[int]:
        """The views that began while the machine did not stall."""
        return [view for view in self.views[1:] if view not in self.excuses]

    def sample_memory(self) -> None:
        """Record the present memory of each process."""
        for index, replica in enumerate(self.replicas.replicas):
            for name, pid in replica.pids.items():
                try:
                    size = round(psutil.Process(pid).memory_info().rss / MIB, 1)
                except psutil.NoSuchProcess:
                    continue
                known = self.memory.setdefault(f"{index} {name}", Memory(size, size, size))
                known.peak, known.last = max(known.peak, size), size

    @property
    def restarts(self) -> dict[str, int]:
        """The number of restarts of each process, if there were any."""
        return {
            f"{index} {name}": count
            for index, replica in enumerate(self.replicas.replicas)
            for name, count in replica.restarts.items()
            if count
        }

    async def _sample_view(self, stalls: Stalls) -> None:
        try:
            status = await self.admin.status()
        except (Refusal, ClientError, grpc.aio.AioRpcError):
            self.unanswered_status += 1
            return
        self.saw_view(status.header.view, stalls)

    def saw_view(self, view: int, stalls: Stalls) -> None:
        """Record the present view; if it is new, record also a stall of the machine."""
        if not self.views or self.views[-1] != view:
            if self.views and (excuse := stalls.excuse(self._seen_ms)):
                self.excuses[view] = excuse
            self.views.append(view)
        self._seen_ms = now_ms()
