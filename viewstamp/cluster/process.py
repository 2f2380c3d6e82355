"""One supervised process: started, watched until ready, started again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from viewstamp.cluster.errors import ClusterFailed, StartRefused

logger = logging.getLogger(__name__)

RESTART_PAUSE_FIRST_S: Final = 0.05
RESTART_PAUSE_MAX_S: Final = 2.0
# After so many deaths in a row before it was ready, a process is given up.
FAILED_STARTS_MAX: Final = 5
# The exit code of our programs when another try cannot help.
EXIT_CANNOT_START: Final = 2
# The exit code that asks for a restart at once; it does not count as a death.
EXIT_RESTART: Final = 3
# The exit code of a coordinator whose state is not that of the others: it stays down.
EXIT_DIVERGED: Final = 4
LOG_LINES_SHOWN: Final = 5
# Only the end of a longer line is shown, where a traceback says what went wrong.
LOG_LINE_CHARACTERS_SHOWN: Final = 1000
LOG_FILE_MODE: Final = 0o600
# A log that is larger begins again, empty; one file beside it keeps the former content.
LOG_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
LOG_CHECK_S: Final = 5.0
_LOG_TAIL_BYTES: Final = 16 * 1024
_CHILD: Final = Path(__file__).with_name("child.py")
# These signals do not end readiness; all others do.
_HARMLESS: Final = frozenset({signal.SIGSTOP, signal.SIGCONT})


@dataclass(frozen=True, slots=True)
class Program:
    """A program: its name within the cluster, and its command line, absolute path first.

    It is ready once it prints a line on stdout that is a JSON object with a true `ready`. A growing
    number `applied` reports progress, for which the supervisor waits.
    """

    name: str
    command: tuple[str, ...]


class Supervised:
    """A program kept running.

    `changed` is called whenever it is started, makes progress, becomes ready, dies, or fails.
    """

    def __init__(
        self,
        program: Program,
        log_directory: Path,
        environment: Mapping[str, str],
        changed: Callable[[], None],
    ) -> None:
        self.program = program
        self.log_path = log_directory / f"{program.name}.log"
        self.restarts = 0
        self.is_ready = False
        self.applied = 0  # the highest number reported, in any incarnation
        self.failure: ClusterFailed | None = None
        self.has_diverged = False
        self._environment = dict(environment)
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._failed_starts = 0
        self._was_ready_now = False  # whether the present incarnation was ready
        self._has_been_ready = False  # whether any incarnation was ready
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id, None between death and restart."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Begin to run and watch the program."""
        self._task = asyncio.create_task(self._supervise())

    def send(self, number: signal.Signals) -> None:
        """Send a signal. Raises ProcessLookupError if the program is not running just now."""
        if self._process is None or self._process.returncode is not None:
            raise ProcessLookupError(f"{self.program.name} is not running just now")
        if number not in _HARMLESS:
            self.is_ready = False
        _signal(self._process, number)

    async def stop(self, grace_s: float) -> None:
        """Ask the program to end, wake it if it is paused, and kill it after the grace period."""
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            _signal(process, signal.SIGTERM)
            _signal(process, signal.SIGCONT)
            try:
                async with asyncio.timeout(grace_s):
                    await process.wait()
            except TimeoutError:
                logger.warning("%s did not end within %g s: killed", self.program.name, grace_s)
                _signal(process, signal.SIGKILL)
                await process.wait()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _supervise(self) -> None:
        try:
            while not self._stopping:
                exit_code = await self._run_once()
                self._process, self.is_ready = None, False
                self._changed()
                if self._stopping or self._stays_down(exit_code) or self._gave_up(exit_code):
                    return
                self.restarts += 1
                logger.warning("%s %s: restarting", self.program.name, _said(exit_code))
                if exit_code != EXIT_RESTART:
                    await asyncio.sleep(self._pause_s())
        except OSError as error:
            self._fail(StartRefused(f"{self.program.name} cannot be started: {error}"))

    async def _run_once(self) -> int:
        self._was_ready_now = False
        with _open_log(self.log_path) as log:
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(_CHILD),
                str(os.getpid()),
                *self.program.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environment,
                # The terminal's Ctrl-C is for the supervisor, which stops the processes in order.
                start_new_session=True,
            )
            self._changed()
            rotating = asyncio.create_task(self._bound_log())
            try:
                await self._read_output(process, log)
                return await process.wait()
            finally:
                rotating.cancel()
                if process.returncode is None:
                    _signal(process, signal.SIGKILL)

    async def _bound_log(self) -> None:
        while True:
            await asyncio.sleep(LOG_CHECK_S)
            try:
                await asyncio.to_thread(rotate_log, self.log_path)
            except OSError as error:  # the disk is full, so the log does not grow either
                logger.warning("%s could not be rotated: %s", self.log_path, error)

    async def _read_output(self, process: asyncio.subprocess.Process, log: IO[bytes]) -> None:
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # longer than the reader's limit, so not ours; it is consumed
                continue
            if not line:
                return
            self._keep(line, log)
            self._take(_said_on(line))

    def _keep(self, line: bytes, log: IO[bytes]) -> None:
        try:
            log.write(line)
        except OSError as error:  # the disk is full, but the replica still serves
            logger.warning("%s: a line is missing: %s", self.log_path, error)

    def _take(self, said: dict[str, Any]) -> None:
        if not self.is_ready and said.get("ready") is True:
            self.is_ready = self._was_ready_now = self._has_been_ready = True
            self._changed()
        if isinstance(applied := said.get("applied"), int) and applied > self.applied:
            self.applied = applied
            self._changed()

    def _stays_down(self, exit_code: int) -> bool:
        """Return whether it has diverged: the cluster continues on the other replicas."""
        if exit_code == EXIT_DIVERGED:
            self.has_diverged = True
            (said,) = last_lines(self.log_path, 1) or [""]
            logger.error("%s is not started again: %s", self.program.name, said)
            self._changed()
        return self.has_diverged

    def _gave_up(self, exit_code: int) -> bool:
        if exit_code == EXIT_RESTART:
            return False
        self._failed_starts = 0 if self._was_ready_now else self._failed_starts + 1
        if exit_code == EXIT_CANNOT_START and not self._has_been_ready:
            (said,) = last_lines(self.log_path, 1) or [f"{self.program.name} {_said(exit_code)}"]
            self._fail(StartRefused(f"{said} (log: {self.log_path})"))
        elif self._failed_starts >= FAILED_STARTS_MAX:
            times = f"{_said(exit_code)} {self._failed_starts} times in a row before it was ready"
            self._fail_with_log(f"{self.program.name} {times}")
        return self.failure is not None

    def _fail_with_log(self, what: str) -> None:
        lines = last_lines(self.log_path)
        shown = "".join(f"\n  {line}" for line in lines) or "\n  (its log is empty)"
        self._fail(ClusterFailed(f"{what}; the end of {self.log_path}:{shown}"))

    def _fail(self, failure: ClusterFailed) -> None:
        self.failure = failure
        self._changed()

    def _pause_s(self) -> float:
        pause_s = RESTART_PAUSE_FIRST_S * float(2**self._failed_starts)
        return min(pause_s, RESTART_PAUSE_MAX_S)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended just now, of which the loop will tell.

    The process's own method asks the system first whether it has ended, and so takes the exit code
    from the event loop, which then tells of code 255. To ask here leaves the code where it is. An
    id whose exit code was taken by a thread of asyncio may be another's, and is no child.
    """
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        os.kill(process.pid, number)


def last_lines(path: Path, count: int = LOG_LINES_SHOWN) -> list[str]:
    """Return the last lines of a log, without the start of long ones; none if there is no log."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()[-count:]
    return [line[-LOG_LINE_CHARACTERS_SHOWN:] for line in lines]


def rotate_log(path: Path, bytes_max: int = LOG_FILE_BYTES_MAX) -> bool:
    """Empty a log that has grown beyond its limit; return whether it had.

    The process continues to write to the same file, which is emptied; lines written in that moment
    are lost. Raises OSError.
    """
    if path.stat().st_size <= bytes_max:
        return False
    kept = path.with_suffix(path.suffix + ".1")
    with path.open("rb") as source, open(_open_new(kept), "wb") as target:
        shutil.copyfileobj(source, target)
    os.truncate(path, 0)
    return True


def _open_new(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, LOG_FILE_MODE)


def _open_log(path: Path) -> IO[bytes]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, LOG_FILE_MODE)
    return open(descriptor, "ab", buffering=0)


def _said_on(line: bytes) -> dict[str, Any]:
    """Return the JSON object on a line; empty if there is none."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _said(exit_code: int) -> str:
    if exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"exited with code {exit_code}"
