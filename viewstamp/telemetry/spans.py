"""Notes of finished spans, and the recorder that takes them.

A command has no open spans. The code that measures keeps the values, and hands them over as notes
when the work is done. So a command that is not sampled leaves nothing behind, and the hot path
enters and leaves no spans. The writing thread turns notes into the text of spans, many at a time,
which costs a fraction of making each span between two commands. Rare spans come from the SDK
(`provider`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Protocol, TypeAlias

AttributeValue: TypeAlias = str | int | float | bool
Attributes: TypeAlias = Mapping[str, AttributeValue]


class SpanRole(IntEnum):
    """The kind of a span; numbered as in OTLP."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class SpanOutcome(IntEnum):
    """How it ended; numbered as in OTLP, and in the SDK."""

    UNSET = 0
    OK = 1
    ERROR = 2


class Notes(Protocol):
    """Notes of finished work, which no longer change."""

    @property
    def span_count(self) -> int:
        """How many spans `encoded` makes."""
        ...

    def encoded(self) -> Iterable[str]:
        """Make the spans as OTLP JSON, in texts of one or several, with commas between them.

        The result is the same at each call, in every thread.
        """
        ...


def texts_of(notes: Iterable[Notes]) -> Iterable[str]:
    """Yield the spans of notes as OTLP JSON, in texts of one or several."""
    for one in notes:
        yield from one.encoded()


class SpanTaker(Protocol):
    """Where notes go (`spool.Spool`)."""

    def put(self, notes: Notes) -> None:
        """Take notes, or drop and count them; never wait."""


class Recorder:
    """Hands notes to all takers."""

    def __init__(self, takers: Sequence[SpanTaker]) -> None:
        """Hand notes to `takers`.

        `record` hands over notes; it never waits.
        """
        self._takers = tuple(takers)
        is_one = len(self._takers) == 1
        self.record: Callable[[Notes], None] = self._takers[0].put if is_one else self._put

    def _put(self, notes: Notes) -> None:
        for taker in self._takers:
            taker.put(notes)
