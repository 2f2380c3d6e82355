"""The life of a cluster: start, wait until ready, stop. As a context it does all three."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Self

# Three replicas of ten million partitions on one loaded machine take more than a minute.
READY_TIMEOUT_S: Final = 300.0


class Lifecycle(ABC):
    """A cluster that `async with` starts, waits for and stops, also after a failed start."""

    @abstractmethod
    async def start(self) -> None:
        """Start everything. Raises PreflightError."""

    @abstractmethod
    async def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until everything is ready. Raises ClusterFailed."""

    @abstractmethod
    async def wait(self) -> None:
        """Wait until everything is stopped. Raises ClusterFailed if a process is given up."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop everything."""

    async def __aenter__(self) -> Self:
        """Start, and wait until ready."""
        try:
            await self.start()
            await self.wait_ready()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.stop()
