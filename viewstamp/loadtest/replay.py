"""The same log told to fresh processes: what a replay from scratch comes to."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from viewstamp.cluster import LocalCluster
from viewstamp.loadtest.observation import digests, reader, root_password
from viewstamp.loadtest.oracle import Digests

# Of the processes that ran there; locks are not copied either.
NOT_COPIED: Final = ("run", "log", "LOCK", "SUPERVISOR")


async def replay_digests(data_directory: Path, copy: Path) -> Digests:
    """Return the digests that fresh processes reach from a copy of a stopped cluster's directory.

    Raises ClusterFailed, OSError.
    """
    shutil.copytree(data_directory, copy, ignore=shutil.ignore_patterns(*NOT_COPIED))
    async with (
        LocalCluster(copy, "127.0.0.1:0") as cluster,
        reader(cluster.address, root_password(cluster)) as client,
    ):
        return await digests(client)
