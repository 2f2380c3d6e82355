"""The disk of one of three loaded replicas is full, and has room again later.

`python -m tests.replicas.full_disk DIRECTORY`, in a new mount namespace whose root it is: the disk
is a small tmpfs that must outlive the coordinator. Exits with 0 if all promises were kept.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.replicas.snapshotting import ARGUMENTS, DEADLINE_S, FILLER, SEGMENT_BYTES, fill
from tests.replicas.trial import Trial, agree, lead, trial, under_load
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2

FULL: Final = 1  # the replica with the small disk
DISK_BYTES: Final = 20 * SEGMENT_BYTES  # enough for all, but for what uses it up
OPERATIONS: Final = 100
CATCH_UP_S: Final = 120.0


async def run(directory: Path) -> None:
    """Fill the disk of a backup; the others go on, and it comes back. Raises whatever fails."""
    disk = directory / f"replica-{FULL}" / "journal"
    disk.mkdir(parents=True, mode=0o700)
    options = f"size={DISK_BYTES},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)
    async with trial(directory, callers=2, arguments=ARGUMENTS) as made:
        await made.admin.users.create(FILLER, "a password of a filler")
        async with under_load(made):
            await lead(made, FULL, leads=False)
            await made.until_answered(OPERATIONS)
            filler = use_up(disk)
            await fill(made.admin)
            await fill(made.admin)
            await made.until_answered(OPERATIONS)
            await out_of_service(made)
            filler.unlink()
            # Its supervisor may have given it up by now.
            await made.replicas.replicas[FULL].stop()
            await made.replicas.replicas[FULL].start()
            await made.replicas.wait_ready(CATCH_UP_S)
            await made.until_answered(OPERATIONS)
        await agree(made)


def use_up(disk: Path) -> Path:
    """Leave less room than a segment takes; return the file that has the rest."""
    status = os.statvfs(disk)
    filler = disk / "filler"
    filler.write_bytes(bytes(status.f_bavail * status.f_frsize - SEGMENT_BYTES // 2))
    return filler


async def out_of_service(made: Trial) -> None:
    """Wait until the primary sees that the replica has ended or no longer follows."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = await made.admin.status()
            full, primary = found.replicas[FULL], found.replicas[found.primary]
            follows = full.status == cluster_pb2.REPLICA_STATUS_NORMAL and full.link == "connected"
            if not follows or full.op + OPERATIONS < primary.commit:
                return
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
