"""The runs of a prepare that are not transactions."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.mux.catalog_stage import CatalogStage
from coordinator.mux.requests import PrepareWork, RequestWork, SessionsStage
from coordinator.mux.run import Run
from coordinator.mux.runs import Leg, RunPlan, Visit
from coordinator.mux.segments import Segment, absorb, compose
from coordinator.mux.types import Item, MuxError, Outcome, Stage


class PrepareRun(Run):
    """Segments that go through their itinerary together."""

    def __init__(
        self,
        prepare: PrepareWork,
        plan: RunPlan,
        segments: Sequence[tuple[RequestWork, Segment]],
        sessions: SessionsStage,
        catalog: CatalogStage,
    ) -> None:
        """Begin before the first visit."""
        super().__init__(prepare.prepare.op, prepare.prepare.feature_level)
        self.prepare = prepare
        self._visits = plan.visits
        self._members = segments
        self._segments = [segment for _, segment in segments]
        self._sessions = sessions
        self._catalog = catalog
        self._made = 0
        self._pending: list[tuple[Item, Segment]] = []

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages of the itinerary."""
        return tuple(sorted(frozenset(visit.stage for visit in self._visits)))

    def wanted(self) -> Stage | None:
        """Return the stage of the next visit."""
        return self._visits[self._made].stage if self._made < len(self._visits) else None

    def needs(self, stage: Stage) -> bool:
        """Return whether the stage comes again."""
        return any(visit.stage == stage for visit in self._visits[self._made :])

    def compose(self) -> tuple[Item, ...]:
        """Make the next visit."""
        visit = self._visits[self._made]
        self._made += 1
        if visit.stage == Stage.SESSIONS:
            self._visit_sessions(visit)
            return ()
        if visit.stage == Stage.CATALOG:
            self._visit_catalog()
            return ()
        self._pending = compose(self._segments, visit)
        return tuple(item for item, _ in self._pending)

    def absorb(self, stage: Stage, outcomes: tuple[Outcome, ...]) -> None:
        """Hand each answer to its segment."""
        absorb_all(stage, self._pending, outcomes)

    def _visit_sessions(self, visit: Visit) -> None:
        """Visit the stage that needs no message."""
        if visit.leg is Leg.BACKWARD:
            self._sessions.apply_effects(self._segments)
        else:
            for request, segment in self._members:
                self._sessions.enter(request, segment, self.feature_level)
        self.prepare.note(self._sessions.machine.take_changes())

    def _visit_catalog(self) -> None:
        """Visit the other stage that needs no message; no effect goes there."""
        for segment in self._segments:
            if segment.route.owner == Stage.CATALOG and segment.is_open:
                self._catalog.apply(self.op, self.feature_level, segment)
        self.prepare.note_catalog(self._catalog.machine.take_changes())


def absorb_all(
    stage: Stage, pending: Sequence[tuple[Item, Segment]], outcomes: Sequence[Outcome]
) -> None:
    """Hand each answer of a batch to its segment. Raises MuxError if they do not fit."""
    if len(outcomes) != len(pending):
        raise MuxError(f"{stage.name} answered {len(pending)} items by {len(outcomes)} outcomes")
    for (item, segment), outcome in zip(pending, outcomes, strict=True):
        absorb(item, segment, outcome)
