"""A replica of real processes mends what rots on its disk while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.replica.data_directory import SUPERBLOCK_FILE
from tests.processes import snapshots
from tests.processes.processes import ReplicaProcesses, eventually, replica, unique
from viewstamp.format.superblock import COPY_BYTES

pytestmark = pytest.mark.xdist_group("processes-scrubbing")

INTERVAL_MS = 1_000


def flip(path: Path, offset: int) -> bytes:
    """Flip a byte of a file as a disk does; return what the file was."""
    before = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(bytes([before[offset] ^ 0xFF]))
    return before


def rotten(running: ReplicaProcesses) -> dict[Path, bytes]:
    """Damage one copy of each snapshot file; return what they were."""
    folders = ("layers", "manifests")
    directory = snapshots.copy_directories(running)[1]
    files = [path for folder in folders for path in sorted((directory / folder).iterdir())]
    return {path: flip(path, path.stat().st_size // 2) for path in files}


@pytest.mark.long
def test_damage_is_mended_while_the_replica_runs() -> None:
    """Copies of snapshot files and of the superblock are whole again without a restart."""
    with replica(flags=[f"--scrub-interval-ms={INTERVAL_MS}"]) as running, running.root() as root:
        for _ in range(20):
            root.create_stream(unique("s"))
        snapshots.take_and_adopt(running, root)
        superblock = running.data / SUPERBLOCK_FILE
        before = rotten(running) | {superblock: flip(superblock, COPY_BYTES + 60)}
        eventually(lambda: all(path.read_bytes() == data for path, data in before.items()))
        root.create_stream(unique("s"))
