"""Writing the audit log: records wait in a bounded queue for the thread that writes them."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from viewstamp.audit.files import STRANGERS, AuditFiles
from viewstamp.framing import FramingError, first_frame
from viewstamp.limits import MIB

Record = dict[str, Any]

RECORDS_WAITING_MAX: Final = 8_192
# Of these so many of callers without a name: they leave room for the others.
STRANGERS_WAITING_MAX: Final = 2_048
# Requests kept in what waits, all together.
WAITING_BYTES_MAX: Final = 32 * MIB
# Of each file's room so much is written at a time, at most.
LINES_TOGETHER_MAX: Final = 256
BYTES_TOGETHER_MAX: Final = 16 * 1024
# The thread lets records gather for so long: each time that it wakes it takes the interpreter from
# whoever answers callers.
GATHERING_S: Final = 0.1
# A larger request is not kept until the thread comes to it, but looked into at once.
REQUEST_BYTES_MAX: Final = 4_096
# What is told of a request: so much of one text, and of all, where every value counts a little.
TEXT_CHARACTERS_MAX: Final = 256
REQUEST_CHARACTERS_MAX: Final = 2_048
VALUE_CHARACTERS_MIN: Final = 8
LIST_ITEMS_MAX: Final = 8
LOST: Final = "lost"
# The part of all bytes that is for what callers without a name were refused.
STRANGERS_SHARE: Final = 8

_log = logging.getLogger(__name__)


class AuditLog:
    """Takes records and has a thread write them; what finds no room is counted.

    A record is a dictionary of JSON values; `payload` in it, or in one of its `methods`, may be a
    pair of a message class and framed bytes, of which the first message is told as `request`,
    without its secrets. What callers without a name were refused goes to files of its own, so that
    it cannot displace anything else.
    """

    def __init__(self, files: AuditFiles, strangers: AuditFiles) -> None:
        """Begin to write."""
        self.lost = 0
        """Records that could not be written since the start."""
        self._files = files
        self._strangers = strangers
        self._waiting: deque[tuple[Record, int]] = deque()
        self._waiting_bytes = 0
        self._strangers_waiting = 0
        self._untold = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def add(self, record: Record) -> None:
        """Let a record be written. Never waits for the disk."""
        size = _cut(record)
        is_strangers = _is_strangers(record)
        with self._changed:
            if (
                len(self._waiting) >= RECORDS_WAITING_MAX
                or self._waiting_bytes + size > WAITING_BYTES_MAX
                or (is_strangers and self._strangers_waiting >= STRANGERS_WAITING_MAX)
            ):
                self._lose(1)
                return
            self._waiting.append((record, size))
            self._waiting_bytes += size
            self._strangers_waiting += is_strangers
            if len(self._waiting) in (1, LINES_TOGETHER_MAX):
                self._changed.notify()

    def close(self) -> None:
        """Write what waits, and end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()
        self._files.close()
        self._strangers.close()

    def _run(self) -> None:
        while (records := self._next()) is not None:
            self._write(self._files, [each for each in records if not _is_strangers(each)])
            self._write(self._strangers, [each for each in records if _is_strangers(each)])

    def _write(self, files: AuditFiles, records: list[Record]) -> None:
        for portion, lines in _portions(records):
            try:
                files.append(lines)
            except OSError as error:
                told = portion[-1]["records"] if portion[-1].get("kind") == LOST else 0
                with self._changed:
                    self._lose(len(portion) - bool(told))
                    self._untold += told
                _log.error("the audit log could not be written: %s; %s lost", error, self.lost)

    def _next(self) -> list[Record] | None:
        """Wait for records; return None at the end."""
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            if len(self._waiting) < LINES_TOGETHER_MAX and not self._is_closed:
                self._changed.wait(GATHERING_S)
            if not self._waiting:
                return None
            records = [self._pop() for _ in range(min(len(self._waiting), LINES_TOGETHER_MAX))]
            if self._untold:
                records.append({"kind": LOST, "records": self._untold})
                self._untold = 0
            return records

    def _pop(self) -> Record:
        record, size = self._waiting.popleft()
        self._waiting_bytes -= size
        self._strangers_waiting -= _is_strangers(record)
        return record

    def _lose(self, count: int) -> None:
        self.lost += count
        self._untold += count


def open_log(directory: Path, bytes_max: int) -> AuditLog:
    """Begin a log whose files take `bytes_max` together. Raises OSError."""
    strangers_max = bytes_max // STRANGERS_SHARE
    files = AuditFiles(directory, bytes_max - strangers_max)
    return AuditLog(files, AuditFiles(directory / STRANGERS, strangers_max))


def _is_strangers(record: Record) -> bool:
    """Whether this was refused to somebody without a name: anybody can cause as much of it."""
    is_nameless = record.get("user", 0) is None or record.get("kind") == "login"
    return is_nameless and record.get("outcome", "ok") != "ok"


def _parts(record: Record) -> Iterator[Record]:
    yield record
    yield from record.get("methods", ())


def _cut(record: Record) -> int:
    """Keep no more of the payloads of a record than is told of them; return how many bytes."""
    size = 0
    for part in _parts(record):
        kind, framed = part.pop("payload", (None, b""))
        if kind is None:
            continue
        try:
            first = first_frame(framed)
        except FramingError:
            part["request"] = None
            continue
        if len(first) <= REQUEST_BYTES_MAX:
            part["payload"] = kind, first
        else:
            part["request"] = _request(kind, first)
        size += min(len(first), REQUEST_BYTES_MAX)
    return size


def _portions(records: Iterable[Record]) -> Iterator[tuple[list[Record], bytes]]:
    """Yield records and their lines, so much at a time that no file grows far beyond its limit."""
    portion: list[Record] = []
    lines = bytearray()
    for record in records:
        line = _line(record)
        if portion and len(lines) + len(line) > BYTES_TOGETHER_MAX:
            yield portion, bytes(lines)
            portion, lines = [], bytearray()
        portion.append(record)
        lines += line
    if portion:
        yield portion, bytes(lines)


def _line(record: Record) -> bytes:
    for part in _parts(record):
        looked_at = part.pop("payload", None)
        if looked_at is not None:
            part["request"] = _request(*looked_at)
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _request(kind: Callable[[], Message], encoded: bytes) -> Any:
    """Return a request without its secrets; None if it cannot be read."""
    message = kind()
    try:
        message.ParseFromString(encoded)
    except DecodeError:
        return None
    return _Telling().plain(message)


class _Telling:
    """Tells one request, as far as there is room."""

    def __init__(self) -> None:
        self._room = REQUEST_CHARACTERS_MAX

    def plain(self, message: Message) -> Record:
        """Return the fields that are set, but for secrets, and bytes, which may hold anything."""
        return {
            field.name: self._value(field, value)
            for field, value in message.ListFields()
            if not field.GetOptions().debug_redact and field.type != FieldDescriptor.TYPE_BYTES
        }

    def _value(self, field: FieldDescriptor, value: Any) -> Any:
        if not field.is_repeated:
            return self._single(value)
        told = [self._single(each) for each in islice(value, LIST_ITEMS_MAX)]
        more = len(value) - len(told)
        return [*told, f"and {more} more"] if more else told

    def _single(self, value: Any) -> Any:
        if self._room <= 0:
            return "..."
        self._room -= VALUE_CHARACTERS_MIN
        if isinstance(value, Message):
            return self.plain(value)
        if isinstance(value, str):
            told = value[: max(0, min(TEXT_CHARACTERS_MAX, self._room))]
            self._room -= len(told)
            return told
        return value
