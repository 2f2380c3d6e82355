"""What the gateway tells the audit log: one record for each request, not for each command in it.

The log looks on and decides nothing. What it needs of payloads it reads in its own thread.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import grpc
import grpc.aio

from coordinator.gateway.normalize import TRANSACT, codes_of_transaction
from coordinator.gateway.peer_address import address_of
from coordinator.gateway.principal import Authenticator
from coordinator.gateway.routes import Routes
from coordinator.replica.batcher import Reply
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.audit.log import AuditLog, Record
from viewstamp.errors import Refusal, reason_name
from viewstamp.framing import frame
from viewstamp.routing import Method, MethodKind
from viewstamp.tokens import AccessToken

Context = grpc.aio.ServicerContext[Any, Any]
Errors = Sequence[errors_pb2.IndexedError]
Behavior = Callable[[bytes, Context], Awaitable[Any]]

# Refusals of reads that somebody wants to know of.
DENIALS: Final = frozenset(
    {
        Reason.REASON_PERMISSION_DENIED,
        Reason.REASON_UNAUTHENTICATED,
        Reason.REASON_INVALID_CREDENTIALS,
    }
)


class Audit:
    """Tells the audit log what callers of this replica were answered; does nothing without one."""

    def __init__(self, log: AuditLog | None, routes: Routes, authenticator: Authenticator) -> None:
        self._log = log
        self._routes = routes
        self._authenticator = authenticator

    def unary(
        self, path: str, payload: bytes, context: Context, peer: str, outcome: Reply | Refusal
    ) -> None:
        """Tell of a call by itself: a command, a login, or a read that was denied."""
        if self._log is None:
            return
        method = self._routes.named(path)
        refusal = outcome if isinstance(outcome, Refusal) else _refusal_in(outcome)
        is_read = method is not None and method.kind is MethodKind.QUERY and not method.public
        # What was refused before the log is told of if it is a denial; the rest comes again.
        is_change = isinstance(outcome, Reply) and not is_read
        is_login = method is not None and method.public
        if not is_change and not is_login and (refusal is None or refusal.reason not in DENIALS):
            return
        kind = "login" if method is not None and method.public else "call"
        record = self._record(kind, self._user_of(context), address_of(peer))
        if method is None:
            record["methods"] = [{"method": path.rpartition("/")[2][:100]}]
        else:
            record["methods"] = [_part(self._routes, method, frame(payload))]
        _add_outcome(record, refusal, outcome)
        self._log.add(record)

    def request(
        self,
        request: submit_pb2.CommandRequest,
        principal: AccessToken,
        session_id: int,
        peer: str,
        outcome: Reply | Refusal,
    ) -> None:
        """Tell of a request of a stream: its spans, and what was refused of each."""
        is_retried = isinstance(outcome, Refusal) and outcome.reason not in DENIALS
        if self._log is None or not request.spans or is_retried:
            return
        record = self._record("call", principal.user_id, address_of(peer))
        record["session"] = session_id
        errors: Sequence[Errors] = [()] * len(request.spans)
        refusal: Refusal | None = outcome if isinstance(outcome, Refusal) else None
        if not isinstance(outcome, Refusal):
            refusal = _refusal_of_whole(outcome)
            errors = [span.errors for span in outcome.spans] or errors
        record |= self._spans(zip(request.spans, errors, strict=False))
        _add_outcome(record, refusal, outcome)
        if _is_refused_in_part(record):
            record["outcome"] = "refused in part"
        self._log.add(record)

    def reads(
        self, spans: Iterable[submit_pb2.Span], principal: AccessToken, peer: str, reply: Reply
    ) -> None:
        """Tell of reads of a stream that were denied."""
        if self._log is None or not any(span.errors for span in reply.spans):
            return
        denied = []
        for span, answer in zip(spans, reply.spans, strict=False):
            denials = [each for each in answer.errors if each.error.reason in DENIALS]
            if denials:
                denied.append((span, denials))
        if denied:
            record = self._record("call", principal.user_id, address_of(peer))
            self._log.add({**record, **self._spans(denied), "outcome": "refused in part"})

    def denied(self, what: str, context: Context, peer: str, refusal: Refusal) -> None:
        """Tell of a stream that was not opened; `peer` is what gRPC said when it began."""
        if self._log is not None and refusal.reason in DENIALS:
            record = self._record("call", self._user_of(context), address_of(peer))
            record["methods"] = [{"method": what}]
            _add_outcome(record, refusal, refusal)
            self._log.add(record)

    def session_ended(self, session_id: int) -> None:
        """Tell of the end of a session that was served here."""
        if self._log is not None:
            record = self._record("session_end", None, "")
            self._log.add({**record, "session": session_id, "outcome": "ok"})

    def administrative(self, handlers: Mapping[str, Any]) -> dict[str, Any]:
        """Return handlers by path that tell of each call, and do the same."""
        if self._log is None:
            return dict(handlers)
        return {path: self._told(path, handler) for path, handler in handlers.items()}

    def _told(self, path: str, handler: Any) -> Any:
        behavior: Behavior = (
            handler.unary_stream if handler.response_streaming else handler.unary_unary
        )

        async def serve(payload: bytes, context: Context) -> Any:
            peer = context.peer()  # gRPC must not be asked for it once the call is over
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

    def _call(self, path: str, context: Context, peer: str, outcome: str) -> None:
        assert self._log is not None
        record = self._record("administration", self._user_of(context), address_of(peer))
        method = {"method": path.rpartition("/")[2]}
        self._log.add({**record, "methods": [method], "outcome": outcome})

    def _record(self, kind: str, user_id: int | None, address: str) -> Record:
        return {"at": time.time_ns() // 1000, "kind": kind, "user": user_id, "from": address}

    def _spans(self, spans: Iterable[tuple[submit_pb2.Span, Errors]]) -> Record:
        """Return what is told of spans: the first ones each, the others by method."""
        told: list[Record] = []
        omitted: dict[str, Record] = {}
        for span, errors in spans:
            part = self._span(span, errors)
            if len(told) < SPANS_MAX:
                told.append(part)
            elif part["method"] in omitted:
                _sum_up(omitted[part["method"]], part)
            else:
                part.pop("payload", None)
                omitted[part["method"]] = part
        return {"methods": told, **({"omitted": list(omitted.values())} if omitted else {})}

    def _span(self, span: submit_pb2.Span, errors: Errors) -> Record:
        method: Method | None = self._routes.find(span.code)
        if method is None:
            part: Record = {"method": UNKNOWN}
        else:
            part = _part(self._routes, method, span.items)
        part["count"] = span.count
        if errors:
            part["refused"] = dict(Counter(reason_name(each.error.reason) for each in errors))
            part["details"] = _details(Refusal.from_error(errors[0].error))
        return part

    def _user_of(self, context: Context) -> int | None:
        try:
            return self._authenticator.principal(context.invocation_metadata()).user_id
        except Refusal:
            return None


# Of one request so many spans are told of, each by its first command; the others are summed up.
SPANS_MAX: Final = 16
UNKNOWN: Final = "unknown"


def _part(routes: Routes, method: Method, items: bytes) -> Record:
    """Return what is told of commands of a method; what a transaction consists of is counted."""
    part: Record = {"method": method.name, "payload": (method.request, items)}
    if method.name == TRANSACT:
        parts = Counter(_name(routes, code) for code in codes_of_transaction(items))
        if parts:
            part["parts"] = dict(parts)
    return part


def _name(routes: Routes, code: int) -> str:
    method = routes.find(code)
    return UNKNOWN if method is None else method.name


def _sum_up(summed: Record, part: Record) -> None:
    summed["count"] += part["count"]
    for field in "parts", "refused":
        if field in part:
            summed[field] = dict(Counter(summed.get(field, {})) + Counter(part[field]))


def _is_refused_in_part(record: Record) -> bool:
    return any("refused" in part for part in (*record["methods"], *record.get("omitted", ())))


def _add_outcome(record: Record, refusal: Any, outcome: Reply | Refusal) -> None:
    if isinstance(outcome, Reply):
        record["revision"] = outcome.first_revision
    record["outcome"] = "ok"
    if isinstance(refusal, Refusal):
        record["outcome"] = "refused"
        record["reason"] = refusal.name
        record["details"] = _details(refusal)


def _details(refusal: Refusal) -> dict[str, str]:
    return dict(refusal.details)


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
