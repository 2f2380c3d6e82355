"""How answers become results: refusals of several places merged, frames kept aligned by index."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from coordinator.mux.types import EMPTY_FRAME, IndexedError, MuxError, SpanReply


def empty_frames(count: int) -> bytes:
    """Return the results of `count` commands that have none."""
    return EMPTY_FRAME * count


def check_errors(errors: Sequence[IndexedError], count: int, what: str) -> None:
    """Raise MuxError unless the indexes ascend and lie below `count`; `what` names the span."""
    previous = -1
    for error in errors:
        if not previous < error.index < count:
            raise MuxError(
                f"{what}: refused index {error.index} after {previous}; "
                f"indexes must ascend and lie below {count}"
            )
        previous = error.index


def merge_errors(
    earlier: Iterable[IndexedError], later: Iterable[IndexedError], what: str
) -> tuple[IndexedError, ...]:
    """Return the refusals of two places by ascending index. Raises MuxError if they overlap."""
    merged = sorted((*earlier, *later), key=lambda error: error.index)
    for left, right in itertools.pairwise(merged):
        if left.index == right.index:
            raise MuxError(f"{what}: index {left.index} was refused twice")
    return tuple(merged)


def join_spans(parts: Sequence[SpanReply]) -> SpanReply:
    """Return one span's reply from replies to its commands one by one."""
    errors = [
        IndexedError(index, part.errors[0].error) for index, part in enumerate(parts) if part.errors
    ]
    return SpanReply(b"".join(part.results for part in parts), tuple(errors))
