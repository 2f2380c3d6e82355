"""The trace of a start: steps that follow each other, from the process's beginning to service."""

from __future__ import annotations

import time

from opentelemetry.context import Context
from opentelemetry.trace import Tracer, set_span_in_context


class StartWatch:
    """Tells how long which step of a start took. After `serves` nothing more is told."""

    def __init__(self, tracer: Tracer, begun_ns: int) -> None:
        """Begin at `begun_ns`, in nanoseconds since 1970."""
        self._tracer = tracer
        self._root = tracer.start_span("start", Context(), start_time=begun_ns)
        self._since_ns = begun_ns

    def reached(self, step: str) -> None:
        """A step is done, which began where the one before it ended."""
        if not self._root.is_recording():
            return
        now_ns = time.time_ns()
        below = set_span_in_context(self._root, Context())
        self._tracer.start_span(step, below, start_time=self._since_ns).end(now_ns)
        self._since_ns = now_ns

    def serves(self, view: int) -> None:
        """The inherited log is applied, and the replica serves or follows."""
        if self._root.is_recording():
            self.reached("recover")
            self._root.set_attribute("viewstamp.view", view)
            self._root.end(self._since_ns)
