"""The mux: commits and reads go in, batches to stages and answers to callers come out."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping
from itertools import chain
from typing import Final, TypeAlias

from coordinator.mux.applied_answers import answer_of
from coordinator.mux.applied_digests import AppliedDigests
from coordinator.mux.catalog import CatalogMachine
from coordinator.mux.catalog_stage import CatalogStage
from coordinator.mux.catalog_types import Restored
from coordinator.mux.codec import Codec
from coordinator.mux.cut_run import CutRun
from coordinator.mux.prepare_run import PrepareRun
from coordinator.mux.read_run import QuerySegment, ReadRun, ReadWork, route_of
from coordinator.mux.requests import PrepareWork, RequestWork, SessionsStage
from coordinator.mux.restoring import checked_catalog, checked_sessions
from coordinator.mux.results import join_spans
from coordinator.mux.run import ProposalsRun, Run, Turnstiles
from coordinator.mux.runs import RunEntry, split
from coordinator.mux.segments import Segment
from coordinator.mux.transaction_run import TransactionRun
from coordinator.mux.types import (
    BEGIN_SNAPSHOT_CODE,
    STAGES,
    TRANSACT_CODE,
    Applied,
    CommittedPrepare,
    Error,
    LoggedSpan,
    MuxEffect,
    MuxError,
    ProposalsItem,
    QueryOutcome,
    Read,
    Route,
    SendBatch,
    SpanReply,
    Stage,
    StageBatch,
    StageReply,
    Tenure,
)
from viewstamp import limits
from viewstamp.machine.freezing import Entity

# What is in one run of a prepare, or a run of its own.
Part: TypeAlias = Segment | TransactionRun | CutRun
# A prepare on its way in, and its runs.
TakenApart: TypeAlias = tuple[PrepareWork, list[Run]]
# Between two steps of taking a prepare apart: this many spans or requests.
STEP_ITEMS: Final = 128

# A cluster that has no snapshot yet.
FROM_THE_BEGINNING: Final = Restored(0, 0, limits.FEATURE_LEVEL_MAX, 0, (), ())


def at_once(steps: Generator[None, None, TakenApart]) -> TakenApart:
    """Return the result of all steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            taken_apart: TakenApart = end.value
            return taken_apart


class TransactionSpan:
    """A span of transactions: each is its own run, and the results are joined."""

    def __init__(self) -> None:
        """Begin without transactions."""
        self.runs: list[TransactionRun] = []

    def reply(self) -> SpanReply:
        """Return the results of all."""
        return join_spans([run.reply() for run in self.runs])

    def standing_segments(self) -> Iterator[Segment]:
        """Return the parts of the transactions that were kept."""
        return chain.from_iterable(run.standing_segments() for run in self.runs)


class Mux:
    """Leads committed prepares and reads through the stages; see the package's docstring.

    Every method returns the effects to carry out, in order.
    """

    def __init__(
        self,
        routes: Mapping[int, Route],
        codec: Codec,
        restored: Restored = FROM_THE_BEGINNING,
    ) -> None:
        """Begin behind a cut with its sections, or with empty stages before op 1.

        Raises RestoreError if the sections are incomplete, or not of that cut.
        """
        self._routes = dict(routes)
        sessions = checked_sessions(restored, codec)
        snapshots = checked_catalog(restored, codec)
        self._stage = SessionsStage(codec)
        self.sessions = self._stage.machine
        self.replies = self._stage.replies
        self.admission = self._stage.admission
        self.catalog = CatalogMachine(codec)
        self.sessions.load(sessions)
        self.replies.load(sessions)
        self.catalog.load(snapshots)
        self.catalog_stage = CatalogStage(self._stage, self.catalog, restored)
        self.digests = AppliedDigests(restored.op, restored.generation)
        self._op = restored.op
        self._revision = restored.revision
        self._feature_level = restored.feature_level
        self._sequences = dict.fromkeys(Stage, 0)
        self._in_flight: dict[Stage, deque[tuple[int, Run]]] = {stage: deque() for stage in Stage}
        self._turnstiles = Turnstiles()
        self._unapplied: deque[PrepareWork] = deque()
        # Runs of reads with an unanswered read, oldest first; the value is not used.
        self._read_runs: dict[ReadRun, None] = {}
        self._deferred: dict[int, tuple[ReadRun, QuerySegment]] = {}
        self._newest: Run | None = None
        # Runs that found their stage free, and wait for more; see `_is_held`.
        self._held: list[Run] = []
        self._query_id = 0
        self._effects: list[MuxEffect] = []

    @property
    def op(self) -> int:
        """The op of the last prepare taken in."""
        return self._op

    @property
    def revision(self) -> int:
        """The revision of the last command taken in: a read sees this from now on."""
        return self._revision

    @property
    def feature_level(self) -> int:
        """The level in force behind the last applied command.

        A primary puts it into the headers of the entries it appends from then on.
        """
        return max(self._feature_level, self.catalog.feature_level)

    @property
    def unapplied(self) -> int:
        """How many prepares were taken in and not yet applied."""
        return len(self._unapplied)

    def set_routes(self, routes: Mapping[int, Route]) -> None:
        """Replace the routes for later prepares and reads."""
        self._routes = dict(routes)

    def commit(self, prepare: CommittedPrepare) -> list[MuxEffect]:
        """Take in the next committed prepare. Raises MuxError for a code without a route."""
        return self.enter(at_once(self.take_apart(prepare)))

    def enter(self, taken_apart: TakenApart) -> list[MuxEffect]:
        """Take in the next committed prepare, which `take_apart` has taken apart."""
        work, runs = taken_apart
        prepare = work.prepare
        assert len(self._unapplied) < limits.UNAPPLIED_PREPARES_MAX, "too many prepares not applied"
        assert prepare.op == self._op + 1, f"op {prepare.op} after {self._op}"
        assert prepare.first_revision > self._revision, (
            f"first revision {prepare.first_revision} after {self._revision}"
        )
        self._unapplied.append(work)
        self._op, self._feature_level = prepare.op, prepare.feature_level
        self._revision = max(self._revision, work.last_revision)
        for run in runs:
            self._queue(run)
        self._advance(runs)
        return self._finish()

    def reply(self, reply: StageReply) -> list[MuxEffect]:
        """Take in the answer to the oldest unanswered batch of a stage. Raises MuxError."""
        waiting = self._in_flight[reply.stage]
        if not waiting or waiting[0][0] != reply.sequence:
            expected = waiting[0][0] if waiting else "none"
            raise MuxError(
                f"{reply.stage.name} answered batch {reply.sequence}; the oldest is {expected}"
            )
        _, run = waiting.popleft()
        run.unanswered -= 1
        run.absorb(reply.stage, reply.outcomes)
        self._settle(run)
        return self._finish()

    def read(self, *reads: Read) -> list[MuxEffect]:
        """Answer reads at the position after the last prepare taken in. Raises MuxError."""
        runs: dict[ReadRun, None] = {}
        for read in reads:
            runs[self._line_up(self._read_work(read))] = None
        for run in runs:
            self._settle(run)
        return self._finish()

    def stages_of(self, read: Read) -> tuple[Stage, ...]:
        """Return the stages that a read visits; methods that nobody serves add none."""
        visited = [span.owner for span in read.spans if span.owner is not None]
        for route in filter(None, (self._routes.get(span.code) for span in read.spans)):
            visited.append(route.owner)
            if route.resolve_stage is not None:
                visited.append(route.resolve_stage)
        return tuple(sorted(frozenset(visited)))

    def deferred(self, outcome: QueryOutcome) -> list[MuxEffect]:
        """Take in an answer that a stage had announced; drop one that no read awaits."""
        known = self._deferred.pop(outcome.query_id, None)
        if known is None:
            return []
        run, segment = known
        run.absorb_deferred(segment, outcome)
        self._settle(run)
        return self._finish()

    def fail_reads(self, stage: Stage, error: Error) -> list[MuxEffect]:
        """Answer with an error all reads that await a stage whose process, with its batches, is
        gone."""
        lost = [run for sequence, run in self._in_flight[stage] if sequence == 0]
        self._in_flight[stage] = deque(sent for sent in self._in_flight[stage] if sent[0] != 0)
        for run in lost:
            run.unanswered -= 1
        # Fail all of them first: a run that settles lets those behind it continue with missing
        # answers.
        failed = [run for run in list(self._read_runs) if self._fail(run, stage, None, error)]
        self._deferred = {
            query_id: (run, segment)
            for query_id, (run, segment) in self._deferred.items()
            if not segment.awaits(stage)
        }
        for run in (*failed, *lost):
            self._settle(run)
        return self._finish()

    def fail_read(self, token: int, error: Error) -> list[MuxEffect]:
        """Answer one read with an error because its deadline has passed, unless it was answered."""
        for run in list(self._read_runs):
            if self._fail(run, None, token, error):
                self._settle(run)
        return self._finish()

    def poke_proposals(self, tenure: Tenure | None = None) -> list[MuxEffect]:
        """Have every domain service repeat its pending proposals, or tell what has been silent."""
        run = ProposalsRun(ProposalsItem(tenure), self._op, self.feature_level)
        self._queue(run)
        self._advance([run])
        return self._finish()

    def release(self, generation: int) -> None:
        """Count changes from a cut on, whose snapshot is adopted here. Ignores unknown ones."""
        self.catalog_stage.release(generation)

    def entities(self) -> Iterator[Entity]:
        """Return the present entities of sessions, in no order, for a slow digest.

        Replicas agree on them if every prepare is applied.
        """
        return chain(self.sessions.entities(), self.replies.entities())

    def take_apart(self, prepare: CommittedPrepare) -> Generator[None, None, TakenApart]:
        """Return the requests and runs of a prepare, in steps that change nothing of the mux.

        Raises MuxError for a code without a route.
        """
        entries: list[RunEntry] = []
        parts: list[tuple[RequestWork, Part]] = []
        work = PrepareWork(prepare, prepare.first_revision - 1)
        for request in prepare.requests:
            request_work = RequestWork(request, work.last_revision + 1)
            work.requests.append(request_work)
            begun = len(entries)
            for span in request.spans:
                for entry, part in self._span_parts(work, request_work, span):
                    entries.append(RunEntry(entry, starts_request=len(entries) == begun))
                    parts.append((request_work, part))
                work.last_revision += span.count
                if len(request_work.spans) % STEP_ITEMS == 0:
                    yield
            if len(work.requests) % STEP_ITEMS == 0:
                yield
        yield
        runs = self._runs(work, entries, parts)
        work.runs_left = len(runs)
        return work, runs

    def _span_parts(
        self, work: PrepareWork, request: RequestWork, span: LoggedSpan
    ) -> list[tuple[Route | None, Part]]:
        """Return the parts of a span that can be in different runs: its transactions, or the
        whole."""
        first_revision = work.last_revision + 1
        if span.code == TRANSACT_CODE:
            return self._transactions(work, request, span, first_revision)
        route = self._routes.get(span.code)
        if route is None or route.is_query:
            raise MuxError(f"the log holds code {span.code}, which no service here applies")
        session_id, timestamp = request.request.session_id, work.prepare.timestamp
        segment = Segment(route, span, first_revision, session_id, timestamp)
        request.spans.append(segment)
        if span.code == BEGIN_SNAPSHOT_CODE:
            return [(None, CutRun(work, request, segment, self._stage, self.catalog_stage))]
        return [(route, segment)]

    def _transactions(
        self, work: PrepareWork, request: RequestWork, span: LoggedSpan, first_revision: int
    ) -> list[tuple[Route | None, Part]]:
        """Return the transactions of a span, each for its own run."""
        if len(span.parts) != span.count:
            raise MuxError(f"{span.count} transactions, {len(span.parts)} decoded")
        joined = TransactionSpan()
        request.spans.append(joined)
        stages = (self._routes, self._stage, self.catalog_stage)
        joined.runs = [
            TransactionRun(work, request, span, index, first_revision + index, *stages)
            for index in range(span.count)
        ]
        return [(None, run) for run in joined.runs]

    def _runs(
        self,
        work: PrepareWork,
        entries: list[RunEntry],
        parts: list[tuple[RequestWork, Part]],
    ) -> list[Run]:
        """Return the runs of a prepare."""
        runs: list[Run] = []
        for plan in split(entries):
            segments: list[tuple[RequestWork, Segment]] = []
            for request, part in parts[plan.start : plan.stop]:
                if isinstance(part, Segment):
                    segments.append((request, part))
                else:
                    runs.append(part)
            if segments:
                runs.append(PrepareRun(work, plan, segments, self._stage, self.catalog_stage))
        return runs

    def _read_work(self, read: Read) -> ReadWork:
        """Return a read on its way."""
        segments = []
        for span in read.spans:
            self._query_id += 1
            segments.append(QuerySegment(read, span, route_of(span, self._routes), self._query_id))
        return ReadWork(read, segments)

    def _line_up(self, work: ReadWork) -> ReadRun:
        """Let a read join the waiting reads at this place, or begin a new run; return its run."""
        run = self._newest
        # A prepare without commands has no run, but later reads include its op.
        if not isinstance(run, ReadRun) or run.op != self._op or not run.takes(work):
            run = ReadRun(self._op, self._revision, self.feature_level)
        queued = frozenset(run.stages())
        run.add(work)
        self._read_runs[run] = None
        self._newest = run
        self._turnstiles.queue(run, [stage for stage in run.stages() if stage not in queued])
        return run

    def _queue(self, run: Run) -> None:
        """Line up the newest run."""
        self._newest = run
        self._turnstiles.queue(run, run.stages())

    def _fail(self, run: ReadRun, stage: Stage | None, token: int | None, error: Error) -> bool:
        """Answer reads of a run with an error; return whether there were any, so that it
        settles."""
        answers = run.fail(stage, token, error)
        self._effects += answers
        return bool(answers)

    def _settle(self, run: Run) -> None:
        """Continue after a run has changed: with its own visits, then with those behind it."""
        self._collect(run)
        self._advance([run, *self._turnstiles.release(STAGES)])

    def _advance(self, runs: list[Run]) -> None:
        """Make every visit that can be made now; only those of `runs` may have become possible."""
        ready = deque(runs)
        while ready:
            run = ready.popleft()
            while (stage := run.wanted()) is not None and run.is_ready():
                if not self._turnstiles.may_enter(run, stage) or self._is_held(run, stage):
                    break
                self._visit(run, stage)
                ready.extend(self._turnstiles.release(STAGES))
            self._complete(run)

    def _is_held(self, run: Run, stage: Stage) -> bool:
        """Return whether a run whose turn it is must still wait.

        A cut waits until it is alone. The catalog changes inside the mux, while the shell answers
        reads of it: a read must not see a change behind its place.
        """
        if isinstance(run, CutRun) and not run.has_begun:
            is_oldest = self._unapplied[0] is run.prepare
            is_free = is_oldest and self._turnstiles.is_first_everywhere(run)
        elif stage is not Stage.CATALOG or not run.is_logged:
            return False
        else:
            is_free = True
        if is_free and not self._in_flight[Stage.CATALOG]:
            return False
        if run not in self._held:
            self._held.append(run)
        return True

    def _visit(self, run: Run, stage: Stage) -> None:
        """Make a run's visit to a stage; an empty visit needs no message."""
        items = run.compose()
        self._collect(run)
        if not items:
            return
        sequence = 0
        if run.is_logged:
            sequence = self._sequences[stage] = self._sequences[stage] + 1
        run.unanswered += 1
        self._in_flight[stage].append((sequence, run))
        batch = StageBatch(stage, sequence, run.op, run.feature_level, items)
        self._effects.append(SendBatch(batch))

    def _collect(self, run: Run) -> None:
        """Collect the answers that a run has ready for callers."""
        self._effects += run.take_answers()
        if isinstance(run, ReadRun):
            for segment in run.take_deferred():
                self._deferred[segment.query_id] = (run, segment)

    def _complete(self, run: Run) -> None:
        """Count a run that is done."""
        if isinstance(run, ReadRun):
            self._effects += run.take_left()
        if not run.is_done():
            return
        if isinstance(run, ReadRun):
            self._read_runs.pop(run, None)
        elif isinstance(run, PrepareRun | TransactionRun | CutRun) and not run.is_counted:
            run.is_counted = True
            run.prepare.runs_left -= 1

    def _finish(self) -> list[MuxEffect]:
        """Apply complete prepares in op order, and return all effects."""
        self._apply()
        while self._held and self._let_go():
            self._apply()
        effects, self._effects = self._effects, []
        return effects

    def _let_go(self) -> bool:
        """Let held runs try again; return whether any continued."""
        held, self._held = self._held, []
        self._advance(held)
        return self._held != held

    def _apply(self) -> None:
        """Apply complete prepares in op order."""
        while self._unapplied and self._unapplied[0].runs_left == 0:
            work = self._unapplied.popleft()
            told = work.apply(self._stage)
            applied = told[-1]
            assert isinstance(applied, Applied), f"op {work.prepare.op} ends with {applied!r}"
            self._digest(work, applied)
            self._effects += told

    def _digest(self, work: PrepareWork, applied: Applied) -> None:
        """Continue the chain of digests, or begin it anew at a cut."""
        if work.cut is not None:
            self.digests.begin(work.cut.op, work.cut.generation)
        else:
            self.digests.add(applied.op, answer_of(work.prepare, work.requests, applied))
