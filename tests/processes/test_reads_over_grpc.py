"""Reads, status, health and reflection over real gRPC, with the standard stubs."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from grpc_channelz.v1 import channelz_pb2
from grpc_channelz.v1.channelz_pb2_grpc import ChannelzStub
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from tests.processes.callers import Caller, SubmitStream, named, refused
from tests.processes.processes import ReplicaProcesses, replica, unique
from viewstamp.api.common.v1.common_pb2 import Consistency
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.routing import SERVICE_NAMES

pytestmark = pytest.mark.xdist_group("processes")

GET_STREAM_CODE = 250


def get(caller: Caller, name: str, **entries: object) -> Any:
    """Read a stream."""
    request = streams.GetStreamRequest(stream=named(name))
    return caller.call(caller.streams.GetStream, request, **entries)


def test_every_consistency(root: Caller) -> None:
    """Linearizable, at-least and stale reads answer, with the revision of the state they read."""
    name = unique("read")
    revision = root.create_stream(name).header.revision
    for consistency in ("linearizable", f"at-least={revision}", "stale"):
        found = get(root, name, consistency=consistency)
        assert found.header.revision >= revision
        assert len(found.header.cluster_id) == 16
    assert get(root, name).header.revision >= revision


@pytest.mark.parametrize("text", ["", "eventual", "at-least=", "at-least=-1", "AT-LEAST=1"])
def test_malformed_consistency(root: Caller, text: str) -> None:
    """Any other consistency is refused, and the message lists the three possible ones."""
    with refused() as failure:
        get(root, "any", consistency=text)
    assert failure.it.code is grpc.StatusCode.INVALID_ARGUMENT
    assert failure.it.reason == "MALFORMED_REQUEST"
    assert "use linearizable, stale, at-least=<revision> or at=<revision>" in failure.it.message


def test_read_waits_for_its_revision(root: Caller) -> None:
    """A read of the next revision is answered as soon as that command is committed."""
    name = unique("read")
    revision = root.create_stream(name).header.revision
    stream = SubmitStream(root)
    spans = [submit.Span(code=GET_STREAM_CODE, count=1, items=_get_item(name))]
    level = Consistency(at_least_revision=revision + 1)
    request = submit.ReadRequest(read_id=1, spans=spans, consistency=level)
    stream.put(submit.SubmitRequest(read=request))
    root.create_stream(unique("next"))
    answer = stream.receive().read
    assert not answer.HasField("error")
    assert answer.header.revision >= revision + 1


def _get_item(name: str) -> bytes:
    encoded = streams.GetStreamRequest(stream=named(name)).SerializeToString()
    return bytes((0x0A, len(encoded))) + encoded


@pytest.mark.long
def test_future_revision_ends_at_the_deadline(root: Caller) -> None:
    """A read of a revision that never comes is refused after 5 seconds, with a reason."""
    with refused() as failure:
        get(root, "any", consistency=f"at-least={2**63}")
    assert failure.it.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert failure.it.reason == "READ_DEADLINE"
    assert failure.it.details["deadline_ms"] == "5000"


def test_status(root: Caller, shared: ReplicaProcesses) -> None:
    """Status names the cluster, its replica, its services and, if asked, every digest."""
    status = root.status(digests=True)
    assert bytes.fromhex(status.cluster) == status.header.cluster_id
    (replica,) = status.replicas
    assert replica.address == shared.address
    assert [service.connected for service in status.services] == [True] * len(SERVICE_NAMES)
    assert all(len(service.state_digest) == 64 for service in status.services)
    assert len(status.sessions_digest) == 64
    assert not status.alarms and not root.alarms()
    assert not any(service.state_digest for service in root.status().services)


def test_status_tells_where_others_reach_it() -> None:
    """A replica with an advertised address shows that one, and not the one it listens on."""
    flags = ("--advertise", "metadata.example:7400")
    with replica(flags=flags) as running, running.root() as root:
        (found,) = root.status().replicas
        assert found.address == "metadata.example:7400"
        assert running.address.startswith("127.0.0.1:")


@pytest.mark.parametrize("service", ["", "liveness", "readiness"])
def test_health(shared: ReplicaProcesses, service: str) -> None:
    """The standard health service says SERVING, for liveness and for readiness."""
    with shared.channel() as channel:
        stub: Any = HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection(shared: ReplicaProcesses) -> None:
    """Standard reflection lists the services and gives the file of each."""
    list_all = reflection_pb2.ServerReflectionRequest(list_services="")
    symbol = "viewstamp.api.streams.v1.StreamsService"
    ask_file = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
    with shared.channel() as channel:
        stub: Any = ServerReflectionStub(channel)
        listed, file = stub.ServerReflectionInfo(iter([list_all, ask_file]))
    names = {service.name for service in listed.list_services_response.service}
    assert {symbol, "grpc.health.v1.Health"} <= names
    assert file.file_descriptor_response.file_descriptor_proto


def test_channelz(shared: ReplicaProcesses) -> None:
    """By default, nobody can look at connections: channelz is closed."""
    with shared.channel() as channel:
        stub: Any = ChannelzStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetServers(channelz_pb2.GetServersRequest(start_server_id=0))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
