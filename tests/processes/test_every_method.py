"""Every method that the protos offer to callers is served, and dry runs change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

from testkit.api_methods import API_FILES
from tests.processes.callers import CALL_TIMEOUT_S, Caller, refused
from tests.processes.processes import ReplicaProcesses, replica
from viewstamp import BlockingClient, Refusal, connect_blocking
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions
from viewstamp.api.snapshots.v1.snapshots_service_pb2 import RETENTION_CLASS_PINNED as PINNED
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.api.watch.v1 import watch_service_pb2
from viewstamp.routing import methods_of_file

pytestmark = pytest.mark.xdist_group("processes-every-method")

_FILES: Final = (*API_FILES, watch_service_pb2.DESCRIPTOR)
_INTERNAL: Final = {
    method.path for file in _FILES for method in methods_of_file(file) if method.internal
}
# They end what the caller has: so they come last.
_LAST: Final = ("Logout",)


@pytest.fixture(scope="module")
def served() -> Iterator[ReplicaProcesses]:
    """A running replica."""
    with replica() as running:
        yield running


@pytest.fixture
def client(served: ReplicaProcesses) -> Iterator[BlockingClient]:
    """A blocking client of root."""
    password = served.root_password()
    with connect_blocking(served.address, username="root", password=password) as connected:
        yield connected


def all_methods() -> dict[str, MethodDescriptor]:
    """Return every method in the protos for callers by its gRPC path."""
    found = {
        f"/{service.full_name}/{method.name}": method
        for file in _FILES
        for service in file.services_by_name.values()
        for method in service.methods
    }
    return dict(sorted(found.items(), key=lambda item: item[1].name in _LAST))


def code_of(root: Caller, path: str, method: MethodDescriptor) -> grpc.StatusCode:
    """Call a method with an empty request, and return the code of its answer or first message."""
    metadata, channel = root.metadata(), root.channel
    try:
        if not method.server_streaming:
            root.raw(path, b"")
        elif method.client_streaming:
            call: Any = channel.stream_stream(path)
            next(call(iter([b""]), metadata=metadata, timeout=CALL_TIMEOUT_S))
        else:
            call = channel.unary_stream(path)
            answers = call(b"", metadata=metadata, timeout=CALL_TIMEOUT_S)
            next(answers)
            answers.cancel()
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def test_every_method_is_served(served: ReplicaProcesses) -> None:
    """No method for callers is answered UNIMPLEMENTED, and each internal one is."""
    with served.root() as root:
        codes = {path: code_of(root, path, method) for path, method in all_methods().items()}
    unimplemented = {path for path, code in codes.items() if _is_absent(code)}
    assert unimplemented == _INTERNAL
    broken = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED}
    assert {path: code for path, code in codes.items() if code in broken} == {}


def _is_absent(code: grpc.StatusCode) -> bool:
    return code is grpc.StatusCode.UNIMPLEMENTED


def test_snapshots_may_be_tried(client: BlockingClient) -> None:
    """Dry runs of CreateSnapshot, SetSnapshotRetention and DeleteSnapshot change nothing."""
    first, second = _taken(client), _taken(client)
    listed = list(client.snapshots.list())
    promised = client.snapshots.create(validate_only=True).generation
    assert promised == second + 1
    before = client.snapshots.get(first)
    client.snapshots.set_retention(first, PINNED, validate_only=True)
    client.snapshots.delete(first, validate_only=True)
    with pytest.raises(Refusal, match="it cannot be deleted"):
        client.snapshots.delete(second, validate_only=True)
    assert list(client.snapshots.list()) == listed
    with pytest.raises(Refusal) as caught:
        client.snapshots.delete(first, expected_revision=before.modified_revision - 1)
    assert caught.value.reason == Reason.REASON_REVISION_MISMATCH
    assert "read it again" in caught.value.message
    client.snapshots.delete(first, expected_revision=before.modified_revision)
    assert first not in [each.generation for each in client.snapshots.list()]


def _taken(client: BlockingClient) -> int:
    """Take a snapshot, once the one under way is decided, and return its generation."""
    if generation := client.snapshots.current().generation:
        client.snapshots.decided(generation)
    generation = client.snapshots.create().generation
    client.snapshots.decided(generation)
    return generation


def test_a_transaction_may_be_tried(client: BlockingClient) -> None:
    """It is answered as if it had taken effect, parts that build on each other included."""
    parts = [
        streams.CreateStreamRequest(name="tried"),
        users.CreateUserRequest(username="tried", password="secret"),
    ]
    stream, user = client.transact(parts, validate_only=True)
    assert stream.stream_id and user.user_id
    assert "tried" not in [each.name for each in client.streams.list()]
    assert "tried" not in [each.username for each in client.users.list()]
    with pytest.raises(Refusal) as caught:
        client.transact([*parts, parts[0]], validate_only=True)
    assert (caught.value.name, caught.value.details["part"]) == ("STREAM_EXISTS", "2")
    again, _ = client.transact(parts)
    assert again.stream_id == stream.stream_id


def test_the_end_of_a_session_may_be_tried(served: ReplicaProcesses) -> None:
    """EndSession and Logout that validate leave the session and the access token as they are."""
    with served.root() as root:
        caller = root.with_session()
        caller.once(caller.sessions.EndSession, sessions.EndSessionRequest(validate_only=True))
        caller.once(caller.users.Logout, users.LogoutRequest(validate_only=True))
        caller.once(caller.streams.CreateStream, streams.CreateStreamRequest(name="still here"))
        caller.once(caller.sessions.EndSession, sessions.EndSessionRequest())
        with refused() as failure:
            caller.once(caller.streams.CreateStream, streams.CreateStreamRequest(name="gone"))
        assert failure.it.reason == "SESSION_EVICTED"


def test_stepping_down_may_be_tried(served: ReplicaProcesses) -> None:
    """A cluster of one replica says so without being asked in earnest."""
    with served.root() as root, refused() as failure:
        root.call(root.cluster.StepDown, cluster.StepDownRequest(validate_only=True))
    assert failure.it.reason == "NO_OTHER_REPLICA"
