"""What is seen of the cluster from outside: memory and restarts of processes, and the view.

A view that changed while the machine stalled is told, and shows nothing (`stalls`).
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
    """Samples of a cluster, from its beginning on. `views` are those that were named, in order.

    `excuses` says of views that began while the machine stalled how it did.
    """

    replicas: LocalReplicas
    admin: Client
    memory: dict[str, Memory] = field(default_factory=dict)
    views: list[int] = field(default_factory=list)
    excuses: dict[int, str] = field(default_factory=dict)
    unanswered_status: int = 0
    _seen_ms: float = 0.0  # when the newest view was named last

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
        """Note what each process has now."""
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
        """How often each process was restarted, those that were."""
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
        """Note which view there is, and whether the machine stalled if it is another."""
        if not self.views or self.views[-1] != view:
            if self.views and (excuse := stalls.excuse(self._seen_ms)):
                self.excuses[view] = excuse
            self.views.append(view)
        self._seen_ms = now_ms()
