"""The calls of a hostile caller: raw stubs, without a library that would limit them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import Message

from tests.abuse.relay import Relay
from tests.abuse.tally import Tally
from viewstamp import limits
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client.methods import method_of
from viewstamp.framing import frame_all
from viewstamp.status import refusal_of

CALL_TIMEOUT_S: Final = 35.0
SUBMIT_PATH: Final = "/viewstamp.api.submit.v1.SubmitService/Submit"
OPTIONS: Final = (
    ("grpc.max_receive_message_length", 16 * limits.MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", 16 * limits.MESSAGE_BYTES_MAX),
    ("grpc.use_local_subchannel_pool", 1),
)
_LEADS_NO_MORE: Final = frozenset({Reason.REASON_NOT_PRIMARY, Reason.REASON_VIEW_CHANGE})
# The pause of a refused caller: rude, but no busy loop.
PAUSE_S: Final = 0.002


@dataclass(slots=True)
class Hostile:
    """One caller: its addresses, its user, and its counts. `stopping` is set at the end."""

    addresses: Sequence[str]
    username: str
    password: str
    tally: Tally
    stopping: asyncio.Event
    source: str = "127.0.0.1"
    token: str = ""
    _relays: dict[str, Relay] = field(default_factory=dict)
    _standing_for: dict[str, str] = field(default_factory=dict)
    _channels: dict[str, grpc.aio.Channel] = field(default_factory=dict)
    _primary: str = ""

    @property
    def channel(self) -> grpc.aio.Channel:
        """The channel to the primary, as far as it is known."""
        return self.channel_to(self._primary or self.addresses[0])

    def channel_to(self, address: str) -> grpc.aio.Channel:
        """Return the channel to a replica."""
        if address not in self._channels:
            nearby = self._standing_for.get(address, address)
            self._channels[address] = grpc.aio.insecure_channel(nearby, options=OPTIONS)
        return self._channels[address]

    def relay_to(self, address: str) -> Relay:
        """Return the relay that connects to a replica from this caller's own address."""
        return self._relays[address]

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The token, if there is one."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    async def begin(self) -> None:
        """Start relays with an own source address, log in, and find the primary."""
        for address in self.addresses:
            relay = self._relays[address] = Relay(address, self.source)
            self._standing_for[address] = await relay.start()
        if self.username:
            login = users_pb2.LoginRequest(username=self.username, password=self.password)
            response = await self._until_answered(login)
            self.token = response.access_token
            await self.find_primary()

    async def find_primary(self) -> None:
        """Ask the replicas for the primary; if none answers, keep the last one."""
        for address in self.addresses:
            metadata = (*self.metadata, ("viewstamp-consistency", "stale"))
            request = cluster_pb2.GetStatusRequest()
            try:
                status = await self._raw(address, request)(request, metadata=metadata, timeout=5)
            except grpc.aio.AioRpcError:
                continue
            self._primary = self.addresses[status.primary]
            return

    async def close(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            await channel.close()
        for relay in self._relays.values():
            await relay.stop()

    async def call(self, request: Message, *, metadata: Any = None, timeout_s: float = 0) -> Any:
        """Make a unary call and count it; None if it failed."""
        self.tally.sent()
        sent = self.metadata if metadata is None else metadata
        stub = self._raw(self._primary or self.addresses[0], request)
        try:
            answer = await stub(request, metadata=sent, timeout=timeout_s or CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self.tally.failed(error)
            await self._look_elsewhere(error)
            return None
        self.tally.answered()
        return answer

    async def register(self) -> int:
        """Return a new session, 0 if none could be registered."""
        request = sessions_pb2.RegisterSessionRequest(nonce=secrets.token_bytes(16))
        answer = await self.call(request)
        return 0 if answer is None else int(answer.session_id)

    @asynccontextmanager
    async def submit(self, session_id: int) -> AsyncIterator[Submit]:
        """Open a Submit stream; an end by the server is counted, and ends the context."""
        call: Any = self.channel.stream_stream(
            SUBMIT_PATH,
            request_serializer=submit_pb2.SubmitRequest.SerializeToString,
            response_deserializer=submit_pb2.SubmitResponse.FromString,
        )(metadata=self.metadata)
        try:
            yield Submit(call, self.tally, session_id)
        except grpc.aio.AioRpcError as error:
            self.tally.failed(error)
            await self._look_elsewhere(error)
        except asyncio.InvalidStateError:  # the stream ended between a read and a write
            await asyncio.sleep(PAUSE_S)
        finally:
            call.cancel()

    async def _look_elsewhere(self, error: grpc.aio.AioRpcError) -> None:
        """Pause; find the present primary if a change of it was the reason."""
        await asyncio.sleep(PAUSE_S)
        if (refusal := refusal_of(error)) is not None and refusal.reason in _LEADS_NO_MORE:
            await self.find_primary()

    def _raw(self, address: str, request: Message) -> Any:
        method = method_of(request)
        return self.channel_to(address).unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )

    async def _until_answered(self, request: Message) -> Any:
        while True:
            if (answer := await self.call(request, metadata=())) is not None:
                return answer
            await asyncio.sleep(0.5)


class Submit:
    """A Submit stream, which opens with the first message. All raise grpc.aio.AioRpcError."""

    def __init__(self, call: Any, tally: Tally, session_id: int) -> None:
        self._call = call
        self._tally = tally
        self._session_id = session_id
        self._is_open = False

    async def send_commands(self, number: int, acked: int, *spans: submit_pb2.Span) -> None:
        """Send a request of commands."""
        self._tally.sent(sum(_believable(span) for span in spans))
        request = submit_pb2.CommandRequest(number=number, acked=acked, spans=spans)
        await self._write(submit_pb2.SubmitRequest(command=request))

    async def send_reads(self, read_id: int, *spans: submit_pb2.Span) -> None:
        """Send a message of reads."""
        self._tally.sent(sum(_believable(span) for span in spans))
        request = submit_pb2.ReadRequest(read_id=read_id, spans=spans)
        await self._write(submit_pb2.SubmitRequest(read=request))

    async def send(self, message: submit_pb2.SubmitRequest) -> None:
        """Send any message."""
        self._tally.sent()
        await self._write(message)

    async def receive(self) -> submit_pb2.SubmitResponse:
        """Return the next answer, counted. Raises grpc.aio.AioRpcError."""
        response = await self._read()
        if response.HasField("command"):
            self._tally.replied(response.command)
        elif response.HasField("read"):
            self._tally.replied(response.read)
        return response

    async def _write(self, message: submit_pb2.SubmitRequest) -> None:
        if not self._is_open:
            self._is_open = True
            opening = submit_pb2.OpenStream(session_id=self._session_id)
            await self._call.write(submit_pb2.SubmitRequest(open=opening))
            await self._read()
        await self._call.write(message)

    async def _read(self) -> submit_pb2.SubmitResponse:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            response = await self._call.read()
        if response is grpc.aio.EOF:
            await self._call.read()  # raises the status
            raise asyncio.InvalidStateError
        answer: submit_pb2.SubmitResponse = response
        return answer


def span(request: Message, count: int) -> submit_pb2.Span:
    """Return one span of so many equal calls."""
    items = frame_all([request.SerializeToString()] * count)
    return submit_pb2.Span(code=method_of(request).code, count=count, items=items)


def spans(requests: Sequence[Message]) -> list[submit_pb2.Span]:
    """Return one span for each request: the worst way to pack them."""
    return [span(request, 1) for request in requests]


def _believable(span_: submit_pb2.Span) -> int:
    return min(span_.count, limits.REQUEST_COMMANDS_MAX)
