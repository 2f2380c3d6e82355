"""A coordinator and its services in the test's own process, over a disk that can fail."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from coordinator.app.config import Config, parse
from coordinator.replica.data_directory import DirectoryOptions, ReplicaFiles, open_replica
from coordinator.storage import FILE_MODE, DescriptorFile, FileStorage
from services.runtime.process import bind
from services.runtime.server import DomainServer, new_server
from testkit.service_domains import all_domains

KEY = bytes(range(32))
CLUSTER_ID = bytes(range(16))


class FailingStorage(FileStorage):
    """A disk whose next syncs fail once `fails` is set."""

    fails = False

    def create(self, path: str) -> DescriptorFile:
        """Create a file that fails with the disk."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        return FailingFile(self, path, os.open(path, flags, FILE_MODE))

    def open(self, path: str) -> DescriptorFile:
        """Open a file that fails with the disk."""
        return FailingFile(self, path, os.open(path, os.O_RDWR))


class FailingFile(DescriptorFile):
    """A file on a disk that can fail."""

    def __init__(self, storage: FailingStorage, path: str, descriptor: int) -> None:
        """Belong to `storage`."""
        super().__init__(path, descriptor)
        self._storage = storage

    def sync(self) -> None:
        """Sync, or fail as a broken disk does."""
        if self._storage.fails:
            raise OSError(errno.EIO, "planted: the disk has failed")
        super().sync()


@dataclass
class Surroundings:
    """The parts that one coordinator needs around it."""

    config: Config
    storage: FailingStorage

    def open(self) -> ReplicaFiles:
        """Open the data directory on the disk that can fail."""
        options = DirectoryOptions(
            self.config.data_directory,
            0,
            1,
            segment_bytes=self.config.segment_bytes,
            cluster_id=CLUSTER_ID,
        )
        return open_replica(options, self.storage)


@asynccontextmanager
async def surroundings(directory: Path) -> AsyncIterator[Surroundings]:
    """Serve the domains on sockets in `directory`."""
    domains = all_domains(KEY, lambda: 1_000_000)
    running = []
    arguments = [f"--data-directory={directory}/data", "--listen=127.0.0.1:0"]
    arguments.append(f"--cluster-id={CLUSTER_ID.hex()}")
    for stage, domain in domains.items():
        name = stage.name.lower()
        server, served = new_server(), DomainServer(domain)
        arguments.append(f"--service={name}={bind(server, f'unix:{directory}/{name}.sock')}")
        await served.start(server)
        running.append((served, server))
    try:
        config = parse([*arguments, f"--journal-segment-bytes={4 * 1024 * 1024}"])
        yield Surroundings(config, FailingStorage())
    finally:
        await asyncio.gather(*(served.stop(server) for served, server in running))
