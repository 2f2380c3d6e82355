"""The console's client calls methods that read, as their callers from outside do, and no others."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from coordinator.console.console_client import ConsoleClient, NotARead
from tests.coordinator.console.console_trial import StandInCluster
from viewstamp.api.brokers.v1 import brokers_service_pb2
from viewstamp.api.cluster.v1 import cluster_service_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.sessions.v1 import sessions_service_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2
from viewstamp.api.streams.v1 import streams_service_pb2
from viewstamp.api.submit.v1 import submit_service_pb2
from viewstamp.api.users.v1 import users_service_pb2
from viewstamp.api.watch.v1 import watch_service_pb2
from viewstamp.errors import Refusal
from viewstamp.routing import Method, MethodKind, methods_of_file

PEER = "ipv4:10.0.0.7:5"
MODULES = (
    brokers_service_pb2,
    cluster_service_pb2,
    consumer_groups_service_pb2,
    sessions_service_pb2,
    snapshots_service_pb2,
    streams_service_pb2,
    submit_service_pb2,
    users_service_pb2,
)
WRITES = [
    method
    for module in MODULES
    for method in methods_of_file(module.DESCRIPTOR)
    if method.kind is MethodKind.COMMAND
]


@pytest.mark.parametrize("method", WRITES, ids=lambda method: method.full_name)
async def test_no_command_is_called(method: Method) -> None:
    """A request of a command ends at the client: no handler is asked for."""
    cluster = StandInCluster()
    request: Message = method.request()
    with pytest.raises(TypeError) as caught:
        await ConsoleClient(cluster.handler_of, PEER, "token").call(request)
    # A method of programs alone is no public method at all.
    assert isinstance(caught.value, NotARead) != method.internal
    assert cluster.calls == []


def test_commands_were_found() -> None:
    """The table above has the commands of every domain."""
    names = {method.name for method in WRITES}
    assert names >= {"CreateStream", "DeleteUser", "CreateSnapshot", "StepDown", "Logout"}


async def test_call_has_token_and_address() -> None:
    """A handler hears the user's token and the browser's address, and the answer is a message."""
    cluster = StandInCluster()
    client = ConsoleClient(cluster.handler_of, PEER, "token")
    status = await client.call(cluster_service_pb2.GetStatusRequest())
    assert status.cluster == "c" * 32
    assert (cluster.peers, cluster.tokens) == ({PEER}, {"Bearer token"})


async def test_refusals_come_as_they_are() -> None:
    """Reason, message and details of a refusal cross the handler's status unchanged."""
    refusal = Refusal(Reason.REASON_QUOTA_EXCEEDED, "wait", retry_delay_ms=5_000)
    cluster = StandInCluster(refused={"GetStatus": refusal, "Watch": refusal})
    client = ConsoleClient(cluster.handler_of, PEER, "token")
    with pytest.raises(Refusal) as called:
        await client.call(cluster_service_pb2.GetStatusRequest())
    with pytest.raises(Refusal) as watched:
        async for _ in client.watch(watch_service_pb2.WatchRequest()):
            pass
    for caught in (called.value, watched.value):
        assert (caught.reason, caught.message) == (refusal.reason, "wait")
        assert caught.details["retry_delay_ms"] == "5000"
