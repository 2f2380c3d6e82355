"""One replica as real processes in a directory of its own, for tests that kill and corrupt."""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc

from tests.processes.callers import Caller
from viewstamp.routing import SERVICE_NAMES

ROOT: Final = Path(__file__).parents[2]
COORDINATOR: Final = "coordinator"
SEGMENT_BYTES: Final = 4 * 1024 * 1024
STOP_TIMEOUT_S: Final = 60
START_TIMEOUT_S: Final = 120
EVENTUALLY_TIMEOUT_S: Final = 30
CLUSTER_KEY: Final = "ab" * 32


class ReplicaProcesses:
    """Starts, kills and restarts the processes of one replica by name."""

    def __init__(
        self,
        directory: Path,
        *,
        flags: Sequence[str] = (),
        modules: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """`flags` go to the coordinator; `modules` replace services; `prefix` wraps commands."""
        self.directory = directory
        self.data = directory / "data"
        self.sockets = directory / "run"
        self.data.mkdir(exist_ok=True)
        self.sockets.mkdir(exist_ok=True)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ready: dict[str, dict[str, Any]] = {}
        self._flags = tuple(flags)
        self._modules = {name: f"services.{name}" for name in SERVICE_NAMES} | (modules or {})
        self._prefix = tuple(prefix)
        self.key = directory / "cluster.key"
        if not self.key.exists():
            self.key.write_text(CLUSTER_KEY + "\n")
            self.key.chmod(0o600)

    def command(self, name: str) -> list[str]:
        """Return the command line that starts a process."""
        if name == COORDINATOR:
            # Once chosen, the port stays: clients find a restarted coordinator again.
            listen = self.ready.get(COORDINATOR, {}).get("address", "127.0.0.1:0")
            services = [f"--service={s}=unix:{self.sockets / s}.sock" for s in SERVICE_NAMES]
            # Of equal flags the last one counts, and `flags` come last.
            arguments = [
                f"--data-directory={self.data}",
                f"--listen={listen}",
                f"--journal-segment-bytes={SEGMENT_BYTES}",
                f"--cluster-key={self.key}",
                *services,
                *self._flags,
            ]
            return [*self._prefix, sys.executable, "-m", "coordinator", *arguments]
        listen = ["--listen", f"unix:{self.sockets / name}.sock"]
        key = ["--cluster-key", str(self.key)] if name == "users" else []
        return [*self._prefix, sys.executable, "-m", self._modules[name], *listen, *key]

    def spawn(self, name: str) -> None:
        """Start a process without waiting for it."""
        with (self.directory / f"{name}.err").open("a") as errors:
            self.processes[name] = subprocess.Popen(
                self.command(name),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,  # nothing of a later line is taken with an earlier one
            )

    def wait_ready(self, name: str) -> None:
        """Wait until a process says that it serves; a coordinator needs its services for that.

        A coordinator with a long log first says how far it has come, from time to time.
        """
        stdout = self.processes[name].stdout
        assert stdout is not None
        said: dict[str, Any] = {}
        while "ready" not in said:
            is_heard, _, _ = select.select([stdout], [], [], START_TIMEOUT_S)
            assert is_heard, f"{name} is not ready: {self.errors(name)}"
            line = stdout.readline()
            assert line, f"{name} ended before it was ready: {self.errors(name)}"
            said = json.loads(line)
        self.ready[name] = said

    def start(self, *names: str) -> None:
        """Start processes, all by default, and wait until each serves."""
        chosen = names or (*SERVICE_NAMES, COORDINATOR)
        try:
            for name in chosen:
                self.spawn(name)
            for name in chosen:
                self.wait_ready(name)
        except BaseException:
            self.stop()
            raise

    def mend(self) -> None:
        """Continue paused processes and start ended ones: a failed test may leave both."""
        for name, process in list(self.processes.items()):
            if process.poll() is None:
                self.signal(name, signal.SIGCONT)
            else:
                self.wait(name)
        missing = [name for name in (*SERVICE_NAMES, COORDINATOR) if name not in self.processes]
        if missing:
            self.start(*missing)

    @property
    def address(self) -> str:
        """Where clients reach the coordinator."""
        return str(self.ready[COORDINATOR]["address"])

    def errors(self, name: str) -> str:
        """Return what a process wrote to stderr, over all its starts."""
        return (self.directory / f"{name}.err").read_text()

    def kill(self, name: str) -> None:
        """SIGKILL a process and wait until it is gone."""
        self.signal(name, signal.SIGKILL)
        self.wait(name)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        self.processes[name].send_signal(number)

    def wait(self, name: str) -> int:
        """Wait for the end of a process and return its exit code."""
        process = self.processes.pop(name)
        try:
            process.communicate(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()  # a failed test leaves no process behind, either
            process.communicate()
            raise
        return process.returncode

    def stop(self) -> dict[str, int]:
        """SIGTERM every process, the coordinator first; return the exit codes."""
        codes = {}
        for name in sorted(self.processes, key=lambda name: name != COORDINATOR):
            self.signal(name, signal.SIGCONT)
            self.signal(name, signal.SIGTERM)
            codes[name] = self.wait(name)
        return codes

    def refusal(self, name: str = COORDINATOR) -> str:
        """Start a process that must refuse to start; return its one line of error."""
        done = subprocess.run(
            self.command(name),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=STOP_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
        assert done.stdout == ""
        lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
        (line,) = lines
        return line

    def root_password(self) -> str:
        """Return the password that was generated at bootstrap."""
        return (self.data / "root_password").read_text().strip()

    def channel(self) -> grpc.Channel:
        """Return a plain channel to the coordinator."""
        return grpc.insecure_channel(self.address)

    @contextmanager
    def root(self) -> Iterator[Caller]:
        """Yield a caller who is logged in as root."""
        with self.channel() as channel:
            caller = Caller(channel)
            # After a death the users service may not serve yet.
            yield eventually(lambda: caller.logged_in("root", self.root_password()))

    def copy_to(self, directory: Path) -> ReplicaProcesses:
        """Return a replica with a copy of this one's data; both are stopped."""
        assert not self.processes
        copy = ReplicaProcesses(directory)
        shutil.copytree(self.data, copy.data, dirs_exist_ok=True)
        shutil.copy2(self.key, copy.key)
        return copy


@contextmanager
def short_directory() -> Iterator[Path]:
    """Yield a new directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="vs") as name:
        yield Path(name)


@contextmanager
def replica(
    *,
    flags: Sequence[str] = (),
    modules: dict[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Iterator[ReplicaProcesses]:
    """Yield a running replica in a directory of its own; everything ends with the block."""
    with short_directory() as directory:
        made = ReplicaProcesses(directory, flags=flags, modules=modules, prefix=prefix)
        try:
            made.start()
            yield made
        finally:
            made.stop()


Value = TypeVar("Value")


def eventually(attempt: Callable[[], Value | None]) -> Value:
    """Repeat an attempt until it returns something true without an error; return that."""
    deadline = time.monotonic() + EVENTUALLY_TIMEOUT_S
    while True:
        try:
            value = attempt()
        except grpc.RpcError:
            if time.monotonic() > deadline:
                raise
            value = None
        if value:
            return value
        assert time.monotonic() < deadline, "no attempt succeeded in time"
        time.sleep(0.02)


def unique(stem: str) -> str:
    """Return a name that no other test uses."""
    return f"{stem}-{secrets.token_hex(6)}"
