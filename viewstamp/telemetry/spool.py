"""A bounded queue and a thread: notes go in without waiting, spans come out in groups.

When the queue is full, notes are dropped and their spans counted. A measured process must not wait
for those who measure it, and must not fill its memory for them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from viewstamp.telemetry.spans import Notes

# About 20 MB; at 10,000 spans per second more than three seconds of a disk that stands still.
SPANS_WAITING_MAX: Final = 32_768
FLUSH_INTERVAL_MS: Final = 250
# Encoded in one go, and what the last notes have more: a tenth of a millisecond for spans of
# prepares, half of one where 128 commands were sampled together. The event loop of the process may
# have to wait this long for the interpreter.
SPANS_PER_GROUP_MIN: Final = 64
# Between two groups. To let the interpreter go for a moment is not enough: whoever waits for it is
# not awake before this thread has it again, and then waits for the interpreter's whole interval.
GROUP_REST_MS: Final = 0.5
# With more of the queue in use there is no rest: better to disturb than to drop.
RESTING_SHARE_MAX: Final = 0.25
CLOSE_TIMEOUT_MS: Final = 5_000

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Where groups of notes end up. Called by one thread."""

    def write(self, notes: Sequence[Notes]) -> None:
        """Write a group. Raises OSError if that cannot be done: the group is dropped.

        Any other error is a defect of the sink. It costs its group alone, and is logged whole.
        """

    def close(self) -> None:
        """Let go of what is held."""


class Spool:
    """Takes notes from any thread. Its own thread gives their spans to `sink`."""

    def __init__(self, name: str, sink: Sink, capacity: int = SPANS_WAITING_MAX) -> None:
        """Start the thread; `name` is for logs."""
        self.name = name
        self.written = 0
        # Who puts holds the lock for `_refused` and `_spans_put`; the others are the writer's own.
        # Reentrant: a handler of a signal may end a span while its thread is in here.
        self._lock = threading.RLock()
        self._refused = 0
        self._failed = 0
        self._sink = sink
        self._capacity = capacity
        self._waiting: deque[Notes] = deque()
        self._spans_put = 0
        self._spans_taken = 0
        self._is_closed = False
        self._stop = threading.Event()
        self._is_failing = False
        # A process that ends without `close` gives up what waits here.
        self._thread = threading.Thread(target=self._run, name=f"telemetry-{name}", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """How many spans were given up: the queue was full, or the sink did not take them."""
        return self._refused + self._failed

    def put(self, notes: Notes) -> None:
        """Queue notes; drop and count them if the queue is full, or closed."""
        count = notes.span_count
        with self._lock:
            if self._is_closed or self._spans_put - self._spans_taken >= self._capacity:
                self._refused += count
            else:
                self._spans_put += count
                self._waiting.append(notes)

    def stop(self) -> None:
        """Take no more, and let the thread write what waits."""
        with self._lock:
            self._is_closed = True  # Set before the writer's last look into the queue.
        self._stop.set()

    def close(self) -> None:
        """Write what waits, and end the thread; what takes too long is given up."""
        self.stop()
        self._thread.join(CLOSE_TIMEOUT_MS / 1000)
        if self._thread.is_alive():
            waiting = self._spans_put - self._spans_taken
            _log.warning("%s: %d spans were dropped at the end", self.name, waiting)

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_INTERVAL_MS / 1000):
            self._drain()
        self._drain()
        self._sink.close()

    def _drain(self) -> None:
        while group := self._next_group():
            self._write(group)
            waiting = self._spans_put - self._spans_taken
            if waiting <= self._capacity * RESTING_SHARE_MAX:
                self._stop.wait(GROUP_REST_MS / 1000)

    def _next_group(self) -> list[Notes]:
        group: list[Notes] = []
        count = 0
        while self._waiting and count < SPANS_PER_GROUP_MIN:
            notes = self._waiting.popleft()
            group.append(notes)
            count += notes.span_count
        self._spans_taken += count
        return group

    def _write(self, group: Sequence[Notes]) -> None:
        count = sum(notes.span_count for notes in group)
        try:
            self._sink.write(group)
        except Exception as error:
            # Whatever a sink meets costs its group: without this thread nothing would be written
            # any more, and nobody would be told.
            self._failed += count
            if not self._is_failing:  # once, until it works again
                is_expected = isinstance(error, OSError)
                _log.warning(
                    "%s: spans are dropped: %s", self.name, error, exc_info=not is_expected
                )
            self._is_failing = True
        else:
            self.written += count
            self._is_failing = False
