"""The last stage: visited in turn like the others, but without a message; freezes its sections."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.mux.catalog import CatalogMachine
from coordinator.mux.catalog_types import CutTaken, Restored
from coordinator.mux.requests import SessionsStage
from coordinator.mux.segments import Segment
from coordinator.mux.sessions import SessionRefused
from coordinator.mux.stage import Stage
from coordinator.mux.types import EMPTY_FRAME, CommittedPrepare, IndexedError, MuxError
from viewstamp.machine.freezing import Freezer, RowKind


class CatalogStage:
    """The catalog machine, and the frozen changes of both sections that the mux owns."""

    def __init__(
        self, sessions: SessionsStage, machine: CatalogMachine, restored: Restored
    ) -> None:
        """Begin unchanged against the base; rewritten sections count as all changed."""
        self.machine = machine
        kinds = (*sessions.machine.row_kinds(), *sessions.replies.row_kinds())
        self._sessions = _freezer(kinds, restored, Stage.SESSIONS)
        self._catalog = _freezer(machine.row_kinds(), restored, Stage.CATALOG)

    def apply(self, op: int, feature_level: int, segment: Segment) -> None:
        """Apply the unrefused commands of a span; `op` and `feature_level` are those of the
        entry."""
        span, refused = segment.span, frozenset(segment.refused)
        if len(span.catalog_commands) != span.count:
            raise MuxError(f"{span.count} catalog commands, {len(span.catalog_commands)} decoded")
        frames, errors = [], []
        for index, command in enumerate(span.catalog_commands):
            frame = EMPTY_FRAME
            if index not in refused:
                assert command is not None, f"catalog command {index} is neither there nor refused"
                revision = segment.first_revision + index
                outcome = self.machine.apply(
                    command, revision, op, segment.timestamp, feature_level
                )
                if isinstance(outcome, SessionRefused):
                    errors.append(IndexedError(index, outcome.error))
                else:
                    frame = outcome.result
            frames.append(frame)
        segment.results = b"".join(frames)
        segment.refuse(errors)

    def cut(self, generation: int, revision: int, prepare: CommittedPrepare) -> CutTaken:
        """Freeze both sections now; the cost is proportional to the changes."""
        return CutTaken(
            generation=generation,
            op=prepare.op,
            view=prepare.view,
            revision=revision,
            timestamp=prepare.timestamp,
            feature_level=prepare.feature_level,
            sessions=self._sessions.freeze(generation, revision),
            catalog=self._catalog.freeze(generation, revision),
        )

    def release(self, generation: int) -> None:
        """Count changes from a cut on; an unknown generation is ignored."""
        self._sessions.release(generation)
        self._catalog.release(generation)


def _freezer(kinds: Iterable[RowKind[None]], restored: Restored, stage: Stage) -> Freezer[None]:
    """Return what freezes a section from here on; all that was rewritten is changed."""
    is_rewritten = stage in restored.rewritten
    return Freezer(kinds, None, None if is_rewritten else restored.generation)
