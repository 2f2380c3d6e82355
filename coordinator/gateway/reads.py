"""Reads: consistency, deadline, and the wait for an answer from one revision."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol
from zlib import crc32

from coordinator.gateway.gathered_signs import GatheredSigns
from coordinator.gateway.requested_reads import RequestedReads
from coordinator.gateway.routes import Routes
from coordinator.gateway.shares import Shares
from coordinator.mux.types import Caller
from coordinator.replica.batcher import Reply
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal
from viewstamp.limits import (
    FEATURE_LEVEL_SIGNS,
    READ_DEADLINE_MS,
    REQUEST_COMMANDS_MAX,
)
from viewstamp.past_limits import PAST_READ_DEADLINE_MS
from viewstamp.routing import Method, MethodKind
from viewstamp.tokens import AccessToken

CONSISTENCY_KEY: Final = "viewstamp-consistency"
AT_LEAST_PREFIX: Final = "at-least="
AT_PREFIX: Final = "at="
# The share of callers of public methods, who are unknown.
NOBODY: Final = -1
_REVISION_DIGITS_MAX: Final = 20
_REVISION_MAX: Final = 2**64 - 1
_NAMED_CHARACTERS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class ReadConsistency:
    """`linearizable`, or at least a revision, or at an earlier one, or (none of these) stale."""

    linearizable: bool = True
    at_least_revision: int = 0
    at_revision: int = 0


LINEARIZABLE: Final = ReadConsistency()
STALE: Final = ReadConsistency(linearizable=False)


class Reader(Protocol):
    """The replica as seen from here."""

    def read(
        self,
        spans: Sequence[RequestedReads],
        principal: AccessToken | None,
        session_id: int,
        consistency: ReadConsistency,
        address: str,
    ) -> asyncio.Future[Reply]:
        """Start a read of a caller at `address`; the future may fail with Refusal."""

    def read_together(
        self, method: Method, callers: tuple[Caller, ...], items: bytes
    ) -> asyncio.Future[Reply]:
        """Start linearizable reads of several callers; the future may fail with Refusal."""

    def late(self, deadline_ms: int) -> Refusal | None:
        """Return where to send a linearizable read without an answer here; None if nowhere else."""


class ReadStarter:
    """Starts reads and gives each its deadline."""

    def __init__(
        self,
        routes: Routes,
        reader: Reader,
        deadline_ms: int = READ_DEADLINE_MS,
        shares: Shares | None = None,
    ) -> None:
        self._shares = shares
        self._routes = routes
        self._reader = reader
        self._deadline_ms = deadline_ms
        self.begun = 0
        """Reads of callers that were begun since the process started."""
        self._signs = GatheredSigns(self._start_together, self._start_alone)

    def start(
        self,
        spans: Iterable[submit_pb2.Span],
        principal: AccessToken,
        session_id: int,
        consistency: ReadConsistency,
    ) -> asyncio.Future[Reply]:
        """Start the reads of one message. Raises Refusal for malformed reads, or too many."""
        spans = list(spans)
        _check_counts([span.count for span in spans])
        parsed = [
            RequestedReads(self._routes.public_code(s.code, MethodKind.QUERY), s.count, s.items)
            for s in spans
        ]
        _check_private(parsed)
        return self.start_spans(parsed, principal, session_id, consistency)

    def start_spans(
        self,
        spans: Sequence[RequestedReads],
        principal: AccessToken | None,
        session_id: int,
        consistency: ReadConsistency,
        address: str = "",
    ) -> asyncio.Future[Reply]:
        """Start reads; the future fails with Refusal, at the latest at the read deadline.

        Raises Refusal, for example for a user with too many under way.
        """
        if not consistency.at_revision and any(span.method.at_primary for span in spans):
            consistency = LINEARIZABLE  # one that leads no more must not say that it heard somebody
        user_id = share_of(address) if principal is None else principal.user_id
        count = sum(span.count for span in spans)
        self.begun += count
        shares = self._shares
        if shares is not None:
            shares.take_reads(user_id, count)
        try:
            future = None
            if not consistency.at_revision:
                future = self._gathered(spans, principal, session_id)
            if future is None:
                read = self._reader.read(spans, principal, session_id, consistency, address)
                future = self._in_time(read, consistency)
        except Refusal:
            if shares is not None:
                shares.give_reads_back(user_id, count)
            raise
        if shares is not None:
            future.add_done_callback(lambda _: shares.give_reads_back(user_id, count))
        return future

    def _gathered(
        self, spans: Sequence[RequestedReads], principal: AccessToken | None, session_id: int
    ) -> asyncio.Future[Reply] | None:
        """Let signs of life wait for others; return None for all other reads."""
        if len(spans) > 1 or not spans[0].method.at_primary or principal is None:
            return None
        if self._routes.level_in_force() < FEATURE_LEVEL_SIGNS:
            return None  # a service may not know of several callers
        return self._signs.gather(spans[0], principal, session_id)

    def _start_together(
        self, method: Method, callers: tuple[Caller, ...], items: bytes, began_s: float
    ) -> asyncio.Future[Reply]:
        future = self._reader.read_together(method, callers, items)
        return self._in_time(future, LINEARIZABLE, began_s)

    def _start_alone(
        self, span: RequestedReads, principal: AccessToken, session_id: int, began_s: float
    ) -> asyncio.Future[Reply]:
        future = self._reader.read([span], principal, session_id, LINEARIZABLE, "")
        return self._in_time(future, LINEARIZABLE, began_s)

    def _in_time(
        self,
        future: asyncio.Future[Reply],
        consistency: ReadConsistency,
        began_s: float | None = None,
    ) -> asyncio.Future[Reply]:
        """Have a read fail at its deadline; it began at `began_s` of the loop's time, or now."""
        if not future.done():
            loop = asyncio.get_running_loop()
            is_past = consistency.at_revision > 0
            deadline_ms = PAST_READ_DEADLINE_MS if is_past else self._deadline_ms
            end_s = (loop.time() if began_s is None else began_s) + deadline_ms / 1000
            timer = loop.call_at(end_s, self._expire, future, consistency)
            future.add_done_callback(lambda _: timer.cancel())
        return future

    def _expire(self, future: asyncio.Future[Reply], consistency: ReadConsistency) -> None:
        if future.done():
            return
        if consistency.at_revision:
            future.set_exception(_late_past(consistency.at_revision))
        else:
            elsewhere = self._reader.late(self._deadline_ms) if consistency.linearizable else None
            future.set_exception(elsewhere or _late(self._deadline_ms))


def share_of(address: str) -> int:
    """Return the share of callers who have not logged in: one for each address, none a user's.

    With one common share, a flood of logins from anywhere would keep all others from logging in.
    """
    return NOBODY - crc32(address.encode())


def _late(deadline_ms: int) -> Refusal:
    return Refusal(
        Reason.REASON_READ_DEADLINE,
        f"the read was not answered within {deadline_ms} ms: try again, or read with a weaker"
        " consistency",
        deadline_ms=deadline_ms,
    )


def _late_past(revision: int) -> Refusal:
    return Refusal(
        Reason.REASON_READ_DEADLINE,
        f"the state of revision {revision} was not built within {PAST_READ_DEADLINE_MS} ms: try"
        " again, it goes on from where it is; a later revision, or one behind a snapshot, needs"
        " less of the log",
        deadline_ms=PAST_READ_DEADLINE_MS,
        revision=revision,
    )


def _check_private(spans: Iterable[RequestedReads]) -> None:
    """Refuse logins among the reads of a message: each may cost as much as thousands of others."""
    for span in spans:
        if span.method.public:
            raise Refusal(
                Reason.REASON_MALFORMED_REQUEST,
                f"{span.method.full_name} needs no token: call it as a unary call, not in a stream",
                method=span.method.full_name,
            )


def _check_counts(counts: Sequence[int]) -> None:
    """Refuse absurd counts: a span gets as many answers as it claims to hold reads."""
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


def consistency_of(request: submit_pb2.ReadRequest) -> ReadConsistency:
    """Return the consistency that a ReadRequest demands."""
    level = request.consistency.WhichOneof("level")
    if level == "stale" and request.consistency.stale:
        return STALE
    if level == "at_revision" and request.consistency.at_revision:
        return ReadConsistency(False, at_revision=request.consistency.at_revision)
    if level == "at_least_revision":
        return ReadConsistency(False, request.consistency.at_least_revision)
    return LINEARIZABLE


def consistency_of_metadata(metadata: Iterable[tuple[str, Any]] | None) -> ReadConsistency:
    """Return the consistency in the call's metadata. Raises Refusal if it is malformed."""
    for key, value in metadata or ():
        if key == CONSISTENCY_KEY:
            return _parse_consistency(str(value))
    return LINEARIZABLE


def _parse_consistency(text: str) -> ReadConsistency:
    if text == "linearizable":
        return LINEARIZABLE
    if text == "stale":
        return STALE
    prefix, sign, revision = text.partition("=")
    if prefix + sign == AT_LEAST_PREFIX and _is_revision(revision):
        return ReadConsistency(False, int(revision))
    if prefix + sign == AT_PREFIX and _is_revision(revision) and int(revision):
        return ReadConsistency(False, at_revision=int(revision))
    value = text[:_NAMED_CHARACTERS_MAX]
    raise Refusal(
        Reason.REASON_MALFORMED_REQUEST,
        f"{CONSISTENCY_KEY} is {value!r}: use linearizable, stale, {AT_LEAST_PREFIX}<revision>"
        f" or {AT_PREFIX}<revision> with a number of 64 bits",
        value=value,
    )


def _is_revision(text: str) -> bool:
    # Check the length first, so that nobody converts thousands of digits.
    is_number = len(text) <= _REVISION_DIGITS_MAX and text.isascii() and text.isdecimal()
    return is_number and int(text) <= _REVISION_MAX
