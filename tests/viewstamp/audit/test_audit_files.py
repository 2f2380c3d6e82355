"""Files of the audit log, and the thread that writes them."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from coordinator.app.config import AUDIT_BYTES_MIN
from viewstamp.audit import log
from viewstamp.audit.files import CURRENT, FILES, STRANGERS, AuditFiles, read, rotated_files
from viewstamp.audit.log import AuditLog, open_log


def test_log_is_bounded(tmp_path: Path) -> None:
    """Full files are rotated and the oldest removed; the remaining ones are read in order."""
    files = AuditFiles(tmp_path, 100 * FILES)
    for number in range(200):
        files.append(b'{"at":%d}\n' % number)
    assert len(rotated_files(tmp_path)) == FILES - 1
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 100 * FILES
    moments = [record["at"] for record in read(tmp_path)]
    assert moments == list(range(moments[0], 200))


def test_half_a_line_is_set_aside(tmp_path: Path) -> None:
    """An unfinished line of a killed process harms neither earlier nor later lines."""
    (tmp_path / CURRENT).write_bytes(b'{"at":1}\n{"at":')
    AuditFiles(tmp_path, 10_000).append(b'{"at":2}\n')
    assert [record["at"] for record in read(tmp_path)] == [1, 2]


def test_failed_rotation_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one failed attempt to open a new file the next lines are written, and no earlier one
    is lost."""
    files = AuditFiles(tmp_path, 100 * FILES)
    for number in range(10):
        files.append(b'{"at":%d}\n' % number)
    with monkeypatch.context() as exhausted:
        exhausted.setattr(os, "open", full)
        with pytest.raises(OSError, match="too many"):
            files.append(b'{"at":10,"filler":"%s"}\n' % (b"x" * 50))
    files.append(b'{"at":11,"filler":"%s"}\n' % (b"x" * 50))
    assert [record["at"] for record in read(tmp_path)] == [*range(10), 11]
    assert len(rotated_files(tmp_path)) == 1


def full(*arguments: object) -> int:
    """Fail as a process that has all its files open."""
    raise OSError("too many open files")


def test_half_written_line_takes_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a disk has room for only half a line, the next line begins anew."""
    files = AuditFiles(tmp_path, 10_000)
    files.append(b'{"at":1}\n')
    write = os.write
    with monkeypatch.context() as almost_full:
        almost_full.setattr(os, "write", lambda descriptor, lines: write(descriptor, lines[:4]))
        with pytest.raises(OSError, match="only 4 of 9"):
            files.append(b'{"at":2}\n')
    files.append(b'{"at":3}\n')
    files.append(b'{"at":4}\n')
    assert [record["at"] for record in read(tmp_path)] == [1, 3, 4]


def test_strangers_displace_nothing(tmp_path: Path) -> None:
    """However many callers without a name are refused, other records stay, and both are read in
    order; all files together keep to their bytes."""
    kept = open_log(tmp_path, AUDIT_BYTES_MIN)
    add(kept, {"at": 0, "kind": "call", "user": 7, "outcome": "refused"})
    for number in range(1, 10_001):
        if number % 1_000 == 0:
            add(kept, {"at": number, "kind": "call", "user": 7, "outcome": "ok"})
            drain(kept)
        record = {"at": number, "kind": "login", "user": None, "outcome": "refused"}
        add(kept, record, is_strangers=True)
    kept.close()
    records = [record for record in read(tmp_path) if record["kind"] != log.LOST]
    assert [r["at"] for r in records if r["user"] == 7] == [0, *range(1_000, 10_001, 1_000)]
    moments = [record["at"] for record in records]
    assert moments == sorted(moments) and 1_000 < len(moments) < 5_000
    sizes = [path.stat().st_size for path in tmp_path.rglob("*.jsonl")]
    assert sum(sizes) <= AUDIT_BYTES_MIN


def test_strangers_leave_room_in_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals of callers without a name do not take all places in the queue."""
    monkeypatch.setattr(AuditLog, "run", lambda self: None)
    kept = open_log(tmp_path, AUDIT_BYTES_MIN)
    for _ in range(log.RECORDS_WAITING_MAX):
        add(kept, {"kind": "login", "user": None, "outcome": "refused"}, is_strangers=True)
    assert kept.lost == log.RECORDS_WAITING_MAX - log.STRANGERS_WAITING_MAX
    add(kept, {"kind": "call", "user": 7, "outcome": "ok"})
    assert kept.lost == log.RECORDS_WAITING_MAX - log.STRANGERS_WAITING_MAX


def add(kept: AuditLog, record: dict[str, Any], *, is_strangers: bool = False) -> None:
    """Let a record be written that keeps nothing."""
    kept.add(lambda: record, 0, is_strangers=is_strangers)


def drain(kept: AuditLog) -> None:
    """Wait until the thread has taken all waiting records."""
    while kept.waiting:
        threading.Event().wait(0.001)


def test_log_is_followed_over_rotations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that follows the log sees new records, from both kinds of files, and from new
    ones."""
    files = AuditFiles(tmp_path, 100 * FILES)
    strangers = AuditFiles(tmp_path / STRANGERS, 100 * FILES)
    numbers = iter(range(40))

    def write_more(seconds: float) -> None:
        number = next(numbers)
        (strangers if number % 5 == 0 else files).append(b'{"at":%d}\n' % number)

    monkeypatch.setattr("time.sleep", write_more)
    records = read(tmp_path, follows=True)
    assert [next(records)["at"] for _ in range(40)] == list(range(40))
    assert rotated_files(tmp_path)


class FailingFiles:
    """Files on a full disk, which first wait until they are let."""

    def __init__(self) -> None:
        """Wait."""
        self.gate = threading.Event()

    def append(self, lines: bytes) -> None:
        """Fail."""
        self.gate.wait()
        raise OSError("no space left on device")

    def close(self) -> None:
        """Do nothing."""


def test_nobody_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Records that find no room, or cannot be written, are counted; nobody waits for the disk."""
    monkeypatch.setattr(log, "RECORDS_WAITING_MAX", 4)
    files: Any = FailingFiles()
    kept = AuditLog(files, AuditFiles(tmp_path, 1_000))
    for number in range(20):
        add(kept, {"at": number})
    assert kept.lost >= 20 - 4 - log.LINES_TOGETHER_MAX
    files.gate.set()
    kept.close()
    assert kept.lost == 20


def test_record_that_cannot_be_made_is_counted(tmp_path: Path) -> None:
    """A record that fails while it is made takes no other with it, and is reported as lost."""

    def fail() -> dict[str, Any]:
        raise ValueError("nobody knows how to tell this")

    kept = open_log(tmp_path, AUDIT_BYTES_MIN)
    add(kept, {"at": 1})
    kept.add(fail, 0)
    add(kept, {"at": 2})
    kept.close()
    assert list(read(tmp_path)) == [{"at": 1}, {"kind": log.LOST, "records": 1}, {"at": 2}]
    assert kept.lost == 1
