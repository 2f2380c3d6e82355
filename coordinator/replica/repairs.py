"""Faults found in copies of snapshot files, kept until somebody listens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from coordinator.snapshot.copies import CopyVerdict


class Repairs:
    """Takes reports from any thread, and keeps those that come before a listener."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: list[tuple[str, tuple[CopyVerdict, ...]]] = []
        self._listener: Callable[[str, Sequence[CopyVerdict]], None] | None = None

    def __call__(self, name: str, verdicts: Sequence[CopyVerdict]) -> None:
        """Take a report about the copies of one file."""
        with self._mutex:
            if self._listener is None:
                self._waiting.append((name, tuple(verdicts)))
                return
            listener = self._listener
        listener(name, verdicts)

    def listen(self, listener: Callable[[str, Sequence[CopyVerdict]], None]) -> None:
        """Pass on all reports so far and all later ones, each in the thread that it comes from."""
        with self._mutex:
            self._listener = listener
            waiting, self._waiting = self._waiting, []
        for name, verdicts in waiting:
            listener(name, verdicts)
