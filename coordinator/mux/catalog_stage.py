"""The last stage: visited without a message, at its turn like every other; and what it freezes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordinator.mux.catalog import CatalogMachine
from coordinator.mux.catalog_types import CutTaken, FailSnapshot, Restored, SnapshotState
from coordinator.mux.freezing import Freezer, RowKind
from coordinator.mux.requests import SessionsStage
from coordinator.mux.segments import Segment
from coordinator.mux.sessions import SessionRefused
from coordinator.mux.stage import Stage
from coordinator.mux.types import EMPTY_FRAME, CommittedPrepare, IndexedError, MuxError


class CatalogStage:
    """The catalog machine, and the frozen changes of both sections that the mux owns."""

    def __init__(
        self, sessions: SessionsStage, machine: CatalogMachine, restored: Restored
    ) -> None:
        """Begin unchanged against the base; what was rewritten is all changed."""
        self.machine = machine
        kinds = (*sessions.machine.row_kinds(), *sessions.replies.row_kinds())
        self._sessions = _freezer(kinds, restored, Stage.SESSIONS)
        self._catalog = _freezer(machine.row_kinds(), restored, Stage.CATALOG)

    def apply(self, op: int, feature_level: int, segment: Segment) -> None:
        """Apply the commands of a span that no place has refused; both are those of the entry."""
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
                if isinstance(command, FailSnapshot):
                    self._fold(command.generation)
            frames.append(frame)
        segment.results = b"".join(frames)
        segment.refuse(errors)

    def cut(self, generation: int, revision: int, prepare: CommittedPrepare) -> CutTaken:
        """Freeze both sections as they are now, which costs what has changed."""
        return CutTaken(
            generation=generation,
            op=prepare.op,
            view=prepare.view,
            revision=revision,
            timestamp=prepare.timestamp,
            feature_level=prepare.feature_level,
            sessions=self._sessions.freeze(generation),
            catalog=self._catalog.freeze(generation),
        )

    def release(self, generation: int) -> None:
        """Count changes from a cut on; one that is not frozen is ignored."""
        self._sessions.release(generation)
        self._catalog.release(generation)

    def _fold(self, generation: int) -> None:
        """Let the changes of a generation that has failed belong to the next one."""
        snapshot = self.machine.get(generation)
        if snapshot is not None and snapshot.state is SnapshotState.FAILED:
            self._sessions.abandon(generation)
            self._catalog.abandon(generation)


def _freezer(kinds: Sequence[RowKind[Any, Any]], restored: Restored, stage: Stage) -> Freezer:
    """Return what freezes a section from here on."""
    if stage not in restored.rewritten:
        return Freezer(kinds, restored.generation)
    for kind in kinds:
        changed = kind.keys()  # all of them
        for key in changed:
            kind.log.note(key, None)
    return Freezer(kinds, base_generation=0)
