"""A transaction: its parts pass through the stages under savepoints, then all stand or none.

It keeps every stage to itself until it is decided, except catalog if no part is for that. A
savepoint precedes the first items that a stage gets; a stage without items needs none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from coordinator.mux.catalog_stage import CatalogStage
from coordinator.mux.codec import Codec
from coordinator.mux.prepare_run import absorb_all
from coordinator.mux.requests import PrepareWork, RequestWork, SessionsStage
from coordinator.mux.run import Run
from coordinator.mux.runs import Leg, RunEntry, Visit, split
from coordinator.mux.segments import Segment, compose
from coordinator.mux.types import (
    EMPTY_FRAME,
    TRANSACT_CODE,
    Done,
    Error,
    IndexedError,
    Item,
    KeepItem,
    LoggedSpan,
    MuxError,
    Outcome,
    RevertItem,
    Route,
    SavepointItem,
    SpanReply,
    Stage,
)
from viewstamp import limits


class _Phase(Enum):
    """Where a transaction stands."""

    HEADER = "header"
    PARTS = "parts"
    CLOSING = "closing"


class TransactionRun(Run):
    """One transaction of a span, at one revision."""

    def __init__(
        self,
        prepare: PrepareWork,
        request: RequestWork,
        span: LoggedSpan,
        index: int,
        revision: int,
        routes: Mapping[int, Route],
        sessions: SessionsStage,
        catalog: CatalogStage,
    ) -> None:
        """Begin before the header check; `index` is the transaction's index in its span."""
        super().__init__(prepare.prepare.op, prepare.prepare.feature_level)
        self.prepare = prepare
        self._request = request
        self._span = span
        self._index = index
        self._revision = revision
        self._routes = routes
        self._stages = _held_stages(span.parts[index], routes)
        self._sessions = sessions
        self._catalog = catalog
        self._phase = _Phase.HEADER
        self._segments: list[Segment] = []
        # The first part that cannot be routed, and why.
        self._unroutable: tuple[int, Error] | None = None
        # Inner runs that are not done: their segments and the remaining visits.
        self._inner: list[tuple[list[Segment], list[Visit]]] = []
        self._pending: list[tuple[Item, Segment]] = []
        self._leads_savepoint = False
        self._saved: list[Stage] = []
        self._validates = (
            index in span.validated and self.feature_level >= limits.FEATURE_LEVEL_GUARDS
        )
        self._is_kept = False
        self._reply = SpanReply(EMPTY_FRAME)

    def stages(self) -> tuple[Stage, ...]:
        """Return every stage that parts or their effects may enter: no other run passes there."""
        return self._stages

    def wanted(self) -> Stage | None:
        """Return the stage of the next visit."""
        if self._phase is _Phase.HEADER:
            return Stage.SESSIONS
        if self._phase is _Phase.PARTS:
            return self._inner[0][1][0].stage if self._inner[0][1] else None
        return self._saved[0] if self._saved else None

    def needs(self, stage: Stage) -> bool:
        """Return whether the stage is held until the decision, or has not been told of it."""
        return stage in (self._saved if self._phase is _Phase.CLOSING else self._stages)

    def is_ready(self) -> bool:
        """Return whether the next visit may be made; once decided, all stages are told at once."""
        return self._phase is _Phase.CLOSING or self.unanswered == 0

    def is_done(self) -> bool:
        """Return whether every stage was told and has answered."""
        return self._phase is _Phase.CLOSING and not self._saved and self.unanswered == 0

    def compose(self) -> tuple[Item, ...]:
        """Make the next visit."""
        if self._phase is _Phase.HEADER:
            self._check_header()
            return ()
        if self._phase is _Phase.CLOSING:
            return self._close(self._saved.pop(0))
        segments, visits = self._inner[0]
        items = self._visit(segments, visits.pop(0))
        if not items:
            self._proceed()
        return items

    def absorb(self, stage: Stage, outcomes: tuple[Outcome, ...]) -> None:
        """Hand each answer to its part."""
        if self._phase is _Phase.CLOSING:
            if outcomes != (Done(),):
                raise MuxError(f"{stage.name} answered the end of a savepoint by {outcomes!r}")
            return
        if self._leads_savepoint:
            if outcomes[:1] != (Done(),):
                raise MuxError(f"{stage.name} answered a savepoint by {outcomes[:1]!r}")
            outcomes = outcomes[1:]
        absorb_all(stage, self._pending, outcomes)
        self._proceed()

    def reply(self) -> SpanReply:
        """Return the transaction's one result or refusal, at index 0."""
        return self._reply

    def standing_segments(self) -> Sequence[Segment]:
        """Return the parts if the transaction was kept, and none if it is taken back."""
        return self._segments if self._is_kept else ()

    def _check_header(self) -> None:
        """Check the header as for any command, then line up the parts."""
        if not self._sessions.admits(self._request):
            # The request as a whole is answered; nobody asks for this reply.
            self._phase = _Phase.CLOSING
            return
        refused = {refusal.index: refusal.error for refusal in self._span.refused}
        error = refused.get(self._index) or self._sessions.refusal(self._request, self._span, False)
        parts = self._span.parts[self._index]
        if error is None and not 1 <= len(parts) <= limits.TRANSACTION_PARTS_MAX:
            error = _wrong_size(self._sessions.codec, len(parts))
        if error is not None:
            self._refuse(error)
            self._phase = _Phase.CLOSING
            return
        self._line_up(parts)
        self._phase = _Phase.PARTS
        self._proceed()

    def _line_up(self, parts: Sequence[LoggedSpan]) -> None:
        """Split the parts into inner runs, up to the first that cannot be routed."""
        routes: list[Route] = []
        for index, part in enumerate(parts):
            route = self._routes.get(part.code)
            error = _check_part(self._sessions.codec, part, route)
            if error is not None:
                self._unroutable = (index, error)
                break
            assert route is not None, f"code {part.code} passed without a route"
            routes.append(route)
            self._segments.append(self._part(route, part))
        for plan in split([RunEntry(route) for route in routes]):
            visits = [visit for visit in plan.visits if not _is_header_check(visit)]
            self._inner.append((self._segments[plan.start : plan.stop], visits))

    def _part(self, route: Route, part: LoggedSpan) -> Segment:
        """Return a part under way, with the principal and revision of the transaction."""
        if part.count != 1:
            raise MuxError(f"a part of a transaction has count {part.count}; it must be 1")
        span = LoggedSpan(
            part.code,
            part.count,
            part.items,
            self._span.user_id,
            self._span.credential_revision,
            part.refused,
            catalog_commands=part.catalog_commands,
        )
        session_id = self._request.request.session_id
        return Segment(route, span, self._revision, session_id, self.prepare.prepare.timestamp)

    def _visit(self, segments: Sequence[Segment], visit: Visit) -> tuple[Item, ...]:
        """Return the items of a visit of an inner run, behind a savepoint if it is the first."""
        if visit.stage == Stage.SESSIONS:
            self._save(Stage.SESSIONS)
            self._sessions.apply_effects(segments)
            return ()
        if visit.stage == Stage.CATALOG:
            self._save(Stage.CATALOG)
            self._apply_catalog(segments)
            return ()
        self._pending = compose(segments, visit)
        items = tuple(item for item, _ in self._pending)
        self._leads_savepoint = bool(items) and self._save(visit.stage)
        return (SavepointItem(), *items) if self._leads_savepoint else items

    def _save(self, stage: Stage) -> bool:
        """Note that the stage has a savepoint; return whether it had none before."""
        if stage in self._saved:
            return False
        self._saved.append(stage)
        if stage == Stage.SESSIONS:
            self._sessions.machine.savepoint()
        elif stage == Stage.CATALOG:
            self._catalog.machine.savepoint()
        return True

    def _apply_catalog(self, segments: Sequence[Segment]) -> None:
        """Apply the parts that catalog owns."""
        for segment in segments:
            if segment.route.owner == Stage.CATALOG and segment.is_open:
                self._catalog.apply(self.op, self.feature_level, segment)

    def _proceed(self) -> None:
        """Go on to the next inner run, or decide."""
        while self._inner and not self._inner[0][1]:
            segments, _ = self._inner.pop(0)
            if any(segment.refusals for segment in segments):
                self._inner.clear()
        if not self._inner:
            self._decide()

    def _decide(self) -> None:
        """Keep everything if no part was refused; otherwise report the first refused part.

        A transaction that only validates is answered in the same way, and not kept.
        """
        failed = self._first_failure()
        codec = self._sessions.codec
        if failed is not None:
            self._refuse(codec.encode_part_refusal(failed[1], failed[0]))
        else:
            results = tuple(segment.reply().results for segment in self._segments)
            self._reply = SpanReply(codec.encode_transaction_result(results))
        self._is_kept = failed is None and not self._validates
        self._saved.sort()
        self._phase = _Phase.CLOSING

    def _first_failure(self) -> tuple[int, Error] | None:
        """Return the first refused part and why."""
        for index, segment in enumerate(self._segments):
            if segment.refusals:
                return index, segment.refusals[0].error
        return self._unroutable

    def _close(self, stage: Stage) -> tuple[Item, ...]:
        """Tell a stage the outcome."""
        if stage not in (Stage.SESSIONS, Stage.CATALOG):
            return (KeepItem() if self._is_kept else RevertItem(),)
        sessions, catalog = self._sessions.machine, self._catalog.machine
        machine = sessions if stage == Stage.SESSIONS else catalog
        if self._is_kept:
            machine.keep()
        else:
            machine.revert()
        # Only of this machine: the other one may still be under its savepoint.
        if machine is sessions:
            self.prepare.note(sessions.take_changes())
        else:
            self.prepare.note_catalog(catalog.take_changes())
        return ()

    def _refuse(self, error: Error) -> None:
        """Refuse the transaction."""
        self._reply = SpanReply(EMPTY_FRAME, (IndexedError(0, error),))


_ALL: Final = tuple(Stage)
_ALL_BUT_CATALOG: Final = tuple(stage for stage in Stage if stage != Stage.CATALOG)


def _held_stages(parts: Sequence[LoggedSpan], routes: Mapping[int, Route]) -> tuple[Stage, ...]:
    """Return the stages kept from all other runs: catalog only if a part is owned there."""
    for part in parts:
        route = routes.get(part.code)
        if route is not None and route.owner == Stage.CATALOG:
            return _ALL
    return _ALL_BUT_CATALOG


def _is_header_check(visit: Visit) -> bool:
    """Return whether the visit is the one that the transaction makes for all its parts."""
    return visit == Visit(Stage.SESSIONS, Leg.FORWARD)


def _wrong_size(codec: Codec, count: int) -> Error:
    """Return the refusal of a transaction with too few or too many parts."""
    return codec.encode_refusal(
        "MALFORMED_REQUEST",
        {"parts": str(count), "maximum": str(limits.TRANSACTION_PARTS_MAX)},
        "transaction_parts",
    )


def _check_part(codec: Codec, part: LoggedSpan, route: Route | None) -> Error | None:
    """Return why a command may not be part of a transaction."""
    details = {"code": str(part.code)}
    if route is None and part.code != TRANSACT_CODE:
        return codec.encode_refusal("UNIMPLEMENTED", details, "code")
    if route is None or route.owner == Stage.SESSIONS or route.internal or route.is_query:
        return codec.encode_refusal("MALFORMED_REQUEST", details, "not_a_part")
    return None
