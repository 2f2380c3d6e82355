"""Who has a data directory in use, found out without touching its lock.

Trying the lock would hold it for a moment, and a replica that starts just then would be refused. So
the kernel's list of locks is read instead.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from viewstamp.journals.segment_window import JOURNAL_DIRECTORY

LOCK_FILES: Final = (Path(JOURNAL_DIRECTORY, "LOCK"), Path("LOCK"))
KERNEL_LOCKS: Final = Path("/proc/locks")
_PROCESS_ID_BYTES_MAX: Final = 32


def writer_of(data: Path, locks: Path = KERNEL_LOCKS) -> int | None:
    """Return the id of the process that holds a data directory, None if no lock shows one.

    A process beyond this machine or container shows nowhere, and where the kernel's list cannot be
    read, none does. Raises OSError for a lock file that may not be read.
    """
    try:
        held = locks.read_text().splitlines()
    except OSError:
        return None  # some containers hide it: the caller says that locks show what is in use
    for file in LOCK_FILES:
        holder = _holder(data / file, held)
        if holder is not None:
            return holder
    return None


def _holder(path: Path, held: list[str]) -> int | None:
    """Return who holds a lock file, by its inode and its device or the id written in it."""
    try:
        status, content = path.stat(), path.read_bytes()[:_PROCESS_ID_BYTES_MAX]
    except FileNotFoundError:
        return None
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    for line in held:
        # "1: FLOCK  ADVISORY  WRITE 7840 fe:00:10684806 0 EOF"
        fields = line.split()
        if "FLOCK" not in fields or len(fields) < 6:
            continue
        holder, (of_device, _, inode) = fields[-4], fields[-3].rpartition(":")
        # Some file systems show another device here than to `stat`.
        if inode == str(status.st_ino) and (of_device == device or holder.encode() == content):
            return int(holder)
    return None
