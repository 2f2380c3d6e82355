"""Permission to step down, raise the level, verify or download is a query, without a log entry."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest

from coordinator.app.composition import Coordinator
from coordinator.app.leadership import READY_FILE
from coordinator.replica.driver import Driver
from tests.coordinator.app.in_process import CLUSTER_ID, KEY, surroundings
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster
from viewstamp.api.cluster.v1.cluster_service_pb2_grpc import ClusterServiceStub
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots
from viewstamp.api.snapshots.v1.snapshots_service_pb2_grpc import SnapshotsServiceStub
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.api.users.v1.users_service_pb2_grpc import UsersServiceStub
from viewstamp.limits import FEATURE_LEVEL_MAX, ROOT_USER_ID
from viewstamp.status import refusal_of
from viewstamp.tokens import sign

DEADLINE_S: Final = 30
FOREVER_US: Final = 2**62
TOO_HIGH: Final = FEATURE_LEVEL_MAX + 1

# Method, request, and the refusal for root, whom only the state of the cluster can refuse.
CALLS: Final = (
    ("StepDown", cluster.StepDownRequest(), "NO_OTHER_REPLICA"),
    ("RaiseFeatureLevel", cluster.RaiseFeatureLevelRequest(level=TOO_HIGH),
     "FEATURE_LEVEL_UNSUPPORTED"),
    ("VerifySnapshot", snapshots.VerifySnapshotRequest(), "SNAPSHOT_NOT_FOUND"),
    ("DownloadSnapshot", snapshots.DownloadSnapshotRequest(generation=7), "SNAPSHOT_NOT_FOUND"),
)  # fmt: skip


class PermissionTrial:
    """One replica, and a user who may see servers but not manage them."""

    def __init__(self, driver: Driver, channel: grpc.aio.Channel) -> None:
        """Take the clients to ask."""
        self.driver = driver
        self.users: Any = UsersServiceStub(channel)
        self._stubs: tuple[Any, ...] = (ClusterServiceStub(channel), SnapshotsServiceStub(channel))
        self.ann = self.ended = ""

    async def refusal(self, name: str, request: Any, token: str) -> str:
        """Call, and return the reason of the refusal."""
        (method,) = (getattr(stub, name) for stub in self._stubs if hasattr(stub, name))
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        call = method(request, metadata=metadata, timeout=DEADLINE_S)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (call.read() if hasattr(call, "read") else call)
        refusal = refusal_of(caught.value)
        assert refusal is not None, caught.value
        return refusal.name


def token_of(user_id: int, revision: int = 1) -> str:
    """Return a token that does not expire."""
    return sign(KEY, CLUSTER_ID, user_id, revision, FOREVER_US)


@asynccontextmanager
async def serving() -> AsyncIterator[PermissionTrial]:
    """Run a replica and its services in this process until it serves."""
    with tempfile.TemporaryDirectory(prefix="vs") as name:
        async with surroundings(Path(name)) as around:
            coordinator = Coordinator(around.config, around.open(), KEY)
            stop = asyncio.Event()
            running = asyncio.create_task(coordinator.run(stop))
            while not (around.config.data_directory / READY_FILE).exists():
                await asyncio.sleep(0.01)
                assert not running.done(), running.result()
            address = coordinator.client_address
            async with grpc.aio.insecure_channel(address) as channel:
                yield PermissionTrial(coordinator.driver, channel)
            stop.set()
            await running


@pytest.fixture
async def world() -> AsyncIterator[PermissionTrial]:
    """Create ann, who may only look, and end her first credentials."""
    async with serving() as made:
        root = (("authorization", f"Bearer {token_of(ROOT_USER_ID)}"),)
        request = users.CreateUserRequest(username="ann", password="a password")
        getattr(request.permissions, "global").read_servers = True
        created = await made.users.CreateUser(request, metadata=root)
        change = users.ChangePasswordRequest(new_password="another password")
        change.user.id = created.user_id
        changed = await made.users.ChangePassword(change, metadata=root)
        made.ended = token_of(created.user_id, created.header.revision)
        made.ann = token_of(created.user_id, changed.header.revision)
        yield made


async def test_permission_is_asked_without_an_entry_of_the_log(world: PermissionTrial) -> None:
    """Every caller gets the same answer as from a command, and no answer makes the log grow."""
    before = world.driver.core.marks.op
    for name, request, of_root in CALLS:
        for token, reason in (
            (token_of(ROOT_USER_ID), of_root),
            (world.ann, "PERMISSION_DENIED"),
            (world.ended, "UNAUTHENTICATED"),
            ("", "UNAUTHENTICATED"),
        ):
            assert (name, await world.refusal(name, request, token)) == (name, reason)
    assert world.driver.core.marks.op == before
