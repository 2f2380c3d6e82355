"""One plain model of the whole system: one command at a time, to its end, everywhere at once.

No stages, no effects, no undo lists: a transaction works on a copy of the world. The model is told
where prepares begin and end, because two things depend on it: log time, and which replies a
duplicate finds (they are kept when the prepare is applied). A request's header and its principals
are checked once, at its first command; after that the owner of each command decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Final

from google.protobuf.message import DecodeError

from testkit.composite import (
    model_brokers,
    model_groups,
    model_offsets,
    model_placements,
    model_streams,
    model_users,
)
from testkit.composite.world import (
    Call,
    CompositeModelState,
    CompositeRefused,
    CompositeSession,
    is_old,
)
from viewstamp import framing
from viewstamp.api.brokers.v1 import brokers_service_pb2
from viewstamp.api.cluster.v1 import cluster_service_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.sessions.v1 import sessions_service_pb2
from viewstamp.api.streams.v1 import streams_service_pb2
from viewstamp.api.submit.v1 import submit_service_pb2
from viewstamp.api.users.v1 import users_service_pb2
from viewstamp.limits import FEATURE_LEVEL_MAX
from viewstamp.routing import Method, methods_of_file

METHODS: Final[dict[int, Method]] = {
    method.code: method
    for module in (
        sessions_service_pb2, submit_service_pb2, users_service_pb2, streams_service_pb2,
        consumer_groups_service_pb2, cluster_service_pb2, brokers_service_pb2,
    )
    for method in methods_of_file(module.DESCRIPTOR)
}  # fmt: skip
CODES: Final[dict[str, int]] = {method.name: code for code, method in METHODS.items()}
PLAIN: Final = {
    **model_users.COMMANDS,
    **model_users.QUERIES,
    **model_streams.COMMANDS,
    **model_streams.QUERIES,
    **model_brokers.COMMANDS,
    **model_brokers.QUERIES,
    **model_placements.COMMANDS,
    **model_placements.QUERIES,
    **model_groups.INTERNAL,
    **model_groups.PLAIN_QUERIES,
}
ON_TOPICS: Final = {**model_groups.ON_TOPICS, **model_offsets.ON_TOPICS}
DOMAIN_COMMANDS: Final = frozenset(
    CODES[name]
    for name in (*PLAIN, *ON_TOPICS)
    if CODES[name] % 100 < 50 and not METHODS[CODES[name]].internal
)
SYSTEM_USER = (1 << 63) - 1
PARTS_MAX = 128
NONCE_BYTES = 16
SESSIONS_PER_USER_MAX = 64

# What one command came to: the facts of its response, or why it was refused.
Outcome = dict[str, Any] | CompositeRefused


@dataclass
class ModelAnswer:
    """The answer to one request: an outcome per command, span by span, or one refusal.

    Where a client sent another request under the number of an earlier one, it is the earlier's.
    """

    session_id: int
    number: int
    op: int
    first_revision: int
    codes: list[int]
    spans: list[list[Outcome]] = field(default_factory=list)
    error: CompositeRefused | None = None


@dataclass
class Window:
    """The replies that a client may ask for again."""

    acked: int = 0
    last_applied: int = 0
    replies: dict[int, ModelAnswer] = field(default_factory=dict)


class Model:
    """The system as its users see it."""

    def __init__(self) -> None:
        """Begin before the bootstrap."""
        self.world = CompositeModelState()
        self.windows: dict[int, Window] = {}
        self.revision = 0
        self.op = 0
        # Sessions registered in the prepare under way: their windows open when it is applied.
        self._begun: list[int] = []
        # Principals (user, stamp) of the request under way that were refused with its header.
        self._outdated: set[tuple[int, int]] = set()

    def commit(
        self,
        timestamp: int,
        requests: Sequence[log_pb2.LoggedRequest],
        feature_level: int = FEATURE_LEVEL_MAX,
    ) -> list[ModelAnswer]:
        """Apply one prepare; return an answer per request."""
        self.op += 1
        self.world.level = feature_level
        checked = [self._request(timestamp, request) for request in requests]
        for session_id in self._begun:
            self.windows[session_id] = Window()
        answers = [
            self._applied(request, answer, is_duplicate)
            for request, (answer, is_duplicate) in zip(requests, checked, strict=True)
        ]
        alive = self.world.sessions
        self.windows = {key: window for key, window in self.windows.items() if key in alive}
        self._begun = []
        return answers

    def read(self, code: int, item: bytes, call: Call) -> Outcome:
        """Answer one read."""
        try:
            return _decide(self.world, code, item, call)
        except CompositeRefused as refused:
            return refused

    # --- Requests ---

    def _request(self, timestamp: int, request: log_pb2.LoggedRequest) -> tuple[ModelAnswer, bool]:
        """Check a header, then apply the commands; return whether it is a duplicate instead."""
        first = self.revision + 1
        self.revision += sum(span.count for span in request.spans)
        codes = [span.code for span in request.spans]
        answer = ModelAnswer(request.session_id, request.number, self.op, first, codes)
        if not request.spans:
            return answer, False
        try:
            is_duplicate = self._check_header(request)
        except CompositeRefused as refused:
            answer.error = refused
            return answer, False
        if not is_duplicate:
            outdated = [span for span in request.spans if self._has_old_stamp(span)]
            self._outdated = {(span.user_id, span.credential_revision) for span in outdated}
            answer.spans = self._spans(timestamp, request, first)
        return answer, is_duplicate

    def _check_header(self, request: log_pb2.LoggedRequest) -> bool:
        """Return whether the request was seen before. Raises Refused."""
        if not request.session_id:
            return False
        session = self.world.sessions.get(request.session_id)
        if session is None:
            raise CompositeRefused("SESSION_EVICTED", session=request.session_id)
        for span in request.spans:
            if span.user_id != session.user_id:
                raise CompositeRefused("PERMISSION_DENIED")
            if self._has_old_stamp(span):
                raise CompositeRefused("UNAUTHENTICATED")
        if request.number <= session.last_number:
            return True
        if request.number > session.last_number + 1:
            raise CompositeRefused("REQUEST_GAP", resend_from=session.last_number + 1)
        session.last_number = request.number
        return False

    def _applied(
        self, request: log_pb2.LoggedRequest, answer: ModelAnswer, is_duplicate: bool
    ) -> ModelAnswer:
        """Let `acked` take effect, then keep the answer, or give the one that was kept."""
        window = self.windows.get(request.session_id)
        if window is None:
            if request.session_id and not request.spans:
                answer.error = CompositeRefused("SESSION_EVICTED", session=request.session_id)
            return answer
        window.acked = max(window.acked, min(request.acked, window.last_applied))
        window.replies = {n: kept for n, kept in window.replies.items() if n > window.acked}
        if is_duplicate:
            if request.number in window.replies:
                return window.replies[request.number]
            answer.error = CompositeRefused("REQUEST_TOO_OLD")
        elif request.spans and answer.error is None:
            window.last_applied = request.number
            window.replies[request.number] = self._kept(answer)
        return answer

    def _kept(self, answer: ModelAnswer) -> ModelAnswer:
        """Return an answer as a duplicate finds it: details of refusals are not kept at level 1."""
        if self.world.is_bounded:
            return answer
        spans = [[_reason_alone(outcome) for outcome in outcomes] for outcomes in answer.spans]
        return replace(answer, spans=spans)

    # --- Commands ---

    def _spans(
        self, timestamp: int, request: log_pb2.LoggedRequest, revision: int
    ) -> list[list[Outcome]]:
        """Apply the commands of an admitted request, one after the other."""
        spans = []
        for span in request.spans:
            outcomes: list[Outcome] = []
            for index in range(span.count):
                call = Call(
                    revision,
                    timestamp,
                    span.user_id,
                    span.credential_revision,
                    request.session_id,
                )
                outcomes.append(self._command(span, index, call))
                revision += 1
            spans.append(outcomes)
        return spans

    def _command(self, span: log_pb2.LoggedSpan, index: int, call: Call) -> Outcome:
        """Apply one command; a refused one changes nothing."""
        for refused in span.refused:
            if refused.index == index:
                return of_error(refused.error)
        try:
            return self._admitted(span, index, call)
        except CompositeRefused as refused:
            return refused

    def _admitted(self, span: log_pb2.LoggedSpan, index: int, call: Call) -> Outcome:
        """Apply one command that was not refused before the log."""
        method = METHODS[span.code]
        request = _parsed(method.request, _item(span, index)) if span.code < 100 else None
        if call.session_id and not self._is_alive(call):
            raise CompositeRefused("SESSION_EVICTED", session=call.session_id)
        if method.internal and call.user_id != SYSTEM_USER:
            raise CompositeRefused("PERMISSION_DENIED")
        if (call.user_id, call.stamp) in self._outdated:
            raise CompositeRefused("UNAUTHENTICATED")
        if request is None:
            return self._domain_command(span.code, _item(span, index), call)
        if method.name == "Transact":
            return self._transaction(request, call)
        if self._has_old_stamp(span):
            raise CompositeRefused("UNAUTHENTICATED")
        return self._session_command(method.name, request, call)

    def _is_alive(self, call: Call) -> bool:
        """Return whether the request's session lives, or ended together with its user's power."""
        return call.session_id in self.world.sessions or self._is_old(call.user_id, call.stamp)

    def _has_old_stamp(self, span: log_pb2.LoggedSpan) -> bool:
        """Return whether a principal's credentials have changed since they were checked."""
        return self._is_old(span.user_id, span.credential_revision)

    def _is_old(self, user_id: int, stamp: int) -> bool:
        world = self.world
        return is_old(stamp, world.floors.get(user_id, 0), world.token_floors.get(user_id, 0))

    def _domain_command(self, code: int, item: bytes, call: Call) -> dict[str, Any]:
        """Decide one domain command; one that is only to be validated works on a copy."""
        is_validation = _is_validation(code, item, self.world.level)
        world = deepcopy(self.world) if is_validation else self.world
        return _decide(world, code, item, call)

    def _session_command(self, name: str, request: Any, call: Call) -> dict[str, Any]:
        if name == "RegisterSession":
            return self._register(request.nonce, call)
        if name == "EndSession":
            if not call.session_id:
                raise CompositeRefused("SESSION_REQUIRED")
            if not (request.validate_only and self.world.has_guards):
                self._end_session(call.session_id, call)
            return {}
        if name == "ExpireSession":
            session = self.world.sessions.get(request.session_id)
            if session is not None and session.last_number <= request.last_request_number:
                self._end_session(session.id, call)
            return {}
        raise AssertionError(f"{name} is no command on sessions")

    def _register(self, nonce: bytes, call: Call) -> dict[str, Any]:
        mine = [s for s in self.world.sessions.values() if s.user_id == call.user_id]
        for session in mine:
            if session.nonce == nonce:
                return {"session_id": session.id}
        if len(mine) >= SESSIONS_PER_USER_MAX:
            raise CompositeRefused("SESSION_LIMIT")
        self.world.sessions[call.revision] = CompositeSession(call.revision, call.user_id, nonce)
        self._begun = [*self._begun, call.revision]
        return {"session_id": call.revision}

    def _end_session(self, session_id: int, call: Call) -> None:
        del self.world.sessions[session_id]
        model_groups.drop_members(self.world, lambda member: member.session_id == session_id, call)

    def _transaction(self, request: Any, call: Call) -> dict[str, Any]:
        """Apply parts in order, on a copy that replaces the world if all went well.

        It does not if the transaction only validates.
        """
        parts: Sequence[Any] = request.parts
        if not 1 <= len(parts) <= PARTS_MAX:
            raise CompositeRefused("MALFORMED_REQUEST")
        before, self.world = self.world, deepcopy(self.world)
        results = []
        for index, part in enumerate(parts):
            try:
                _check_part(part.code)
                result = self._domain_command(part.code, part.request, call)
            except CompositeRefused as refused:
                self.world = before
                raise CompositeRefused(refused.reason, **refused.details, part=index) from refused
            results.append((part.code, result))
        if request.validate_only and before.has_guards:
            self.world = before
            self.world.turns.add("transaction validated")
        return {"results": results}


def _reason_alone(outcome: Outcome) -> Outcome:
    return CompositeRefused(outcome.reason) if isinstance(outcome, CompositeRefused) else outcome


def of_error(error: errors_pb2.Error) -> CompositeRefused:
    """Return the refusal that an error says, to the last detail."""
    details = {detail.key: detail.value for detail in error.details}
    return CompositeRefused(errors_pb2.Reason.Name(error.reason).removeprefix("REASON_"), **details)


def _check_part(code: int) -> None:
    """Refuse what may not be part of a transaction."""
    if code not in METHODS:
        raise CompositeRefused("UNIMPLEMENTED")
    if code not in DOMAIN_COMMANDS:
        raise CompositeRefused("MALFORMED_REQUEST")


def _is_validation(code: int, item: bytes, level: int) -> bool:
    """Return whether a command is to be decided, and to change nothing."""
    method = METHODS[code]
    try:
        request = method.request.FromString(item)
    except DecodeError:
        return False
    is_known = level >= method.field_levels.get("validate_only", 1)
    return is_known and bool(getattr(request, "validate_only", False))


def _item(span: log_pb2.LoggedSpan, index: int) -> bytes:
    """Return the request of one command; a span that is not what it claims is refused whole."""
    try:
        items = framing.unframe(span.items)
    except framing.FramingError as error:
        raise CompositeRefused("MALFORMED_REQUEST") from error
    if len(items) != span.count:
        raise CompositeRefused("MALFORMED_REQUEST")
    return items[index]


def _parsed(message: Any, item: bytes) -> Any:
    try:
        request = message.FromString(item)
    except DecodeError as error:
        raise CompositeRefused("MALFORMED_REQUEST") from error
    if message is sessions_service_pb2.RegisterSessionRequest and len(request.nonce) != NONCE_BYTES:
        raise CompositeRefused("MALFORMED_REQUEST")
    if message is submit_service_pb2.TransactRequest and not request.parts:
        raise CompositeRefused("MALFORMED_REQUEST")
    return request


def _decide(world: CompositeModelState, code: int, item: bytes, call: Call) -> dict[str, Any]:
    """Decide one command or read of a domain."""
    method = METHODS[code]
    if method.name in PLAIN:
        if method.name in model_groups.PLAIN_QUERIES:
            world.caller(call)  # streams looks at the caller before anybody reads the request
        return PLAIN[method.name](world, _parsed(method.request, item), call)
    flags, handler = ON_TOPICS[method.name]
    caller = world.caller(call)
    # Stream and topic are read first, from whatever can be read at all.
    named = _parsed(streams_service_pb2.GetTopicRequest, item)
    _, topic = world.topic(caller, named.stream, named.topic, *flags)
    return handler(world, topic, _parsed(method.request, item), call)
