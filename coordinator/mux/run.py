"""What every run has in common, and the ordering rule between runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable

from coordinator.mux.stage import SERVICE_STAGES
from coordinator.mux.types import (
    Done,
    Item,
    MuxEffect,
    MuxError,
    Outcome,
    Stage,
)


class Run(ABC):
    """A sequence of visits to stages. `unanswered` counts batches sent and not answered."""

    # Logged batches have a sequence number and survive the death of a service.
    is_logged = True

    def __init__(self, op: int, feature_level: int) -> None:
        """Begin before the first visit."""
        self.op = op
        self.feature_level = feature_level
        self.unanswered = 0
        self.is_counted = False

    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """Return every stage that the run may visit, in stage order."""

    @abstractmethod
    def wanted(self) -> Stage | None:
        """Return the stage of the next visit, None if there is none now or no more."""

    @abstractmethod
    def needs(self, stage: Stage) -> bool:
        """Return whether a visit not yet composed may be to the stage."""

    @abstractmethod
    def compose(self) -> tuple[Item, ...]:
        """Make the wanted visit: return its items, none if there is nothing to say."""

    @abstractmethod
    def absorb(self, stage: Stage, outcomes: tuple[Outcome, ...]) -> None:
        """Take over the answers to a batch. Raises MuxError if they do not fit it."""

    def is_ready(self) -> bool:
        """Return whether the next visit may be composed: all earlier ones were answered."""
        return self.unanswered == 0

    def is_done(self) -> bool:
        """Return whether every visit was made and answered."""
        return self.unanswered == 0 and self.wanted() is None

    def take_answers(self) -> list[MuxEffect]:
        """Return the answers to callers that are ready before the run is done."""
        return []


class ProposalsRun(Run):
    """Asks every domain service for its pending proposals."""

    is_logged = False

    def __init__(self, item: Item, op: int, feature_level: int) -> None:
        """Begin with no service asked."""
        super().__init__(op, feature_level)
        self._item = item
        self._left = list(SERVICE_STAGES)

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages of the domain services."""
        return SERVICE_STAGES

    def wanted(self) -> Stage | None:
        """Return the next service to ask."""
        return self._left[0] if self._left else None

    def needs(self, stage: Stage) -> bool:
        """Return whether the service was not asked yet."""
        return stage in self._left

    def compose(self) -> tuple[Item, ...]:
        """Return the question."""
        self._left.pop(0)
        return (self._item,)

    def absorb(self, stage: Stage, outcomes: tuple[Outcome, ...]) -> None:
        """Check the answer; the shell takes the proposals themselves."""
        if outcomes != (Done(),):
            raise MuxError(f"{stage.name} answered a ProposalsItem by {outcomes!r}")

    def is_ready(self) -> bool:
        """Return True: the answers of the services do not depend on one another."""
        return True


class Turnstiles:
    """THE ordering rule: a run may enter a stage once no earlier run needs it any more."""

    def __init__(self) -> None:
        """Begin with every stage free."""
        self._waiting: dict[Stage, deque[Run]] = {stage: deque() for stage in Stage}

    def queue(self, run: Run, stages: Iterable[Stage]) -> None:
        """Line up the newest run, or one that is still the newest, at stages."""
        for stage in stages:
            self._waiting[stage].append(run)

    def may_enter(self, run: Run, stage: Stage) -> bool:
        """Return whether it is the run's turn."""
        return self._waiting[stage][0] is run

    def is_first_everywhere(self, run: Run) -> bool:
        """Return whether no earlier run needs any stage that this one lines up at."""
        return all(waiting[0] is run for waiting in self._waiting.values())

    def release(self, stages: Iterable[Stage]) -> list[Run]:
        """Let runs that have left the stages for good pass; return those whose turn it became."""
        return [head for stage in stages if (head := self._pass(stage)) is not None]

    def _pass(self, stage: Stage) -> Run | None:
        """Drop runs that no longer need the stage from the front; return a new front."""
        waiting = self._waiting[stage]
        passed = False
        while waiting and not waiting[0].needs(stage):
            waiting.popleft()
            passed = True
        return waiting[0] if waiting and passed else None
