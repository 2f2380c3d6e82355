"""Reads: consistency, deadline, and the wait for an answer from one revision."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from coordinator.gateway.routes import Routes
from coordinator.replica.batcher import Reply
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal
from viewstamp.limits import READ_DEADLINE_MS, REQUEST_COMMANDS_MAX
from viewstamp.routing import Method, MethodKind
from viewstamp.tokens import AccessToken

CONSISTENCY_KEY: Final = "viewstamp-consistency"
AT_LEAST_PREFIX: Final = "at-least="


@dataclass(frozen=True, slots=True)
class Consistency:
    """`linearizable`, or at least a revision, or (neither) stale."""

    linearizable: bool = True
    at_least_revision: int = 0


LINEARIZABLE: Final = Consistency()
STALE: Final = Consistency(linearizable=False)


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """Consecutive reads of one method."""

    method: Method
    count: int
    items: bytes


class Reader(Protocol):
    """The replica as seen from here."""

    def read(
        self,
        spans: Sequence[ReadSpan],
        principal: AccessToken | None,
        session_id: int,
        consistency: Consistency,
    ) -> asyncio.Future[Reply]:
        """Start a read; the future may fail with Refusal."""

    def late(self, deadline_ms: int) -> Refusal | None:
        """Return where a linearizable read belongs that got no answer here; None: nowhere else."""


class Reads:
    """Starts reads and gives each its deadline."""

    def __init__(self, routes: Routes, reader: Reader, deadline_ms: int = READ_DEADLINE_MS) -> None:
        self._routes = routes
        self._reader = reader
        self._deadline_ms = deadline_ms

    def start(
        self,
        spans: Iterable[submit_pb2.Span],
        principal: AccessToken,
        session_id: int,
        consistency: Consistency,
    ) -> asyncio.Future[Reply]:
        """Start the reads of one message. Raises Refusal if they are none, or too many."""
        spans = list(spans)
        _check_counts([span.count for span in spans])
        parsed = [
            ReadSpan(self._routes.public_code(s.code, MethodKind.QUERY), s.count, s.items)
            for s in spans
        ]
        return self.start_spans(parsed, principal, session_id, consistency)

    def start_spans(
        self,
        spans: Sequence[ReadSpan],
        principal: AccessToken | None,
        session_id: int,
        consistency: Consistency,
    ) -> asyncio.Future[Reply]:
        """Start reads; the future fails with Refusal, at the latest at the read deadline."""
        future = self._reader.read(spans, principal, session_id, consistency)
        if not future.done():
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self._deadline_ms / 1000, self._expire, future, consistency)
            future.add_done_callback(lambda _: timer.cancel())
        return future

    def _expire(self, future: asyncio.Future[Reply], consistency: Consistency) -> None:
        if not future.done():
            elsewhere = self._reader.late(self._deadline_ms) if consistency.linearizable else None
            future.set_exception(elsewhere or _late(self._deadline_ms))


def _late(deadline_ms: int) -> Refusal:
    return Refusal(
        Reason.REASON_READ_DEADLINE,
        f"the read was not answered within {deadline_ms} ms: try again, or read with a weaker"
        " consistency",
        deadline_ms=deadline_ms,
    )


def _check_counts(counts: Sequence[int]) -> None:
    """Believe no count that is absurd: as many answers are made as a span claims to hold reads."""
    if not counts or not all(counts):
        raise Refusal(
            Reason.REASON_MALFORMED_REQUEST,
            "a read needs at least one span, and each span at least one call",
        )
    if sum(counts) > REQUEST_COMMANDS_MAX:
        raise Refusal(
            Reason.REASON_COMMAND_TOO_LARGE,
            f"the request has {sum(counts)} reads; at most {REQUEST_COMMANDS_MAX} are allowed:"
            " split it",
            reads=sum(counts),
            reads_max=REQUEST_COMMANDS_MAX,
        )


def consistency_of(request: submit_pb2.ReadRequest) -> Consistency:
    """Return what a ReadRequest demands."""
    level = request.consistency.WhichOneof("level")
    if level == "stale" and request.consistency.stale:
        return STALE
    if level == "at_least_revision":
        return Consistency(False, request.consistency.at_least_revision)
    return LINEARIZABLE


def consistency_of_metadata(metadata: Iterable[tuple[str, Any]] | None) -> Consistency:
    """Return what the call's `viewstamp-consistency` demands. Raises Refusal if malformed."""
    for key, value in metadata or ():
        if key == CONSISTENCY_KEY:
            return _parse_consistency(str(value))
    return LINEARIZABLE


def _parse_consistency(text: str) -> Consistency:
    if text == "linearizable":
        return LINEARIZABLE
    if text == "stale":
        return STALE
    revision = text.removeprefix(AT_LEAST_PREFIX)
    if text.startswith(AT_LEAST_PREFIX) and revision.isdecimal():
        return Consistency(False, int(revision))
    raise Refusal(
        Reason.REASON_MALFORMED_REQUEST,
        f"{CONSISTENCY_KEY} is {text!r}: use linearizable, stale or {AT_LEAST_PREFIX}<revision>",
        value=text,
    )
