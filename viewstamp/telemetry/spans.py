"""Finished spans, notes of them, and the recorder that takes both.

There are no open spans: whoever measures keeps what it needs, and hands it over when the work is
done. So a command that is not sampled leaves nothing behind, and nothing on the hot path is entered
or left. Where time matters what is handed over are notes, which become spans where they are
written: many at a time, which costs a fraction of making each between two commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias

from viewstamp.telemetry import otlp
from viewstamp.telemetry.sampling import TraceContext

AttributeValue: TypeAlias = str | int | float | bool
Attributes: TypeAlias = Mapping[str, AttributeValue]


class SpanRole(IntEnum):
    """What a span is to the others of its trace; numbered as in OTLP."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class SpanOutcome(IntEnum):
    """How it ended; numbered as in OTLP."""

    UNSET = 0
    OK = 1
    ERROR = 2


class TraceSpan(NamedTuple):
    """One finished span. Times are nanoseconds since 1970; `parent_id` is empty for a root."""

    name: str
    kind: SpanRole
    context: TraceContext
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    links: Sequence[TraceContext] = ()
    status: SpanOutcome = SpanOutcome.UNSET
    message: str = ""

    @property
    def span_count(self) -> int:
        """How many spans `spans` makes."""
        return 1

    def spans(self) -> Iterable[TraceSpan]:
        """Return itself: a span is the note of one span."""
        return (self,)

    def encoded(self) -> Iterable[str]:
        """Return it as OTLP JSON."""
        name, kind, context, parent_id, start_ns, end_ns, attributes, links, status, message = self
        text = otlp.attributes_of(attributes) if attributes else ""
        head = otlp.shared(context.trace_id, parent_id, kind, text)
        more = otlp.links_of(links) + otlp.status_of(status, message)
        return (head + more + otlp.own(context.span_id, name, start_ns, end_ns),)


class Notes(Protocol):
    """What was noted of finished work. Nobody changes it any more."""

    @property
    def span_count(self) -> int:
        """How many spans `spans` makes."""
        ...

    def spans(self) -> Iterable[TraceSpan]:
        """Make the spans; the same ones each time, in whatever thread."""
        ...

    def encoded(self) -> Iterable[str]:
        """Make the spans as OTLP JSON, in texts of one or several, with commas between them.

        They say what those of `spans` say.
        """
        ...


def encoded_each(spans: Iterable[TraceSpan]) -> Iterable[str]:
    """Return each span as OTLP JSON: `encoded` of notes that know no shorter way."""
    return [text for span in spans for text in span.encoded()]


def texts_of(notes: Iterable[Notes]) -> Iterable[str]:
    """Yield the spans of notes as OTLP JSON, in texts of one or several."""
    for one in notes:
        yield from one.encoded()


class SpanTaker(Protocol):
    """Where notes go (`spool.Spool`)."""

    def put(self, notes: Notes) -> None:
        """Take notes, or drop and count them; never wait."""


class Recorder:
    """Hands notes to all who want them."""

    def __init__(self, takers: Sequence[SpanTaker]) -> None:
        """Hand notes to `takers`.

        `record` hands over a span, or notes of several; it never waits.
        """
        self._takers = tuple(takers)
        is_one = len(self._takers) == 1
        self.record: Callable[[Notes], None] = self._takers[0].put if is_one else self._put

    def _put(self, notes: Notes) -> None:
        for taker in self._takers:
            taker.put(notes)
