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

# About 20 MB; at 10,000 spans per second enough for a disk that stalls for three seconds.
SPANS_WAITING_MAX: Final = 32_768
FLUSH_INTERVAL_MS: Final = 250
# A group ends with the notes that reach this number. To encode it takes a tenth of a millisecond
# for spans of prepares, half a millisecond if 128 commands were sampled together. The event loop of
# the process may have to wait so long for the interpreter.
SPANS_PER_GROUP_MIN: Final = 64
# The pause between two groups. A momentary release of the interpreter is not enough: this thread
# takes it again before a waiting thread is awake, which then waits for the whole switch interval.
GROUP_REST_MS: Final = 0.5
# If more of the queue is in use, there is no pause: a disturbance is better than dropped spans.
RESTING_SHARE_MAX: Final = 0.25
CLOSE_TIMEOUT_MS: Final = 5_000

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """The destination of groups of notes. One thread calls it."""

    def write(self, notes: Sequence[Notes]) -> None:
        """Write a group. Raises OSError if that fails; the caller then drops the group.

        Any other error is a defect of the sink. It costs only its group, and is logged with its
        traceback.
        """

    def close(self) -> None:
        """Release files and connections."""


class Spool:
    """Takes notes from any thread. Its own thread gives their spans to `sink`."""

    def __init__(self, name: str, sink: Sink, capacity: int = SPANS_WAITING_MAX) -> None:
        """Start the thread; `name` is for logs."""
        self.name = name
        self.written = 0
        # `put` holds the lock for `_refused` and `_spans_put`; only the writer uses the others.
        # It is reentrant, because a signal handler may end a span while its thread is in `put`.
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
        # A process that ends without `close` loses the waiting notes.
        self._thread = threading.Thread(target=self._run, name=f"telemetry-{name}", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """How many spans were dropped because the queue was full, or the sink failed."""
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
        """Accept no more notes, and let the thread write the waiting ones."""
        with self._lock:
            self._is_closed = True  # Set before the writer's last look into the queue.
        self._stop.set()

    def close(self) -> None:
        """Write the waiting notes, and end the thread; drop the rest after a timeout."""
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
            # Any error of a sink costs only its group: without this thread nothing more would be
            # written, and nobody would learn of it.
            self._failed += count
            if not self._is_failing:  # logged once, until the sink works again
                is_expected = isinstance(error, OSError)
                _log.warning(
                    "%s: spans are dropped: %s", self.name, error, exc_info=not is_expected
                )
            self._is_failing = True
        else:
            self.written += count
            self._is_failing = False
