"""A session takes new requests only from the stream that it opened last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

from coordinator.base.slices import at_once
from coordinator.gateway import slow_readers
from coordinator.gateway.submit import SubmitStreams
from coordinator.gateway.timers import SessionTimers
from coordinator.mux.sessions import HeaderVerdict
from coordinator.mux.types import RequestReply
from coordinator.stages import codec
from tests.coordinator.gateway.test_admission import (
    CREATE_STREAM,
    CREATE_USER,
    ROOT,
    SESSION,
    AdmissionTrial,
)
from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.errors import Refusal
from viewstamp.status import ERROR_DOMAIN, STATUS_DETAILS_KEY


class FencedWire:
    """One stream as gRPC shows it: the messages that arrived, and those that were written."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[Any] = asyncio.Queue()
        self.written: asyncio.Queue[submit.SubmitResponse] = asyncio.Queue()
        self.ended_with = ""
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.may_end = asyncio.Event()
        self.may_end.set()

    def invocation_metadata(self) -> Iterable[tuple[str, str]]:
        """Return none: the caller is known."""
        return ()

    def peer(self) -> str:
        """Return the caller's address, as gRPC writes it."""
        return "ipv4:127.0.0.1:50000"

    async def read(self) -> Any:
        """Return the next message."""
        return await self.arrived.get()

    async def write(self, response: bytes) -> None:
        """Take a message, once the client reads."""
        await self.may_write.wait()
        self.written.put_nowait(submit.SubmitResponse.FromString(response))

    async def abort(self, code: object, message: str, trailing_metadata: Any = ()) -> None:
        """End the stream."""
        status = status_pb2.Status.FromString(dict(trailing_metadata)[STATUS_DETAILS_KEY])
        info = error_details_pb2.ErrorInfo()
        assert status.details[0].Unpack(info) and info.domain == ERROR_DOMAIN
        self.ended_with = info.reason
        await self.may_end.wait()
        raise grpc.aio.AbortError

    def send(self, *numbers: int, code: int = CREATE_STREAM) -> None:
        """Let requests of one command arrive in one message."""
        requests = [
            submit.CommandRequest(
                number=number, spans=[submit.Span(code=code, count=1, items=b"\x0a\x00")]
            )
            for number in numbers
        ]
        packed = submit.CommandRequests(requests=requests)
        self.arrived.put_nowait(submit.SubmitRequest(commands=packed).SerializeToString())


class Authenticator:
    """Knows one caller: root."""

    caller = ROOT

    def principal(self, _: object) -> Any:
        """Return the caller that it knows."""
        return self.caller

    def check_fresh(self, _: object) -> None:
        """Believe every token."""


class Face:
    """Submit streams over real commands, and a log that remembers."""

    def __init__(self) -> None:
        self.world = AdmissionTrial()
        self.authenticator = Authenticator()
        timers = SessionTimers(lambda: iter(()), self.world, lambda: 0)  # type: ignore[arg-type]
        self.streams = SubmitStreams(
            b"c" * 16,
            self.authenticator,  # type: ignore[arg-type]
            self.world.commands,
            None,  # type: ignore[arg-type]
            timers,
            lambda: None,
        )

    @property
    def logged(self) -> list[int]:
        """The numbers that came into the log."""
        return [request.logged.number for request in self.world.logged]

    @asynccontextmanager
    async def stream(
        self, session_id: int = SESSION, *, takes_notices: bool = False
    ) -> AsyncIterator[FencedWire]:
        """Open a stream of the session, or one for reads alone."""
        wire = FencedWire()
        opening = submit.SubmitRequest(
            open=submit.OpenStream(session_id=session_id, takes_notices=takes_notices)
        )
        wire.arrived.put_nowait(opening.SerializeToString())
        task = asyncio.create_task(self.serve(wire))
        opened = asyncio.ensure_future(wire.written.get())
        try:
            # A stream that could not be opened says so; otherwise waiting for it would never end.
            await asyncio.wait((task, opened), return_when=asyncio.FIRST_COMPLETED)
            if not opened.done():
                task.result()
            assert opened.result().HasField("opened")
            yield wire
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def serve(self, wire: FencedWire) -> None:
        """Serve a stream until it is ended."""
        with pytest.raises(grpc.aio.AbortError):
            await self.streams.serve(wire)  # type: ignore[arg-type]


async def turns() -> None:
    """Let everything that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_arrives_late_on_an_elder_stream_is_not_taken() -> None:
    """Bytes that were held up and are read after a newer stream opened claim no number."""
    face = Face()
    async with face.stream() as elder:
        elder.may_write.clear()  # nor does its client read, so it cannot be ended yet
        elder.send(1)
        await turns()
        face.world.logged[0].future.set_exception(Refusal(Reason.REASON_NO_SPACE, "full"))
        await turns()
        face.world.logged.clear()
        async with face.stream() as newer:
            newer.send(1)
            await turns()
            elder.send(2)
            await turns()
            assert face.logged == [1]
            newer.send(2)
            await turns()
            assert face.logged == [1, 2]
            elder.may_write.set()
            await turns()
            assert elder.ended_with == "STREAM_REPLACED"
            assert newer.ended_with == ""


async def test_what_an_elder_stream_has_under_way_is_not_taken() -> None:
    """A request that is prepared for the log while a newer stream opens does not enter the log."""
    face = Face()
    async with face.stream() as elder:
        face.world.normalized.clear()
        elder.send(1, 2, code=CREATE_USER)
        await turns()
        async with face.stream():
            face.world.normalized.set()
            await turns()
            assert face.logged == []


async def test_a_stream_that_this_side_ends_takes_nothing_more() -> None:
    """A replica that stops leading and leads again takes nothing from its earlier streams."""
    face = Face()
    async with face.stream() as stream:
        stream.may_write.clear()
        stream.send(0)
        await turns()
        face.streams.end_all(Refusal(Reason.REASON_VIEW_CHANGE, "moved"))
        stream.send(1)
        await turns()
        assert face.logged == []


async def test_a_call_is_fenced_by_an_open_stream() -> None:
    """A session takes no new unary calls while a stream of it is open, and takes them
    afterwards."""
    face = Face()

    async def call(number: int) -> None:
        spans = [submit.Span(code=CREATE_STREAM, count=1, items=b"\x0a\x00")]
        request = submit.CommandRequest(number=number, spans=spans)
        await face.world.commands.admit(
            SESSION, request, ROOT, (), lambda: face.streams.check_no_stream(SESSION)
        )

    await call(1)
    async with face.stream():
        await call(1)  # in flight: it is joined
        with pytest.raises(Refusal, match="which ends the old one at once") as caught:
            await call(2)
        assert caught.value.reason == Reason.REASON_STREAM_REPLACED
    await call(2)
    assert face.logged == [1, 2]


async def test_a_number_is_not_used_twice() -> None:
    """Another request under a number in flight, or answered, is refused and not taken as done."""
    world = AdmissionTrial()

    async def admit(items: bytes, count: int = 1) -> None:
        spans = [submit.Span(code=CREATE_STREAM, count=count, items=items)]
        request = submit.CommandRequest(number=1, spans=spans)
        await world.commands.admit(SESSION, request, ROOT)

    await admit(b"\x0a\x01a")
    for _ in range(2):
        await admit(b"\x0a\x01a")
        for items, count in ((b"\x0a\x01b", 1), (b"\x0a\x01a", 2)):
            with pytest.raises(Refusal) as caught:
                await admit(items, count)
            assert caught.value.reason == Reason.REASON_REQUEST_NUMBER_REUSED
        _answer(world)


async def test_an_absurd_count_is_refused_for_every_number() -> None:
    """A span of 2**32 - 1 commands is too large, whether its number was answered before or not."""
    world = AdmissionTrial()
    await world.admit(1)
    for number in (1, 2):
        spans = [submit.Span(code=CREATE_USER, count=2**32 - 1, items=b"\x0a\x00")]
        request = submit.CommandRequest(number=number, spans=spans)
        with pytest.raises(Refusal) as caught:
            await world.commands.admit(SESSION, request, ROOT)
        assert caught.value.reason == Reason.REASON_COMMAND_TOO_LARGE
    assert world.normalizing == 0


def _answer(world: AdmissionTrial) -> None:
    """Answer the request in the log, as the mux does."""
    logged = world.logged[0].logged
    if world.mux.sessions.get(SESSION).last_number:  # type: ignore[union-attr]
        return
    request = at_once(codec.logged_requests([logged]))[0]
    assert world.mux.sessions.check_header(request) is HeaderVerdict.APPLY
    world.mux.admission.apply(SESSION, 1)
    world.mux.replies.store(RequestReply(SESSION, 1, 1, 1, 1, (), fingerprint=request.fingerprint))


async def test_a_stream_must_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends nothing loses its place soon."""
    monkeypatch.setattr(limits, "STREAM_OPENING_TIMEOUT_MS", 10)
    wire = FencedWire()
    with pytest.raises(grpc.aio.AbortError):
        await Face().streams.serve(wire)  # type: ignore[arg-type]
    assert wire.ended_with == "MALFORMED_REQUEST"


async def test_answers_must_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads nothing is ended, and dropped if it cannot even be told."""
    monkeypatch.setattr(limits, "ANSWER_READING_TIMEOUT_MS", 10)
    monkeypatch.setattr(slow_readers, "ENDING_TIMEOUT_MS", 10)
    face, wire = Face(), FencedWire()
    opening = submit.SubmitRequest(open=submit.OpenStream(session_id=SESSION))
    wire.arrived.put_nowait(opening.SerializeToString())
    served = asyncio.create_task(face.streams.serve(wire))  # type: ignore[arg-type]
    await wire.written.get()
    wire.may_write.clear()
    wire.may_end.clear()
    wire.send(2)  # a gap, which is answered at once
    await served
    assert wire.ended_with == "QUOTA_EXCEEDED"
    async with face.stream():
        pass  # its place is free


async def test_streams_of_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream beyond a user's share is refused; one that ends makes room."""
    monkeypatch.setattr(limits, "SUBMIT_STREAMS_PER_USER_MAX", 2)
    face = Face()
    refused_wire = FencedWire()
    async with face.stream(0), face.stream(0):
        with pytest.raises(grpc.aio.AbortError):
            await face.streams.serve(refused_wire)  # type: ignore[arg-type]
        assert refused_wire.ended_with == "QUOTA_EXCEEDED"
    async with face.stream(0):
        pass


async def test_streams_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream beyond the limit of all users together is refused; one that ends makes room."""
    monkeypatch.setattr(limits, "SUBMIT_STREAMS_MAX", 1)
    face, refused_wire = Face(), FencedWire()
    async with face.stream(0):
        with pytest.raises(grpc.aio.AbortError):
            await face.streams.serve(refused_wire)  # type: ignore[arg-type]
    assert refused_wire.ended_with == "QUOTA_EXCEEDED"
