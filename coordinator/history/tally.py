"""What builds of earlier states have cost here, and what became of those who asked: for metrics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from viewstamp.errors import Refusal, reason_name
from viewstamp.telemetry.rpc import OK

# Outcomes of builds. Of questions there is the reason of a refusal, too.
FAILED: Final = "failed"
GIVEN_UP: Final = "given_up"


class NobodyWaitsError(Exception):
    """A build was given up between two pieces, because its turn is over."""


class PastTally:
    """Counts since the start of the coordinator. Written on its loop; another thread may read.

    A walk through the log for the history of an entity is a build, too.
    """

    def __init__(self, now_s: Callable[[], float] | None = None) -> None:
        """Tell time by `now_s`, in seconds; by default by the running loop."""
        self.builds: Counter[str] = Counter()  # by outcome: `ok`, `failed` or `given_up`
        self.questions: Counter[str] = Counter()  # by outcome: `ok`, `given_up`, or a reason
        self.replayed_revisions = 0
        self.waiting = 0
        self._built_s = 0.0
        self._begun_s: float | None = None
        self._now_s = now_s

    def now_s(self) -> float:
        """Return the time by which builds are measured, in seconds."""
        return asyncio.get_running_loop().time() if self._now_s is None else self._now_s()

    @property
    def built_s(self) -> float:
        """How long all builds that are over have taken together, in seconds."""
        return self._built_s

    @property
    def is_building(self) -> bool:
        """Whether a build is under way."""
        return self._begun_s is not None

    @contextmanager
    def building(self) -> Iterator[None]:
        """Count a build, its time and its outcome."""
        self._begun_s = begun_s = self.now_s()
        outcome = FAILED
        try:
            yield
            outcome = OK
        except NobodyWaitsError:
            outcome = GIVEN_UP
            raise
        finally:
            self._begun_s = None
            self._built_s += self.now_s() - begun_s
            self.builds[outcome] += 1

    def refused(self, refusal: Refusal) -> None:
        """Count a question that was refused."""
        self.questions[reason_name(refusal.reason)] += 1
