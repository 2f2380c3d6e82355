"""The cut: the only run that waits for everything before it, at every stage.

It begins once its prepare is the oldest unapplied one and no earlier run needs any stage. Then, in
one step, the catalog decides, the sections inside the mux are frozen, and the services are told.
Each service freezes when it gets the message, before anything sent behind it. So later runs may
enter a stage as soon as that stage was told: a hanging service holds back only its own commands and
reads. Replies change only when a prepare is applied, in op order.
"""

from __future__ import annotations

from coordinator.mux.catalog_stage import CatalogStage
from coordinator.mux.catalog_types import BeginSnapshot
from coordinator.mux.requests import PrepareWork, RequestWork, SessionsStage
from coordinator.mux.run import Run
from coordinator.mux.segments import Segment
from coordinator.mux.stage import STAGES, Stage, cut_services
from coordinator.mux.types import CutItem, Done, Item, MuxError, Outcome
from viewstamp import limits


class CutRun(Run):
    """BeginSnapshot, alone in its prepare. If it is refused or a no-op, no service is told."""

    def __init__(
        self,
        prepare: PrepareWork,
        request: RequestWork,
        segment: Segment,
        sessions: SessionsStage,
        catalog: CatalogStage,
    ) -> None:
        """Begin before anything is decided. Raises MuxError if the command is not alone."""
        super().__init__(prepare.prepare.op, prepare.prepare.feature_level)
        _check_alone(prepare, request)
        self.prepare = prepare
        self.has_begun = False
        self._request = request
        self._segment = segment
        self._sessions = sessions
        self._catalog = catalog
        self._generation = 0
        self._left: list[Stage] = [Stage.SESSIONS]

    def stages(self) -> tuple[Stage, ...]:
        """Return all stages: all are cut at the same place of the log."""
        return STAGES

    def wanted(self) -> Stage | None:
        """Return the next stage to freeze; the first step is for sessions and catalog alike."""
        return self._left[0] if self._left else None

    def needs(self, stage: Stage) -> bool:
        """Return whether the stage has not been told; behind the cut it is free."""
        return not self.has_begun or stage in self._left

    def is_ready(self) -> bool:
        """Return True: the answers of the services do not depend on one another."""
        return True

    def compose(self) -> tuple[Item, ...]:
        """Decide, or tell the next service."""
        self._left.pop(0)
        if self.has_begun:
            return (CutItem(self._generation),)
        self.has_begun = True
        self._decide()
        return ()

    def absorb(self, stage: Stage, outcomes: tuple[Outcome, ...]) -> None:
        """Check that the service is frozen."""
        if outcomes != (Done(),):
            raise MuxError(f"{stage.name} answered a cut by {outcomes!r}")

    def _decide(self) -> None:
        """Apply the command; if it takes effect, freeze what is here and turn to the services."""
        segment, machine = self._segment, self._catalog.machine
        self._sessions.enter(self._request, segment, self.feature_level)
        if not segment.is_open:
            return
        self._catalog.apply(self.op, self.feature_level, segment)
        (command,) = segment.span.catalog_commands
        assert isinstance(command, BeginSnapshot), f"code of a cut with {command!r}"
        snapshot = machine.get(command.generation)
        if snapshot is None or snapshot.cut_op != self.op:
            return
        self.prepare.note_catalog(machine.take_changes())
        self._generation = command.generation
        revision, prepare = segment.first_revision, self.prepare.prepare
        self.prepare.cut = self._catalog.cut(command.generation, revision, prepare)
        self._left.extend(cut_services(self.feature_level))


def _check_alone(work: PrepareWork, request: RequestWork) -> None:
    """Raise MuxError unless the prepare holds one command, outside any client's session."""
    prepare, spans = work.prepare, request.request.spans
    count = sum(span.count for span in spans)
    is_alone = len(prepare.requests) == 1 and len(spans) == 1 and count == 1
    if not is_alone or request.request.session_id != limits.GATEWAY_SESSION_ID:
        raise MuxError(
            f"op {prepare.op} holds {len(prepare.requests)} requests, this one of session "
            f"{request.request.session_id} and {count} commands; BeginSnapshot must be "
            f"alone in its prepare, and of no session"
        )
