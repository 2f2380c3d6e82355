"""Late copies of requests from an earlier stream: none is executed twice."""

from __future__ import annotations

import asyncio

from coordinator.mux.deduplication import Cached, Gap, New
from coordinator.mux.requests import SessionsStage
from coordinator.mux.sessions import HeaderVerdict
from coordinator.mux.types import (
    LoggedRequest,
    LoggedSpan,
    RegisterSession,
    RequestReply,
    SpanReply,
)
from coordinator.stages.codec import ProtobufCodec
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client.commands import ClientCommands
from viewstamp.client.packing import PendingCall
from viewstamp.errors import Refusal
from viewstamp.framing import frame
from viewstamp.routing import methods_of_file

PURGE = next(m for m in methods_of_file(streams_pb2.DESCRIPTOR) if m.name == "PurgeStream")
USER = 3
FRAME = frame(b"")


class LateCluster:
    """Real sessions, and a log that takes everything from the stream that was opened last."""

    def __init__(self) -> None:
        self.stage = SessionsStage(ProtobufCodec())
        self.revision = 0
        self.executed: list[bytes] = []
        self.newest_stream = 0

    def open_stream(self) -> int:
        """Return a new stream; nothing new is taken from those before it."""
        self.newest_stream += 1
        return self.newest_stream

    def register(self) -> int:
        """Return a new session."""
        self.revision += 1
        nonce = self.revision.to_bytes(16, "little")
        span = LoggedSpan(1, 1, b"", USER, 1)
        self.stage.machine.apply(RegisterSession(nonce), span, 0, self.revision)
        self.stage.replies.open(self.revision, USER)
        return self.revision

    def receive(
        self, session_id: int, stream: int, message: submit_pb2.SubmitRequest
    ) -> submit_pb2.CommandReply:
        """Answer a request; one that says BAD is refused before the log."""
        request = message.command
        found = self.stage.admission.lookup(session_id, request.number, request.acked)
        if isinstance(found, Cached):
            return submit_pb2.CommandReply(
                number=request.number, spans=[submit_pb2.SpanReply(results=FRAME)]
            )
        if isinstance(found, Gap):
            return _refused(request.number, Reason.REASON_REQUEST_GAP, found.resend_from)
        assert isinstance(found, New), found
        if stream != self.newest_stream:
            return _refused(request.number, Reason.REASON_STREAM_REPLACED, request.number)
        if b"BAD" in request.spans[0].items:
            return _refused(request.number, Reason.REASON_NO_SPACE, request.number)
        return self._execute(session_id, request)

    def _execute(
        self, session_id: int, request: submit_pb2.CommandRequest
    ) -> submit_pb2.CommandReply:
        spans = tuple(LoggedSpan(s.code, s.count, s.items, USER, 1) for s in request.spans)
        logged = LoggedRequest(session_id, request.number, request.acked, spans)
        assert self.stage.machine.check_header(logged) is HeaderVerdict.APPLY
        self.revision += 1
        self.executed.append(request.spans[0].items)
        revision = self.revision
        self.stage.replies.acknowledge(session_id, request.acked)
        self.stage.replies.store(
            RequestReply(session_id, request.number, 1, revision, revision, (SpanReply(FRAME),))
        )
        reply = submit_pb2.CommandReply(
            number=request.number, spans=[submit_pb2.SpanReply(results=FRAME)]
        )
        reply.header.op = revision
        return reply


def _refused(number: int, reason: Reason.ValueType, resend_from: int) -> submit_pb2.CommandReply:
    refusal = Refusal(reason, "refused before the log", resend_from=resend_from)
    return submit_pb2.CommandReply(number=number, error=refusal.to_error())


def _commands(client: ClientCommands, *names: bytes) -> list[asyncio.Future[object]]:
    futures = []
    for name in names:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        client.waiting.append(PendingCall(PURGE, frame(name), future, 1e18, alone=True))
        futures.append(future)
    return futures


async def test_a_late_stream_executes_nothing_twice() -> None:
    """Commands behind a refused one take its number, and copies of an earlier stream take none."""
    cluster, client = LateCluster(), ClientCommands()
    session = cluster.register()
    client.start_session(session)
    bad, *good = _commands(client, b"BAD", b"B", b"C")
    stalled = cluster.open_stream()
    held_up = client.next_requests()  # the first stream stalls with these in it
    client.detach()
    stream = cluster.open_stream()
    while requests := client.resend():
        for request in requests:
            client.on_reply(cluster.receive(session, stream, request), can_renew=False)
            for late in held_up:
                cluster.receive(session, stalled, late)
    assert client.session_id == session
    assert cluster.executed == [frame(b"B"), frame(b"C")]
    assert isinstance(bad.exception(), Refusal) and all(future.done() for future in good)


async def test_a_refusal_after_a_reconnect_keeps_the_session() -> None:
    """A lone command that is refused for good on the second stream changes only itself.

    The session may be the member of a group: all later requests must be sent in it.
    """
    cluster, client = LateCluster(), ClientCommands()
    session = cluster.register()
    client.start_session(session)
    (bad,) = _commands(client, b"BAD")
    cluster.open_stream()
    client.next_requests()
    client.detach()
    stream = cluster.open_stream()
    for request in client.resend():
        client.on_reply(cluster.receive(session, stream, request), can_renew=False)
    assert isinstance(bad.exception(), Refusal)
    assert client.session_id == session
    (heartbeat,) = _commands(client, b"HEARTBEAT")
    for request in client.next_requests():
        assert request.command.number == 1
        client.on_reply(cluster.receive(session, stream, request), can_renew=False)
    assert heartbeat.done() and cluster.executed == [frame(b"HEARTBEAT")]


async def test_what_may_be_in_the_log_is_not_done_again() -> None:
    """A request before the refused one, whose answer a broken stream lost, is executed once."""
    cluster, client = LateCluster(), ClientCommands()
    session = cluster.register()
    client.start_session(session)
    first, bad, last = _commands(client, b"A", b"BAD", b"C")
    stream = cluster.open_stream()
    requests = client.next_requests()
    cluster.receive(session, stream, requests[0])  # the answer is lost with the stream
    client.on_reply(cluster.receive(session, stream, requests[1]), can_renew=False)
    client.detach()
    stream = cluster.open_stream()
    while requests := client.resend():
        for request in requests:
            client.on_reply(cluster.receive(session, stream, request), can_renew=False)
    assert client.session_id == session
    assert cluster.executed == [frame(b"A"), frame(b"C")]
    assert first.done() and last.done() and isinstance(bad.exception(), Refusal)
