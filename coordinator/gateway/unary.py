"""Unary calls: any gRPC client, one method call per message."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from coordinator.base.command_traces import CommandTrace
from coordinator.base.refused_calls import abort
from coordinator.base.shared_deadline import SharedDeadline
from coordinator.gateway.audit import Audit, AuditedCaller
from coordinator.gateway.cluster import STATUS_CODES
from coordinator.gateway.command_sizes import check_command
from coordinator.gateway.commands import CommandAdmission
from coordinator.gateway.forwarding import Forwarding
from coordinator.gateway.normalize import Normalizer, Origin
from coordinator.gateway.peer_address import address_of
from coordinator.gateway.principal import Authenticator
from coordinator.gateway.reads import (
    LINEARIZABLE,
    STALE,
    ReadStarter,
    consistency_of_metadata,
)
from coordinator.gateway.registration import SessionRoom
from coordinator.gateway.replies import header_of, only_result, with_header
from coordinator.gateway.requested_reads import RequestedReads
from coordinator.gateway.routes import Routes
from coordinator.gateway.stored_catalog import STORED_CODES, StoredCatalog
from coordinator.gateway.telemetry import GatewayWatch
from coordinator.replica.batcher import LooseCommand, Reply
from coordinator.replica.refusals import outcome_unknown
from coordinator.stages.codec import REGISTER_SESSION_CODE
from coordinator.telemetry.calls import TimedCall
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import frame, unframe
from viewstamp.limits import COMMAND_DEADLINE_MS, GATEWAY_SESSION_ID
from viewstamp.routing import Method, MethodKind
from viewstamp.telemetry.current import make_current
from viewstamp.tokens import AccessToken

SESSION_KEY: Final = "viewstamp-session"
REQUEST_KEY: Final = "viewstamp-request"
ACKED_KEY: Final = "viewstamp-acked"
TRACE_PARENT_KEY: Final = "traceparent"
NONCE_BYTES: Final = 16

Context = grpc.aio.ServicerContext[Any, Any]
Metadata = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What a backup does: it answers reads itself, and passes other calls on.

    `check_reading` raises Refusal unless reads are answered here. Without `forwarding` nothing is
    passed on. `stored` answers while nothing else is.
    """

    check_reading: Callable[[], None]
    forwarding: Forwarding | None
    stored: StoredCatalog


class UnaryCalls:
    """Serves unary calls of every claimed method, payloads undecoded."""

    def __init__(
        self,
        cluster_id: bytes,
        routes: Routes,
        authenticator: Authenticator,
        commands: CommandAdmission,
        normalizer: Normalizer,
        reads: ReadStarter,
        check_serving: Callable[[], None],
        watch: GatewayWatch | None = None,
        elsewhere: Elsewhere | None = None,
        check_fence: Callable[[int], None] = lambda _: None,
        room: SessionRoom | None = None,
        audit: Audit | None = None,
    ) -> None:
        self._audit = audit
        self._room = room
        # Raises Refusal if a session takes nothing new from unary calls.
        self._check_fence = check_fence
        self._elsewhere = elsewhere
        self._cluster_id = cluster_id
        self._routes = routes
        self._authenticator = authenticator
        self._commands = commands
        self._normalizer = normalizer
        self._reads = reads
        self._check_serving = check_serving
        self._watch = watch
        self._deadline = SharedDeadline(COMMAND_DEADLINE_MS)

    async def serve(self, path: str, payload: bytes, context: Context) -> bytes:
        """Answer one call; aborts it with the refusal's status."""
        metadata = context.invocation_metadata() or ()
        if self._watch is None:
            return await self._answer(path, payload, context, metadata, None, None)
        with self._watch.timed(path) as timed:
            trace = self._watch.unary(path, _trace_parent(metadata))
            if trace is None:
                return await self._answer(path, payload, context, metadata, None, timed)
            make_current(trace.server(0))  # of this task, which serves only this call
            try:
                return await self._answer(path, payload, context, metadata, trace, timed)
            except asyncio.CancelledError:
                self._watch.abandoned(trace)
                raise

    async def _answer(
        self,
        path: str,
        payload: bytes,
        context: Context,
        metadata: Metadata,
        trace: CommandTrace | None,
        timed: TimedCall | None,
    ) -> bytes:
        caller = AuditedCaller(context, context.peer())
        try:
            forwarding = self._forwarding_of(path, metadata)
            if forwarding is not None:
                known = self._routes.named(path)
                changes = known is None or known.kind is MethodKind.COMMAND
                if known is not None and changes:
                    # A primary of an older build would ignore the field, and do more than asked.
                    self._routes.check_command(known, payload)
                if timed is not None:
                    timed.is_elsewhere()
                return await forwarding.forward(path, payload, context, changes=changes)
            method = self._routes.public(path)
            if method.kind is MethodKind.QUERY:
                reply, suffix = await self._query(method, payload, metadata, caller), b""
                self._check_knows_caller(reply)
            else:
                reply, suffix = await self._command(method, payload, metadata, trace, caller)
        except Refusal as refusal:
            if self._watch is not None:
                self._watch.refused(() if trace is None else (trace,), refusal)
            self._tell(path, payload, caller, refusal)
            if timed is not None:
                timed.ended(refusal)
            await abort(context, refusal)
        self._tell(path, payload, caller, reply)
        if timed is not None:
            timed.ended(reply)
        if self._watch is not None and trace is not None:
            self._watch.answered((trace,), reply)
        header = header_of(reply, self._cluster_id)
        try:
            return with_header(header, only_result(reply) + suffix)
        except Refusal as refusal:
            await abort(context, refusal, header)

    def _tell(
        self, path: str, payload: bytes, caller: AuditedCaller, outcome: Reply | Refusal
    ) -> None:
        if self._audit is not None:
            self._audit.unary(path, payload, caller, outcome)

    def _forwarding_of(self, path: str, metadata: Metadata) -> Forwarding | None:
        """Return the forwarding of a call; None if it is answered here. Raises Refusal."""
        try:
            self._check_serving()
        except Refusal as refusal:
            if self._is_about_itself(path, metadata):
                return None
            elsewhere = self._elsewhere
            if elsewhere is None or refusal.reason != Reason.REASON_NOT_PRIMARY:
                raise
            if self._is_read_anywhere(path, metadata):
                elsewhere.check_reading()
                return None
            if elsewhere.forwarding is None or not elsewhere.forwarding.is_possible(metadata):
                raise
            return elsewhere.forwarding
        return None

    def _check_knows_caller(self, reply: Reply) -> None:
        """Replace a refusal of an unknown caller by one to serve, if this replica is not ready.

        A replica that has not read its log yet may not know a caller that all others know: the
        caller should come again, not log in again.
        """
        try:
            only_result(reply)
        except Refusal as refused:
            if refused.reason == Reason.REASON_UNAUTHENTICATED:
                self._check_reading()

    def _check_reading(self) -> None:
        try:
            self._check_serving()
        except Refusal as refusal:
            if self._elsewhere is None or refusal.reason != Reason.REASON_NOT_PRIMARY:
                raise
            self._elsewhere.check_reading()

    def _is_read_anywhere(self, path: str, metadata: Metadata) -> bool:
        """Return whether every replica can answer a call.

        A backup may not know a session that was just registered, and must not report it as ended.
        """
        method = self._routes.public(path)
        if method.kind is not MethodKind.QUERY or method.at_primary:
            return False
        is_strict = consistency_of_metadata(metadata).linearizable
        return not (is_strict and any(key == SESSION_KEY for key, _ in metadata))

    def _is_about_itself(self, path: str, metadata: Metadata) -> bool:
        """Whether a call asks for what this replica has by itself, however old.

        That is its status, which it always has, and the catalog of snapshots on its disk. A method
        that nobody serves yet is none of these: its service may be starting.
        """
        method = self._routes.named(path)
        if method is None or method.code not in STATUS_CODES | STORED_CODES:
            return False
        return consistency_of_metadata(metadata) == STALE

    async def _command(
        self,
        method: Method,
        payload: bytes,
        metadata: Metadata,
        trace: CommandTrace | None,
        caller: AuditedCaller,
    ) -> tuple[Reply, bytes]:
        """Return the reply and what only the caller may see of it."""
        principal = self._authenticator.principal(metadata)
        caller.user_id = principal.user_id
        if trace is not None:
            trace.user_id = principal.user_id
        check_command(len(payload))
        entries = {key: value for key, value in metadata if key in _SESSION_KEYS}
        if entries and SESSION_KEY not in entries:
            # Its caller believes that a retry is harmless.
            raise Refusal(
                Reason.REASON_MALFORMED_REQUEST,
                f"the metadata has {', '.join(sorted(entries))} without {SESSION_KEY}: a number"
                " means nothing without a session; send both or neither",
                key=SESSION_KEY,
            )
        if SESSION_KEY in entries:
            return await self._session_command(method, payload, principal, entries, trace)
        return await self._loose_command(method, payload, principal, trace)

    async def _loose_command(
        self, method: Method, payload: bytes, principal: AccessToken, trace: CommandTrace | None
    ) -> tuple[Reply, bytes]:
        suffix = b""
        self._commands.check_credentials(principal)
        self._routes.check_command(method, payload)
        if method.code == REGISTER_SESSION_CODE and self._room is not None:
            await self._room.make(principal.user_id, payload)
        if self._normalizer.needed(method):
            payload, suffix = await self._normalize(method, payload, principal)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        taken = self._commands.submit_loose(
            LooseCommand(
                method.code,
                payload,
                principal.user_id,
                principal.credential_revision,
                "" if trace is None else trace.trace_parent(),
                future,
                trace,
            )
        )
        try:
            return await self._in_time(future), suffix
        finally:
            self._commands.settle_loose(taken)

    async def _in_time(self, future: asyncio.Future[Reply]) -> Reply:
        """Wait for a reply until a deadline: a primary may be cut off from the others, or stuck."""
        try:
            return await self._deadline.wait(future)
        except TimeoutError as error:
            raise outcome_unknown(COMMAND_DEADLINE_MS) from error

    async def _normalize(
        self, method: Method, payload: bytes, principal: AccessToken
    ) -> tuple[bytes, bytes]:
        span = log_pb2.LoggedSpan(code=method.code, count=1, items=frame(payload))
        nonce = os.urandom(NONCE_BYTES)
        stamp = principal.credential_revision
        origin = Origin(principal.user_id, GATEWAY_SESSION_ID, 0, 0, nonce, stamp)
        suffixes = await self._normalizer.normalize(method, span, origin)
        if span.refused:
            raise Refusal.from_error(span.refused[0].error)
        return unframe(span.items)[0], suffixes.get(0, b"")

    async def _session_command(
        self,
        method: Method,
        payload: bytes,
        principal: AccessToken,
        entries: dict[str, Any],
        trace: CommandTrace | None,
    ) -> tuple[Reply, bytes]:
        session_id = _number(entries, SESSION_KEY)
        request = submit_pb2.CommandRequest(
            number=_number(entries, REQUEST_KEY),
            acked=_number(entries, ACKED_KEY) if ACKED_KEY in entries else 0,
            spans=[submit_pb2.Span(code=method.code, count=1, items=frame(payload))],
        )
        await self._commands.check_caller(session_id, principal)
        traces = () if trace is None else (trace,)
        admitted = await self._commands.admit(
            session_id, request, principal, traces, lambda: self._check_fence(session_id)
        )
        # Shielded: the request stays in flight for others who sent it when this caller is gone.
        reply = await self._in_time(asyncio.shield(admitted.future))
        return reply, admitted.suffixes[0].get(0, b"")

    async def _query(
        self, method: Method, payload: bytes, metadata: Metadata, caller: AuditedCaller
    ) -> Reply:
        principal = None if method.public else self._authenticator.principal(metadata)
        if principal is not None:
            caller.user_id = principal.user_id
        entries = {key: value for key, value in metadata if key == SESSION_KEY}
        session_id = GATEWAY_SESSION_ID
        if entries and principal is not None:
            session_id = _number(entries, SESSION_KEY)
            await self._commands.check_caller(session_id, principal)
        elif principal is not None:
            self._commands.check_credentials(principal)
        if principal is not None and method.code in STORED_CODES:
            stored = await self._stored(method, payload, principal)
            if stored is not None:
                return stored
        span = RequestedReads(method, 1, frame(payload))
        # A caller who asks for credentials must not choose a replica, or a moment, that does not
        # yet know that they were revoked.
        consistency = LINEARIZABLE if method.public else consistency_of_metadata(metadata)
        return await self._reads.start_spans(
            [span], principal, session_id, consistency, address_of(caller.peer)
        )

    async def _stored(self, method: Method, payload: bytes, principal: AccessToken) -> Reply | None:
        """Return what the disk says while reads are not answered here; None if they are.

        Raises the Refusal to serve if the disk says nothing.
        """
        try:
            self._check_reading()
        except Refusal:
            if self._elsewhere is None:
                raise
            reply = await self._elsewhere.stored.answer(method, payload, principal)
            if reply is None:
                raise
            return reply
        return None


_U64_MAX: Final = 2**64 - 1
_U64_DIGITS_MAX: Final = 20
_SESSION_KEYS: Final = frozenset({SESSION_KEY, REQUEST_KEY, ACKED_KEY})


def _trace_parent(metadata: Metadata) -> str:
    return next((str(value) for key, value in metadata if key == TRACE_PARENT_KEY), "")


def _number(entries: dict[str, Any], key: str) -> int:
    text = str(entries.get(key, ""))
    # Check the length first, so that nobody converts thousands of digits.
    is_number = len(text) <= _U64_DIGITS_MAX and text.isascii() and text.isdecimal()
    if not is_number or int(text) > _U64_MAX:
        raise Refusal(
            Reason.REASON_MALFORMED_REQUEST,
            f"the metadata {key} is {text[:_U64_DIGITS_MAX]!r}: it must be a number of 64 bits",
            key=key,
            value=text[:_U64_DIGITS_MAX],
        )
    return int(text)
