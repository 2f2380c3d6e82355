"""`client.snapshots` and streams of answers, against a gateway in the same loop."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import viewstamp
from tests.viewstamp.client.fake_gateway import PASSWORD
from tests.viewstamp.snapshots.fake_cluster import FakeCluster
from tests.viewstamp.snapshots.generations import SnapshotDirectory
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.client import CannotConnect, Client, Endpoint, Refusal, unary
from viewstamp.client.streaming import ServerStreams
from viewstamp.client.transport import AccessTokenSource, Credentials, Endpoints


@pytest.fixture
async def gateway(replica: SnapshotDirectory) -> AsyncIterator[FakeCluster]:
    """A running gateway with generations 1 and 2."""
    cluster = FakeCluster(replica)
    async with cluster:
        yield cluster


@pytest.fixture
async def client(gateway: FakeCluster) -> AsyncIterator[Client]:
    """A connected client."""
    async with await viewstamp.connect(
        gateway.address, username="root", password=PASSWORD
    ) as connected:
        yield connected


async def test_reads(client: Client) -> None:
    """Generations are read by number, as the newest, the newest completed, and by section."""
    assert (await client.snapshots.get(1)).cut_revision == 100
    assert (await client.snapshots.current()).generation == 2
    created = await client.snapshots.create()
    assert (await client.snapshots.current()).state == snapshots_pb2.SNAPSHOT_STATE_CREATED
    assert (await client.snapshots.latest()).generation == 2
    assert await client.snapshots.lookup_generation(routing_pb2.STAGE_USERS) == 2
    listed = [found.generation async for found in client.snapshots.list(page_size=1)]
    assert listed == [created.generation, 2, 1] == [3, 2, 1]


async def test_waiting_for_what_is_decided_long_ago(client: Client, gateway: FakeCluster) -> None:
    """An older generation is returned as it was decided; one that was deleted is not found."""
    assert (await client.snapshots.decided(1)).generation == 1
    await client.snapshots.delete(1)
    with pytest.raises(Refusal, match="there is no snapshot 1"):
        await client.snapshots.decided(1)


async def test_streams_log_in_again(client: Client, gateway: FakeCluster) -> None:
    """A token that was refused is replaced once by logging in; a given token is not."""
    gateway.valid_token = "access-1"
    messages = [message async for message in client.snapshots.verify(2)]
    assert messages[-1].is_intact
    assert gateway.logins == 2
    given = AccessTokenSource(Credentials(access_token="access-0"))
    request = snapshots_pb2.VerifySnapshotRequest()
    with pytest.raises(Refusal, match="the token is not valid"):
        await anext(ServerStreams(Endpoints([gateway.address]), given).open(request, None))


async def test_streams_that_cannot_be_opened(client: Client) -> None:
    """A request of another kind is a TypeError, a replica that is not there CannotConnect."""
    with pytest.raises(TypeError, match="GetSnapshotRequest is not the request of a method that"):
        await anext(client.stream(snapshots_pb2.GetSnapshotRequest()))
    nobody = ServerStreams(
        Endpoints(["127.0.0.1:1"]), AccessTokenSource(Credentials(access_token="access-0"))
    )
    with pytest.raises(CannotConnect, match=r"nothing listens at 127\.0\.0\.1:1"):
        await anext(nobody.open(snapshots_pb2.VerifySnapshotRequest(), None))
    with pytest.raises(TypeError):
        async with Endpoint("127.0.0.1:1").open() as channel:
            await unary(channel, snapshots_pb2.VerifySnapshotRequest())
