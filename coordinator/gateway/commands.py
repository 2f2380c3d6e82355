"""Commands on their way into the log: request numbers, then the loggable form, then a place.

Requests of one session keep their order through normalization, since the log takes numbers without
a gap: each waits for the preceding one that is being normalized.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeAlias
from weakref import WeakValueDictionary

from coordinator.base.command_traces import CommandTrace
from coordinator.base.slices import SlicedWork, TimeSlice
from coordinator.gateway.command_sizes import check_commands
from coordinator.gateway.fingerprints import SentSpan, fingerprint
from coordinator.gateway.normalize import Normalizer, Origin
from coordinator.gateway.quotas import Quotas
from coordinator.gateway.request_runs import check_runs
from coordinator.gateway.routes import Routes
from coordinator.gateway.shares import Shares, Taken
from coordinator.mux.deduplication import (
    AckedAhead,
    Admission,
    Cached,
    Evicted,
    Gap,
    InFlight,
    New,
    TooOld,
    WindowFull,
)
from coordinator.mux.entities import Session
from coordinator.mux.replies import is_same
from coordinator.mux.run_shapes import NOTHING, Shape
from coordinator.mux.sessions import SessionsMachine
from coordinator.replica.answers import request_reply
from coordinator.replica.batcher import (
    LooseCommand,
    Reply,
    SessionRequest,
)
from coordinator.replica.request_sizes import check_request_size
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal
from viewstamp.limits import (
    GATEWAY_SESSION_ID,
    PREPARE_BODY_BYTES_MAX,
    REQUEST_COMMANDS_MAX,
)
from viewstamp.routing import Method, MethodKind
from viewstamp.tokens import AccessToken

Suffixes = Sequence[Mapping[int, bytes]]  # by span, then by index
# The most that a span adds to a request beside its items; a request is measured only where it may
# be too large.
SPAN_OVERHEAD_BYTES: Final = 64
# Another primary may have received what this one considers missing.
_MISSING: Final = (Gap, AckedAhead)


class CommandSequencer(Protocol):
    """The driver as seen from here."""

    def submit(self, waiting: SessionRequest | LooseCommand) -> None:
        """Queue a request for the log. Raises Refusal."""


def fences_nobody() -> None:
    """Let a request pass: no other stream of its session can fence it."""


# A request that was sequenced here: its fingerprint, and the future of its reply.
_InFlight: TypeAlias = tuple[bytes, asyncio.Future[Reply]]


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """A request in the log, or on its way there, and what only its caller may see."""

    future: asyncio.Future[Reply]
    suffixes: Suffixes


class CommandAdmission:
    """Admits commands of sessions and of callers without one."""

    def __init__(
        self,
        routes: Routes,
        normalizer: Normalizer,
        sequencer: CommandSequencer,
        sessions: SessionsMachine,
        admission: Admission,
        shares: Shares,
        quotas: Quotas,
        used: Callable[[int], None],
        confirm_leading: Callable[[], Awaitable[None]],
    ) -> None:
        self.routes = routes
        self._normalizer = normalizer
        self._sequencer = sequencer
        self._sessions = sessions
        self._admission = admission
        self._shares = shares
        self._quotas = quotas
        self._used = used  # told of every session that shows life
        # Returns if this replica leads; raises Refusal. Only the primary knows a session's past,
        # and a primary that was cut off may not have noticed.
        self._confirm_leading = confirm_leading
        self._in_flight: dict[tuple[int, int], _InFlight] = {}
        # Kept alive by those who hold or await a turn.
        self.turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    def submit_loose(self, command: LooseCommand) -> Taken:
        """Queue a command of a caller without a session; return its share. Raises Refusal.

        Whoever waits for its future returns the share with `settle_loose` when done waiting.
        """
        if command.trace is not None:
            command.trace.queued_ns = time.time_ns()
        user_id, size = command.user_id, len(command.item)
        command.shape = shape = self.routes.shape(command.code)
        account = self._quotas.check(user_id)
        taken = self._shares.take(user_id, shape.weight or 1, size)
        try:
            self._sequencer.submit(command)
        except Refusal:
            self._shares.give_back(taken)
            raise
        self._quotas.charge(account, 1, size)
        return taken

    def settle_loose(self, taken: Taken) -> None:
        """Return the share of a command without a session."""
        self._shares.give_back(taken)

    async def open_session(self, session_id: int, principal: AccessToken) -> int:
        """Return the last request number of the caller's session, from which a stream continues.

        Raises Refusal SESSION_EVICTED, also for another user's session, so that ids cannot be
        probed; and UNAUTHENTICATED if the caller's credentials have ended.
        """
        await self._confirm_leading()
        return self._session_of(session_id, principal).last_number

    async def check_caller(self, session_id: int, principal: AccessToken) -> None:
        """Check that a session is the caller's. Raises what `open_session` raises."""
        if self._sessions.get(session_id) is None:
            await self._confirm_leading()
        self._session_of(session_id, principal)

    def _session_of(self, session_id: int, principal: AccessToken) -> Session:
        session = self.check_session(session_id)
        if session.user_id != principal.user_id:
            raise _evicted(session_id)
        self.check_credentials(principal)
        self._used(session_id)
        return session

    def check_credentials(self, principal: AccessToken) -> None:
        """Raise Refusal UNAUTHENTICATED if this replica knows that a caller's credentials ended.

        Permissions are decided in log order. But ended credentials must not take places of the
        user, make room among the user's sessions, or fence their streams.
        """
        stamp = principal.credential_revision
        minimum = self._sessions.minimum_above(principal.user_id, stamp)
        if minimum is not None:
            raise Refusal.of(
                Reason.REASON_UNAUTHENTICATED,
                "credentials_changed",
                user=principal.user_id,
                minimum=minimum,
            )

    def check_session(self, session_id: int) -> Session:
        """Return a live session known here. Raises Refusal SESSION_EVICTED."""
        session = self._sessions.get(session_id)
        if session is None:
            raise _evicted(session_id)
        return session

    async def admit(
        self,
        session_id: int,
        request: submit_pb2.CommandRequest,
        principal: AccessToken,
        traces: Sequence[CommandTrace] = (),
        check_fence: Callable[[], None] = fences_nobody,
    ) -> AdmittedRequest:
        """Find the request in flight or answered, or sequence it. Raises Refusal.

        Returns as soon as its place is certain; the future gets the reply once it is applied.
        `traces` are those of its sampled calls. `check_fence` raises Refusal if its origin may send
        nothing new; nothing is awaited between that check and the request's place.
        """
        if session_id == GATEWAY_SESSION_ID:
            raise Refusal(
                Reason.REASON_SESSION_REQUIRED,
                "the stream was opened without a session and takes only reads: register a session,"
                " and open a stream with it",
            )
        spans = [(span.code, span.count, span.items) for span in request.spans]
        turn = self.turns.get(session_id)
        if turn is None:
            if not self._normalizer.wants(spans):
                # A new request gets its place before anything is awaited, so nobody can overtake
                # it. Only one that seems out of place waits until this replica is confirmed to
                # lead.
                return await self._admit(session_id, request, spans, principal, traces, check_fence)
            turn = self.turns[session_id] = asyncio.Lock()
        async with turn:
            return await self._admit(session_id, request, spans, principal, traces, check_fence)

    async def _admit(
        self,
        session_id: int,
        request: submit_pb2.CommandRequest,
        spans: Sequence[SentSpan],
        principal: AccessToken,
        traces: Sequence[CommandTrace],
        check_fence: Callable[[], None],
    ) -> AdmittedRequest:
        if not spans:
            return self._acknowledge(session_id, request)
        _check_form(request, spans)
        found = self._admission.lookup(session_id, request.number, request.acked)
        if isinstance(found, _MISSING):
            await self._confirm_leading()
            found = self._admission.lookup(session_id, request.number, request.acked)
        if not isinstance(found, Evicted):
            self._used(session_id)
        if isinstance(found, InFlight):
            known = self._in_flight.get((session_id, request.number))
            if known is None:
                raise Refusal(
                    Reason.REASON_VIEW_CHANGE,
                    "the request is in the log and not applied yet: send it again",
                )
            known_fingerprint, future = known
            _check_same(session_id, request.number, spans, known_fingerprint)
            return AdmittedRequest(
                future, await self._suffixes_again(session_id, request.number, spans, principal)
            )
        if isinstance(found, Cached):
            _check_same(session_id, request.number, spans, found.reply.fingerprint)
            done: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            done.set_result(request_reply(found.reply))
            return AdmittedRequest(
                done, await self._suffixes_again(session_id, request.number, spans, principal)
            )
        if not isinstance(found, New):
            raise _refusal(session_id, request.number, found)
        logged = _logged(session_id, request, spans, principal)
        return await self._sequence(logged, spans, principal, traces, check_fence)

    def _acknowledge(self, session_id: int, request: submit_pb2.CommandRequest) -> AdmittedRequest:
        """Sequence an acknowledgement without commands: always admitted, takes no number."""
        session = self.check_session(session_id)
        self._used(session_id)
        logged = log_pb2.LoggedRequest(session_id=session_id, acked=request.acked)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._sequencer.submit(SessionRequest(logged, future, session.user_id, shape=NOTHING))
        return AdmittedRequest(future, ())

    async def _sequence(
        self,
        logged: log_pb2.LoggedRequest,
        spans: Sequence[SentSpan],
        principal: AccessToken,
        traces: Sequence[CommandTrace],
        check_fence: Callable[[], None],
    ) -> AdmittedRequest:
        methods = [self.routes.public_code(code, MethodKind.COMMAND) for code, _, _ in spans]
        for method, (_, _, items) in zip(methods, spans, strict=True):
            self.routes.check_fields(method, items)
        shapes = [self.routes.shape(code) for code, _, _ in spans]
        shape = check_runs(shapes, [count for _, count, _ in spans])
        suffixes: Suffixes = [{}] * len(methods)
        if any(map(self._normalizer.needed, methods)):
            checking = self._normalizer.checking_count(
                (method, count, items)
                for method, (_, count, items) in zip(methods, spans, strict=True)
            )
            await SlicedWork(checking).finish()
            suffixes = await self._normalize(logged, methods, principal)
        check_fence()
        return AdmittedRequest(self._submit(logged, principal.user_id, traces, shape), suffixes)

    def _submit(
        self,
        logged: log_pb2.LoggedRequest,
        user_id: int,
        traces: Sequence[CommandTrace],
        shape: Shape,
    ) -> asyncio.Future[Reply]:
        key = (logged.session_id, logged.number)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if traces:
            _begin_to_queue(logged, traces)
        request = SessionRequest(logged, future, user_id, traces=traces, shape=shape)
        account = self._quotas.check(user_id)
        size = len(request.encoded)
        taken = self._shares.take_of_session(
            user_id, logged.session_id, request.command_count, size, shape.weight
        )
        try:
            self._sequencer.submit(request)
        except Refusal:
            self._shares.give_back(taken)
            raise
        self._quotas.charge(account, request.command_count, size)
        self._admission.admit(*key)
        self._in_flight[key] = (logged.fingerprint, future)
        future.add_done_callback(partial(self._settled, key, taken))
        return future

    def _settled(self, key: tuple[int, int], taken: Taken, future: asyncio.Future[Reply]) -> None:
        self._shares.give_back(taken)
        self._in_flight.pop(key, None)
        if future.cancelled() or future.exception() is not None:
            # It never got into the log, or nobody can tell: the number may be sent again.
            self._admission.withdraw(*key)

    async def _normalize(
        self, logged: log_pb2.LoggedRequest, methods: Sequence[Method], principal: AccessToken
    ) -> Suffixes:
        suffixes = []
        first_index = 0
        own = TimeSlice()
        for span, method in zip(logged.spans, methods, strict=True):
            await own.give_way()
            found: Mapping[int, bytes] = {}
            if self._normalizer.needed(method):
                origin = _origin(logged.session_id, logged.number, principal, first_index)
                found = await self._normalizer.normalize(method, span, origin)
            suffixes.append(found)
            first_index += span.count
        return suffixes

    async def _suffixes_again(
        self, session_id: int, number: int, spans: Sequence[SentSpan], principal: AccessToken
    ) -> Suffixes:
        suffixes = []
        first_index = 0
        own = TimeSlice()
        for code, count, items in spans:
            await own.give_way()
            method = self.routes.public_code(code, MethodKind.COMMAND)
            origin = _origin(session_id, number, principal, first_index)
            suffixes.append(await self._normalizer.suffixes(method, count, items, origin))
            first_index += count
        return suffixes


def _begin_to_queue(logged: log_pb2.LoggedRequest, traces: Sequence[CommandTrace]) -> None:
    # One is enough for other replicas to find the trace.
    logged.trace_parent = traces[0].trace_parent()
    now_ns = time.time_ns()
    for trace in traces:
        trace.queued_ns = now_ns


def _origin(session_id: int, number: int, principal: AccessToken, first_index: int) -> Origin:
    stamp = principal.credential_revision
    return Origin(principal.user_id, session_id, number, first_index, b"", stamp)


def _logged(
    session_id: int,
    request: submit_pb2.CommandRequest,
    spans: Sequence[SentSpan],
    principal: AccessToken,
) -> log_pb2.LoggedRequest:
    logged = log_pb2.LoggedRequest(
        session_id=session_id,
        number=request.number,
        acked=request.acked,
        fingerprint=fingerprint(spans),
    )
    for code, count, items in spans:
        logged.spans.add(
            code=code,
            count=count,
            items=items,
            user_id=principal.user_id,
            credential_revision=principal.credential_revision,
        )
    return logged


def _check_form(request: submit_pb2.CommandRequest, spans: Sequence[SentSpan]) -> None:
    """Raise Refusal for a malformed request, whether or not its number was used before."""
    if not request.number:
        raise Refusal(
            Reason.REASON_MALFORMED_REQUEST,
            "request number 0: the requests of a session are numbered from 1",
        )
    commands = size = 0
    for _, count, items in spans:
        if not count:
            raise Refusal(Reason.REASON_MALFORMED_REQUEST, "a span must hold at least one command")
        commands += count
        size += len(items) + SPAN_OVERHEAD_BYTES
        check_commands(items)
    if commands > REQUEST_COMMANDS_MAX or size > PREPARE_BODY_BYTES_MAX:
        check_request_size(commands, request.ByteSize())


def _check_same(session_id: int, number: int, spans: Sequence[SentSpan], known: bytes) -> None:
    if not is_same(known, fingerprint(spans)):
        raise Refusal(
            Reason.REASON_REQUEST_NUMBER_REUSED,
            f"session {session_id} used the number {number} for another request: use a new"
            " number for each request",
            session=session_id,
            number=number,
        )


def _evicted(session_id: int) -> Refusal:
    return Refusal(
        Reason.REASON_SESSION_EVICTED,
        f"session {session_id} has ended or never existed: register a new one",
        session=session_id,
    )


def _refusal(
    session_id: int, number: int, found: Gap | TooOld | WindowFull | AckedAhead | Evicted
) -> Refusal:
    match found:
        case Evicted():
            return _evicted(session_id)
        case Gap(resend_from):
            return Refusal(
                Reason.REASON_REQUEST_GAP,
                f"request {number} of session {session_id} skips request {resend_from}: resend from"
                f" {resend_from} on",
                session=session_id,
                resend_from=resend_from,
            )
        case TooOld():
            return Refusal(
                Reason.REASON_REQUEST_TOO_OLD,
                f"request {number} of session {session_id} was acknowledged: its reply is no longer"
                " kept",
                session=session_id,
                number=number,
            )
        case WindowFull(acked):
            return Refusal(
                Reason.REASON_OVERLOADED,
                f"request {number} is too far ahead of the last acknowledged one, {acked}:"
                " acknowledge replies first",
                acked=acked,
            )
        case AckedAhead(last_applied):
            return Refusal(
                Reason.REASON_MALFORMED_REQUEST,
                f"`acked` lies beyond {last_applied}, the number of the last request that"
                " was answered",
                last_applied=last_applied,
            )
