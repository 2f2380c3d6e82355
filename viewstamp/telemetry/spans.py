"""Finished spans, and the recorder that takes them.

There are no open spans: whoever measures keeps what it needs, and makes the span when it is over.
So a command that is not sampled leaves nothing behind, and nothing on the hot path is entered or
left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias

from viewstamp.telemetry.sampling import TraceContext

AttributeValue: TypeAlias = str | int | float | bool
Attributes: TypeAlias = Mapping[str, AttributeValue]


class Kind(IntEnum):
    """What a span is to the others of its trace; numbered as in OTLP."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class Status(IntEnum):
    """How it ended; numbered as in OTLP."""

    UNSET = 0
    OK = 1
    ERROR = 2


class Span(NamedTuple):
    """One finished span. Times are nanoseconds since 1970; `parent_id` is empty for a root."""

    name: str
    kind: Kind
    context: TraceContext
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    links: Sequence[TraceContext] = ()
    status: Status = Status.UNSET
    message: str = ""


class SpanTaker(Protocol):
    """Where spans go (`spool.Spool`)."""

    def put(self, span: Span) -> None:
        """Take a span, or drop and count it; never wait."""


class Recorder:
    """Hands finished spans to all who want them."""

    def __init__(self, takers: Sequence[SpanTaker]) -> None:
        """Hand spans to `takers`."""
        self._takers = tuple(takers)

    def record(self, span: Span) -> None:
        """Hand over a span; never waits."""
        for taker in self._takers:
            taker.put(span)
