"""A gateway with snapshots: the client's fake one, with the coordinator's own snapshot streams.

As a program (`python -m tests.viewstamp.snapshots.fake_cluster DIRECTORY`) it serves the
generations of a data directory, prints its port and serves until killed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, cast

from coordinator.gateway.caller_calls import Callers
from coordinator.gateway.snapshot_streams import SnapshotStreams
from tests.viewstamp.client.fake_gateway import CLUSTER_ID, FakeGateway
from tests.viewstamp.snapshots.fake_snapshots import (
    DirectoryProvider,
    FakeRoutes,
    FakeStages,
    SnapshotDomain,
)
from tests.viewstamp.snapshots.generations import SnapshotDirectory
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.tokens import AccessToken


class FakeCluster(FakeGateway):
    """Serves the generations of one replica."""

    def __init__(self, replica: SnapshotDirectory) -> None:
        super().__init__()
        domain = SnapshotDomain(replica)
        self.domain = domain
        stages = FakeStages(domain)
        self._streams = SnapshotStreams(
            CLUSTER_ID,
            Callers(
                cast(Any, FakeRoutes()),
                cast(Any, self),
                cast(Any, stages),
                cast(Any, stages),
            ),
            DirectoryProvider(replica, domain),
            lambda: None,
        ).handlers()

    def principal(self, metadata: Any) -> AccessToken:
        """Return the owner of the valid token, as the coordinator's Authenticator does."""
        if ("authorization", f"Bearer {self.valid_token}") not in metadata:
            raise Refusal(Reason.REASON_UNAUTHENTICATED, "the token is not valid: log in again")
        return AccessToken(0, 1, 2**63)

    def handler(self, path: str) -> Any:
        return self._streams.get(path) or super().handler(path)


async def _main(data_directory: Path) -> None:
    async with FakeCluster(SnapshotDirectory.at(data_directory)) as cluster:
        print(cluster.port, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))
