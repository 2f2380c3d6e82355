"""A gateway for tests of the client: real gRPC, real session rules, a few handlers, many faults.

As a program (`python -m tests.viewstamp.client.fake_gateway`) it prints its port and serves until
killed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import grpc.aio

from testkit.api_methods import methods_by_request
from tests.viewstamp.client.fake_domain import Domain
from tests.viewstamp.client.fake_members import REQUESTS
from viewstamp import grpc_transport, limits
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import EMPTY_FRAME, frame, unframe
from viewstamp.grpc_transport import TlsTexts
from viewstamp.routing import Method
from viewstamp.status import grpc_code, trailing_details

CLUSTER_ID: Final = bytes(range(limits.CLUSTER_ID_BYTES))
VIEW: Final = 3
PASSWORD: Final = "correct horse"
PERSONAL_TOKEN: Final = "vsp1.valid"

Context = Any
METHODS: Final[dict[int, Method]] = {m.code: m for m in methods_by_request().values()}


class FakeSession:
    """The cluster's record of a session."""

    def __init__(self) -> None:
        self.last = 0
        self.acked = 0
        self.replies: dict[int, submit_pb2.CommandReply] = {}


class FakeGateway:
    """Serves one domain. Tests look at `received` and `applied`, and set the faults."""

    def __init__(self, tls: Callable[[], TlsTexts] | None = None) -> None:
        self.domain = Domain()
        self.sessions: dict[int, FakeSession] = {}
        self.nonces: dict[bytes, int] = {}
        self.revision = 0
        self.logins = 0
        self.valid_token = "access-0"
        self.streams_opened = 0
        self.received: list[submit_pb2.CommandRequest] = []
        self.packed_sizes: list[int] = []  # requests per message
        self.reads: list[submit_pb2.ReadRequest] = []
        self.applied: list[tuple[int, bytes]] = []
        # Faults. `refuse` may refuse a request, `refuse_streams` refuses every new stream,
        # `refuse_next_streams` as many as it holds, `refuse_alone` every step-down;
        # `drop_before`, `drop_after` break the stream at the next request with one of these
        # numbers; `gate` holds all answers back while cleared.
        self.refuse: Callable[[Any], Refusal | None] = lambda _: None
        self.refuse_streams: Refusal | None = None
        self.refuse_alone: Refusal | None = None
        # That streams are told; 0 for a build that tells none.
        self.feature_level = limits.FEATURE_LEVEL_MAX
        self.told_cluster_id = CLUSTER_ID
        # Where streams are told that replicas serve.
        self.addresses: list[str] = []
        self.refuse_next_streams: list[Refusal] = []
        self.drop_before: list[int] = []
        self.drop_after: list[int] = []
        self.drop_registrations = 0
        self.has_quorum = True  # otherwise linearizable reads are never answered
        self.gate = asyncio.Event()
        self.gate.set()
        self._progress = asyncio.Event()
        self._breaking: set[asyncio.Event] = set()
        self._server = grpc_transport.make_server(())
        self._server.add_generic_rpc_handlers((self._handlers(),))
        if tls is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = grpc_transport.add_tls_port(self._server, "127.0.0.1:0", tls)

    @property
    def address(self) -> str:
        """Return the address."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> FakeGateway:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition on the requests that arrived."""
        while not condition():
            self._progress.clear()
            await self._progress.wait()

    def evict_all(self) -> None:
        """End every session."""
        self.sessions.clear()

    def break_streams(self) -> None:
        """Break every open stream."""
        for event in self._breaking:
            event.set()

    def _handlers(self) -> grpc.GenericRpcHandler:
        gateway = self

        class Handlers(grpc.GenericRpcHandler):
            def service(self, details: grpc.HandlerCallDetails) -> Any:
                return gateway.handler(details.method)

        return Handlers()

    def handler(self, path: str) -> Any:
        if path.endswith("/Submit"):
            return grpc.stream_stream_rpc_method_handler(
                self._submit,
                request_deserializer=submit_pb2.SubmitRequest.FromString,
                response_serializer=submit_pb2.SubmitResponse.SerializeToString,
            )
        method = next((m for m in METHODS.values() if m.path == path), None)
        if method is None:
            return None
        return grpc.unary_unary_rpc_method_handler(
            self.unary,
            request_deserializer=method.request.FromString,
            response_serializer=method.response.SerializeToString,
        )

    async def unary(self, request: Any, context: Context) -> Any:
        try:
            if isinstance(request, users_pb2.LoginRequest | users_pb2.LoginWithTokenRequest):
                return self._login(request)
            self._authenticate(context)
            if isinstance(request, users_pb2.WhoAmIRequest):
                return await self._who_am_i()
            if isinstance(request, users_pb2.LogoutRequest):
                return users_pb2.LogoutResponse()
            if isinstance(request, cluster_pb2.RaiseFeatureLevelRequest):
                return self.domain.raise_feature_level(request)
            if isinstance(request, cluster_pb2.GetStatusRequest):
                return cluster_pb2.GetStatusResponse(feature_level=self.domain.feature_level)
            if isinstance(request, REQUESTS):
                return self.domain.members.answer(request)
            if isinstance(request, cluster_pb2.StepDownRequest):
                if self.refuse_alone is not None:
                    raise self.refuse_alone
                self.domain.requests.append(request)
                return cluster_pb2.StepDownResponse()
            assert isinstance(request, sessions_pb2.RegisterSessionRequest)
            return self._register(request)
        except Refusal as refusal:
            await self._abort(context, refusal)

    def _login(self, request: Any) -> Any:
        secret = getattr(request, "password", None) or getattr(request, "token", None)
        if secret not in (PASSWORD, PERSONAL_TOKEN):
            raise Refusal(
                Reason.REASON_INVALID_CREDENTIALS, "wrong user or wrong password: check both"
            )
        self.logins += 1
        expires_at = (int(time.time()) + 3600) * 1_000_000
        return users_pb2.LoginResponse(access_token=self.valid_token, expires_at=expires_at)

    async def _who_am_i(self) -> Any:
        if not self.has_quorum:
            await asyncio.Event().wait()
        return users_pb2.WhoAmIResponse()

    def _authenticate(self, context: Context) -> None:
        if ("authorization", f"Bearer {self.valid_token}") not in context.invocation_metadata():
            raise Refusal(Reason.REASON_UNAUTHENTICATED, "the token is not valid: log in again")

    def _register(self, request: sessions_pb2.RegisterSessionRequest) -> Any:
        assert len(request.nonce) == limits.SESSION_NONCE_BYTES
        session_id = self.nonces.get(request.nonce)
        if session_id is None:
            self.revision += 1
            session_id = self.nonces[request.nonce] = self.revision
            self.sessions[session_id] = FakeSession()
        if self.drop_registrations:
            self.drop_registrations -= 1
            raise Refusal(Reason.REASON_VIEW_CHANGE, "the answer is lost")
        return sessions_pb2.RegisterSessionResponse(session_id=session_id)

    async def _submit(self, _: object, context: Context) -> None:
        self.streams_opened += 1
        self._progress.set()
        try:
            if self.refuse_next_streams:
                raise self.refuse_next_streams.pop()
            if self.refuse_streams is not None:
                raise self.refuse_streams
            self._authenticate(context)
            opening = (await context.read()).open
            session = self.sessions.get(opening.session_id)
            if opening.session_id and session is None:
                raise _evicted()
            last = session.last if session is not None else 0
            opened = submit_pb2.StreamOpened(
                last_request_number=last,
                cluster_id=self.told_cluster_id,
                feature_level=self.feature_level,
                addresses=self.addresses,
            )
            await context.write(submit_pb2.SubmitResponse(opened=opened))
            await self._serve(opening.session_id, context)
        except Refusal as refusal:
            await self._abort(context, refusal)

    async def _serve(self, session_id: int, context: Context) -> None:
        broken = asyncio.Event()
        self._breaking.add(broken)
        outgoing: asyncio.Queue[submit_pb2.SubmitResponse] = asyncio.Queue()
        reader = asyncio.create_task(self._read(session_id, context, outgoing, broken))
        writer = asyncio.create_task(self._write(context, outgoing))
        breaker = asyncio.create_task(broken.wait())
        try:
            await asyncio.wait([reader, breaker], return_when=asyncio.FIRST_COMPLETED)
            if broken.is_set():
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the stream was broken")
            await reader
        finally:
            self._breaking.discard(broken)
            for task in (reader, writer, breaker):
                task.cancel()

    async def _write(self, context: Context, outgoing: asyncio.Queue[Any]) -> None:
        while True:
            responses = [await outgoing.get()]
            await self.gate.wait()
            while not outgoing.empty():
                responses.append(outgoing.get_nowait())
            for response in _packed(responses):
                await context.write(response)

    async def _read(
        self, session_id: int, context: Context, outgoing: asyncio.Queue[Any], broken: asyncio.Event
    ) -> None:
        while True:
            message = await context.read()
            self._progress.set()
            if message is grpc.aio.EOF:
                return
            if message.HasField("read"):
                self.reads.append(message.read)
                outgoing.put_nowait(submit_pb2.SubmitResponse(read=self._answer(message.read)))
                continue
            packed = message.HasField("commands")
            requests = message.commands.requests if packed else [message.command]
            self.packed_sizes.append(len(requests))
            for request in requests:
                self.received.append(request)
                if _took(self.drop_before, request.number):
                    broken.set()
                    return
                reply = self._command(session_id, request)
                if _took(self.drop_after, request.number):
                    broken.set()
                    return
                outgoing.put_nowait(submit_pb2.SubmitResponse(command=reply))

    def _command(
        self, session_id: int, request: submit_pb2.CommandRequest
    ) -> submit_pb2.CommandReply:
        try:
            return self._admit(session_id, request)
        except Refusal as refusal:
            return submit_pb2.CommandReply(number=request.number, error=refusal.to_answer())

    def _admit(
        self, session_id: int, request: submit_pb2.CommandRequest
    ) -> submit_pb2.CommandReply:
        session = self.sessions.get(session_id)
        if session is None:
            raise _evicted()
        if request.number in session.replies:
            return session.replies[request.number]
        if request.number <= session.last:
            raise Refusal(Reason.REASON_REQUEST_TOO_OLD, "the reply is gone")
        refusal = self.refuse(request)
        if refusal is not None:
            raise refusal
        if request.number > session.last + 1:
            first = session.last + 1
            raise Refusal(Reason.REASON_REQUEST_GAP, f"resend from {first}", resend_from=first)
        assert request.acked <= session.last, "acknowledged what was never answered"
        if request.number > request.acked + limits.SESSION_WINDOW_REQUESTS:
            raise Refusal(Reason.REASON_OVERLOADED, "the window is full")
        for number in range(session.acked + 1, request.acked + 1):
            session.replies.pop(number, None)
        session.acked, session.last = request.acked, request.number
        reply = session.replies[request.number] = self._apply(request)
        return reply

    def _apply(self, request: submit_pb2.CommandRequest) -> submit_pb2.CommandReply:
        first = self.revision + 1
        reply = submit_pb2.CommandReply(number=request.number, header=self._header(first))
        for span in request.spans:
            items = unframe(span.items)
            assert len(items) == span.count
            self.applied += [(span.code, item) for item in items]
            reply.spans.append(self.span(METHODS[span.code], items))
            self.revision += span.count
        return reply

    def _answer(self, request: submit_pb2.ReadRequest) -> submit_pb2.ReadReply:
        refusal = self.refuse(request)
        if refusal is not None:
            return submit_pb2.ReadReply(read_id=request.read_id, error=refusal.to_answer())
        reply = submit_pb2.ReadReply(read_id=request.read_id, header=self._header(self.revision))
        for span in request.spans:
            reply.spans.append(self.span(METHODS[span.code], unframe(span.items)))
        return reply

    def span(self, method: Method, items: list[bytes]) -> submit_pb2.SpanReply:
        results = []
        span = submit_pb2.SpanReply()
        for index, item in enumerate(items):
            try:
                response, suffix = self.domain.call(method, item)
            except Refusal as refusal:
                results.append(EMPTY_FRAME)
                span.errors.append(errors_pb2.IndexedError(index=index, error=refusal.to_answer()))
                continue
            results.append(frame(response.SerializeToString()))
            if suffix:
                span.suffixes.append(submit_pb2.IndexedSuffix(index=index, suffix=suffix))
        span.results = b"".join(results)
        return span

    def _header(self, revision: int) -> common_pb2.ResponseHeader:
        op = len(self.received)
        return common_pb2.ResponseHeader(cluster_id=CLUSTER_ID, view=VIEW, op=op, revision=revision)

    async def _abort(self, context: Context, refusal: Refusal) -> None:
        await context.abort(
            grpc_code(refusal), refusal.message, trailing_metadata=(trailing_details(refusal),)
        )


def _packed(responses: Sequence[Any]) -> Iterator[submit_pb2.SubmitResponse]:
    """Yield the responses, neighbours that answer commands as one."""
    for are_commands, group in groupby(responses, lambda response: response.HasField("command")):
        neighbours = list(group)
        if are_commands and len(neighbours) > 1:
            replies = submit_pb2.CommandReplies(replies=[each.command for each in neighbours])
            yield submit_pb2.SubmitResponse(commands=replies)
        else:
            yield from neighbours


def _took(numbers: list[int], number: int) -> bool:
    """Take a number out of the list; return whether it was there."""
    if number not in numbers:
        return False
    numbers.remove(number)
    return True


def _evicted() -> Refusal:
    return Refusal(Reason.REASON_SESSION_EVICTED, "the session has ended: register a new one")


async def _main() -> None:
    async with FakeGateway() as gateway:
        print(gateway.port, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
