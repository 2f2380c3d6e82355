"""Batches that killed a service, and the commands in them.

A batch that was unanswered when a service died is sent to the next one in isolation: a command that
exhausts the process is taken back there and refused. If the service dies again, it must report each
attempt, and a command at which it died too often is given up. Every replica meets the same command,
so it has the same end on each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from viewstamp.api.domain.v1 import domain_service_pb2 as pb

# Processes that one command may end, seen at that command, before it is given up.
DEATHS_MAX: Final = 3
_Place = tuple[int, int]


class Poison:
    """What is known of the batches of one service since its base, by their sequences."""

    def __init__(self, gave_up: Callable[[pb.Attempt], None]) -> None:
        """Begin empty; `gave_up` is told of each command that is no longer tried."""
        self._gave_up = gave_up
        self._suspects: set[int] = set()
        self._deaths: Counter[int] = Counter()  # of processes that were at the batch in isolation
        self._attempt: pb.Attempt | None = None
        self._ended: Counter[tuple[int, _Place]] = Counter()
        self._given_up: dict[int, list[pb.Attempt]] = {}

    def tries(self, attempt: pb.Attempt) -> None:
        """Note that the service is about to run a handler."""
        self._attempt = attempt

    def answered(self, sequence: int, *, needs_isolation: bool) -> None:
        """Note that the service has survived a batch, perhaps only in isolation."""
        self._attempt = None
        if not needs_isolation:
            self._suspects.discard(sequence)
            self._deaths.pop(sequence, None)

    def died(self, unanswered: Sequence[int]) -> None:
        """Note that the service has died with these batches of the log unanswered."""
        attempt, self._attempt = self._attempt, None
        if not unanswered:
            return
        first = unanswered[0]
        if first in self._suspects:
            self._deaths[first] += 1
        self._suspects.update(unanswered)
        if attempt is not None and attempt.sequence == first:
            self._was_at(attempt)

    def isolation(self, sequence: int) -> pb.Isolate | None:
        """Return how to handle a batch in isolation; None for a normal batch."""
        if sequence not in self._suspects:
            return None
        return pb.Isolate(
            sequence=sequence,
            notes=self._deaths[sequence] > 0,
            given_up=self._given_up.get(sequence, ()),
            confirms=self._deaths[sequence] > 0,
        )

    def forget(self, base_sequence: int) -> None:
        """Forget all up to this batch: it is never sent again."""
        self._suspects = {each for each in self._suspects if each > base_sequence}
        self._deaths = Counter({s: n for s, n in self._deaths.items() if s > base_sequence})
        self._ended = Counter({k: n for k, n in self._ended.items() if k[0] > base_sequence})
        self._given_up = {s: all_ for s, all_ in self._given_up.items() if s > base_sequence}

    def _was_at(self, attempt: pb.Attempt) -> None:
        place = attempt.sequence, (attempt.item, attempt.call)
        self._ended[place] += 1
        if self._ended[place] == DEATHS_MAX:
            self._given_up.setdefault(attempt.sequence, []).append(attempt)
            self._gave_up(attempt)
