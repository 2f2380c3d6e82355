"""The life of a coordinator process, from its arguments to its exit code."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from typing import Final

from coordinator.app.archive_shipping import ArchiveShipping, ArchiveTally, ShippingPorts
from coordinator.app.composition import Coordinator
from coordinator.app.config import Config, parse
from coordinator.app.joining import identified, introduction_of, joins, placed
from coordinator.app.snapshot_repair import mend_of
from coordinator.base.clock import monotonic_ms
from coordinator.base.errors import ConfigError, HaltedError
from coordinator.journal.errors import JournalError
from coordinator.mux.entities import RestoreError
from coordinator.peers.introduction import Introduction
from coordinator.replica.data_directory import DirectoryOptions, ReplicaFiles, open_replica
from coordinator.replica.journal_opening import RingSettings
from coordinator.replica.start import WrongDirectoryError
from coordinator.snapshot.divergence import DivergedError
from coordinator.snapshot.errors import SnapshotStorageError
from coordinator.snapshot.transfer import RestartNeeded
from coordinator.stages.base import BaseRefusedError
from coordinator.stages.client import FencedError, WrongServiceError
from coordinator.storage import DirectoryInUse, FileStorage
from coordinator.telemetry.archive import archive_families
from viewstamp import event_loop, limits, transports
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.garbage import collect_when_quiet
from viewstamp.telemetry import configure_logging, fields
from viewstamp.telemetry.settings import Telemetry
from viewstamp.tokens import ClusterKeyError, read_cluster_key

EXIT_STOPPED: Final = 0
EXIT_FAILED: Final = 1
EXIT_CANNOT_START: Final = 2
# In good order, to be started again at once: the superblock names a snapshot that peers have sent.
EXIT_RESTART: Final = 3
# Its state is not that of the others: not to be started again with this directory.
EXIT_DIVERGED: Final = 4

# Each says in one line what the operator must change.
_CANNOT_START: Final = (
    ConfigError,
    ClusterKeyError,
    WrongDirectoryError,
    DirectoryInUse,
    JournalError,
    SnapshotStorageError,
    FormatError,
    transports.UnknownTransport,
    OSError,
)
# A restart would end in the same way, or drive out the process that has taken over.
_CANNOT_GO_ON: Final = (
    FormatVersionError,
    ConfigError,
    HaltedError,
    WrongServiceError,
    FencedError,
    BaseRefusedError,
    RestoreError,
)

_log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Run one coordinator and return its exit code."""
    try:
        begun_ns = time.time_ns()
        config = parse(sys.argv[1:] if arguments is None else arguments)
        configure_logging("coordinator", config.log_level)
        transports.use(config.transport)
        _allow_connections()
        cluster_key = read_cluster_key(config.cluster_key)
        config, files = _opened(config)
    except _CANNOT_START as error:
        print(f"coordinator: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_CANNOT_START
    return event_loop.run(serve(config, files, cluster_key, begun_ns))


def _opened(config: Config) -> tuple[Config, ReplicaFiles]:
    """Open the directory; who joins a cluster asks the others about it before and after that."""
    if not joins(config):
        return config, open_replica(directory_options(config), mend=mend_of(config))
    storage = FileStorage()
    told = event_loop.run(introduction_of(config, storage))
    config = identified(config, storage, told)
    files = open_replica(directory_options(config, told), mend=mend_of(config))
    return placed(config, files, told), files


def _allow_connections() -> None:
    """Raise the limit of open files as far as the system allows, because each call needs one.

    Without a free one the process could accept no connection and open no file of its journal.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < min(wanted, limits.OPEN_FILES_MAX):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, limits.OPEN_FILES_MAX), hard))


def directory_options(config: Config, told: Introduction | None = None) -> DirectoryOptions:
    """Return which directory a configuration names, and whose it must be.

    `told` is what others say of the cluster to a replica that joins it with an empty directory.
    """
    standbys = () if told is None else told.members.standbys
    return DirectoryOptions(
        path=config.data_directory,
        replica_id=config.replica_id,
        replica_count=(config.replica_count or None) if told is None else told.replica_count,
        cluster_id=config.cluster_id if told is None else told.cluster_id,
        follows=config.replica_id in [each.replica_id for each in standbys],
        segment_bytes=config.segment_bytes,
        archive=config.archive,
        ring=_ring_of(config),
        snapshots=config.snapshots.directories,
        snapshot_reserve_bytes=config.snapshots.reserve_bytes,
    )


def _ring_of(config: Config) -> RingSettings | None:
    if not config.ring_bytes:
        return None
    return RingSettings(config.ring_bytes, config.record_bytes_max)


async def serve(
    config: Config,
    files: ReplicaFiles,
    cluster_key: bytes,
    begun_ns: int | None = None,
    make: Callable[..., Coordinator] = Coordinator,
) -> int:
    """Run the replica until a signal ends it or it cannot go on; return the exit code.

    `make` puts it together.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        with closing(_telemetry(config, files)) as telemetry:
            tally = ArchiveTally(monotonic_ms)
            if config.archive_shipping is not None:
                telemetry.further.append(partial(archive_families, tally))
            coordinator = make(config, files, cluster_key, telemetry, begun_ns)
            async with (
                _garbage_collection(coordinator),
                _shipping(config, coordinator, tally, stop),
            ):
                await coordinator.run(stop)
    except RestartNeeded as reason:
        _log.info(
            "the process ends and expects to be started again at once",
            extra=fields(why=str(reason)),
        )
        return EXIT_RESTART
    except DivergedError as error:
        print(f"coordinator: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_DIVERGED
    except _CANNOT_GO_ON as error:
        print(f"coordinator: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_CANNOT_START
    except Exception:
        _log.critical("the replica cannot go on", exc_info=True)
        return EXIT_FAILED
    return EXIT_STOPPED


def _telemetry(config: Config, files: ReplicaFiles) -> Telemetry:
    try:
        telemetry = Telemetry("coordinator", config.telemetry)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    telemetry.belongs_to(files.cluster_id, config.replica_id)
    telemetry.speak_for_process()
    return telemetry


@asynccontextmanager
async def _garbage_collection(coordinator: Coordinator) -> AsyncGenerator[None]:
    garbage = asyncio.create_task(collect_when_quiet(lambda: coordinator.driver.progress.op))
    try:
        yield
    finally:
        garbage.cancel()


@asynccontextmanager
async def _shipping(
    config: Config, coordinator: Coordinator, tally: ArchiveTally, stop: asyncio.Event
) -> AsyncGenerator[None]:
    """Ship to an archive beside the replica, if that is wanted. A defect of it ends the process."""
    if config.archive_shipping is None:
        yield
        return
    core = coordinator.driver.core
    ports = ShippingPorts(
        data_directory=config.data_directory,
        copies=config.snapshots.directories,
        head=lambda: core.recordable_head,
        alarms=coordinator.alarms,
    )
    shipping = ArchiveShipping(config.archive_shipping, ports, tally)
    task = asyncio.create_task(shipping.run())
    task.add_done_callback(lambda _: stop.set())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
