"""The process that ships to an archive: started beside the coordinator, told, watched, replaced.

Nothing of the replica waits for it. Store, encryption and its reading of the journal's files have a
process of their own; what is said to it and by it is a line a second.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from coordinator.app.archive_settings import ArchiveSettings
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.archive.shipping_lag import ShippingLag
from viewstamp.telemetry import fields

MODULE: Final = "viewstamp.archive"
TELL_MS: Final = 1_000
MS_PER_S: Final = 1_000
RESTART_MS_MIN: Final = 1_000
RESTART_MS_MAX: Final = 60_000
END_MS: Final = 2_000
LINE_BYTES_MAX: Final = 64 * 1024
ERROR_BYTES_MAX: Final = 4_096
_GAP: Final = "gap"
_LAG: Final = "lag"

_log = logging.getLogger(__name__)


class ArchiveAlarms(Protocol):
    """The alarms, as seen from here."""

    def tell(self, kind: cluster_pb2.AlarmKind.ValueType, message: str, subject: str = "") -> None:
        """Raise an alarm, or change what a raised one says."""
        ...

    def clear(self, kind: cluster_pb2.AlarmKind.ValueType, subject: str = "") -> None:
        """Clear an alarm if it is raised."""
        ...


@dataclass(slots=True)
class ArchiveTally:
    """What is counted of shipping since the coordinator's start, for its page.

    Until `is_archive_known` nothing is known of the archive. `gaps_found` are those that it had
    when the first process began.
    """

    clock_ms: Callable[[], int]
    archived_op: int = 0
    shipped_bytes: int = 0
    failures: int = 0
    gaps: int = 0
    gaps_found: int = 0
    is_archive_known: bool = False
    problem: str = ""
    lag: ShippingLag = field(default_factory=ShippingLag)

    @property
    def lag_ms(self) -> int:
        """For how long the oldest entry that the archive lacks has been committed."""
        return self.lag.age_ms(self.clock_ms())

    def take(self, told: dict[str, Any]) -> None:
        """Take what the process says of a round."""
        self.shipped_bytes += told["shipped_bytes"]
        self.failures += bool(told["reason"])
        if told["is_archive_known"]:
            if not self.is_archive_known:
                self.gaps_found = told["gaps_found"]
            self.is_archive_known, self.gaps = True, told["gaps"]
        problem = f"{told['reason']}: {told['message']}" if told["reason"] else ""
        if problem and problem != self.problem:
            _log.warning("nothing is shipped", extra=fields(why=problem))
        self.problem = problem or (told["waits_for"] and f"it waits for {told['waits_for']}")
        if told["archived_op"]:
            self.archived_op = told["archived_op"]
            self.lag.shipped(self.archived_op)


@dataclass(frozen=True, slots=True)
class ShippingPorts:
    """What shipping uses of the coordinator.

    `head` is the newest entry that this disk has and that is committed: its op, and its checksum
    if it is known.
    """

    data_directory: Path
    copies: tuple[Path, ...]
    head: Callable[[], tuple[int, bytes | None]]
    alarms: ArchiveAlarms


class ArchiveShipping:
    """Keeps one process shipping."""

    def __init__(
        self, settings: ArchiveSettings, ports: ShippingPorts, tally: ArchiveTally
    ) -> None:
        self._settings = settings
        self._ports = ports
        self._tally = tally
        self._gaps_known: int | None = None

    async def run(self) -> None:
        """Start the process, again and again if it ends, until this is cancelled."""
        pause_ms = RESTART_MS_MIN
        while True:
            reports = await self._one_process()
            self._tally.failures += 1
            pause_ms = RESTART_MS_MIN if reports else min(2 * pause_ms, RESTART_MS_MAX)
            for _ in range(pause_ms // TELL_MS):
                await asyncio.sleep(TELL_MS / MS_PER_S)
                self.look()

    async def _one_process(self) -> int:
        """Run the process to its end; return how many rounds it has told."""
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", MODULE, json.dumps(self._options())),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                limit=LINE_BYTES_MAX,
            )
        except OSError as error:
            self._tally.problem = f"the process that ships cannot be started: {error}"
            return 0
        _log.info("archive shipper started", extra=fields(process=process.pid))
        telling = asyncio.create_task(self._tell(process))
        complaining = asyncio.create_task(_logged_errors(process))
        try:
            reports = await self._hear(process)
            await _end(process)
            why = await _ended(complaining)
            self._tally.problem = why or f"the process that ships ended with {process.returncode}"
            _log.warning("archive shipper ended", extra=fields(why=self._tally.problem))
            return reports
        finally:
            telling.cancel()
            complaining.cancel()
            await _end(process)

    def _options(self) -> dict[str, Any]:
        settings = self._settings
        return {
            "place": settings.place,
            "data": str(self._ports.data_directory),
            "copies": [str(path) for path in self._ports.copies],
            "key_files": [str(path) for path in settings.key_files],
            "accept_plain": settings.accept_plain,
            "piece_age_ms": settings.piece_ms,
            "spool_bytes": settings.spool_bytes,
            "keep_snapshots": settings.keep_snapshots,
            "keep_ms": settings.keep_ms,
            "timeout_ms": settings.timeout_ms,
        }

    async def _tell(self, process: Process) -> None:
        """Say once a second what is committed."""
        assert process.stdin is not None
        with suppress(ConnectionError):  # the process has ended, which `_hear` finds
            while True:
                op, checksum = self.look()
                # A process that does not listen gets no more: the next line says all.
                is_heard = process.stdin.transport.get_write_buffer_size() == 0
                if op and checksum is not None and is_heard:
                    process.stdin.write(f"{op} {checksum.hex()}\n".encode())
                    await process.stdin.drain()
                await asyncio.sleep(TELL_MS / MS_PER_S)

    async def _hear(self, process: Process) -> int:
        assert process.stdout is not None
        reports = 0
        try:
            async for line in process.stdout:
                self._tally.take(json.loads(line))
                reports += 1
        except (ValueError, KeyError, TypeError) as error:
            # Another build of the program, or a line without an end: it is started anew.
            _log.warning("archive shipper says what nobody knows", extra=fields(why=str(error)))
        return reports

    def look(self) -> tuple[int, bytes | None]:
        """Note how far the log is committed, and raise or clear the alarms."""
        head = self._ports.head()
        tally, alarms, kind = self._tally, self._ports.alarms, cluster_pb2.ALARM_KIND_ARCHIVE_BEHIND
        tally.lag.committed(head[0], tally.clock_ms())
        if tally.lag_ms >= self._settings.lag_alarm_ms:
            why = f": {tally.problem}" if tally.problem else ""
            text = f"the archive {self._settings.place} lacks {tally.lag.ops} entries, the oldest"
            alarms.tell(kind, f"{text} committed {tally.lag_ms // MS_PER_S} s ago{why}", _LAG)
        else:
            alarms.clear(kind, _LAG)
        if tally.is_archive_known:
            self._look_for_gaps()
        return head

    def _look_for_gaps(self) -> None:
        """Raise the alarm for gaps that are new, until the archive has no gap at all any more."""
        tally, alarms, kind = self._tally, self._ports.alarms, cluster_pb2.ALARM_KIND_ARCHIVE_BEHIND
        known = tally.gaps_found if self._gaps_known is None else self._gaps_known
        # Retention gives up gaps, too; one that comes later is new all the same.
        self._gaps_known = min(known, tally.gaps)
        if tally.gaps > self._gaps_known:
            text = "entries were dropped before they were shipped: a gap in the archive"
            alarms.tell(kind, f"{text}; `viewstamp archive list` names it", _GAP)
        elif not tally.gaps:
            alarms.clear(kind, _GAP)


async def _logged_errors(process: Process) -> str:
    """Log each line that the process writes to stderr, to its end; return the last one."""
    assert process.stderr is not None
    last, rest = "", b""
    while chunk := await process.stderr.read(ERROR_BYTES_MAX):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) >= ERROR_BYTES_MAX:  # a line without an end is told in parts
            lines, rest = [*lines, rest], b""
        last = _logged(lines, last)
    return _logged([rest], last)


def _logged(lines: list[bytes], last: str) -> str:
    """Log lines that are not empty; return the last one of them, or the one before them."""
    for line in lines:
        text = line.decode(errors="replace").strip()
        if text:
            _log.warning("archive shipper says", extra=fields(line=text))
            last = text
    return last


async def _ended(complaining: asyncio.Task[str]) -> str:
    """Return the last line of stderr, empty if somebody holds it open behind the process."""
    try:
        async with asyncio.timeout(END_MS / MS_PER_S):
            return await complaining
    except TimeoutError:
        return ""


async def _end(process: Process) -> None:
    """Have the process end as if the coordinator were gone, and kill it if it does not."""
    if process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()
    if not await _has_ended(process):
        process.kill()
        if not await _has_ended(process):
            # Its file system does not answer. It holds the directory, so none ships beside it.
            _log.error("archive shipper cannot be killed", extra=fields(process=process.pid))


async def _has_ended(process: Process) -> bool:
    """Return whether the process ends within the time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(END_MS / MS_PER_S):
            await process.wait()
    return process.returncode is not None
