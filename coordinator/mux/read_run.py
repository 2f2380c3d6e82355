"""Reads that see one revision: all reads that wait at the same place travel together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from coordinator.mux.results import check_errors, empty_frames, merge_errors
from coordinator.mux.run import Run
from coordinator.mux.types import (
    BUILTIN_READ_CODES,
    Error,
    IndexedError,
    Item,
    MuxEffect,
    MuxError,
    Outcome,
    QueryItem,
    QueryOutcome,
    Read,
    ReadAnswered,
    ReadPostponed,
    ReadsLeft,
    ReadSpan,
    ResolveItem,
    ResolveOutcome,
    Route,
    SpanReply,
    Stage,
)
from viewstamp import limits


class QuerySegment:
    """One span of a read under way."""

    def __init__(self, read: Read, span: ReadSpan, route: Route, query_id: int) -> None:
        """Begin before the first visit."""
        self.span = span
        self.query_id = query_id
        self.reply: SpanReply | None = None
        self.is_postponed = False
        self._read = read
        self._route = route
        self._refusals: tuple[IndexedError, ...] = ()
        self._contexts = b""
        self._is_asked = False  # its owner
        # Stages still to visit, and those that have not answered.
        resolve = None if span.is_authorized else route.resolve_stage
        resolving = () if resolve is None else (resolve,)
        self._unsent: tuple[Stage, ...] = (*resolving, route.owner)
        self._unanswered: tuple[Stage, ...] = self._unsent

    def unsent(self) -> tuple[Stage, ...]:
        """Return the stages that it still has to visit, in order."""
        return () if self.reply is not None else self._unsent

    def awaits(self, stage: Stage) -> bool:
        """Return whether its answer needs the stage."""
        return self.reply is None and stage in self._unanswered

    def compose(self, revision: int, before: QuerySegment | None) -> Item:
        """Return the item for its next stage, where `before` was composed just before it."""
        stage, *rest = self._unsent
        self._unsent = tuple(rest)
        if stage != self._route.owner:
            return self._resolve(revision)
        self._is_asked = True
        continues = before is not None and before._read is self._read and before._is_asked
        return self._query(continues)

    def absorb(self, outcome: Outcome) -> bool:
        """Take an answer; return True if it only announces a later one."""
        self._unanswered = self._unanswered[1:]
        match outcome:
            case ResolveOutcome() if self._unanswered:
                self._refuse(outcome.errors)
                self._contexts = outcome.contexts
                if len(self._refusals) == self.span.count:
                    self.reply = SpanReply(empty_frames(self.span.count), self._refusals)
            case QueryOutcome(query_id=self.query_id) if not self._unanswered:
                if outcome.postponed:
                    self.is_postponed = True
                    return False
                if outcome.deferred:
                    self._unanswered = (self._route.owner,)
                    return True
                self._refuse(outcome.errors)
                self.reply = SpanReply(outcome.results, self._refusals, outcome.state_digest)
            case _:
                raise MuxError(f"query {self.query_id} was answered by {outcome!r}")
        return False

    def _refuse(self, errors: tuple[IndexedError, ...]) -> None:
        """Add refusals."""
        what = f"query {self.query_id} of code {self.span.code}"
        check_errors(errors, self.span.count, what)
        self._refusals = merge_errors(self._refusals, errors, what)

    def _query(self, continues: bool) -> QueryItem:
        """Return the item for the owner."""
        return QueryItem(
            query_id=self.query_id,
            code=self.span.code,
            count=self.span.count,
            items=self.span.items,
            user_id=self._read.user_id,
            credential_revision=self._read.credential_revision,
            session_id=self._read.session_id,
            refused=tuple(error.index for error in self._refusals),
            contexts=self._contexts,
            caller_address=self._read.caller_address,
            continues=continues,
            callers=self._read.callers,
        )

    def _resolve(self, revision: int) -> ResolveItem:
        """Return the item for the resolving stage."""
        if self._read.user_id is None and not self._read.callers:
            raise MuxError(f"a read of code {self.span.code} needs a user; it has none")
        return ResolveItem(
            code=self.span.code,
            first_revision=revision,
            count=self.span.count,
            items=self.span.items,
            user_id=self._read.user_id or 0,
            credential_revision=self._read.credential_revision,
            callers=self._read.callers,
            gate=self._route.gate if self.span.gate is None else self.span.gate,
        )


class ReadWork:
    """One read under way, answered when all its spans are, or when it fails."""

    def __init__(self, read: Read, segments: list[QuerySegment]) -> None:
        """Begin unanswered."""
        self.token = read.token
        self.segments = segments
        # All stages that it visits, ascending.
        visited = frozenset(stage for segment in segments for stage in segment.unsent())
        self.stages = tuple(sorted(visited))
        self.count = sum(span.count for span in read.spans)
        self.items_bytes = sum(len(span.items) for span in read.spans)
        self.is_answered = False

    def answer(self, run: ReadRun, error: Error | None) -> ReadAnswered:
        """Return the answer, once."""
        self.is_answered = True
        spans = [segment.reply for segment in self.segments if segment.reply is not None]
        return ReadAnswered(
            self.token, run.revision, run.op, () if error is not None else tuple(spans), error
        )

    def is_complete(self) -> bool:
        """Return whether every span has its reply and the answer was not given yet."""
        return not self.is_answered and all(s.reply is not None for s in self.segments)

    def postpone(self) -> ReadPostponed:
        """Mark the read as postponed by a stage, and say so, once."""
        self.is_answered = True
        return ReadPostponed(self.token)

    def is_postponed(self) -> bool:
        """Return whether a stage had no time for it and it is unanswered."""
        return not self.is_answered and any(s.is_postponed for s in self.segments)

    def awaits(self, stage: Stage) -> bool:
        """Return whether its answer needs the stage."""
        return not self.is_answered and any(segment.awaits(stage) for segment in self.segments)


class ReadRun(Run):
    """The reads of one position, between two prepares."""

    is_logged = False

    def __init__(self, op: int, revision: int, feature_level: int) -> None:
        """Begin without reads."""
        super().__init__(op, feature_level)
        self.revision = revision
        self.has_begun = False
        self._count = 0
        self._items_bytes = 0
        self._reads: list[ReadWork] = []
        self._tokens: list[int] = []  # of those that have not left
        # The stages still to be visited, ascending.
        self._left: tuple[Stage, ...] = ()
        # Whether an answer may have become complete since they were last taken.
        self._is_stale = False
        self._pending: list[QuerySegment] = []
        self._deferred: list[QuerySegment] = []

    def takes(self, work: ReadWork) -> bool:
        """Return whether one more read may join: all share one message to each stage."""
        return (
            not self.has_begun
            and self._count + work.count <= limits.READS_TOGETHER_MAX
            and self._items_bytes + work.items_bytes <= limits.READS_TOGETHER_BYTES_MAX
            and self._fits(work.stages)
        )

    def add(self, work: ReadWork) -> None:
        """Add one more read; only before the first visit."""
        assert not self.has_begun, "the reads of this position are on their way"
        self._reads.append(work)
        self._tokens.append(work.token)
        self._count += work.count
        self._items_bytes += work.items_bytes
        self._left = tuple(sorted(frozenset((*self._left, *work.stages))))
        # A read without spans is complete.
        self._is_stale |= not work.segments

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages still to be visited."""
        return self._left

    def wanted(self) -> Stage | None:
        """Return the first stage still to be visited."""
        return self._left[0] if self._left else None

    def needs(self, stage: Stage) -> bool:
        """Return whether the stage is still to be visited."""
        return stage in self._left

    def compose(self) -> tuple[Item, ...]:
        """Return what all reads have for the next stage."""
        self.has_begun = True
        stage = self.wanted()
        self._pending = [s for s in self._open() if s.unsent()[:1] == (stage,)]
        before = (None, *self._pending[:-1])
        pairs = zip(self._pending, before, strict=False)
        items = tuple(segment.compose(self.revision, previous) for segment, previous in pairs)
        self._look_ahead()
        return items

    def absorb(self, stage: Stage, outcomes: tuple[Outcome, ...]) -> None:
        """Hand each answer to its read, also to those that have failed meanwhile."""
        if len(outcomes) != len(self._pending):
            raise MuxError(
                f"{stage.name} answered {len(self._pending)} reads by {len(outcomes)} outcomes"
            )
        for segment, outcome in zip(self._pending, outcomes, strict=True):
            if segment.absorb(outcome):
                self._deferred.append(segment)
        self._is_stale = True
        self._look_ahead()

    def absorb_deferred(self, segment: QuerySegment, outcome: QueryOutcome) -> None:
        """Hand an answer that was announced to its read."""
        if segment.absorb(outcome):
            raise MuxError(f"query {outcome.query_id} was deferred twice")
        self._is_stale = True

    def take_deferred(self) -> list[QuerySegment]:
        """Return the spans whose answers follow outside of batches, once."""
        deferred, self._deferred = self._deferred, []
        return deferred

    def take_answers(self) -> list[MuxEffect]:
        """Return the answers that are complete, and which reads are postponed, once each."""
        if not self._is_stale:
            return []
        self._is_stale = False
        postponed = [work.postpone() for work in self._reads if work.is_postponed()]
        return postponed + self._answer([work for work in self._reads if work.is_complete()], None)

    def fail(self, stage: Stage | None, token: int | None, error: Error) -> list[MuxEffect]:
        """Answer with an error the reads that await a stage, or the one with a token."""
        failed = [
            work
            for work in self._reads
            if (stage is not None and work.awaits(stage)) or work.token == token
        ]
        answers = self._answer(failed, error)
        self._look_ahead()
        return answers

    def take_left(self) -> list[MuxEffect]:
        """Return which reads have left the stages, once each."""
        if not self._tokens or self.unanswered or self._left:
            return []
        tokens, self._tokens = tuple(self._tokens), []
        return [ReadsLeft(tokens)]

    def is_done(self) -> bool:
        """Return whether every read was answered and no batch is on its way."""
        return not self._reads and self.unanswered == 0

    def _fits(self, stages: tuple[Stage, ...]) -> bool:
        """Return whether a read of the stages may join.

        Catalog reads report what is wrong with services, so they wait for no service they do not
        need.
        """
        return Stage.CATALOG not in (*self._left, *stages) or self._left == stages

    def _answer(self, works: list[ReadWork], error: Error | None) -> list[MuxEffect]:
        """Answer reads and forget them."""
        answers: list[MuxEffect] = [work.answer(self, error) for work in works]
        self._reads = [work for work in self._reads if not work.is_answered]
        return answers

    def _look_ahead(self) -> None:
        """Find the stages still to be visited."""
        left = frozenset(stage for segment in self._open() for stage in segment.unsent())
        self._left = tuple(sorted(left))

    def _open(self) -> Iterator[QuerySegment]:
        """Yield the spans of reads that were not answered, in order of arrival."""
        for work in self._reads:
            yield from work.segments


def route_of(span: ReadSpan, routes: Mapping[int, Route]) -> Route:
    """Return the way of a span of reads. Raises MuxError if no service claims it."""
    if span.code in BUILTIN_READ_CODES:
        if span.owner is None or span.owner == Stage.SESSIONS:
            raise MuxError("a builtin read must name a stage behind sessions")
        return Route(span.code, span.owner)
    route = routes.get(span.code)
    if route is None or route.owner == Stage.SESSIONS:
        raise MuxError(f"no stage answers reads of code {span.code}")
    return route
