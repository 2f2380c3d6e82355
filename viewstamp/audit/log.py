"""Writing the audit log: records wait in a bounded queue for the thread that writes them."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

from viewstamp.audit.files import STRANGERS, AuditFiles
from viewstamp.limits import MIB

Record = dict[str, Any]

RECORDS_WAITING_MAX: Final = 8_192
# How many of these may be of callers without a name, so that room remains for other callers.
STRANGERS_WAITING_MAX: Final = 2_048
# Bytes of requests that all waiting records keep.
WAITING_BYTES_MAX: Final = 32 * MIB
# The most that is written at a time.
LINES_TOGETHER_MAX: Final = 256
BYTES_TOGETHER_MAX: Final = 16 * 1024
# How long records gather before the thread writes them. Each time the thread wakes, it takes the
# interpreter from the thread that answers callers.
GATHERING_S: Final = 0.1
LOST: Final = "lost"
# One part in this many of all bytes is for refusals of callers without a name.
STRANGERS_SHARE: Final = 8

# The function that makes a record, the bytes that it keeps until then, and whether the caller has
# no name. It is a plain tuple for speed, because each request makes one.
_Waiting: TypeAlias = tuple[Callable[[], Record], int, bool]

# Records are trees, so there are no cycles to look for.
_encoded = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_log = logging.getLogger(__name__)


class AuditLog:
    """Takes records and has a thread make and write them; records without room are counted.

    A record is a dictionary of JSON values. Refusals of callers without a name go to separate
    files, so that they cannot displace anything else.
    """

    def __init__(self, files: AuditFiles, strangers: AuditFiles) -> None:
        """Begin to write."""
        self.lost = 0
        """Records that could not be written since the start."""
        self._files = files
        self._strangers = strangers
        self.waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._strangers_waiting = 0
        self._untold = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._is_closed = False
        self._thread = threading.Thread(target=self.run, name="audit", daemon=True)
        self._thread.start()

    def add(self, made: Callable[[], Record], size: int, *, is_strangers: bool = False) -> None:
        """Queue a record for the thread that writes it. Never waits for the disk.

        `size` is the bytes kept until then. `is_strangers` says that a caller without a name was
        refused; anybody can cause any number of such records.
        """
        with self._lock:
            if (
                len(self.waiting) >= RECORDS_WAITING_MAX
                or self._waiting_bytes + size > WAITING_BYTES_MAX
                or (is_strangers and self._strangers_waiting >= STRANGERS_WAITING_MAX)
            ):
                self._lose(1)
                return
            self.waiting.append((made, size, is_strangers))
            self._waiting_bytes += size
            self._strangers_waiting += is_strangers
            if len(self.waiting) in (1, LINES_TOGETHER_MAX):
                self._changed.notify()

    def lose(self) -> None:
        """Count a record that could not be added. The next line says how many were lost."""
        with self._lock:
            self._lose(1)

    def close(self) -> None:
        """Write the waiting records, and end."""
        with self._lock:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()
        self._files.close()
        self._strangers.close()

    def run(self) -> None:
        """Write the queued records, in the thread of the log, until the log is closed."""
        while (waiting := self._next()) is not None:
            for files, is_strangers in ((self._files, False), (self._strangers, True)):
                self._write(
                    files, [made for made, _, of_them in waiting if of_them is is_strangers]
                )

    def _write(self, files: AuditFiles, records: list[Callable[[], Record]]) -> None:
        for portion, lines in _portions(map(self._made, records)):
            try:
                files.append(lines)
            except OSError as error:
                with self._lock:
                    for record in portion:
                        self._lose_again(record)
                _log.error("the audit log could not be written: %s; %s lost", error, self.lost)

    def _made(self, make: Callable[[], Record]) -> Record:
        """Make a record; if this fails, return a record that says that one was lost."""
        try:
            return make()
        except Exception:
            _log.exception("a record of the audit log could not be made")
            with self._lock:
                self.lost += 1
            return _lost(1)

    def _next(self) -> list[_Waiting] | None:
        """Wait for records; return None at the end."""
        with self._lock:
            while not self.waiting and not self._is_closed:
                self._changed.wait()
            if len(self.waiting) < LINES_TOGETHER_MAX and not self._is_closed:
                self._changed.wait(GATHERING_S)
            if not self.waiting:
                return None
            taken = [self._pop() for _ in range(min(len(self.waiting), LINES_TOGETHER_MAX))]
            if self._untold:
                untold, self._untold = self._untold, 0
                taken.append((lambda: _lost(untold), 0, False))
            return taken

    def _pop(self) -> _Waiting:
        taken = self.waiting.popleft()
        self._waiting_bytes -= taken[1]
        self._strangers_waiting -= taken[2]
        return taken

    def _lose(self, count: int) -> None:
        self.lost += count
        self._untold += count

    def _lose_again(self, record: Record) -> None:
        """Count a record that was not written, and the records whose loss it reports."""
        if record.get("kind") == LOST:
            self._untold += record["records"]
        else:
            self._lose(1)


def open_log(directory: Path, bytes_max: int) -> AuditLog:
    """Open a log whose files take at most `bytes_max` together. Raises OSError."""
    strangers_max = bytes_max // STRANGERS_SHARE
    files = AuditFiles(directory, bytes_max - strangers_max)
    return AuditLog(files, AuditFiles(directory / STRANGERS, strangers_max))


def _lost(count: int) -> Record:
    return {"kind": LOST, "records": count}


def _portions(records: Iterable[Record]) -> Iterator[tuple[list[Record], bytes]]:
    """Yield groups of records and their lines, so small that no file outgrows its limit by far."""
    portion: list[Record] = []
    lines: list[str] = []
    size = 0
    for record in records:
        line = _encoded(record)  # ASCII alone
        if portion and size + len(line) >= BYTES_TOGETHER_MAX:
            yield portion, _joined(lines)
            portion, lines, size = [], [], 0
        portion.append(record)
        lines.append(line)
        size += len(line) + 1
    if portion:
        yield portion, _joined(lines)


def _joined(lines: Iterable[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()
