"""What the gateway tells the audit log: one record for each request, not for each command.

The log only observes. It reads payloads in its own thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec

import grpc
import grpc.aio

from coordinator.gateway.audit_records import (
    Decided,
    Errors,
    add_outcome,
    call_record,
    denied_record,
    kept_part,
    kept_spans,
    record_of,
    request_record,
    unclaimed,
)
from coordinator.gateway.principal import Authenticator
from coordinator.gateway.routes import Routes
from coordinator.replica.batcher import Reply
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.audit.log import AuditLog, Record
from viewstamp.errors import Refusal
from viewstamp.routing import Method, MethodKind
from viewstamp.tokens import AccessToken

Context = grpc.aio.ServicerContext[Any, Any]
Behavior = Callable[[bytes, Context], Awaitable[Any]]
Told = ParamSpec("Told")

_log = logging.getLogger(__name__)

# Refusals of reads that are worth a record.
DENIALS: Final = frozenset(
    {
        Reason.REASON_PERMISSION_DENIED,
        Reason.REASON_UNAUTHENTICATED,
        Reason.REASON_INVALID_CREDENTIALS,
    }
)


@dataclass(slots=True)
class AuditedCaller:
    """Who made a call, with the `peer`, which gRPC cannot tell once the call is over."""

    context: Context
    peer: str
    user_id: int | None = None  # once it is known


def _looking_on(
    tell: Callable[Concatenate[Audit, Told], None],
) -> Callable[Concatenate[Audit, Told], None]:
    """Drop the record if making it fails: that must not keep an answer from its caller."""

    @wraps(tell)
    def told(audit: Audit, /, *args: Told.args, **kwargs: Told.kwargs) -> None:
        try:
            tell(audit, *args, **kwargs)
        except Exception:
            _log.exception("the audit log could not be told of what was answered")
            audit.lose()

    return told


class Audit:
    """Tells the audit log how callers of this replica were answered; without a log, does
    nothing."""

    def __init__(self, log: AuditLog | None, routes: Routes, authenticator: Authenticator) -> None:
        self._log = log
        self._routes = routes
        self._authenticator = authenticator

    def lose(self) -> None:
        """Count a record that could not be made."""
        if self._log is not None:
            self._log.lose()

    @_looking_on
    def unary(
        self, path: str, payload: bytes, caller: AuditedCaller, outcome: Reply | Refusal
    ) -> None:
        """Record a single call: a command, a login, or a denied read."""
        if self._log is None:
            return
        method = self._routes.named(path)
        decided = _decided(outcome)
        if not _is_told(method, decided):
            return
        user_id = self._user_of(caller.context) if caller.user_id is None else caller.user_id
        if method is None:
            part, size = unclaimed(path), 0
        else:
            part, size = kept_part(self._routes, method, payload)
        kind = "login" if method is not None and method.public else "call"
        self._log.add(
            partial(call_record, kind, decided, user_id, caller.peer, part),
            size,
            is_strangers=decided[2] is not None and (user_id is None or kind == "login"),
        )

    @_looking_on
    def request(
        self,
        request: submit_pb2.CommandRequest,
        principal: AccessToken,
        session_id: int,
        peer: str,
        outcome: Reply | Refusal,
    ) -> None:
        """Record a request of a stream: its spans, and the refusals of each."""
        spans = request.spans
        is_retried = isinstance(outcome, Refusal) and outcome.reason not in DENIALS
        if self._log is None or not spans or is_retried:
            return
        errors: Sequence[Errors] = ()
        if isinstance(outcome, Refusal):
            decided: Decided = _now_us(), None, outcome
        else:
            decided = _now_us(), outcome.first_revision, _refusal_of_whole(outcome)
            if any(span.errors for span in outcome.spans):
                errors = [span.errors for span in outcome.spans]
        kept, size = kept_spans(self._routes, spans, errors)
        self._log.add(
            partial(request_record, decided, principal.user_id, session_id, peer, kept), size
        )

    @_looking_on
    def reads(
        self, spans: Iterable[submit_pb2.Span], principal: AccessToken, peer: str, reply: Reply
    ) -> None:
        """Record denied reads of a stream."""
        if self._log is None or not any(span.errors for span in reply.spans):
            return
        denied, denials = [], []
        for span, answer in zip(spans, reply.spans, strict=False):
            some = [each for each in answer.errors if each.error.reason in DENIALS]
            if some:
                denied.append(span)
                denials.append(some)
        if denied:
            kept, size = kept_spans(self._routes, denied, denials)
            self._log.add(partial(denied_record, _now_us(), principal.user_id, peer, kept), size)

    @_looking_on
    def denied(self, what: str, context: Context, peer: str, refusal: Refusal) -> None:
        """Record a stream that was not opened; `peer` is what gRPC said when it began."""
        if self._log is not None and refusal.reason in DENIALS:
            user_id = self._user_of(context)
            record = record_of("call", _now_us(), user_id, peer)
            record["methods"] = [{"method": what}]
            add_outcome(record, (record["at"], None, refusal))
            self._add(record, is_strangers=user_id is None)

    @_looking_on
    def session_ended(self, session_id: int) -> None:
        """Record the end of a session that was served here."""
        record = record_of("session_end", _now_us(), None, "")
        self._add({**record, "session": session_id, "outcome": "ok"})

    def administrative(self, handlers: Mapping[str, Any]) -> dict[str, Any]:
        """Return handlers by path that do the same and record each call."""
        if self._log is None:
            return dict(handlers)
        return {path: self._told(path, handler) for path, handler in handlers.items()}

    def _told(self, path: str, handler: Any) -> Any:
        behavior: Behavior = (
            handler.unary_stream if handler.response_streaming else handler.unary_unary
        )

        async def serve(payload: bytes, context: Context) -> Any:
            peer = context.peer()  # gRPC cannot tell it once the call is over
            try:
                answer = await behavior(payload, context)
            except BaseException:
                code = context.code()
                self._call(path, context, peer, getattr(code, "name", "UNKNOWN"))
                raise
            self._call(path, context, peer, "ok")
            return answer

        made = (
            grpc.unary_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        return made(serve, handler.request_deserializer, handler.response_serializer)

    @_looking_on
    def _call(self, path: str, context: Context, peer: str, outcome: str) -> None:
        user_id = self._user_of(context)
        record = record_of("administration", _now_us(), user_id, peer)
        method = {"method": path.rpartition("/")[2]}
        is_strangers = user_id is None and outcome != "ok"
        self._add({**record, "methods": [method], "outcome": outcome}, is_strangers=is_strangers)

    def _add(self, record: Record, *, is_strangers: bool = False) -> None:
        if self._log is not None:
            self._log.add(lambda: record, 0, is_strangers=is_strangers)

    def _user_of(self, context: Context) -> int | None:
        try:
            return self._authenticator.principal(context.invocation_metadata()).user_id
        except Refusal:
            return None


def _now_us() -> int:
    return time.time_ns() // 1000


def _is_told(method: Method | None, decided: Decided) -> bool:
    """Return whether a call was a login, changed something, or was denied.

    Other refusals before the log are not recorded, because the caller tries again.
    """
    is_read = method is not None and method.kind is MethodKind.QUERY
    _, revision, refusal = decided
    if (method is not None and method.public) or (revision is not None and not is_read):
        return True
    return refusal is not None and refusal.reason in DENIALS


def _decided(outcome: Reply | Refusal) -> Decided:
    if isinstance(outcome, Refusal):
        return _now_us(), None, outcome
    return _now_us(), outcome.first_revision, _refusal_in(outcome)


def _refusal_of_whole(reply: Reply) -> Refusal | None:
    return None if reply.error is None else Refusal.from_error(reply.error)


def _refusal_in(reply: Reply) -> Refusal | None:
    """Return why the only command or read of a reply was refused."""
    if reply.error is not None:
        return Refusal.from_error(reply.error)
    for span in reply.spans:
        for each in span.errors:
            return Refusal.from_error(each.error)
    return None
