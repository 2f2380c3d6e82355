"""Who holds a data directory is read from the kernel's list of locks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coordinator.storage import FileStorage
from viewstamp.journals.directory_writers import writer_of


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a lock file that names process 4711."""
    (tmp_path / "data/journal").mkdir(parents=True)
    (tmp_path / "data/LOCK").write_text("4711")
    return tmp_path / "data"


def told(data: Path, line: str) -> int | None:
    """Return who holds the directory if the kernel lists this lock."""
    status = (data / "LOCK").stat()
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    locks = data.parent / "locks"
    locks.write_text(line.format(device=device, inode=status.st_ino) + "\n")
    return writer_of(data, locks)


@pytest.mark.parametrize(
    ("line", "holder"),
    [
        ("1: FLOCK  ADVISORY  WRITE 17 {device}:{inode} 0 EOF", 17),
        ("1: FLOCK  ADVISORY  WRITE 4711 ff:ff:{inode} 0 EOF", 4711),
        ("1: FLOCK  ADVISORY  WRITE 17 ff:ff:{inode} 0 EOF", None),
        ("1: FLOCK  ADVISORY  WRITE 4711 {device}:1 0 EOF", None),
        ("1: POSIX  ADVISORY  WRITE 17 {device}:{inode} 0 EOF", None),
        ("1: FLOCK", None),
        ("", None),
    ],
)
def test_a_lock_names_its_holder(data: Path, line: str, holder: int | None) -> None:
    """A flock on the lock file counts, by device or by the process id in the file; no other."""
    assert told(data, line) == holder


def test_a_lock_of_the_journal_counts(data: Path) -> None:
    """Whoever holds only the journal is found, too, until it lets go; the lock is not touched."""
    lock = FileStorage().lock(str(data / "journal"))
    assert writer_of(data) == os.getpid()
    lock.release()
    assert writer_of(data) is None


def test_without_a_list_of_locks_nobody_shows(data: Path) -> None:
    """Where the kernel hides its list, no writer shows, and reading goes on."""
    lock = FileStorage().lock(str(data))
    assert writer_of(data, data / "no-such-list") is None
    lock.release()
