"""A disk of a few megabytes: a tmpfs, mounted in the way that this user's rights allow."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SmallDisk:
    """A mounted directory. With a `prefix` only processes started through it see the mount."""

    path: Path
    prefix: tuple[str, ...] = ()

    def seen_through(self, pid: int) -> Path:
        """Return the path by which this process reaches what process `pid` sees."""
        return Path(f"/proc/{pid}/root{self.path}") if self.prefix else self.path


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mount a tmpfs at `path`: as root, by sudo, or in a namespace of the process's own."""
    options = f"size={size_bytes},uid={os.getuid()},gid={os.getgid()},mode=0700"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    for become in ([], ["sudo", "-n"]):
        if _runs([*become, *mount]):
            try:
                yield SmallDisk(path)
            finally:
                subprocess.run([*become, "umount", "--lazy", str(path)], check=True)
            return
    # Inside, the user is root: `uid=0` there is the user who started it.
    inside = f'mount -t tmpfs -o size={size_bytes},mode=0700 tmpfs "{path}" && exec "$@"'
    yield SmallDisk(path, ("unshare", "-rm", "sh", "-c", inside, "sh"))


def _runs(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
