"""The model of the mux: one command at a time, each to its end.

The mux must be indistinguishable from it. It is written from the description of the system, not
from the mux, and shares only the fake machines.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

from coordinator.mux.catalog import CatalogMachine
from coordinator.mux.catalog_types import BeginSnapshot
from coordinator.mux.sessions import SessionRefused
from coordinator.mux.types import (
    SERVICE_STAGES,
    TRANSACT_CODE,
    CommandItem,
    CommandOutcome,
    CommittedPrepare,
    CutItem,
    EffectItem,
    IndexedError,
    KeepItem,
    LoggedRequest,
    LoggedSpan,
    QueryItem,
    QueryOutcome,
    Read,
    ReadSpan,
    RequestReply,
    ResolveItem,
    ResolveOutcome,
    RevertItem,
    Route,
    SavepointItem,
    SpanReply,
    Stage,
)
from tests.coordinator.mux.fakes import FakeCodec, FakeStage, Fingerprint
from viewstamp import limits
from viewstamp.framing import frame, frame_all, unframe

SERVICES = tuple(stage for stage in Stage if stage != Stage.SESSIONS)


@dataclass
class SequentialClient:
    """A session as the model sees it."""

    user_id: int
    last: int = 0
    replies: dict[int, RequestReply] = field(default_factory=dict)


@dataclass
class Sequential:
    """The whole system, one command at a time."""

    routes: dict[int, Route]
    stages: dict[Stage, FakeStage]
    clients: dict[int, SequentialClient] = field(default_factory=dict)
    minimums: dict[int, int] = field(default_factory=dict)
    # Op -> state of every stage behind it.
    history: dict[int, dict[Stage, Fingerprint]] = field(default_factory=dict)
    # The catalog decides by itself: the mux adds only its place in the order.
    catalog: CatalogMachine = field(default_factory=lambda: CatalogMachine(FakeCodec()))

    def commit(self, prepare: CommittedPrepare) -> list[RequestReply]:
        """Apply a prepare; return a reply per request."""
        revision = prepare.first_revision
        replies = []
        for request in prepare.requests:
            replies.append(self._request(prepare, request, revision))
            revision += sum(span.count for span in request.spans)
        self.history[prepare.op] = {s: self.stages[s].fingerprint for s in SERVICES}
        return replies

    def read(self, read: Read, op: int, revision: int) -> list[SpanReply]:
        """Answer a read as of the end of a prepare."""
        stages = {}
        for stage, (own, seen) in self.history[op].items():
            codes = self.stages[stage].query_codes
            stages[stage] = FakeStage(stage, True, own=own, all=seen, query_codes=codes)
        replies = []
        for span in read.spans:
            answers = [self._query(stages, span, item, revision) for item in unframe(span.items)]
            replies.append(_joined(answers))
        return replies

    def _request(
        self, prepare: CommittedPrepare, request: LoggedRequest, first_revision: int
    ) -> RequestReply:
        """Apply a request if its header is valid."""
        client = self.clients.get(request.session_id)

        def reply(spans: tuple[SpanReply, ...], error: bytes | None = None) -> RequestReply:
            numbers = (request.session_id, request.number, prepare.view, prepare.op)
            return RequestReply(*numbers, first_revision, spans, error)

        if client is not None:
            _acknowledge(client, request.acked)
        if request.session_id:
            if client is None:
                return reply((), b"SESSION_EVICTED")
            if any(span.user_id != client.user_id for span in request.spans):
                return reply((), b"PERMISSION_DENIED")
            if any(self._is_outdated(span) for span in request.spans):
                return reply((), b"UNAUTHENTICATED")
            if request.number <= client.last:
                if request.number not in client.replies:
                    return reply((), b"REQUEST_TOO_OLD")
                return client.replies[request.number]
            if request.number != client.last + 1:
                return reply((), f"REQUEST_GAP({client.last + 1})".encode())
            client.last = request.number
        outdated = [self._is_outdated(span) for span in request.spans]
        result = reply(self._spans(prepare, request, first_revision, outdated))
        # Its own commands may have ended the session, or a rollback may have removed it.
        survivor = self.clients.get(request.session_id)
        if survivor is not None:
            survivor.replies[request.number] = result
        return result

    def _spans(
        self, prepare: CommittedPrepare, request: LoggedRequest, revision: int, outdated: list[bool]
    ) -> tuple[SpanReply, ...]:
        """Apply the spans of a request; principals were checked at its first revision."""
        replies = []
        for span, is_outdated in zip(request.spans, outdated, strict=True):
            answers: list[bytes | IndexedError] = []
            holes = {error.index: error for error in span.refused}
            for index in range(span.count):
                if index in holes:
                    answers.append(holes[index])
                elif is_outdated:
                    answers.append(IndexedError(index, b"UNAUTHENTICATED"))
                else:
                    answers.append(self._command(prepare, request, span, index, revision))
                revision += 1
            replies.append(_joined(answers))
        return tuple(replies)

    def _command(
        self,
        prepare: CommittedPrepare,
        request: LoggedRequest,
        span: LoggedSpan,
        index: int,
        revision: int,
    ) -> bytes | IndexedError:
        """Apply one command to its end; return its result or its refusal."""
        if span.code != TRANSACT_CODE:
            return self._plain(prepare, request, span, index, revision)
        return self._transaction(prepare, request, span, index, revision)

    def _transaction(
        self,
        prepare: CommittedPrepare,
        request: LoggedRequest,
        span: LoggedSpan,
        index: int,
        revision: int,
    ) -> bytes | IndexedError:
        """Apply the parts; take everything back at the first failure, or if it only validates."""
        self.catalog.savepoint()
        for stage in SERVICES:
            self.stages[stage].answer(SavepointItem())
        kept = deepcopy((self.clients, self.minimums))

        def take_back() -> None:
            self.catalog.revert()
            for stage in SERVICES:
                self.stages[stage].answer(RevertItem())
            self.clients, self.minimums = kept

        results = []
        for number, part in enumerate(span.parts[index]):
            outcome = self._plain(prepare, request, part, 0, revision)
            if isinstance(outcome, IndexedError):
                take_back()
                return IndexedError(0, outcome.error + f"(part {number})".encode())
            results.append(frame(outcome))
        if index in span.validated and prepare.feature_level >= limits.FEATURE_LEVEL_GUARDS:
            take_back()
        else:
            self.catalog.keep()
            for stage in SERVICES:
                self.stages[stage].answer(KeepItem())
        return unframe(FakeCodec().encode_transaction_result(tuple(results)))[0]

    def _plain(
        self,
        prepare: CommittedPrepare,
        request: LoggedRequest,
        span: LoggedSpan,
        index: int,
        revision: int,
    ) -> bytes | IndexedError:
        """Resolve, decide, and apply the effects: forward first, then backward."""
        route, item = self.routes[span.code], unframe(span.items)[index]
        who = (span.user_id, span.credential_revision)
        context = b""
        resolving = Stage.STREAMS if route.sets_grants else route.resolve_stage
        if resolving is not None:
            answer = self.stages[resolving].answer(
                ResolveItem(
                    span.code, revision, 1, frame(item), *who, route.gate, route.sets_grants
                )
            )
            assert isinstance(answer, ResolveOutcome)
            if answer.errors:
                return answer.errors[0]
            context = answer.contexts
        if route.owner == Stage.CATALOG:
            return self._decide(prepare, span, index, revision)
        where = (request.session_id, prepare.timestamp)
        outcome = self.stages[route.owner].answer(
            CommandItem(span.code, revision, 1, frame(item), *who, *where, (), context)
        )
        assert isinstance(outcome, CommandOutcome)
        if outcome.errors:
            return outcome.errors[0]
        for effect in outcome.effects:
            forward = sorted(stage for stage in effect.to if stage > route.owner)
            backward = sorted(stage for stage in effect.to if stage < route.owner)
            for stage in (*forward, *backward):
                self._effect(stage, revision, effect.payload, prepare.timestamp)
        return unframe(outcome.results)[0]

    def _decide(
        self, prepare: CommittedPrepare, span: LoggedSpan, index: int, revision: int
    ) -> bytes | IndexedError:
        """Let the catalog decide; if it cuts, every service freezes at once."""
        command = span.catalog_commands[index]
        assert command is not None
        place = (revision, prepare.op, prepare.timestamp, prepare.feature_level)
        outcome = self.catalog.apply(command, *place)
        if self.catalog.current().cut_op == prepare.op and isinstance(command, BeginSnapshot):
            for stage in SERVICE_STAGES:
                self.stages[stage].answer(CutItem(command.generation))
        if isinstance(outcome, SessionRefused):
            return IndexedError(index, outcome.error)
        return unframe(outcome.result)[0]

    def _effect(self, stage: Stage, revision: int, payload: bytes, timestamp: int) -> None:
        """Apply one effect."""
        if stage != Stage.SESSIONS:
            self.stages[stage].answer(EffectItem(revision, payload, timestamp))
            return
        kind, argument, *_ = payload.decode().split(":")
        if kind == "user_ended":
            user_id = int(argument)
            self.minimums[user_id] = max(self.minimums.get(user_id, 0), revision)
            self.clients = {
                key: client for key, client in self.clients.items() if client.user_id != user_id
            }

    def _query(
        self, stages: dict[Stage, FakeStage], span: ReadSpan, item: bytes, revision: int
    ) -> bytes | IndexedError:
        """Answer one read."""
        code, route = span.code, self.routes[span.code]
        context = b""
        if route.resolve_stage is not None and not span.is_authorized:
            answer = stages[route.resolve_stage].answer(
                ResolveItem(code, revision, 1, frame(item), 1, 1, route.gate)
            )
            assert isinstance(answer, ResolveOutcome)
            if answer.errors:
                return answer.errors[0]
            context = answer.contexts
        outcome = stages[route.owner].answer(
            QueryItem(0, code, 1, frame(item), 1, 1, 0, (), context)
        )
        assert isinstance(outcome, QueryOutcome)
        return outcome.errors[0] if outcome.errors else unframe(outcome.results)[0]

    def _is_outdated(self, span: LoggedSpan) -> bool:
        """Return whether the principal's credentials changed since the stamp."""
        return span.credential_revision < self.minimums.get(span.user_id, 0)


def _acknowledge(client: SequentialClient, acked: int) -> None:
    """Forget replies up to a number, or none if no number is given."""
    for number in range(1, min(acked, client.last) + 1):
        client.replies.pop(number, None)


def _joined(answers: list[bytes | IndexedError]) -> SpanReply:
    """Return the reply of a span."""
    errors = tuple(
        IndexedError(index, answer.error)
        for index, answer in enumerate(answers)
        if isinstance(answer, IndexedError)
    )
    results = frame_all(b"" if isinstance(answer, IndexedError) else answer for answer in answers)
    return SpanReply(results, errors)
