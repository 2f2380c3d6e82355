"""One etcd on loopback, default settings (fsync on), its data in a temporary directory."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final

import grpc.aio

from viewstamp.cluster.preflight import free_address

READY_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 10.0


class EtcdMissing(RuntimeError):  # noqa: N818 - reads as the sentence it is
    """There is no etcd on this machine; the message says how to get one."""


class EtcdServer:
    """A single node. Use as `async with EtcdServer(directory) as server`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
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
            async with grpc.aio.insecure_channel(self.address) as channel:
                await asyncio.wait_for(channel.channel_ready(), READY_TIMEOUT_S)
        except BaseException:
            await self._stop()
            raise
        return self

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

    def version(self) -> str:
        """Return what etcd says its version is."""
        assert self.program is not None
        told = subprocess.run([self.program, "--version"], capture_output=True, check=True)
        return told.stdout.decode().splitlines()[0].removeprefix("etcd Version: ")

    def _command(self) -> list[str]:
        assert self.program is not None
        clients, peers = f"http://{self.address}", f"http://{free_address('127.0.0.1:0')}"
        return [
            self.program,
            *("--data-dir", str(self._directory / "data")),
            *("--listen-client-urls", clients, "--advertise-client-urls", clients),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}"),
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
