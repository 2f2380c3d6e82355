"""Calls packed into requests, and replies taken apart again.

A `PendingCall` is one command or read of one caller; a `PackedBatch` is many commands that one
caller wants in one request. A `Parcel` is what one request carries: several calls, or one batch.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError, Message

from viewstamp import limits
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client.errors import ProtocolError
from viewstamp.errors import Refusal
from viewstamp.framing import frame
from viewstamp.routing import Method, MethodKind, batch_class

if TYPE_CHECKING:
    from viewstamp.client.tracing import CallTrace

# More calls per message gain nothing and delay the first of them.
CALLS_PER_REQUEST_MAX: Final = 128
# A log entry must also hold what the coordinator adds to a request (header, users, hashes).
REQUEST_BYTES_MAX: Final = limits.PREPARE_BODY_BYTES_MAX - 64 * limits.KIB

# Passwords are hashed before a command is logged, which takes tens of milliseconds each. A large
# request would get its answers late and all at once; answers to small ones show progress.
COSTLY_CALLS_PER_REQUEST_MAX: Final = 16

Result = Message | Refusal


@dataclass(slots=True, eq=False)
class PendingCall:
    """One command or read that waits for its result."""

    method: Method
    framed: bytes
    future: asyncio.Future[Any]
    deadline: float  # of the event loop's clock, seconds
    # It must have a request of its own, because a shared request was refused as a whole.
    alone: bool = False
    trace: CallTrace | None = None  # if it is sampled
    timeout_s: float = math.inf

    def wait_on(self, now: float) -> None:
        """Wait for the full timeout again, because the cluster makes progress with such calls."""
        self.deadline = max(self.deadline, now + self.timeout_s)


@dataclass(slots=True, eq=False)
class PackedBatch:
    """Commands that travel in one request; the future gets a list of results."""

    spans: list[submit_pb2.Span]
    methods: list[Method]
    future: asyncio.Future[list[Result]]
    deadline: float
    trace: CallTrace | None = None  # if it is sampled


@dataclass(slots=True, eq=False)
class Parcel:
    """The content of one request: its spans, their methods, and the calls that wait."""

    spans: list[submit_pb2.Span]
    methods: list[Method]
    owners: Sequence[PendingCall | PackedBatch]
    count: int
    traces: Sequence[submit_pb2.CallTrace] = ()  # of sampled owners

    @property
    def is_costly(self) -> bool:
        """Whether a service must normalize a command in it before it is logged."""
        return any(method.normalize for method in self.methods)

    @property
    def is_shared(self) -> bool:
        """Whether several callers' commands are in it."""
        return len(self.owners) > 1

    def results(
        self, header: common_pb2.ResponseHeader, replies: Sequence[submit_pb2.SpanReply]
    ) -> list[Result]:
        """Return the results of the owners. All of them fail if the answer cannot be read."""
        try:
            return read_results(self.methods, self.spans, header, replies)
        except (DecodeError, ProtocolError, IndexError) as error:
            text = f"the cluster's answer cannot be read: {error}"
            self.fail(lambda: ProtocolError(text))
            return []

    def deliver(
        self, header: common_pb2.ResponseHeader, replies: Sequence[submit_pb2.SpanReply]
    ) -> None:
        """Give each owner its result."""
        results = self.results(header, replies)
        first = self.owners[0]
        if isinstance(first, PackedBatch):
            if not first.future.done():
                first.future.set_result(results)
            return
        for owner, result in zip(self.owners, results, strict=False):
            settle(owner.future, result)

    def fail(self, error: Callable[[], Exception]) -> None:
        """Fail every owner that still waits, each with an exception of its own."""
        fail_all(self.owners, error)


def settle(future: asyncio.Future[Any], result: Result) -> None:
    """Give a caller its response, or raise its refusal there, unless the caller has gone."""
    if future.done():
        return
    if isinstance(result, Refusal):
        future.set_exception(result)
    else:
        future.set_result(result)


def fail_all(owners: Iterable[PendingCall | PackedBatch], error: Callable[[], Exception]) -> None:
    """Fail every owner that still waits, each with an exception of its own."""
    for owner in owners:
        if not owner.future.done():
            owner.future.set_exception(error())


def encode(method: Method, request: Message) -> bytes:
    """Return the request, framed. Raises Refusal COMMAND_TOO_LARGE."""
    encoded = request.SerializeToString()
    if len(encoded) > limits.COMMAND_BYTES_MAX:
        raise Refusal(
            Reason.REASON_COMMAND_TOO_LARGE,
            f"the {method.name} request has {len(encoded)} bytes; at most "
            f"{limits.COMMAND_BYTES_MAX} are allowed",
            bytes=len(encoded),
            bytes_max=limits.COMMAND_BYTES_MAX,
        )
    return frame(encoded)


def spans_of(
    commands: Iterable[tuple[Method, bytes]],
) -> tuple[list[submit_pb2.Span], list[Method]]:
    """Return framed requests as spans, neighbours of one method together, and their methods."""
    spans: list[submit_pb2.Span] = []
    methods: list[Method] = []
    items: list[bytes] = []
    current: Method | None = None
    for method, framed in commands:
        if method is not current or method.request is submit_pb2.TransactRequest:
            _close_span(spans, methods, current, items)
            current, items = method, []
        items.append(framed)
    _close_span(spans, methods, current, items)
    return spans, methods


def batch_of(
    commands: Sequence[tuple[Method, bytes]], future: asyncio.Future[Any], deadline: float
) -> PackedBatch:
    """Return commands as one batch. Raises Refusal COMMAND_TOO_LARGE, TypeError for a read."""
    for method, _ in commands:
        if method.kind is not MethodKind.COMMAND:
            raise TypeError(f"{method.name} is a read; a batch holds commands alone: use call()")
    size = sum(len(framed) for _, framed in commands)
    if size > REQUEST_BYTES_MAX or len(commands) > limits.REQUEST_COMMANDS_MAX:
        raise Refusal(
            Reason.REASON_COMMAND_TOO_LARGE,
            f"the batch has {len(commands)} commands in {size} bytes; at most "
            f"{limits.REQUEST_COMMANDS_MAX} commands in {REQUEST_BYTES_MAX} bytes fit: split it",
            commands=len(commands),
            bytes=size,
        )
    spans, methods = spans_of(commands)
    return PackedBatch(spans, methods, future, deadline)


def take_parcel(waiting: deque[PendingCall | PackedBatch], calls_max: int) -> Parcel | None:
    """Take the calls of the next request from the front; None if no call waits any more."""
    calls: list[PendingCall] = []
    size = costly = 0
    while waiting:
        owner = waiting[0]
        if owner.future.done():
            waiting.popleft()
            continue
        if isinstance(owner, PackedBatch):
            return _call_parcel(calls) if calls else _batch_parcel(waiting)
        size += len(owner.framed)
        if calls and (owner.alone or len(calls) >= calls_max or size > REQUEST_BYTES_MAX):
            break
        costly += owner.method.normalize
        if costly > COSTLY_CALLS_PER_REQUEST_MAX:
            break
        calls.append(owner)
        waiting.popleft()
        if owner.alone:
            break
    return _call_parcel(calls) if calls else None


def read_results(
    methods: Sequence[Method],
    spans: Sequence[submit_pb2.Span],
    header: common_pb2.ResponseHeader,
    replies: Sequence[submit_pb2.SpanReply],
) -> list[Result]:
    """Return one response or refusal per call. Raises DecodeError, ProtocolError, IndexError.

    Commands have consecutive revisions from the header's on; reads all have the header's.
    """
    if len(replies) != len(spans):
        raise ProtocolError(f"{len(replies)} spans answer {len(spans)}")
    results: list[Result] = []
    revision = header.revision
    for method, span, reply in zip(methods, spans, replies, strict=True):
        responses = _responses(method, reply.results)
        if len(responses) != span.count:
            raise ProtocolError(f"{len(responses)} results answer {span.count} {method.name} calls")
        for suffix in reply.suffixes:
            responses[suffix.index].MergeFromString(suffix.suffix)
        step = 1 if method.kind is MethodKind.COMMAND else 0
        for response in responses:
            response.header.CopyFrom(header)
            response.header.revision = revision
            revision += step
        for refused in reply.errors:
            responses[refused.index] = Refusal.from_error(refused.error)
        results += responses
    return results


def _responses(method: Method, framed: bytes) -> list[Any]:
    descriptor: Any = method.response.DESCRIPTOR
    return list(batch_class(descriptor).FromString(framed).items)


def _close_span(
    spans: list[submit_pb2.Span], methods: list[Method], method: Method | None, items: list[bytes]
) -> None:
    if method is not None and items:
        spans.append(submit_pb2.Span(code=method.code, count=len(items), items=b"".join(items)))
        methods.append(method)


def _call_parcel(calls: list[PendingCall]) -> Parcel:
    spans, methods = spans_of((call.method, call.framed) for call in calls)
    traces = [call.trace.at(index, 1) for index, call in enumerate(calls) if call.trace is not None]
    return Parcel(spans, methods, calls, len(calls), traces)


def _batch_parcel(waiting: deque[PendingCall | PackedBatch]) -> Parcel:
    batch = waiting.popleft()
    assert isinstance(batch, PackedBatch)
    count = sum(span.count for span in batch.spans)
    traces = () if batch.trace is None else (batch.trace.at(0, count),)
    return Parcel(batch.spans, batch.methods, [batch], count, traces)
