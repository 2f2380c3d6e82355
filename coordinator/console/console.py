"""The console of one replica, put together: bound when it is made, answers once it has started."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from coordinator.base.clock import monotonic_ms, wall_clock_us
from coordinator.console.console_client import HandlerOf
from coordinator.console.console_cookie import ConsoleCookie
from coordinator.console.console_site import ConsoleSite, SitePorts
from coordinator.console.disk_rooms import DiskRooms
from coordinator.console.http_exchange import HttpExchange
from coordinator.console.listener import ConsoleListener
from viewstamp.certificates.pem_files import Certificates
from viewstamp.telemetry import fields
from viewstamp.worker_thread import DaemonThread, WorkerThread

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConsolePorts:
    """What the console shows and how it is reached.

    `handler_of` returns the handler of a gRPC path; `reads` how many reads this replica has begun.
    """

    cluster_id: bytes
    replica_id: int
    handler_of: HandlerOf
    certificates: Certificates | None
    reads: Callable[[], int]
    directories: Mapping[str, Path]


class Console:
    """Listens at `address`, HOST:PORT."""

    def __init__(
        self,
        listen: str,
        ports: ConsolePorts,
        make_thread: Callable[[str], WorkerThread] = DaemonThread,
    ) -> None:
        """Bind. Raises OSError, UnusableTexts."""
        self._rooms = DiskRooms(ports.directories, make_thread)
        self._replica_id = ports.replica_id
        # Now, because another build may be installed while this process runs.
        self._version = metadata.version("viewstamp")
        has_tls = ports.certificates is not None
        self._site = ConsoleSite(
            SitePorts(
                ports.handler_of,
                ConsoleCookie(ports.cluster_id, ports.replica_id, has_tls),
                wall_clock_us,
                monotonic_ms,
                self._here,
                ports.reads,
            )
        )
        self._listener = ConsoleListener(listen, ports.certificates, self._serve)
        self.address: Final = self._listener.address

    async def start(self) -> None:
        """Begin to answer."""
        self._rooms.start()
        self._listener.start()
        _log.info("the console is served", extra=fields(address=self.address))

    async def stop(self) -> None:
        """End all sessions and connections."""
        await self._listener.stop()
        self._site.end_all()
        await self._rooms.stop()

    async def _serve(self, exchange: HttpExchange) -> None:
        await self._site.serve(exchange)

    def _here(self) -> Mapping[str, Any]:
        """Return what only this replica knows of itself."""
        return {
            "id": self._replica_id,
            "version": self._version,
            "disks": self._rooms.documents(),
        }
