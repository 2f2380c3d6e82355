"""One replica in a world: a machine with the real coordinator and the real services on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from coordinator.app.composition import Coordinator
from coordinator.app.config import parse
from coordinator.app.main import directory_options
from coordinator.app.outside import Outside
from coordinator.mux.stage import Stage
from coordinator.replica.bootstrap import ROOT_PASSWORD_FILE
from coordinator.replica.data_directory import open_replica
from services.runtime.server import DomainServer, new_server
from testkit.service_domains import all_domains
from testkit.world.process import WorldProcess, WorldThread
from testkit.world.schedule import NS_PER_MS
from viewstamp import limits
from viewstamp.limits import MIB
from viewstamp.snapshots.catalog_view import CatalogView

if TYPE_CHECKING:
    from testkit.world.world import World

CLUSTER_KEY: Final = bytes(range(limits.CLUSTER_KEY_BYTES))
CLUSTER_ID: Final = bytes(range(limits.CLUSTER_ID_BYTES))
CLIENT_PORT: Final = 7400
_PEER_PORT: Final = 7410
_DIRECTORY: Final = Path("/data")
_SEGMENT_BYTES: Final = 4 * MIB
# What a supervisor waits before it starts a process again.
_RESTART_NS: Final = (5 * NS_PER_MS, 300 * NS_PER_MS)


def host_of(replica: int) -> str:
    """Return the host of a replica."""
    return f"10.0.0.{replica + 1}"


class WorldReplica:
    """A replica whose processes are started again when they end, while `is_wanted`."""

    def __init__(self, world: World, number: int, count: int, flags: Sequence[str] = ()) -> None:
        self.number = number
        self.address = f"{host_of(number)}:{CLIENT_PORT}"
        self.machine = world.machine(host_of(number))
        self.is_wanted = True
        self.coordinator: Coordinator | None = None
        """The real one, while its process runs."""
        self.process: WorldProcess | None = None
        self.services: dict[Stage, WorldProcess] = {}
        self._world = world
        self._config = parse(_arguments(number, count, flags))

    # --- Life ---

    def start(self) -> None:
        """Start every process."""
        for stage in all_domains():
            self.start_service(stage)
        self.start_coordinator()

    def start_service(self, stage: Stage) -> None:
        """Start a service, which is started again whenever it has ended."""
        name = stage.name.lower()
        process = self._world.process(f"{name[:8]}{self.number}", self.machine)
        self.services[stage] = process

        async def serve() -> None:
            clock_us = self.machine.time_ns
            domain = all_domains(CLUSTER_KEY, lambda: clock_us() // 1_000)[stage]
            domain_server, server = DomainServer(domain), new_server()
            server.add_insecure_port(_socket(stage))
            await domain_server.start(server)
            raise await domain_server.failure

        process.killed.append(lambda: self._again(self.start_service, stage))
        process.run(serve)

    def start_coordinator(self) -> None:
        """Start the coordinator, which is started again whenever it has ended."""
        process = self.process = self._world.process(f"r{self.number}", self.machine)
        process.killed.append(self._coordinator_died)
        process.run(lambda: self._coordinate(process))

    def _coordinator_died(self) -> None:
        self.coordinator = None
        self.machine.disk.restart_process()
        self.machine.disk.crash_at = None  # it was this process's death
        self._again(self.start_coordinator)

    def _again(self, start: Any, *arguments: Any) -> None:
        if self.is_wanted:
            schedule = self._world.schedule
            schedule.after(schedule.draw(*_RESTART_NS), self._start_if_wanted, start, *arguments)

    def _start_if_wanted(self, start: Any, *arguments: Any) -> None:
        if self.is_wanted:
            start(*arguments)

    async def _coordinate(self, process: WorldProcess) -> None:
        outside = Outside(
            make_thread=lambda name: WorldThread(name, process),
            write_ready=lambda path, ready: None,
            remove_ready=lambda path: None,
            write_view=_no_view,
        )
        files = open_replica(directory_options(self._config), self.machine.disk)
        self.coordinator = Coordinator(self._config, files, CLUSTER_KEY, outside=outside)
        await self.coordinator.run(asyncio.Event())

    # --- What is seen from outside ---

    @property
    def root_password(self) -> str | None:
        """The root password that this replica made, None if it made none."""
        path = f"{_DIRECTORY}/{ROOT_PASSWORD_FILE}"
        disk = self.machine.disk
        return disk.content(path).decode().strip() if disk.exists(path) else None

    @property
    def is_primary(self) -> bool:
        """Whether it leads, as far as it knows."""
        return self.coordinator is not None and self.coordinator.driver.serving.is_primary


async def _no_view(path: Path, view: CatalogView) -> None:
    """Write no view for tools: SQLite would need a real disk."""


def _socket(stage: Stage) -> str:
    return f"unix:/run/{stage.name.lower()}.sock"


def _arguments(number: int, count: int, flags: Sequence[str]) -> list[str]:
    result = [
        f"--data-directory={_DIRECTORY}",
        f"--listen={host_of(number)}:{CLIENT_PORT}",
        f"--replica-id={number}",
        f"--replica-count={count}",
        f"--cluster-id={CLUSTER_ID.hex()}",
        f"--journal-segment-bytes={_SEGMENT_BYTES}",
        "--audit-bytes=0",
        *(f"--service={stage.name.lower()}={_socket(stage)}" for stage in all_domains()),
        *flags,
    ]
    if count > 1:
        result.append(f"--peer-listen={host_of(number)}:{_PEER_PORT}")
        result += [f"--peer={each}={host_of(each)}:{_PEER_PORT}" for each in range(count)]
    return result
