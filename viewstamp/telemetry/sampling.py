"""Which traces are kept, and how a trace continues in another process (W3C Trace Context).

Sampling is parent-based: the process that begins a trace decides for all of it, by a ratio. The
receiver of a `traceparent` follows it, whether it says "sampled" or "not sampled". Without a
`traceparent` the receiver decides whether to begin a trace of its own.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

TRACE_ID_BITS: Final = 128
SPAN_ID_BITS: Final = 64
# Low bits of a span id that one holder of a random number may count in: enough for sixteen spans
# for each command of a prepare, and for those of many visits to stages.
NUMBERED_ID_BITS: Final = 20
TRACE_PARENT_CHARACTERS: Final = 55  # of a `traceparent` that this version makes
# The places of the ids in a `traceparent`.
TRACE_ID_PLACE: Final = slice(3, 35)
SPAN_ID_PLACE: Final = slice(36, 52)
# Calls of a client that share one sampling decision, because they are sent together.
GROUP_CALLS_MAX: Final = 128
# Version 00; a newer version may append more, which is ignored.
_TRACE_PARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})"
)
_SAMPLED_FLAG: Final = 1
# Any number of texts of `format_trace_parent`.
_PLAIN_TRACE_PARENTS: Final = re.compile("(?:00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-01)*")


class TraceContext(NamedTuple):
    """A span as other processes name it: 32 and 16 lower-case hexadecimal digits."""

    trace_id: str
    span_id: str


class TraceParent(NamedTuple):
    """The content of a `traceparent`: the caller's span, and whether its trace is sampled."""

    context: TraceContext
    is_sampled: bool


def parse_trace_parent(text: str) -> TraceParent | None:
    """Return the content of a `traceparent`; None for a malformed one, which must be ignored."""
    found = _TRACE_PARENT.fullmatch(text)
    if found is None:
        return None
    trace_id, span_id, flags = found.groups()
    return TraceParent(TraceContext(trace_id, span_id), bool(int(flags, 16) & _SAMPLED_FLAG))


def sampled_parent(text: str) -> TraceContext | None:
    """Return the span that a `traceparent` names, None if it is malformed or not sampled."""
    found = _TRACE_PARENT.fullmatch(text)
    if found is None:
        return None
    trace_id, span_id, flags = found.groups()
    return TraceContext(trace_id, span_id) if int(flags, 16) & _SAMPLED_FLAG else None


def are_plain(trace_parents: Sequence[str]) -> bool:
    """Whether all have the form of `format_trace_parent`, so that `context_in` can read them.

    One check of all takes a third of the time of a check of each.
    """
    if set(map(len, trace_parents)) - {TRACE_PARENT_CHARACTERS}:
        return False
    return _PLAIN_TRACE_PARENTS.fullmatch("".join(trace_parents)) is not None


def format_trace_parent(context: TraceContext) -> str:
    """Return the `traceparent` of a sampled span."""
    return f"00-{context.trace_id}-{context.span_id}-01"


def context_in(text: str) -> TraceContext:
    """Return the context in a text of `format_trace_parent`; no other text is allowed."""
    return TraceContext(text[TRACE_ID_PLACE], text[SPAN_ID_PLACE])


def trace_ids_in(texts: Iterable[str]) -> list[str]:
    """Return the trace ids in texts of `format_trace_parent`."""
    return [text[TRACE_ID_PLACE] for text in texts]


def span_ids_in(texts: Iterable[str]) -> list[str]:
    """Return the span ids in texts of `format_trace_parent`."""
    return [text[SPAN_ID_PLACE] for text in texts]


_ROOT_BYTES: Final = (TRACE_ID_BITS + SPAN_ID_BITS) // 8
_ZEROS: Final = "0" * 16  # an id may be all zeros only in digits that hold these


GENERATOR: Final = random.Random()
"""Draws all ids: an application that seeds the generator of `random` must not repeat ours."""


def new_span_id() -> str:
    """Return the id of a new span; never all zeros."""
    return f"{GENERATOR.getrandbits(SPAN_ID_BITS) or 1:016x}"


def new_trace_id() -> str:
    """Return the id of a new trace; never all zeros."""
    return f"{GENERATOR.getrandbits(TRACE_ID_BITS) or 1:032x}"


def new_root() -> TraceContext:
    """Return the first span of a new trace."""
    return TraceContext(new_trace_id(), new_span_id())


def new_root_trace_parent() -> str:
    """Return the `traceparent` of the first span of a new trace."""
    digits = GENERATOR.randbytes(_ROOT_BYTES).hex()
    if _ZEROS in digits:
        return format_trace_parent(new_root())
    return f"00-{digits[:32]}-{digits[32:]}-01"


def new_root_bits() -> int:
    """Return random bits, from which `root_of` later makes the first span of a new trace."""
    return GENERATOR.getrandbits(TRACE_ID_BITS + SPAN_ID_BITS)


def root_of(bits: int) -> TraceContext:
    """Return the first span for these bits, always the same one; neither id is all zeros."""
    span_id = bits & (1 << SPAN_ID_BITS) - 1
    return TraceContext(f"{bits >> SPAN_ID_BITS or 1:032x}", f"{span_id or 1:016x}")


def new_id_base() -> int:
    """Return a base for `numbered_id`: one random number for several spans of a trace."""
    return GENERATOR.getrandbits(SPAN_ID_BITS - NUMBERED_ID_BITS) << NUMBERED_ID_BITS


def numbered_id(base: int, number: int) -> str:
    """Return the id of the `number`-th span above `base`; numbers begin with 1."""
    return f"{base + number:016x}"


class Sampler:
    """Samples the traces that begin here: keeps a `ratio` of them, from 0 to 1."""

    def __init__(self, ratio: float, draw: Callable[[], float] = GENERATOR.random) -> None:
        """Raise ValueError for an invalid ratio. `draw` returns a number from 0 to below 1."""
        if not 0.0 <= ratio <= 1.0:
            raise ValueError(f"the trace ratio is {ratio}: give a number from 0 to 1")
        self.ratio = ratio
        self._draw = draw

    def keeps(self) -> bool:
        """Whether a trace that begins now is kept."""
        return self._draw() < self.ratio


class CallSampler:
    """Keeps a `ratio` of calls, by groups of calls that are sent together: all of a group, or none.

    A message or a prepare with sampled calls has its additional cost only once, and work for many
    calls at a time costs less for each. A call that is sent alone is drawn alone. Each call is kept
    with the probability `ratio`, whatever the groups. This runs in every call, so it reads no
    clock.
    """

    __slots__ = ("_draw", "_ratio", "is_kept", "left")

    def __init__(self, ratio: float, draw: Callable[[], float] = GENERATOR.random) -> None:
        """`draw` returns a number from 0 to below 1.

        A call belongs to the group while `left` is not 0, and takes one of it; `is_kept` is about
        the whole group. Otherwise it is the first of a group.
        """
        self._ratio = ratio
        self._draw = draw
        self.is_kept = False
        self.left = 0

    def begin_group(self) -> None:
        """Draw for a call that belongs to no group, and for the calls after it."""
        self.is_kept = self._draw() < self._ratio
        self.left = GROUP_CALLS_MAX

    def end_group(self) -> None:
        """End the group, because its calls are sent; the next call is the first of a group."""
        self.left = 0
