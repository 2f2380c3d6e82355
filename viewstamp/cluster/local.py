"""A whole cluster of one replica on this machine, started and supervised by this process."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from viewstamp.cluster.errors import ClusterFailed
from viewstamp.cluster.lifecycle import READY_TIMEOUT_S, Lifecycle
from viewstamp.cluster.preflight import (
    KEY_FILE,
    DirectoryLock,
    check_holds_no_replicas,
    ensure_cluster_key,
    free_address,
    prepare_directory,
    socket_directory,
)
from viewstamp.cluster.process import Program, Supervised
from viewstamp.routing import SERVICE_NAMES
from viewstamp.telemetry.settings import TelemetrySettings, arguments_of

COORDINATOR: Final = "coordinator"
DEFAULT_LISTEN: Final = "127.0.0.1:7400"
STOP_GRACE_S: Final = 10.0
_PACKAGES: Final = Path(__file__).resolve().parents[2]


class LocalCluster(Lifecycle):
    """A coordinator and a process for each service. A process that dies is restarted.

    With port 0 in `listen` a free port is taken and kept. `programs` replace the real ones; `adapt`
    changes each before it is started. All processes get `telemetry`, but only the coordinator
    serves the Prometheus page. If this process dies, the kernel kills all of them. Use `start`,
    `wait_ready`, `stop`, or `async with`, which does all three.
    """

    def __init__(
        self,
        data_directory: Path | str,
        listen: str = DEFAULT_LISTEN,
        *,
        coordinator_arguments: Sequence[str] = (),
        service_arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        programs: Sequence[Program] | None = None,
        stop_grace_s: float = STOP_GRACE_S,
        telemetry: TelemetrySettings | None = None,
        adapt: Callable[[Program], Program] = lambda program: program,
    ) -> None:
        self.data_directory = Path(data_directory)
        self._listen = listen
        self._coordinator_arguments = tuple(coordinator_arguments)
        self._service_arguments = tuple(service_arguments)
        self._environment = environment
        self._programs = programs
        self._adapt = adapt
        self._stop_grace_s = stop_grace_s
        self._telemetry = telemetry or TelemetrySettings()
        self._address: str | None = None
        self._lock: DirectoryLock | None = None
        self._sockets: Path | None = None
        self.supervised: dict[str, Supervised] = {}
        self._changed = asyncio.Event()
        self._stopped = False

    @property
    def address(self) -> str:
        """Where clients connect, once started."""
        assert self._address is not None, "the cluster was not started"
        return self._address

    @property
    def root_password_path(self) -> Path:
        """The file that holds root's first password."""
        return self.data_directory / "root_password"

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name; a process that is being restarted is left out."""
        pids = {name: process.pid for name, process in self.supervised.items()}
        return {name: pid for name, pid in pids.items() if pid is not None}

    @property
    def restarts(self) -> dict[str, int]:
        """How often each process was restarted, by name."""
        return {name: process.restarts for name, process in self.supervised.items()}

    def log_path(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.data_directory / "log" / f"{name}.log"

    async def start(self) -> None:
        """Check the environment and start all processes. Raises PreflightError.

        A stopped cluster may be started again; it keeps its address.
        """
        check_holds_no_replicas(self.data_directory)
        prepare_directory(self.data_directory)
        self._lock = DirectoryLock(self.data_directory)
        try:
            ensure_cluster_key(self.data_directory / KEY_FILE)
            self._address = free_address(self._address or self._listen)
            self._sockets = socket_directory(self.data_directory, SERVICE_NAMES)
        except BaseException:
            self._release()
            raise
        self._stopped = False
        # Remove the file of an earlier run: nobody who waits for this run's file may find the old
        # one.
        (self.data_directory / "run" / "coordinator.json").unlink(missing_ok=True)
        programs = self._programs if self._programs is not None else self.real_programs()
        for program in map(self._adapt, programs):
            supervised = Supervised(
                program,
                self.data_directory / "log",
                child_environment(self._environment),
                self._changed.set,
            )
            self.supervised[program.name] = supervised
            supervised.start()

    async def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every process is ready. Raises ClusterFailed, also for one that diverged.

        The timeout begins again whenever a process makes progress, because the replay of a long log
        may take any time.
        """
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await self._until_ready(limit, timeout_s)
        except TimeoutError:
            late = [name for name, one in self.supervised.items() if not one.is_ready]
            raise ClusterFailed(
                f"{', '.join(late)} not ready within {timeout_s:g} s; see "
                f"{self.data_directory / 'log'}"
            ) from None

    async def wait(self) -> None:
        """Wait until the cluster is stopped. Raises ClusterFailed if a process is given up."""
        while not self._stopped:
            self._raise_failure()
            await self._next_change()

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process. Raises ProcessLookupError if it is not running just now."""
        self.supervised[name].send(number)

    async def stop(self) -> None:
        """Stop the coordinator, then the services: SIGTERM, and SIGKILL after the grace period."""
        self._stopped = True
        coordinator = self.supervised.get(COORDINATOR)
        if coordinator is not None:
            await coordinator.stop(self._stop_grace_s)
        others = [one for one in self.supervised.values() if one is not coordinator]
        await asyncio.gather(*(one.stop(self._stop_grace_s) for one in others))
        self.supervised.clear()
        self._release()
        self._changed.set()

    def real_programs(self) -> list[Program]:
        """Return the coordinator and the services with their arguments."""
        assert self._sockets is not None
        key = str((self.data_directory / KEY_FILE).resolve())
        targets = {name: f"unix:{self._sockets / name}.sock" for name in SERVICE_NAMES}
        traced = arguments_of(replace(self._telemetry, metrics_listen=None))
        shared = *traced, *self._service_arguments
        programs = [
            Program(name, (sys.executable, "-m", f"services.{name}", "--listen", target, *shared))
            for name, target in targets.items()
        ]
        users = programs[0]
        programs[0] = Program(users.name, (*users.command, "--cluster-key", key))
        command = [sys.executable, "-m", "coordinator", "--listen", self.address]
        command += ["--data-directory", str(self.data_directory.resolve()), "--cluster-key", key]
        for name, target in targets.items():
            command += ["--service", f"{name}={target}"]
        command += [*arguments_of(self._telemetry), *self._coordinator_arguments]
        programs.append(Program(COORDINATOR, tuple(command)))
        return programs

    async def _until_ready(self, limit: asyncio.Timeout, timeout_s: float) -> None:
        applied = self._applied()
        while not all(one.is_ready for one in self.supervised.values()):
            self._raise_failure()
            self._raise_diverged()
            await self._next_change()
            if self._applied() > applied:
                applied = self._applied()
                limit.reschedule(asyncio.get_running_loop().time() + timeout_s)

    def _applied(self) -> int:
        return sum(one.applied for one in self.supervised.values())

    async def _next_change(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    def _raise_failure(self) -> None:
        for supervised in self.supervised.values():
            if supervised.failure is not None:
                raise supervised.failure

    def _raise_diverged(self) -> None:
        for name, supervised in self.supervised.items():
            if supervised.has_diverged:
                raise ClusterFailed(
                    f"{name} has diverged and stays down; see {self.log_path(name)}"
                )

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        if self._sockets is not None and self._sockets.parent != self.data_directory.resolve():
            shutil.rmtree(self._sockets, ignore_errors=True)
        self._sockets = None


def child_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of our programs; `base` is by default that of this process."""
    environment = dict(os.environ if base is None else base)
    # The programs come from the same place as this package, installed or not.
    paths = [str(_PACKAGES), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    # They come from nowhere else: the current directory may have a `services`, or a `json.py`.
    environment["PYTHONSAFEPATH"] = "1"
    return environment
