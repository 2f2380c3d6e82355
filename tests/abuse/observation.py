"""What is seen of the cluster from outside: memory and restarts of processes, and the view."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

import grpc.aio
import psutil

from viewstamp.client import Client, ClientError, Refusal
from viewstamp.cluster import LocalReplicas

SAMPLE_S: Final = 0.5
MIB: Final = 1 << 20


@dataclass(slots=True)
class Memory:
    """Resident memory of one process, in MiB."""

    first: float
    peak: float
    last: float


@dataclass(slots=True)
class Observation:
    """Samples of a cluster, from its beginning on. `views` are those that were named, in order."""

    replicas: LocalReplicas
    admin: Client
    memory: dict[str, Memory] = field(default_factory=dict)
    views: list[int] = field(default_factory=list)
    unanswered_status: int = 0

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self.sample_memory()
            await self._sample_view()
            await asyncio.sleep(SAMPLE_S)

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

    async def _sample_view(self) -> None:
        try:
            status = await self.admin.status()
        except (Refusal, ClientError, grpc.aio.AioRpcError):
            self.unanswered_status += 1
            return
        if not self.views or self.views[-1] != status.header.view:
            self.views.append(status.header.view)
