"""One replica in a world: a machine with the real coordinator and the real services on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from coordinator import vsr
from coordinator.app import joining
from coordinator.app.composition import Coordinator
from coordinator.app.config import AUDIT_BYTES_MIN, Config, parse
from coordinator.app.main import EXIT_STOPPED, directory_options, serve
from coordinator.app.outside import Outside
from coordinator.app.snapshot_repair import mended
from coordinator.base.errors import ConfigError
from coordinator.journal.errors import (
    JournalError,
    JournalFailed,
    NoSpace,
    SuperblockFailed,
    SuperblockOlder,
)
from coordinator.mux.stage import Stage
from coordinator.peers.introduction import Introduction
from coordinator.replica.bootstrap import ROOT_PASSWORD_FILE
from coordinator.replica.data_directory import (
    SUPERBLOCK_FILE,
    ReplicaFiles,
    open_replica,
    replica_opening,
)
from coordinator.snapshot.divergence import DivergedError
from coordinator.snapshot.errors import CopiesFailed, CopyNotWritten, NoIntactCopy
from coordinator.snapshot.transfer import RestartNeeded
from coordinator.stages.client import FencedError
from services.runtime.server import DomainServer, new_server
from testkit.memory_storage import SimulatedCrash
from testkit.service_domains import all_domains
from testkit.world.disk import WorldDisk
from testkit.world.encryption import flags_of
from testkit.world.file_disk import FileDisk
from testkit.world.past_states import launch_world_past
from testkit.world.process import WorldProcess, WorldThread
from testkit.world.schedule import NS_PER_MS
from testkit.world.watched import WorldAudit, WorldTelemetry
from viewstamp import limits
from viewstamp.snapshots.catalog_view import CatalogView
from viewstamp.telemetry.settings import Telemetry
from viewstamp.worker_thread import DiskHangsError, WorkerThread

if TYPE_CHECKING:
    from testkit.world.options import WorldOptions
    from testkit.world.surroundings import RunSurroundings
    from testkit.world.world import World

CLUSTER_KEY: Final = bytes(range(limits.CLUSTER_KEY_BYTES))
CLUSTER_ID: Final = bytes(range(limits.CLUSTER_ID_BYTES))
CLIENT_PORT: Final = 7400
_PEER_PORT: Final = 7410
DIRECTORY: Final = Path("/data")
SUPERBLOCK: Final = f"{DIRECTORY}/{SUPERBLOCK_FILE}"
# Ways in which a coordinator ends that are no defects.
_GOOD_ENDS: Final = (
    RestartNeeded,
    JournalFailed,
    NoSpace,
    SuperblockFailed,
    CopiesFailed,
    CopyNotWritten,
    # Damage that comes after the opening, before a service has the state: the next start repairs.
    NoIntactCopy,
    OSError,
    SimulatedCrash,
    DiskHangsError,
    FencedError,
)
# What a supervisor waits before it starts a process again.
_RESTART_NS: Final = (5 * NS_PER_MS, 300 * NS_PER_MS)


def host_of(replica: int, moves: int = 0) -> str:
    """Return the address of a replica's host after so many moves."""
    return f"10.0.{4 + moves}.{replica + 1}" if moves else f"10.0.0.{replica + 1}"


def name_of(replica: int) -> str:
    """Return the name of a replica's host."""
    return f"replica-{replica}.world"


class WorldReplica:
    """A replica whose processes are started again when they end, while `is_wanted`."""

    def __init__(
        self,
        world: World,
        number: int,
        options: WorldOptions,
        around: RunSurroundings | None = None,
    ) -> None:
        """Real files that it needs are `around` it."""
        self.number = number
        self.name = name_of(number)
        """The name of its host, which leads to another address when it moves."""
        world.network.names[self.name] = host_of(number)
        self.address = f"{self.name}:{CLIENT_PORT}"
        self.machine = world.machine(host_of(number))
        self.is_wanted = True
        self.moves = 0
        """How often its address has changed."""
        self.coordinator: Coordinator | None = None
        """The real one, while its process runs."""
        self.files: ReplicaFiles | None = None
        """Its journal, superblock and snapshots."""
        self.process: WorldProcess | None = None
        self.services: dict[Stage, WorldProcess] = {}
        self.opened: list[Callable[[WorldReplica], None]] = []
        """Called when a coordinator is put together, before it runs."""
        self.disk_replaced: list[Callable[[WorldReplica], None]] = []
        """Called when another disk takes the place of its disk."""
        self.damaged_ops: set[int] = set()
        """Entries of which a copy on its disk was damaged."""
        self.peer_address = peer_address_of(number)
        self.has_older_superblock = False
        """Whether an older copy of the superblock is in its place, so that no start may succeed."""
        self.is_untrusted = False
        """Whether writes went astray or vanished on its disk, which may have hit any entry."""
        self.has_diverged = False
        """Whether a story has changed its state, or its answers, without an entry in the log."""
        self.seeds: Sequence[int] = ()
        """Whom it asks about the cluster, which runs already; none while it founds one."""
        self.joins = False
        """Whether its flags say that the cluster runs already."""
        self.is_retired = False
        """Whether it was removed from the cluster, and its machine is off."""
        self.has_bad_certificates = False
        """Whether its files of certificates are of no use now, so that a start may be refused."""
        self.ended: list[Callable[[BaseException | None], None]] = []
        """Called when the coordinator has ended by itself."""
        self._stop = asyncio.Event()
        """Tells the present coordinator to end in order."""
        self._world = world
        self._options = options
        self.file_disk = FileDisk() if options.is_on_files else None
        """Its disk in a run on files, in the place of the one of its machine."""
        if around is not None and around.encrypted is not None:
            around.encrypted.provide(number, self.name)

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

        process.killed.append(lambda: self._again(self._start_service_if_down, stage))
        process.ended = lambda error: self._service_ended(process, error)
        process.run(serve)

    def stay_away(self) -> None:
        """Lose every process, and start none until `come_back`."""
        self.is_wanted = False
        self.kill_all()

    def come_back(self) -> None:
        """Start every process that does not run."""
        if not self.is_wanted and not self.is_retired:
            self.is_wanted = True
            for stage in all_domains():
                self._start_service_if_down(stage)
            self._start_coordinator_if_down()

    def retire(self) -> None:
        """Lose every process for good: the cluster does without this replica."""
        self.is_retired = True
        self.stay_away()

    def move(self) -> None:
        """Lose every process; they come back at another address, of which no name tells yet."""
        self.kill_all()
        self._world.network.vacant.add(self.machine.host)
        self.moves += 1
        self.machine.host = host_of(self.number, self.moves)

    def tell_name(self) -> None:
        """Have the name of this replica lead to where it is."""
        self._world.network.names[self.name] = self.machine.host

    def kill_all(self) -> None:
        """Kill every process of this machine."""
        for process in (*self.services.values(), self.process):
            if process is not None:
                process.kill()

    def give_empty_disk(self) -> None:
        """Replace the disk, as an operator does whose replica the others refuse."""
        self.replace_disk(WorldDisk())
        self.joins = self.joins or bool(self.seeds)
        self.damaged_ops.clear()
        self.is_untrusted = self.has_diverged = False

    def replace_disk(self, disk: WorldDisk) -> None:
        """Kill every process of this machine, and put another disk into it."""
        self.kill_all()
        self.has_older_superblock = False
        self.machine.disk = disk
        for told in self.disk_replaced:
            told(self)

    def put_superblock_back(self, content: bytes) -> None:
        """Kill every process, and put an earlier superblock in place: the start must be refused."""
        self.kill_all()
        self.machine.disk.replace(SUPERBLOCK, content)
        self.has_older_superblock = True

    def resign(self) -> None:
        """Ask the coordinator to lead no more, as an operator would."""
        if self.coordinator is not None and self.process is not None:
            self.process.loop.call_soon(self.coordinator.driver.step, vsr.Abdicate("asked to"))

    def stop(self) -> bool:
        """Tell the coordinator to end in order, as SIGTERM does; return whether one hears it."""
        if self.coordinator is None or self.process is None:
            return False
        self.process.loop.call_soon(self._stop.set)
        return True

    def start_coordinator(self) -> None:
        """Start the coordinator, which is started again whenever it has ended."""
        process = self.process = self._world.process(f"r{self.number}", self.machine)
        process.killed.append(self._coordinator_died)
        process.ended = lambda error: self._coordinator_ended(process, error)
        process.run(lambda: self._coordinate(process))

    def _coordinator_ended(self, process: WorldProcess, error: BaseException | None) -> None:
        """Tell a defect from an end that its disk, a snapshot or a newer process demands."""
        for told in self.ended:
            told(error)
        if self.has_diverged and isinstance(error, DivergedError):
            self.is_wanted = False  # as its last words say, it is not started again
        elif self._is_due(error):
            self._world.schedule.note(f"r{self.number}", "is refused, and gets an empty disk")
            self.give_empty_disk()
        elif error is None:
            if not self._stop.is_set():
                self._world.defect(f"{process.name} ended, and nobody told it to")
        elif self.has_bad_certificates and isinstance(error, ConfigError):
            self._world.schedule.note(f"r{self.number}", "cannot start with its certificates")
        elif not isinstance(error, _GOOD_ENDS):
            self._world.defect(f"{process.name} ended: {error!r}")

    def _is_due(self, error: BaseException | None) -> bool:
        """Whether a start refuses a disk which is known to be wrong, as it should."""
        if self.has_older_superblock:
            return isinstance(error, SuperblockOlder)
        return self.machine.disk.has_lied and isinstance(error, JournalError)

    def _service_ended(self, process: WorldProcess, error: BaseException | None) -> None:
        self._world.defect(f"{process.name} ended: {error!r}")

    def _coordinator_died(self) -> None:
        self.coordinator = self.files = None
        self.machine.disk.restart_process()
        self.machine.disk.crash_at = None  # it was this process's death
        if self.file_disk is not None:
            self.file_disk.restart_process()
        self._again(self._start_coordinator_if_down)

    def _again(self, start: Callable[..., None], *arguments: Any) -> None:
        schedule = self._world.schedule
        schedule.after(schedule.draw(*_RESTART_NS), start, *arguments)

    def _start_service_if_down(self, stage: Stage) -> None:
        process = self.services.get(stage)
        if self.is_wanted and (process is None or not process.is_alive):
            self.start_service(stage)

    def _start_coordinator_if_down(self) -> None:
        if self.is_wanted and (self.process is None or not self.process.is_alive):
            self.start_coordinator()

    async def _coordinate(self, process: WorldProcess) -> None:
        outside = self._outside(process)
        config = self.config
        storage = self.machine.disk if self.file_disk is None else self.file_disk
        told = await joining.introduction_of(config, storage)
        if self.file_disk is not None:
            self.files = open_replica(directory_options(config, told), self.file_disk)
            config = joining.placed(config, self.files, told)
            await self._serve(process, config, outside)
            return
        self.files = await self._opened(config, told, outside.make_thread)
        config = joining.placed(config, self.files, told)
        telemetry = self._telemetry()
        coordinator = Coordinator(config, self.files, CLUSTER_KEY, telemetry, outside=outside)
        self._put_together(process, coordinator)
        self._stop = asyncio.Event()
        await coordinator.run(self._stop)

    async def _serve(self, process: WorldProcess, config: Config, outside: Outside) -> None:
        """Run the program around the coordinator, too. Raises what ended the coordinator."""
        why: list[Exception] = []

        def make(*arguments: Any) -> Coordinator:
            coordinator = partial(Coordinator, outside=outside)(*arguments)
            run = coordinator.run

            async def telling(stop: asyncio.Event) -> None:
                self._stop = stop
                try:
                    await run(stop)
                except Exception as error:
                    why.append(error)
                    raise

            setattr(coordinator, "run", telling)  # noqa: B010  a type checker knows it as a method
            self._put_together(process, coordinator)
            return coordinator

        assert self.files is not None, "they are open"
        status = await serve(config, self.files, CLUSTER_KEY, None, make)
        if why:
            assert status != EXIT_STOPPED, f"status {status} after {why[0]!r}"
            raise why[0]

    def _outside(self, process: WorldProcess) -> Outside:
        make_thread = partial(WorldThread, process=process)
        if self.file_disk is not None:
            return Outside(make_thread, open_audit=self._audit, launch_past=launch_world_past)
        return Outside(
            make_thread,
            write_ready=lambda path, ready: None,
            remove_ready=lambda path: None,
            write_view=_no_view,
            open_audit=self._audit,
            launch_past=launch_world_past,
        )

    def _audit(self, directory: Path, bytes_max: int) -> WorldAudit:
        return WorldAudit(self._world.defects.append)

    def _put_together(self, process: WorldProcess, coordinator: Coordinator) -> None:
        """Tell everybody of a coordinator that will run."""
        self.coordinator = coordinator
        if self.has_older_superblock:
            self.has_older_superblock = False
            self._world.defect(f"{process.name} started with an older superblock")
        for told in self.opened:
            told(self)

    def _telemetry(self) -> Telemetry | None:
        if not self._options.is_watched:
            return None
        return WorldTelemetry(f"r{self.number}", self._world.defects.append)

    async def _opened(
        self, config: Config, told: Introduction | None, make_thread: Callable[[str], WorkerThread]
    ) -> ReplicaFiles:
        """Open the data directory; a damaged snapshot is first made whole, as before any start."""
        options = directory_options(config, told)
        with closing(replica_opening(options, self.machine.disk)) as opening:
            try:
                while True:
                    await mended(config, next(opening), make_thread)
            except StopIteration as opened:
                files: ReplicaFiles = opened.value
                return files

    # --- What is seen from outside ---

    @property
    def config(self) -> Config:
        """What its command line says, with the host that it is on now."""
        seeds = self.seeds if self.joins else None
        return _config(self.number, self.machine.host, self._options, seeds)

    @property
    def directory(self) -> Path:
        """Its data directory: on disks of their own all replicas have the same one."""
        return _directory(self.number, self._options)

    @property
    def root_password(self) -> str | None:
        """The root password that this replica made, None if it made none."""
        disk, path = self.machine.disk, f"{DIRECTORY}/{ROOT_PASSWORD_FILE}"
        if self.file_disk is not None:
            file = self.directory / ROOT_PASSWORD_FILE
            return file.read_text().strip() if file.exists() else None
        return disk.content(path).decode().strip() if disk.exists(path) else None

    @property
    def is_refused(self) -> bool:
        """Whether others say that its directory is an older copy."""
        members = None if self.coordinator is None else self.coordinator.members
        statuses = () if members is None else members.peers.status()
        named = f"replica {self.number} is an older copy"
        return any(named in status.why for status in statuses)

    @property
    def is_primary(self) -> bool:
        """Whether it leads, as far as it knows."""
        return self.coordinator is not None and self.coordinator.driver.serving.is_primary


async def _no_view(path: Path, view: CatalogView) -> None:
    """Write no view for tools: SQLite would need a real disk."""


def _socket(stage: Stage) -> str:
    return f"unix:/run/{stage.name.lower()}.sock"


def _directory(number: int, options: WorldOptions) -> Path:
    return Path(f"replica-{number}") if options.is_on_files else DIRECTORY


def _config(
    number: int, host: str, options: WorldOptions, seeds: Sequence[int] | None = None
) -> Config:
    """Return what the command line gives, but for segments that it refuses as too small."""
    return replace(
        parse(arguments_of(number, host, options, seeds)),
        segment_bytes=options.segment_bytes,
        record_bytes_max=options.record_bytes_max,
        ring_bytes=options.ring_bytes if options.is_ring else 0,
    )


def arguments_of(
    number: int, host: str, options: WorldOptions, seeds: Sequence[int] | None = None
) -> list[str]:
    """Return the command line of a coordinator; with `seeds` that of one that joins them."""
    has_peers = options.replicas > 1 or options.is_changing
    result = [
        f"--data-directory={_directory(number, options)}",
        f"--listen={host}:{CLIENT_PORT}",
        f"--advertise={name_of(number)}:{CLIENT_PORT}",
        f"--replica-id={number}",
        f"--cluster-id={CLUSTER_ID.hex()}",
        f"--audit-bytes={AUDIT_BYTES_MIN if options.is_watched else 0}",
        *(f"--service={stage.name.lower()}={_socket(stage)}" for stage in all_domains()),
        *options.flags,
    ]
    if options.is_ring:
        result.append("--journal=ring")
    elif options.is_on_files:
        result.append(f"--journal-archive=archive-{number}")
    if options.is_encrypted:
        result += flags_of(number, has_peers=has_peers)
    if has_peers:
        result.append(f"--peer-listen={host}:{_PEER_PORT}")
    if seeds is None:
        return [*result, *_founding_flags(options, has_peers=has_peers)]
    # Flags stay as they are when all others have gone.
    others = {*seeds} - {number} or {0, 1} - {number}
    standbys = range(options.replicas, options.replicas + options.standbys)
    result += ["--join", *(f"--standby={each}={peer_address_of(each)}" for each in standbys)]
    peers = sorted({*others, number} - {*standbys})
    return [*result, *(f"--peer={each}={peer_address_of(each)}" for each in peers)]


def _founding_flags(options: WorldOptions, *, has_peers: bool) -> list[str]:
    """Return who founds the cluster."""
    count = options.replicas
    result = [f"--replica-count={count}"]
    if has_peers:
        standbys = range(count, count + options.standbys)
        result += [f"--peer={each}={peer_address_of(each)}" for each in range(count)]
        result += [f"--standby={each}={peer_address_of(each)}" for each in standbys]
    return result


def peer_address_of(replica: int) -> str:
    """Return where the others reach a replica, wherever it moves."""
    return f"{name_of(replica)}:{_PEER_PORT}"
