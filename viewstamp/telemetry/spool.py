"""A bounded queue and a thread: spans go in without waiting, and out in groups.

When the queue is full, spans are dropped and counted. A measured process must not wait for those
who measure it, and must not fill its memory for them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from viewstamp.telemetry.spans import Span

# About 20 MB; at 10,000 spans per second more than three seconds of a disk that stands still.
SPANS_WAITING_MAX: Final = 32_768
FLUSH_INTERVAL_MS: Final = 250
# Encoded in one go: the event loop of the process waits for the interpreter meanwhile.
SPANS_PER_GROUP_MAX: Final = 64
CLOSE_TIMEOUT_MS: Final = 5_000

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Where groups of spans end up. Called by one thread."""

    def write(self, spans: Sequence[Span]) -> None:
        """Write a group. Raises OSError if that cannot be done: the group is dropped."""

    def close(self) -> None:
        """Let go of what is held."""


class Spool:
    """Takes spans from one thread, and gives them to `sink` in another."""

    def __init__(self, name: str, sink: Sink, capacity: int = SPANS_WAITING_MAX) -> None:
        """Start the thread; `name` is for logs."""
        self.name = name
        self.dropped = 0
        self.written = 0
        self._sink = sink
        self._capacity = capacity
        self._waiting: deque[Span] = deque()
        self._stop = threading.Event()
        self._is_failing = False
        # A process that ends without `close` gives up what waits here.
        self._thread = threading.Thread(target=self._run, name=f"telemetry-{name}", daemon=True)
        self._thread.start()

    def put(self, span: Span) -> None:
        """Queue a span; drop and count it if the queue is full."""
        if len(self._waiting) >= self._capacity:
            self.dropped += 1
        else:
            self._waiting.append(span)

    def close(self) -> None:
        """Write what waits, and end the thread; what takes too long is given up."""
        self._stop.set()
        self._thread.join(CLOSE_TIMEOUT_MS / 1000)
        if self._thread.is_alive():
            _log.warning("%s: %d spans were given up at the end", self.name, len(self._waiting))

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_INTERVAL_MS / 1000):
            self._drain()
        self._drain()
        self._sink.close()

    def _drain(self) -> None:
        while group := self._next_group():
            self._write(group)
            time.sleep(0)  # lets the event loop have the interpreter between two groups

    def _next_group(self) -> list[Span]:
        waiting = self._waiting
        return [waiting.popleft() for _ in range(min(len(waiting), SPANS_PER_GROUP_MAX))]

    def _write(self, group: Sequence[Span]) -> None:
        try:
            self._sink.write(group)
        except OSError as error:
            self.dropped += len(group)
            if not self._is_failing:  # once, until it works again
                _log.warning("%s: spans are dropped: %s", self.name, error)
            self._is_failing = True
        else:
            self.written += len(group)
            self._is_failing = False
