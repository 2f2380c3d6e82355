"""Several replicas on this machine: each a coordinator with its services, all supervised."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from viewstamp import limits
from viewstamp.cluster.errors import PreflightError
from viewstamp.cluster.lifecycle import READY_TIMEOUT_S, Lifecycle
from viewstamp.cluster.local import DEFAULT_LISTEN, LocalCluster
from viewstamp.cluster.preflight import (
    CLUSTER_ID_FILE,
    KEY_FILE,
    DirectoryLock,
    check_holds_no_lone_replica,
    ensure_cluster_key,
    free_address,
    prepare_directory,
    write_secret,
)
from viewstamp.cluster.process import Program
from viewstamp.telemetry.settings import TelemetrySettings

# The port for peers is so many above the port for clients.
PEER_PORT_OFFSET: Final = 100


class LocalReplicas(Lifecycle):
    """`count` replicas below one directory, in `replica-0` and so on. Dead processes are restarted.

    The `standbys` have the next directories and addresses, and no vote. Replica `i` listens for
    clients at the port of `listen` plus `i`, and for its peers 100 above that; with port 0 free
    ports are taken and kept. They share one cluster key and one cluster id, which are made at the
    first start. `adapt` changes each program of each replica. `async with` starts them, waits until
    each is ready, and stops them.
    """

    def __init__(
        self,
        data_directory: Path | str,
        count: int,
        listen: str = DEFAULT_LISTEN,
        *,
        coordinator_arguments: Sequence[str] = (),
        service_arguments: Sequence[str] = (),
        telemetry: TelemetrySettings | None = None,
        adapt: Callable[[int, Program], Program] = lambda _, program: program,
        standbys: int = 0,
    ) -> None:
        if not 1 <= count <= limits.REPLICAS_MAX:
            raise PreflightError(f"{count} replicas: 1 to {limits.REPLICAS_MAX} are possible")
        if not 0 <= standbys <= limits.STANDBYS_MAX:
            raise PreflightError(f"{standbys} standbys: 0 to {limits.STANDBYS_MAX} are possible")
        if standbys and count == 1:
            raise PreflightError(
                "a lone replica sends its log to nobody: standbys need at least 2 replicas"
            )
        self.data_directory = Path(data_directory)
        self.replicas: list[LocalCluster] = []
        self._lock: DirectoryLock | None = None
        self._count = count
        self._standbys = standbys
        self._listen = listen
        self._arguments = tuple(coordinator_arguments)
        self._service_arguments = tuple(service_arguments)
        self._adapt = adapt
        self._telemetry = telemetry or TelemetrySettings()

    @property
    def addresses(self) -> list[str]:
        """Where clients connect, in replica order, once started; standbys are not among them."""
        return [replica.address for replica in self.replicas[: self._count]]

    @property
    def standby_addresses(self) -> list[str]:
        """Where the standbys listen for clients, in order, once started."""
        return [replica.address for replica in self.replicas[self._count :]]

    @property
    def root_password_path(self) -> Path:
        """The file with root's first password, written by the replica that bootstraps."""
        return self.replica_directory(0) / "root_password"

    def replica_directory(self, replica_id: int) -> Path:
        """Return the data directory of a replica."""
        return self.data_directory / f"replica-{replica_id}"

    async def start(self) -> None:
        """Start all replicas. Raises PreflightError."""
        check_holds_no_lone_replica(self.data_directory)
        prepare_directory(self.data_directory)
        # A lone replica that is starting here has this lock, and no superblock yet.
        self._lock = DirectoryLock(self.data_directory)
        if not self.replicas:
            self.replicas = self._make_replicas()
        for replica in self.replicas:
            await replica.start()

    async def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every process of every replica is ready. Raises ClusterFailed."""
        await asyncio.gather(*(replica.wait_ready(timeout_s) for replica in self.replicas))

    async def wait(self) -> None:
        """Wait until all are stopped. Raises ClusterFailed if a process is given up."""
        await asyncio.gather(*(replica.wait() for replica in self.replicas))

    async def stop(self) -> None:
        """Stop all replicas at once."""
        await asyncio.gather(*(replica.stop() for replica in self.replicas))
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _make_replicas(self) -> list[LocalCluster]:
        ensure_cluster_key(self.data_directory / KEY_FILE)
        cluster_id = self._ensure_cluster_id()
        members = range(self._count + self._standbys)
        own = [_shifted(self._listen, i) for i in members]
        peers = [free_address(_shifted(address, PEER_PORT_OFFSET)) for address in own]
        return [self._replica(i, own[i], peers, cluster_id) for i in members]

    def _replica(
        self, replica_id: int, listen: str, peers: Sequence[str], cluster_id: str
    ) -> LocalCluster:
        directory = self.replica_directory(replica_id)
        prepare_directory(directory)
        self._copy_key(directory)
        arguments = ["--replica-id", str(replica_id), "--replica-count", str(self._count)]
        arguments += ["--cluster-id", cluster_id, "--peer-listen", peers[replica_id]]
        for other, address in enumerate(peers[: self._count]):
            if other != replica_id:
                arguments += ["--peer", f"{other}={address}"]
        for standby, address in enumerate(peers[self._count :], start=self._count):
            arguments += ["--standby", f"{standby}={address}"]
        # Replicas cannot share one port for Prometheus; with port 0 each of them serves a page.
        return LocalCluster(
            directory,
            listen,
            coordinator_arguments=(*arguments, *self._arguments),
            service_arguments=self._service_arguments,
            telemetry=self._telemetry_of(replica_id),
            adapt=partial(self._adapt, replica_id),
        )

    def _telemetry_of(self, replica_id: int) -> TelemetrySettings:
        shared = self._telemetry
        listen = shared.metrics_listen
        return replace(
            shared,
            directory=shared.directory and shared.directory / f"replica-{replica_id}",
            metrics_listen=listen and _shifted(listen, replica_id),
        )

    def _copy_key(self, directory: Path) -> None:
        """Give a replica the cluster's key; refuse a directory with another key."""
        key = (self.data_directory / KEY_FILE).read_text()
        try:
            write_secret(directory / KEY_FILE, key)
        except FileExistsError:
            if (directory / KEY_FILE).read_text() != key:
                raise PreflightError(
                    f"{directory / KEY_FILE} is not the key of {self.data_directory}: it belongs "
                    "to another cluster; choose another --data-directory"
                ) from None

    def _ensure_cluster_id(self) -> str:
        path = self.data_directory / CLUSTER_ID_FILE
        with suppress(FileExistsError):  # an earlier start made it
            write_secret(path, secrets.token_hex(limits.CLUSTER_ID_BYTES) + "\n")
        return path.read_text().strip()


def _shifted(address: str, ports: int) -> str:
    """Return the address with `ports` added to its port; port 0, which takes a free one, stays."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) == 0:
        return address  # the user of an invalid address refuses it
    return f"{host}:{int(port) + ports}"
