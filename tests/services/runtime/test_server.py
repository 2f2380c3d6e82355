"""A machine behind gRPC: real streams over a unix socket, in this process."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.runtime import stream as stream_module
from services.runtime.domain import Deferred, Domain
from services.runtime.server import LIVENESS, READINESS, DomainServer, new_server
from tests.services.runtime import echo
from tests.services.runtime.echo import (
    GET,
    HIDE,
    PONDER,
    PUT,
    batch,
    command,
    message,
    put_request,
    query,
)
from viewstamp import framing
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1.domain_service_pb2_grpc import DomainServiceStub
from viewstamp.api.errors.v1.errors_pb2 import Reason

CLUSTER = b"c" * 16
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class StreamClient:
    """A coordinator as the service sees it, and the server it talks to."""

    def __init__(self, server: DomainServer, channel: grpc.aio.Channel) -> None:
        """Talk through `channel`."""
        self.server = server
        self.service: Any = DomainServiceStub(channel)
        self.health: Any = health_pb2_grpc.HealthStub(channel)

    async def open(self, sequence: int = 1, **fields: Any) -> Any:
        """Open an Apply stream and wait for the answer to Hello."""
        fields.setdefault("cluster_id", CLUSTER)
        stream = self.service.Apply()
        hello = pb.Hello(coordinator_sequence=sequence, **fields)
        await stream.write(pb.ApplyRequest(hello=hello))
        reply = await read(stream)
        assert reply.WhichOneof("kind") == "hello"
        return stream

    async def is_serving(self, name: str) -> bool:
        """Ask the health service."""
        request = health_pb2.HealthCheckRequest(service=name)
        status = (await self.health.Check(request)).status
        assert status in (SERVING, NOT_SERVING)
        return bool(status == SERVING)


@contextlib.asynccontextmanager
async def serving(domain: Domain[Any]) -> AsyncIterator[StreamClient]:
    """Serve a domain on a unix socket."""
    with tempfile.TemporaryDirectory(prefix="vs") as directory:
        address = f"unix:{Path(directory) / 'echo.sock'}"
        domain_server, server = DomainServer(domain), new_server()
        server.add_insecure_port(address)
        await domain_server.start(server)
        async with grpc.aio.insecure_channel(address) as channel:
            yield StreamClient(domain_server, channel)
            await domain_server.stop(server)


@pytest.fixture
async def client() -> AsyncIterator[StreamClient]:
    """A coordinator of the echo domain."""
    async with serving(echo.DOMAIN) as client:
        yield client


async def read(stream: Any) -> pb.ApplyResponse:
    """Return the next response; raises the status of a stream that failed."""
    response = await stream.read()
    assert isinstance(response, pb.ApplyResponse)
    return response


async def send(stream: Any, *batches: pb.Batch) -> list[pb.BatchReply]:
    """Send batches without waiting between them, and return their replies."""
    for each in batches:
        await stream.write(pb.ApplyRequest(batch=each))
    return [(await read(stream)).batch for _ in batches]


async def ended(stream: Any) -> tuple[grpc.StatusCode, str]:
    """Wait for the end of a stream and return its status."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await stream.read() is not grpc.aio.EOF:
            pass
    return await stream.code(), await stream.details()


async def failed(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    """Return the status of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def text_of(stream: Any, name: str) -> str | None:
    """Return the text of a word as the service sees it, or None."""
    (reply,) = await send(stream, batch(0, query(GET, message("GetRequest", name=name))))
    answer = reply.outcomes[0].query
    if answer.errors:
        return None
    text: str = echo.parse("GetResponse", framing.unframe(answer.results)[0]).text
    return text


async def test_batches_are_answered_in_order(client: StreamClient) -> None:
    """Batches sent ahead of their replies are applied and answered in their order."""
    stream = await client.open()
    replies = await send(
        stream,
        *[batch(i, command(PUT, put_request(f"w{i}"), revision=i)) for i in range(1, 201)],
    )
    assert [reply.sequence for reply in replies] == list(range(1, 201))
    assert await text_of(stream, "w200") == "w200"
    assert client.server.batches == 201


async def test_stream_ends_well_when_the_coordinator_closes_it(client: StreamClient) -> None:
    """After a half-close everything sent is still answered, and the status is OK."""
    stream = await client.open()
    await stream.write(pb.ApplyRequest(batch=batch(1, command(PUT, put_request("a")))))
    await stream.done_writing()
    assert (await read(stream)).batch.sequence == 1
    assert (await ended(stream))[0] is grpc.StatusCode.OK


async def test_every_stream_starts_from_the_empty_state(client: StreamClient) -> None:
    """A stream of the same coordinator resets the machine and its sequence."""
    first = await client.open(3)
    await send(first, batch(1, command(PUT, put_request("a"))))
    second = await client.open(3)
    assert await text_of(second, "a") is None
    await send(second, batch(1, command(PUT, put_request("b"))))
    assert await text_of(second, "b") == "b"


async def test_newer_coordinator_ends_the_older_stream(client: StreamClient) -> None:
    """The older stream is ended with a clear status, and what it sends is not applied."""
    older = await client.open(3)
    newer = await client.open(4)
    code, details = await ended(older)
    assert (code, details) == (grpc.StatusCode.FAILED_PRECONDITION, "coordinator 4 took over")
    assert await client.is_serving(READINESS)
    assert await text_of(newer, "a") is None


BAD_HELLOS: dict[str, tuple[dict[str, Any], grpc.StatusCode, str]] = {
    "older": ({"sequence": 6}, grpc.StatusCode.FAILED_PRECONDITION, "6 is fenced off: 7 was here"),
    "other cluster": (
        {"sequence": 8, "cluster_id": b"d" * 16},
        grpc.StatusCode.FAILED_PRECONDITION,
        "belongs to replica 0 of cluster 6363",
    ),
    "other replica": (
        {"sequence": 8, "replica_id": 1},
        grpc.StatusCode.FAILED_PRECONDITION,
        "not to replica 1",
    ),
    "no cluster": (
        {"sequence": 8, "cluster_id": b""},
        grpc.StatusCode.INVALID_ARGUMENT,
        "a cluster id has 16 bytes, not 0",
    ),
}


@pytest.mark.parametrize("name", BAD_HELLOS)
async def test_wrong_callers_are_fenced_off(client: StreamClient, name: str) -> None:
    """A stream from a wrong caller is refused, and the one in use goes on."""
    fields, code, said = BAD_HELLOS[name]
    stream = await client.open(7)
    await send(stream, batch(1, command(PUT, put_request("a"))))
    status, details = await failed(client.open(**fields))
    assert (status, said in details) == (code, True), details
    assert await text_of(stream, "a") == "a"


async def test_older_coordinator_stays_out_after_the_newer_left(client: StreamClient) -> None:
    """The highest sequence is remembered without an open stream."""
    newer = await client.open(4)
    await newer.done_writing()
    await ended(newer)
    _, details = await failed(client.open(3))
    assert "3 is fenced off: 4 was here" in details


@pytest.mark.parametrize(
    "request_",
    [pb.ApplyRequest(), pb.ApplyRequest(batch=pb.Batch(sequence=1))],
    ids=["nothing", "batch"],
)
async def test_first_message_must_be_hello(client: StreamClient, request_: pb.ApplyRequest) -> None:
    """Without Hello nothing is applied."""
    stream = client.service.Apply()
    await stream.write(request_)
    code, details = await ended(stream)
    assert (code, details) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "the first message must be Hello",
    )


async def test_stream_without_any_message_is_refused(client: StreamClient) -> None:
    """A stream that closes at once gets an error that names the missing message."""
    stream = client.service.Apply()
    await stream.done_writing()
    assert (await ended(stream))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_second_hello_ends_the_stream(client: StreamClient) -> None:
    """Hello is the first message and no other."""
    stream = await client.open()
    await stream.write(pb.ApplyRequest(hello=pb.Hello()))
    code, details = await ended(stream)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "every message holds a batch" in details


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (batch(5), "batch 5 follows batch 1"),
        (batch(2, command(PUT, put_request("x", fault="disk"))), "the disk is gone"),
    ],
    ids=["gap", "disk"],
)
async def test_failure_ends_everything(client: StreamClient, bad: pb.Batch, said: str) -> None:
    """A failure outside a command ends the stream, is reported to the process, and stays."""
    stream = await client.open()
    await send(stream, batch(1, command(PUT, put_request("a"))))
    await stream.write(pb.ApplyRequest(batch=bad))
    code, details = await ended(stream)
    assert code is grpc.StatusCode.INTERNAL
    assert said in details
    assert said in str(client.server.failure.result())
    status = await failed(client.open(9))
    assert status == (grpc.StatusCode.UNAVAILABLE, "the service is failing")


async def test_defect_is_logged_and_the_stream_goes_on(
    client: StreamClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A command's defect leaves a log line with its traceback, and nothing else."""
    stream = await client.open()
    await send(stream, batch(1, command(PUT, put_request("a", fault="defect"))))
    (record,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)
    await send(stream, batch(2, command(PUT, put_request("b"))))


async def test_vanished_coordinator_leaves_the_service_able(client: StreamClient) -> None:
    """After a stream is cut the service is not ready, lives on and serves the next one."""
    stream = await client.open()
    watch = client.health.Watch(health_pb2.HealthCheckRequest(service=READINESS))
    assert (await watch.read()).status == SERVING
    stream.cancel()
    assert (await watch.read()).status == NOT_SERVING
    watch.cancel()
    assert await client.is_serving(LIVENESS)
    again = await client.open()
    assert await text_of(again, "a") is None


async def test_health_follows_the_stream(client: StreamClient) -> None:
    """Alive from the start; ready while a stream is open."""
    assert await client.is_serving(LIVENESS)
    assert not await client.is_serving(READINESS)
    stream = await client.open()
    assert await client.is_serving(READINESS)
    await stream.done_writing()
    await ended(stream)
    assert not await client.is_serving(READINESS)


async def test_describe_needs_no_stream(client: StreamClient) -> None:
    """The coordinator learns the claimed methods before it opens a stream."""
    description = await client.service.Describe(pb.DescribeRequest())
    assert description.section_version == 7
    assert len(description.methods) == 5


class HeldGate:
    """A deferred read that waits until it is opened; `asked` counts those that wait."""

    def __init__(self) -> None:
        """Start closed."""
        self.opened = threading.Event()

    def ponder(self, state: echo.EchoState, request: Any, call: Any) -> Deferred:
        """Answer once the gate is open, or fail like a disk."""

        def compute() -> Any:
            self.opened.wait()
            if request.fault == "disk":
                raise OSError("the disk is gone")
            return message("GetResponse", text=request.name)

        return Deferred(compute)


def with_queries(**queries: Any) -> Domain[echo.EchoState]:
    """Return the echo domain with other query handlers."""
    fields = {name: getattr(echo.DOMAIN, name) for name in echo.DOMAIN.__dataclass_fields__}
    return Domain(**(fields | {"queries": {**echo.DOMAIN.queries, **queries}}))


async def deferred_of(stream: Any, count: int) -> dict[int, pb.QueryOutcome]:
    """Return that many deferred answers by query id."""
    outcomes = [(await read(stream)).deferred for _ in range(count)]
    return {outcome.query_id: outcome for outcome in outcomes}


def ponder(query_ids: Iterable[int], **fields: Any) -> pb.Batch:
    """Return a batch of deferred reads."""
    request = message("GetRequest", name="a", **fields)
    return batch(0, *[query(PONDER, request, query_id=query_id) for query_id in query_ids])


async def test_deferred_reads_hold_nothing_up() -> None:
    """While threads compute, batches go on; the answers follow when they are ready."""
    gate = HeldGate()
    async with serving(with_queries(Ponder=gate.ponder)) as client:
        stream = await client.open()
        (reply,) = await send(stream, ponder(range(10, 16)))
        assert [outcome.query.deferred for outcome in reply.outcomes] == [True] * 6
        await send(stream, batch(1, command(PUT, put_request("a"))))
        gate.opened.set()
        answers = await deferred_of(stream, 6)
    assert sorted(answers) == list(range(10, 16))
    assert echo.parse("GetResponse", framing.unframe(answers[12].results)[0]).text == "a"


async def test_too_many_deferred_reads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the bound a read is refused at once, so that a flood of logins cannot pile up."""
    monkeypatch.setattr(stream_module, "DEFERRED_QUERIES_MAX", 2)
    gate = HeldGate()
    async with serving(with_queries(Ponder=gate.ponder)) as client:
        stream = await client.open()
        await send(stream, ponder([1, 2, 3]))
        (refused,) = (await deferred_of(stream, 1)).values()
        assert refused.query_id == 3
        assert refused.errors[0].error.reason == Reason.REASON_OVERLOADED
        gate.opened.set()
        assert sorted(await deferred_of(stream, 2)) == [1, 2]


async def test_half_closed_stream_still_answers_deferred_reads() -> None:
    """The coordinator may stop sending before its last reads are computed."""
    gate = HeldGate()
    async with serving(with_queries(Ponder=gate.ponder)) as client:
        stream = await client.open()
        await send(stream, ponder([1]))
        await stream.done_writing()
        gate.opened.set()
        assert sorted(await deferred_of(stream, 1)) == [1]
        assert (await ended(stream))[0] is grpc.StatusCode.OK


async def test_deferred_read_of_a_former_stream_is_dropped() -> None:
    """An answer computed for one stream never appears in another."""
    gate = HeldGate()
    async with serving(with_queries(Ponder=gate.ponder)) as client:
        former = await client.open(1)
        await send(former, ponder([1]))
        stream = await client.open(2)
        gate.opened.set()
        await send(stream, ponder([2]))
        assert sorted(await deferred_of(stream, 1)) == [2]


async def test_trouble_in_a_thread_ends_everything() -> None:
    """An operating-system error in a deferred read stops the service like one in apply."""
    gate = HeldGate()
    gate.opened.set()
    async with serving(with_queries(Ponder=gate.ponder)) as client:
        stream = await client.open()
        await stream.write(pb.ApplyRequest(batch=ponder([1], fault="disk")))
        assert (await ended(stream))[0] is grpc.StatusCode.INTERNAL
        assert isinstance(client.server.failure.result(), OSError)


def hide(*secrets: str, **fields: Any) -> pb.NormalizeRequest:
    """Return a normalize request for these secrets."""
    items = echo.frames(*[message("HideRequest", secret=secret) for secret in secrets])
    fields = {"code": HIDE, "session_id": 3, "number": 2} | fields
    return pb.NormalizeRequest(count=len(secrets), items=items, **fields)


async def test_normalize_reads_the_machine_of_the_stream(client: StreamClient) -> None:
    """Payloads become loggable in threads; a retry gets the same suffixes without the items."""
    stream = await client.open()
    await send(stream, batch(1, command(PUT, put_request("a"), revision=4)))
    first = await client.service.Normalize(hide("x", "", "y"))
    again = await client.service.Normalize(hide("x", "z", "y", suffix_only=True))
    assert first.revision == 4
    assert [error.index for error in first.errors] == [1]
    assert [suffix.index for suffix in first.suffixes] == [0, 2]
    assert [again.suffixes[0], again.suffixes[2]] == list(first.suffixes)
    assert not any(framing.unframe(again.items))


async def test_normalize_needs_a_stream(client: StreamClient) -> None:
    """Without a stream there is no state to read, and the caller may try again."""
    code, details = await failed(client.service.Normalize(hide("x")))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "no Apply stream is open" in details


async def test_normalize_refuses_what_no_gateway_sends(client: StreamClient) -> None:
    """A request for another method is the caller's fault, and the service lives on."""
    stream = await client.open()
    code, details = await failed(client.service.Normalize(hide("x", code=PUT)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "method code 900 is not normalized" in details
    assert await text_of(stream, "a") is None


async def test_trouble_while_normalizing_ends_everything(client: StreamClient) -> None:
    """An operating-system error in a normalizing thread stops the service."""
    await client.open()
    code, _ = await failed(client.service.Normalize(hide("disk")))
    assert code is grpc.StatusCode.INTERNAL
    assert isinstance(client.server.failure.result(), OSError)


async def test_large_batches_pass(client: StreamClient) -> None:
    """A batch larger than gRPC's default limit is applied."""
    stream = await client.open()
    items = [command(PUT, put_request(f"w{i}", "x" * 100_000)) for i in range(60)]
    (reply,) = await send(stream, batch(1, *items))
    assert len(reply.outcomes) == 60
