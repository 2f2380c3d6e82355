"""A cluster that is founded by one replica, and gets and loses others while it runs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Final

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.client import Client
from viewstamp.cluster.lifecycle import READY_TIMEOUT_S, Lifecycle
from viewstamp.cluster.local import LocalCluster
from viewstamp.cluster.preflight import free_address
from viewstamp.errors import Refusal

PATIENCE_S: Final = 60.0
ANYWHERE: Final = "127.0.0.1:0"
# What an operator tries again; all of these can end by themselves.
TRY_AGAIN: Final = frozenset(
    {
        Reason.REASON_REPLICA_NOT_READY,
        Reason.REASON_QUORUM_AT_RISK,
        Reason.REASON_OVERLOADED,
        Reason.REASON_VIEW_CHANGE,
        Reason.REASON_OUTCOME_UNKNOWN,
    }
)


class GrowingReplicas(Lifecycle):
    """Replicas by id, each in a directory of its own; the first one founds the cluster alone."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.data_directory = directory
        self.members: dict[int, LocalCluster] = {}
        self.peer_addresses: dict[int, str] = {}
        self._arguments = arguments
        self._key = secrets.token_hex(32)
        self._cluster_id = secrets.token_hex(16)

    @property
    def addresses(self) -> list[str]:
        """Where the present replicas serve clients."""
        return [replica.address for replica in self.members.values()]

    @property
    def replicas(self) -> list[LocalCluster]:
        """The present replicas."""
        return list(self.members.values())

    @property
    def root_password_path(self) -> Path:
        """Of the founder, whether or not it is still there."""
        return self.replica_directory(0) / "root_password"

    def replica_directory(self, replica: int) -> Path:
        """Return the data directory of a replica."""
        return self.data_directory / f"replica-{replica}"

    async def start(self) -> None:
        """Start the founder, or all that are members by now."""
        if not self.members:
            self.peer_addresses[0] = free_address(ANYWHERE)
            self.members[0] = self._replica(
                0, "--replica-count=1", f"--cluster-id={self._cluster_id}"
            )
        for replica in self.members.values():
            await replica.start()

    async def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until all members are ready."""
        await asyncio.gather(*(each.wait_ready(timeout_s) for each in self.members.values()))

    async def wait(self) -> None:
        """Wait until all are stopped."""
        await asyncio.gather(*(each.wait() for each in self.members.values()))

    async def stop(self) -> None:
        """Stop all."""
        await asyncio.gather(*(each.stop() for each in self.members.values()))

    async def add(self, admin: Client, *, knows: Collection[int] | None = None) -> int:
        """Add a replica, start it, and give it a vote; return its id. It `knows` all others, or
        these alone."""
        address = free_address(ANYWHERE)
        added: int = (await insist(lambda: admin.add_replica(address))).replica_id
        seeds = [
            f"--peer={each}={known}"
            for each, known in self.peer_addresses.items()
            if knows is None or each in knows
        ]
        self.peer_addresses[added] = address
        self.members[added] = self._replica(added, "--join", *seeds)
        await self.members[added].start()
        await self.members[added].wait_ready()
        await insist(lambda: admin.promote_replica(added))
        return added

    async def remove(self, admin: Client, replica: int) -> None:
        """Remove a replica, and stop its process once the others are in the next epoch."""
        await insist(lambda: admin.remove_replica(replica))
        await self.until_gone(admin, replica)
        removed = self.members.pop(replica)
        await removed.stop()
        del self.peer_addresses[replica]

    async def rejoin(self, replica: int) -> None:
        """Start a replica with the flags of one that joins, whether or not it has a directory."""
        others = {each: known for each, known in self.peer_addresses.items() if each != replica}
        seeds = [f"--peer={each}={known}" for each, known in others.items()]
        self.members[replica] = self._replica(replica, "--join", *seeds)
        await self.members[replica].start()

    async def until_gone(self, admin: Client, replica: int) -> None:
        """Wait until the primary no longer knows a replica as a member, and all others follow."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                known = (await admin.status()).replicas
                if replica not in [each.replica_id for each in known]:
                    return
                await asyncio.sleep(0.1)

    def started_again(self, replica: int, *arguments: str) -> LocalCluster:
        """Return a replica of an old directory, to be started by the caller."""
        return self._replica(replica, *arguments)

    def _replica(self, replica: int, *arguments: str) -> LocalCluster:
        directory = self.replica_directory(replica)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = directory / "cluster.key"
        key.write_text(self._key + "\n")
        key.chmod(0o600)
        listen = f"--peer-listen={self.peer_addresses[replica]}"
        return LocalCluster(
            directory,
            ANYWHERE,
            coordinator_arguments=[f"--replica-id={replica}", listen, *arguments, *self._arguments],
        )


async def insist(call: Callable[[], Awaitable[Any]]) -> Any:
    """Call until the cluster can do it, and return the answer. Raises other refusals."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await call()
            except Refusal as refusal:
                if refusal.reason not in TRY_AGAIN:
                    raise
            await asyncio.sleep(0.2)
