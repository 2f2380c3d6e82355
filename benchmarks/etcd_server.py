"""etcd on loopback, default settings (fsync on): one node, or several that are one cluster."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

import grpc.aio

from benchmarks.etcd_client import EtcdClient
from viewstamp.cluster.preflight import free_address

READY_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 10.0
LEADER_POLL_S: Final = 0.02


class EtcdMissing(RuntimeError):  # noqa: N818 - reads as the sentence it is
    """There is no etcd on this machine; the message says how to get one."""


class EtcdServer:
    """A node, by default the only one. Use as `async with EtcdServer(directory) as server`.

    `peers` are the addresses at which the nodes of the cluster speak to each other, by name.
    """

    def __init__(
        self, directory: Path, name: str = "default", peers: Mapping[str, str] | None = None
    ) -> None:
        self._directory = directory
        self._name = name
        self._peers = dict(peers or {name: free_address("127.0.0.1:0")})
        self.program = shutil.which("etcd")
        if self.program is None:
            raise EtcdMissing("no `etcd` in the PATH: on Debian, `apt-get install etcd-server`")
        self.address = free_address("127.0.0.1:0")
        self.command = self._command()
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> EtcdServer:
        """Start, and wait until it answers."""
        self._directory.mkdir(mode=0o700)
        await self._start()
        try:
            await self.wait_ready()
        except BaseException:
            await self._stop()
            raise
        return self

    async def wait_ready(self) -> None:
        """Wait until it accepts connections, which a node does once its cluster has a leader."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            await asyncio.wait_for(channel.channel_ready(), READY_TIMEOUT_S)

    async def kill_and_start(self) -> None:
        """Kill it, and start it again without waiting until it answers."""
        assert self._process is not None, "etcd was not started"
        self._process.kill()
        await self._process.wait()
        await self._start()

    async def _start(self) -> None:
        with (self._directory / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.command, stdout=log, stderr=subprocess.STDOUT
            )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop it."""
        await self._stop()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None, "etcd was not started"
        return self._process.pid

    @property
    def pids(self) -> dict[str, int]:
        """The process id by the node's name."""
        return {f"etcd-{self._name}": self.pid}

    def version(self) -> str:
        """Return the version that etcd reports."""
        assert self.program is not None
        told = subprocess.run([self.program, "--version"], capture_output=True, check=True)
        return told.stdout.decode().splitlines()[0].removeprefix("etcd Version: ")

    def _command(self) -> list[str]:
        assert self.program is not None
        clients, peers = f"http://{self.address}", f"http://{self._peers[self._name]}"
        members = ",".join(f"{name}=http://{address}" for name, address in self._peers.items())
        return [
            self.program,
            *("--name", self._name),
            *("--data-dir", str(self._directory / "data")),
            *("--listen-client-urls", clients, "--advertise-client-urls", clients),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", members),
        ]

    async def _stop(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


class EtcdCluster:
    """Several nodes with one log. Use as `async with EtcdCluster(directory, 3) as cluster`."""

    def __init__(self, directory: Path, count: int) -> None:
        self._directory = directory
        peers = {f"node-{number}": free_address("127.0.0.1:0") for number in range(count)}
        self.nodes = [EtcdServer(directory / name, name, peers) for name in peers]

    async def __aenter__(self) -> EtcdCluster:
        """Start all nodes, and wait until each answers."""
        self._directory.mkdir(mode=0o700)
        started = await asyncio.gather(
            *(node.__aenter__() for node in self.nodes), return_exceptions=True
        )
        errors = [error for error in started if isinstance(error, BaseException)]
        if errors:
            await self._stop()
            raise errors[0]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop all nodes."""
        await self._stop()

    @property
    def addresses(self) -> list[str]:
        """Where clients connect, node by node."""
        return [node.address for node in self.nodes]

    @property
    def pids(self) -> dict[str, int]:
        """The process ids by the nodes' names."""
        return {name: pid for node in self.nodes for name, pid in node.pids.items()}

    async def leader(self) -> EtcdServer:
        """Return the node that leads, as soon as one reports that it leads."""
        async with asyncio.timeout(READY_TIMEOUT_S):
            while True:
                for node in self.nodes:
                    if await _leads(node):
                        return node
                await asyncio.sleep(LEADER_POLL_S)

    async def _stop(self) -> None:
        await asyncio.gather(*(node.__aexit__(None, None, None) for node in self.nodes))


async def _leads(node: EtcdServer) -> bool:
    client = EtcdClient(node.address)
    try:
        status = await client.status()
    except grpc.aio.AioRpcError:
        return False  # it is not up again yet
    finally:
        await client.close()
    return bool(status.leader == status.header.member_id)
