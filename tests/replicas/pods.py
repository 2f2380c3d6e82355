"""Replicas as the pods of one template: all have the same flags, and none is told its id."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from tests.replicas.growing import ANYWHERE, GrowingReplicas, insist
from viewstamp.client import Client
from viewstamp.cluster.local import LocalCluster
from viewstamp.cluster.preflight import free_address

PODS: Final = 3


class PodReplicas(GrowingReplicas):
    """Replicas by the number of their pod, which is their id only until one was replaced."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.pods = [free_address(ANYWHERE) for _ in range(PODS)]

    async def found(self) -> None:
        """Found the cluster by pod 0 alone, as the base does, and have it join from then on."""
        self.peer_addresses[0] = self.pods[0]
        self.members[0] = self._replica(0, "--replica-count=1")
        async with self.members[0]:
            pass
        self.members[0] = self._pod(0)

    async def grow(self, admin: Client, pod: int) -> int:
        """Start a pod, have the cluster know it, and give it a vote; return the id that it got."""
        self.members[pod] = self._pod(pod)
        await self.members[pod].start()
        added: int = (await insist(lambda: admin.add_replica(self.pods[pod]))).replica_id
        await self.members[pod].wait_ready()
        await insist(lambda: admin.promote_replica(added))
        return added

    async def shrink(self, admin: Client, pod: int, replica: int) -> None:
        """Remove a replica, stop its pod, and delete its volume."""
        await insist(lambda: admin.remove_replica(replica))
        await self.until_gone(admin, replica)
        await self.members.pop(pod).stop()
        shutil.rmtree(self.replica_directory(pod))

    async def lose_disk(self, pod: int) -> None:
        """Stop a pod, empty its volume but for what an operator gives it, and start it."""
        await self.members[pod].stop()
        for path in self.replica_directory(pod).iterdir():
            if path.name not in ("cluster.key", "root_password"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        await self.members[pod].start()

    def _pod(self, pod: int) -> LocalCluster:
        address = self.pods[pod]
        self.peer_addresses[pod] = address
        seeds = [f"--peer={number}={each}" for number, each in enumerate(self.pods)]
        # The number of the pod stands for an id that flags say, and is not looked at.
        return self._replica(pod, f"--join-as={address}", *seeds)
