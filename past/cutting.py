"""The beginning of a log entry: its commands up to a revision.

A read of the present sees whole entries. A read of the past names any revision, which may lie in
the midst of one. Commands take effect in the order of their revisions, and what an entry has spent
of its budgets before a command depends on the commands before it alone. So the beginning of an
entry leads to the state that its commands had led to by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from coordinator.mux.types import LoggedRequest, LoggedSpan
from viewstamp.framing import frame_all, unframe


def beginning_of(requests: Iterable[LoggedRequest], commands: int) -> tuple[LoggedRequest, ...]:
    """Return the requests of the first commands of an entry; requests behind them are left out."""
    return tuple(_requests(requests, commands))


def _requests(requests: Iterable[LoggedRequest], left: int) -> Iterator[LoggedRequest]:
    for request in requests:
        if not left:
            return
        spans = []
        for span in request.spans:
            if not left:
                break
            spans.append(_span(span, min(left, span.count)))
            left -= spans[-1].count
        yield replace(request, spans=tuple(spans))


def _span(span: LoggedSpan, count: int) -> LoggedSpan:
    if count == span.count:
        return span
    return replace(
        span,
        count=count,
        items=frame_all(unframe(span.items)[:count]),
        refused=tuple(each for each in span.refused if each.index < count),
        parts=span.parts[:count],
        session_commands=span.session_commands[:count],
        catalog_commands=span.catalog_commands[:count],
    )
