"""A replica that serves nobody still answers questions about itself."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from coordinator.app.composition import Coordinator
from coordinator.app.config import parse
from coordinator.gateway.reads import CONSISTENCY_KEY
from coordinator.replica.data_directory import DirectoryOptions, open_replica
from coordinator.snapshot.store import rebuild
from tests.coordinator.app.in_process import CLUSTER_ID, KEY, surroundings
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster
from viewstamp.api.cluster.v1.cluster_service_pb2_grpc import ClusterServiceStub
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots
from viewstamp.api.snapshots.v1.snapshots_service_pb2_grpc import SnapshotsServiceStub
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.api.users.v1.users_service_pb2_grpc import UsersServiceStub
from viewstamp.limits import MIB, ROOT_USER_ID
from viewstamp.routing import SERVICE_NAMES
from viewstamp.snapshots.catalog_view import CATALOG_VIEW_FILE, CatalogView, read
from viewstamp.tokens import sign

ROOT, SOMEBODY = (sign(KEY, CLUSTER_ID, user_id, 1, 2**62) for user_id in (ROOT_USER_ID, 7))
DEADLINE_S = 30


@asynccontextmanager
async def waiting(
    services: Mapping[str, str] | None = None, view: CatalogView | None = None
) -> AsyncIterator[grpc.aio.Channel]:
    """Run a member that has reached no other replica and only the given services.

    `view` is the catalog as an earlier process wrote it down; it must stay.
    """
    with tempfile.TemporaryDirectory(prefix="vs") as directory:
        targets = services or {name: f"unix:{directory}/{name}" for name in SERVICE_NAMES}
        flags = [f"--data-directory={directory}/data", "--listen=127.0.0.1:0", "--replica-count=3"]
        flags += [f"--service={name}={target}" for name, target in targets.items()]
        flags += ["--peer-listen=127.0.0.1:0", "--peer=1=127.0.0.1:1", "--peer=2=127.0.0.1:2"]
        config = parse(flags)
        options = DirectoryOptions(
            Path(directory, "data"), 0, 3, segment_bytes=4 * MIB, cluster_id=CLUSTER_ID
        )
        coordinator = Coordinator(config, open_replica(options), KEY)
        if view is not None:
            await rebuild(config.data_directory / CATALOG_VIEW_FILE, view)
        stop = asyncio.Event()
        running = asyncio.create_task(coordinator.run(stop))
        try:
            async with grpc.aio.insecure_channel(coordinator.client_address) as channel:
                yield channel
        finally:
            stop.set()
            await running
        if view is not None:
            assert read(config.data_directory).op == view.op, "the view was written anew"


async def ask(call: Any, request: Any, consistency: str, token: str = ROOT) -> Any:
    """Call as somebody, with a consistency."""
    metadata = (("authorization", f"Bearer {token}"), (CONSISTENCY_KEY, consistency))
    return await call(request, metadata=metadata, timeout=DEADLINE_S)


async def test_a_replica_that_waits_says_so() -> None:
    """Root sees status and alarms of a replica that has not even reached its services."""
    async with waiting() as channel:
        stub = ClusterServiceStub(channel)
        status = await ask(stub.GetStatus, cluster.GetStatusRequest(), "stale")
        (own,) = (each for each in status.replicas if each.replica_id == 0)
        assert own.status == cluster.REPLICA_STATUS_RECOVERING
        assert [service.connected for service in status.services] == [False] * len(SERVICE_NAMES)
        await ask(stub.ListAlarms, cluster.ListAlarmsRequest(), "stale")


@pytest.mark.parametrize(
    ("consistency", "token", "reason"),
    [
        ("linearizable", ROOT, "not in service"),
        ("at-least=1", ROOT, "not in service"),
        # Whether others may look is for streams to decide.
        ("stale", SOMEBODY, "streams is restarting"),
    ],
    ids=["newest", "a revision", "of others"],
)
async def test_nothing_else_is_promised(consistency: str, token: str, reason: str) -> None:
    """A caller who asks for more than the replica knows, or is unknown, is told to try again."""
    async with waiting() as channel:
        stub = ClusterServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match=reason) as caught:
            await ask(stub.GetStatus, cluster.GetStatusRequest(), consistency, token)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_what_no_service_serves_yet_is_to_be_tried_again() -> None:
    """A starting replica tells a login to try again, like any other call; it is not "unknown"."""
    async with waiting() as channel:
        login = users.LoginRequest(username="root", password="a password")
        with pytest.raises(grpc.aio.AioRpcError, match="not in service") as caught:
            await UsersServiceStub(channel).Login(login, timeout=DEADLINE_S)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_callers_who_may_be_known_to_others(tmp_path: Path) -> None:
    """A replica without a log knows only root: others must try again, not log in again."""
    async with surroundings(tmp_path) as around, waiting(around.config.services) as channel:
        stub = ClusterServiceStub(channel)
        async with asyncio.timeout(DEADLINE_S):
            while not await is_connected(stub):
                pass
        with pytest.raises(grpc.aio.AioRpcError, match="not in service") as caught:
            await ask(stub.GetStatus, cluster.GetStatusRequest(), "stale", SOMEBODY)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def is_connected(stub: Any) -> bool:
    """Return whether the replica has reached all services."""
    status = await ask(stub.GetStatus, cluster.GetStatusRequest(), "stale")
    return all(service.connected for service in status.services)


async def test_digests_of_services_that_are_away() -> None:
    """Digests of services that are away are refused, and the replica goes on answering."""
    async with waiting() as channel:
        stub = ClusterServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="restarting"):
            await ask(stub.GetStatus, cluster.GetStatusRequest(include_digests=True), "stale")
        await ask(stub.GetStatus, cluster.GetStatusRequest(), "stale")


async def test_other_reads_wait_for_a_primary() -> None:
    """Without a view on disk a replica reads the snapshot catalog only once it has read the log."""
    async with waiting() as channel:
        stub = SnapshotsServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="not in service"):
            await ask(stub.ListSnapshots, snapshots.ListSnapshotsRequest(), "stale")


LAST = snapshots.RETENTION_CLASS_LAST
CREATED, COMPLETED = snapshots.SNAPSHOT_STATE_CREATED, snapshots.SNAPSHOT_STATE_COMPLETED
SNAPSHOTS = [
    snapshots.Snapshot(generation=2, state=CREATED, retention=LAST),
    snapshots.Snapshot(generation=1, state=COMPLETED, retention=LAST, root=b"r" * 32),
]
VIEW = CatalogView(op=70, revision=50, written_at=1, snapshots=SNAPSHOTS)


async def test_root_reads_the_catalog_that_is_on_the_disk() -> None:
    """A replica without a quorum says which snapshots it knew of, and at which revision."""
    async with waiting(view=VIEW) as channel:
        stub = SnapshotsServiceStub(channel)
        listed = await ask(stub.ListSnapshots, snapshots.ListSnapshotsRequest(page_size=1), "stale")
        assert (listed.header.op, listed.header.revision) == (70, 50)
        token = listed.next_page_token
        rest = await ask(
            stub.ListSnapshots, snapshots.ListSnapshotsRequest(page_token=token), "stale"
        )
        assert [*listed.snapshots, *rest.snapshots] == SNAPSHOTS
        one = await ask(stub.GetSnapshot, snapshots.GetSnapshotRequest(generation=1), "stale")
        latest = await ask(stub.GetLatestSnapshot, snapshots.GetLatestSnapshotRequest(), "stale")
        assert one.snapshot == latest.snapshot == SNAPSHOTS[1]
        current = snapshots.GetCurrentSnapshotRequest()
        found = await ask(stub.GetCurrentSnapshot, current, "stale")
        assert found.snapshot == SNAPSHOTS[0]
        with pytest.raises(grpc.aio.AioRpcError, match="there is no snapshot 3"):
            await ask(stub.GetSnapshot, snapshots.GetSnapshotRequest(generation=3), "stale")


@pytest.mark.parametrize(
    ("consistency", "token", "wait"),
    [
        ("linearizable", ROOT, False),
        ("at-least=1", ROOT, False),
        ("stale", SOMEBODY, False),
        ("stale", ROOT, True),
    ],
    ids=["newest", "a revision", "of others", "once it is decided"],
)
async def test_the_disk_does_not_answer_more(consistency: str, token: str, wait: bool) -> None:
    """A caller who wants more than the view holds, or is not root, is told to try again."""
    async with waiting(view=VIEW) as channel:
        request = snapshots.GetCurrentSnapshotRequest(wait=wait)
        with pytest.raises(grpc.aio.AioRpcError, match="not in service") as caught:
            await ask(SnapshotsServiceStub(channel).GetCurrentSnapshot, request, consistency, token)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_process_without_a_quorum_leaves_the_view_alone(tmp_path: Path) -> None:
    """A process without a quorum keeps the view on the disk until it has applied the log again."""
    async with surroundings(tmp_path) as around, waiting(around.config.services, VIEW) as channel:
        async with asyncio.timeout(DEADLINE_S):
            while not await is_connected(ClusterServiceStub(channel)):
                pass
        stub = SnapshotsServiceStub(channel)
        found = await ask(stub.ListSnapshots, snapshots.ListSnapshotsRequest(), "stale")
        assert found.header.op == VIEW.op
