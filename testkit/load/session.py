"""One session under load: numbered requests, sent again until each is answered."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

import grpc.aio
from google.protobuf.message import Message

from testkit.load.commands import ID_FIELDS, Command, LoadOutcome, request_of
from testkit.load.records import Duplicate, LoadAnswer, Record
from testkit.load.workload import LoadWorkload
from viewstamp import limits
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client.link import STALL_TIMEOUT_S
from viewstamp.client.methods import method_of
from viewstamp.client.packing import encode, read_results, spans_of
from viewstamp.client.session import RawReply, RawSession
from viewstamp.client.transport import Endpoints
from viewstamp.client.verdicts import PRIMARY_DETAIL, Backoff, RetryVerdict, verdict_on
from viewstamp.errors import Refusal
from viewstamp.routing import Method

# Requests of a session without an answer. The API allows more; those are for copies sent again.
REQUESTS_IN_FLIGHT: Final = 4
# Answered requests that are sent again for comparison, though nothing happened, out of 100.
DUPLICATES_PERCENT: Final = 5

_PASSING: Final = frozenset({RetryVerdict.RETRY, RetryVerdict.RECONNECT})


class LoadFailed(Exception):  # noqa: N818 - reads as the sentence it is
    """The cluster refused what it must not refuse; the message says what."""


@dataclass(slots=True, eq=False)
class LoadRequest:
    """A numbered request and its course so far. `digest` is set once it was answered."""

    number: int
    commands: tuple[Command, ...]
    spans: list[submit_pb2.Span]
    methods: list[Method]
    sent_ns: int = 0
    sends: int = 0
    digest: str = ""


class _Interrupted(Exception):  # noqa: N818 - an event, not a fault
    """The stream is of no use any more: open it again and send again what has no answer.

    `primary` is the address of the replica that leads, if the cluster named it.
    """

    def __init__(self, primary: str = "") -> None:
        super().__init__(primary)
        self.primary = primary


class LoadSession:
    """Sends a workload's requests until told to finish. `answered` is called for each answer.

    It goes on at another one of the addresses when a replica breaks off, refuses or is silent.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        access_token: str,
        workload: LoadWorkload,
        keep: Callable[[Record], None],
        answered: Callable[[LoadRequest], None],
    ) -> None:
        self.session_id = 0
        # Sent, and neither answered nor, if a copy is due, answered again; ascending.
        self.open_requests: dict[int, LoadRequest] = {}
        self.reconnects = 0
        self._endpoints = Endpoints(addresses)
        self._access_token = access_token
        self._workload = workload
        self._keep = keep
        self._answered = answered
        self._nonce = secrets.token_bytes(limits.SESSION_NONCE_BYTES)
        self._next_number = 1
        self._finishing = False

    @property
    def in_flight(self) -> int:
        """How many commands were sent and have no answer."""
        waiting = (one for one in self.open_requests.values() if one.sends and not one.digest)
        return sum(len(one.commands) for one in waiting)

    def finish(self) -> None:
        """Send nothing new; `run` returns once everything is answered."""
        self._finishing = True

    async def run(self) -> None:
        """Send requests, over as many streams as it takes. Raises LoadFailed."""
        backoff = Backoff()
        while True:
            primary = ""
            try:
                async with AsyncExitStack() as stack:
                    stream = await self._opened(stack)
                    await self._converse(stream, backoff)
                    return
            except (
                grpc.aio.AioRpcError,
                asyncio.InvalidStateError,  # the stream ended between two messages of ours
                EOFError,
                TimeoutError,
            ):
                self.reconnects += 1
            except _Interrupted as interrupted:
                self.reconnects += 1
                primary = interrupted.primary
            except Refusal as refusal:
                primary = self._primary_by(refusal, "the stream")
            self._endpoints.advance(primary)
            await asyncio.sleep(backoff.next_s())

    async def _opened(self, stack: AsyncExitStack) -> RawSession:
        """Return an open stream of the session, registered if it is new."""
        async with asyncio.timeout(STALL_TIMEOUT_S):
            stream = await stack.enter_async_context(
                RawSession(
                    self._endpoints.current,
                    self._access_token,
                    session_id=self.session_id,
                    nonce=self._nonce,
                )
            )
        self.session_id = stream.session_id
        return stream

    async def _converse(self, stream: RawSession, backoff: Backoff) -> None:
        for request in list(self.open_requests.values()):
            await self._send(stream, request)
        while True:
            while self._has_room():
                await self._send(stream, self._new_request())
            if not self.open_requests:
                return
            async with asyncio.timeout(STALL_TIMEOUT_S):
                reply = await stream.receive()
            if await self._take(stream, reply):
                backoff.reset()
                self._endpoints.reached()

    def _has_room(self) -> bool:
        if self._finishing:
            return False
        unanswered = sum(not request.digest for request in self.open_requests.values())
        fits = self._next_number <= self._acked() + limits.SESSION_WINDOW_REQUESTS
        return fits and unanswered < REQUESTS_IN_FLIGHT

    def _acked(self) -> int:
        return next(iter(self.open_requests), self._next_number) - 1

    def _new_request(self) -> LoadRequest:
        commands = self._workload.next_request()
        framed = []
        for message in map(request_of, commands):
            method = method_of(message)
            framed.append((method, encode(method, message)))
        spans, methods = spans_of(framed)
        request = LoadRequest(self._next_number, commands, spans, methods)
        self.open_requests[request.number] = request
        self._next_number += 1
        return request

    async def _send(self, stream: RawSession, request: LoadRequest) -> None:
        request.sends += 1
        if not request.sent_ns:
            request.sent_ns = time.monotonic_ns()
        acked = min(self._acked(), request.number - 1)
        command = submit_pb2.CommandRequest(number=request.number, acked=acked, spans=request.spans)
        await stream.send(submit_pb2.SubmitRequest(command=command))

    async def _take(self, stream: RawSession, reply: RawReply) -> bool:
        """Take in one answer; return whether it was one. Raises _Interrupted, LoadFailed."""
        answer = reply.message.command
        request = self.open_requests.get(answer.number)
        if request is None:
            raise LoadFailed(f"session {self.session_id}: answer to no request: {answer.number}")
        if answer.HasField("error"):
            what = f"session {self.session_id}, request {request.number}"
            raise _Interrupted(self._primary_by(Refusal.from_error(answer.error), what))
        digest = hashlib.blake2b(reply.encoded, digest_size=16).hexdigest()
        if request.digest:
            self._keep(Duplicate(self.session_id, request.number, digest))
            del self.open_requests[request.number]
            return True
        self._keep(self._answer(request, answer, digest))
        request.digest = digest
        self._answered(request)
        if request.sends > 1 or self._workload.chance(DUPLICATES_PERCENT):
            await self._send(stream, request)
        else:
            del self.open_requests[request.number]
        return True

    def _answer(
        self, request: LoadRequest, reply: submit_pb2.CommandReply, digest: str
    ) -> LoadAnswer:
        results = read_results(request.methods, request.spans, reply.header, reply.spans)
        return LoadAnswer(
            session=self.session_id,
            number=request.number,
            commands=request.commands,
            first_revision=reply.header.revision,
            outcomes=outcomes_of(request.commands, results),
            digest=digest,
            sends=request.sends,
            sent_ns=request.sent_ns,
            answered_ns=time.monotonic_ns(),
        )

    def _primary_by(self, refusal: Refusal, what: str) -> str:
        """Return where a refusal that passes says the primary is. Raises LoadFailed for another."""
        if verdict_on(refusal) not in _PASSING:
            raise LoadFailed(f"{what}: refused for good: {refusal.name}: {refusal.message}")
        return refusal.details.get(PRIMARY_DETAIL, "")


def outcomes_of(
    commands: Sequence[Command], results: Sequence[Message | Refusal]
) -> tuple[LoadOutcome, ...]:
    """Return what each command came to."""
    return tuple(map(_outcome, commands, results))


def _outcome(command: Command, result: Any) -> LoadOutcome:
    if isinstance(result, Refusal):
        return LoadOutcome(reason=result.name)
    field = ID_FIELDS.get(command.kind)
    return LoadOutcome(entity_id=getattr(result, field) if field else 0)
