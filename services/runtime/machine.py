"""The machine: one domain's state, and the batches that change it. Pure.

`Machine.apply` handles the items of a batch in order and answers each. Its result depends only on
the batches so far, so that every replica answers the same bytes:

- A handler that raises Refusal refuses its command: its changes, effects and proposals are taken
  back, and the others of the batch stand.
- Any other exception is a defect. The command is taken back and answered INTERNAL in fixed words
  (an exception's own text may hold addresses), and `alarms` keeps the exception for the shell.
- A command that costs more than its prepare has left is refused, or answered shorter: see
  `services.runtime.cost`.
- OSError, MemoryError and RecursionError may be this process's own troubles, which other replicas
  do not share. They leave `apply`, as ProtocolError does. A machine that raised is half applied:
  its holder must drop it. A new process handles the batch again in isolation (`isolation`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Generic

from google.protobuf.message import DecodeError

from services.runtime import cost
from services.runtime.answers import Answers
from services.runtime.changes import RecentChanges
from services.runtime.domain import BulkHandler, Call, Deferred, Domain, State
from services.runtime.failures import LOCAL_FAILURES, Alarm, ApplyError, internal_error
from services.runtime.freezing import SectionFreezer
from services.runtime.handlers import Record, handlers_of, resolver_of
from services.runtime.installing import Installed
from services.runtime.isolation import Isolation
from services.runtime.normalization import NormalizePlan, plan_normalization
from services.runtime.queries import ENDLESS, AnsweredQueries, BatchReads, Patience, answers_of
from services.runtime.resolving import contexts_of
from services.runtime.spans import (
    BULK_ITEMS_MIN,
    DecodedSpan,
    decode,
    decode_contexts,
    decode_raw,
    join,
)
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.errors import Refusal
from viewstamp.limits import ANSWER_FREE_BYTES, FEATURE_LEVEL_MAX, GATEWAY_SESSION_ID
from viewstamp.machine.freezing import CutError
from viewstamp.machine.tables import UndoLog

STATE_DIGEST_CODE: Final = 0
CHANGES_CODE: Final = 99
# Items that a batch outside the log may hold: they change nothing.
_READ_KINDS: Final = frozenset({"resolve", "query", "proposals"})

__all__ = ["Machine", "AnsweredQueries", "Alarm", "ApplyError"]


class Machine(Generic[State]):
    """One domain from its empty state on.

    `revision` is the last one that concerned this stage. `alarms` are the defects since the holder
    last emptied the list. A holder that sets `defers_digests` walks over states itself.
    """

    def __init__(self, domain: Domain[State]) -> None:
        """Start from the domain's empty state. Raises ValueError for a domain that is not whole."""
        self.domain = domain
        self.undo = UndoLog()
        self.state = domain.new_state(self.undo)
        self.undo.settle()
        self.freezer = SectionFreezer(domain.section, self.state)
        self.changes = RecentChanges(domain, self.state, 0)
        self.revision = self.sequence = 0
        self.alarms: list[Alarm] = []
        self._handlers = handlers_of(domain)
        self._proposals: list[pb.Proposal] = []
        self._held_proposals: list[pb.Proposal] = []  # of commands that may still be taken back
        self._feature_level = 0
        self.budget = cost.Budget()
        self.defers_digests = False
        self._isolation: Isolation | None = None  # of the batch under way
        self._reads = BatchReads(ENDLESS, is_in_log=False)  # of the batch under way
        self._known_digest: bytes | None = None  # of the state since the last logged batch
        self._effect_revision = 0  # of effects that are not settled yet

    def apply(
        self,
        batch: pb.Batch,
        patience: Patience = ENDLESS,
        isolation: Isolation | None = None,
    ) -> AnsweredQueries:
        """Handle a batch and return an outcome per item; only reads may run out of `patience`.

        A batch that killed a process is handled in `isolation`.

        Raises ProtocolError for a batch that cannot be next, and OSError, MemoryError or
        RecursionError if this process fails; then the machine must not be used again.
        """
        self._admit(batch)
        reply = pb.BatchReply(sequence=batch.sequence)
        outcomes = reply.outcomes
        self._isolation = isolation
        reads = self._reads = BatchReads.of(batch, patience)
        for item in batch.items:
            kind = item.WhichOneof("kind")
            if kind is None:
                raise ApplyError(f"an item of batch {batch.sequence} has no kind known here")
            if not batch.sequence and kind not in _READ_KINDS:
                raise ApplyError(f"a batch outside the log (sequence 0) holds a {kind}")
            if isolation is not None:
                isolation.begin_item()
            if self._effect_revision and item.effect.revision != self._effect_revision:
                self._settle_effects()
            _ITEMS[kind](self, getattr(item, kind), outcomes.add())
        self._settle_effects()
        reply.proposals.extend(self._proposals)
        self._proposals.clear()
        reply.notices.extend(self.domain.take_notices(self.state))
        return AnsweredQueries(reply, reads.deferred, reads.digests)

    def activate(self, installed: Installed[State]) -> None:
        """Continue from an installed section instead of the empty state.

        Raises ProtocolError once a batch of the log was applied.
        """
        if self.sequence:
            raise ApplyError(f"a section comes before a batch, not after batch {self.sequence}")
        self.state, self.undo, self.freezer = installed.state, installed.undo, installed.freezer
        self.revision, self.sequence = installed.begin.revision, installed.begin.sequence
        self.changes = RecentChanges(self.domain, self.state, self.revision)
        self._known_digest = None

    def normalize(self, request: pb.NormalizeRequest) -> NormalizePlan:
        """Read the state that normalization needs; the plan's parts may then run in threads.

        Raises ProtocolError for a method without normalization.
        """
        record = self._handlers.commands.get(request.code)
        if record is None or record.normalizer is None:
            raise ApplyError(f"method code {request.code} is not normalized by this service")
        return plan_normalization(record, self.state, self.revision, request, self.alarms)

    def state_digest(self) -> bytes:
        """Return the digest of all entities, 32 bytes as `viewstamp.format.digest` writes them."""
        return self.domain.section.digest(self.state).to_bytes()

    def _admit(self, batch: pb.Batch) -> None:
        if batch.feature_level > FEATURE_LEVEL_MAX:
            raise ApplyError(
                f"feature level {batch.feature_level} is in force and this build knows "
                f"{FEATURE_LEVEL_MAX}: upgrade it"
            )
        if batch.sequence:
            self._known_digest = None
            if batch.sequence != self.sequence + 1:
                raise ApplyError(
                    f"batch {batch.sequence} follows batch {self.sequence}; "
                    f"{self.sequence + 1} is due"
                )
            self.sequence = batch.sequence
            self.budget.begin(batch.op, batch.feature_level)
        self._feature_level = batch.feature_level

    def _command(self, item: pb.CommandItem, outcome: pb.Outcome) -> None:
        record = self._handlers.commands.get(item.code)
        if record is None:
            raise ApplyError(f"command code {item.code} is not claimed by this service")
        call = Call(
            revision=item.first_revision,
            timestamp=item.timestamp,
            user_id=item.user_id,
            credential_revision=item.credential_revision,
            session_id=item.session_id,
            feature_level=self._feature_level,
            budget=self.budget,
        )
        self.budget.session_id = item.session_id
        answer = outcome.command
        answer.SetInParent()
        if self._isolation is not None:
            handler = self._isolation.guard(record.full_name, record.handler)
            record = replace(record, handler=handler, bulk=None)
        is_bulk = item.count >= BULK_ITEMS_MIN and not item.refused and not item.contexts
        if is_bulk and record.bulk is not None:
            answer.results = self._run_in_bulk(record, record.bulk, item, call, answer)
        else:
            span = decode(record.request, record.batch, item.items, item.count, item.refused)
            contexts = decode_contexts(item.contexts, item.count)
            answer.results = join(self._run(record, span, contexts, call, answer))
        if item.count:
            self.revision = max(self.revision, item.first_revision + item.count - 1)

    def _run_in_bulk(
        self,
        record: Record,
        bulk: BulkHandler[State],
        item: pb.CommandItem,
        call: Call,
        answer: pb.CommandOutcome,
    ) -> bytes:
        """Run a span by its bulk handler, and return the framed results.

        The first command that it leaves takes the general way, with following ones, `width` in all:
        more of them as the bulk handler does fewer, so that a span full of refusals costs little
        extra.
        """
        span = decode_raw(item.items, item.count, ())
        if span.skipped:  # it does not hold what it claims
            return join(self._run(record, span, (), call, answer))
        parts, done, encoded, width = [], 0, span.requests, BULK_ITEMS_MIN
        while True:
            call.revision = item.first_revision + done
            count, results = self._bulk(record.full_name, bulk, encoded[done:], call)
            parts.append(results)
            done += count
            if done == item.count:
                return b"".join(parts)
            width = BULK_ITEMS_MIN if count >= width else 2 * width
            left = encoded[done : done + width]
            rest = decode(record.request, record.batch, join(left), len(left), ()).moved(done)
            call.revision = item.first_revision
            parts.append(join(self._run(record, rest, (), call, answer)))
            done += len(left)

    def _bulk(
        self, where: str, bulk: BulkHandler[State], encoded: Sequence[bytes], call: Call
    ) -> tuple[int, bytes]:
        """Return the bulk handler's result; a handler with a defect counts as having done
        nothing."""
        mark, revision = self.undo.mark(), call.revision
        try:
            done = bulk(self.state, encoded, call)
            if self.undo.savepoint is None:
                self.changes.note_created(self.undo.entries)
            return done
        except LOCAL_FAILURES:
            raise
        except Exception as defect:
            self._take_back(mark, call)
            self._alarm(where, revision, defect)
            return 0, b""
        finally:
            self.undo.settle()

    def _run(
        self,
        record: Record,
        span: DecodedSpan,
        contexts: Sequence[bytes],
        call: Call,
        answer: pb.CommandOutcome,
    ) -> list[bytes]:
        """Run the commands of a span and return a result per index.

        This loop is the whole cost of a command beyond its handler: everything it touches is a
        local name, and rare cases are checked only when there are some.
        """
        handler, validates = record.handler, record.may_validate(self._feature_level)
        state, undo = self.state, self.undo
        entries, effects, proposals = undo.entries, call.effects, call.proposals
        skipped, settles = span.skipped, undo.savepoint is None
        # The parts of a transaction share the free allowance, so each of their bytes is counted.
        free_bytes = ANSWER_FREE_BYTES if settles else 0
        revision, budget = call.revision, self.budget
        refuse, fitting, has_room = answer.errors.add, budget.fitting, budget.answer
        note = self.changes.note
        results: list[bytes] = []
        append = results.append
        for index, request in enumerate(span.requests, span.start):
            call.revision = revision + index
            if skipped and index in skipped:
                if (error := skipped[index]) is not None:
                    refuse(index=index, error=fitting(call.revision, error))
                append(b"")
                continue
            if contexts:
                call.context = contexts[index]
            mark = len(entries)
            try:
                result = handler(state, request, call)
                if result.__class__ is not bytes:
                    result = result.SerializeToString(deterministic=True)
                if len(result) > free_bytes and not has_room(call.revision, len(result)):
                    self._take_back(mark, call)
                    limit = budget.pools.session_answer_bytes
                    refuse(index=index, error=cost.too_long_an_answer(len(result), limit))
                    result = b""
                elif validates and request.validate_only:
                    self._take_back(mark, call)
            except Refusal as refusal:
                self._take_back(mark, call)
                refuse(index=index, error=fitting(call.revision, refusal.to_error()))
                result = b""
            except LOCAL_FAILURES:
                raise
            except Exception as defect:
                self._take_back(mark, call)
                self._alarm(record.full_name, call.revision, defect)
                error = internal_error(record.full_name)
                refuse(index=index, error=fitting(call.revision, error))
                result = b""
            append(result)
            if effects:
                self._move_effects(index, call, answer)
            if proposals:
                self._move_proposals(call)
            if settles and entries:
                note(call.revision, entries)
                entries.clear()
        return results

    def _take_back(self, mark: int, call: Call) -> None:
        self.undo.revert(mark)
        call.effects.clear()
        call.proposals.clear()

    def _move_effects(self, index: int, call: Call, answer: pb.CommandOutcome) -> None:
        for to, payload in call.effects:
            answer.effects.add(index=index, to=to, payload=payload)
        call.effects.clear()

    def _move_proposals(self, call: Call) -> None:
        pending = self._proposals if self.undo.savepoint is None else self._held_proposals
        pending.extend(call.proposals)
        call.proposals.clear()

    def _alarm(self, where: str, revision: int, defect: Exception) -> None:
        self.alarms.append(Alarm(where, revision, defect))

    def _effect(self, item: pb.EffectItem, outcome: pb.Outcome) -> None:
        outcome.done.SetInParent()
        try:
            payload = effects_pb2.EffectPayload.FromString(item.payload)
        except DecodeError as error:
            raise ApplyError(f"the effect of revision {item.revision} is malformed") from error
        kind = payload.WhichOneof("kind")
        handler = self.domain.effects.get(kind or "")
        if kind is None or handler is None:
            # Continuing without it would leave this replica different from one that knows it.
            raise ApplyError(f"effect {kind} of revision {item.revision} has no handler here")
        call = Call(
            item.revision, item.timestamp, None, 0, 0, self._feature_level, budget=self.budget
        )
        if self._isolation is not None:
            handler = self._isolation.guard(f"effect {kind}", handler)
        mark, self._effect_revision = self.undo.mark(), item.revision
        try:
            handler(self.state, getattr(payload, kind), call)
            if call.effects:
                raise RuntimeError("an effect must not emit effects")
        except LOCAL_FAILURES:
            raise
        except Exception as defect:
            self._take_back(mark, call)
            self._alarm(f"effect {kind}", item.revision, defect)
        self._move_proposals(call)
        self.revision = max(self.revision, item.revision)

    def _settle_effects(self) -> None:
        """Settle the effects of one revision together: watchers see them as one command's."""
        if self._effect_revision and self.undo.savepoint is None:
            self.changes.note(self._effect_revision, self.undo.entries)
            self.undo.settle()
        self._effect_revision = 0

    def _resolve(self, item: pb.ResolveItem, outcome: pb.Outcome) -> None:
        resolve = resolver_of(self.domain, item)
        call = Call(
            revision=item.first_revision,
            timestamp=0,
            user_id=item.user_id,
            credential_revision=item.credential_revision,
            session_id=0,
            feature_level=self._feature_level,
            budget=self.budget if self._reads.is_in_log else None,
        )
        self.budget.session_id = GATEWAY_SESSION_ID  # nobody's in particular
        answer = outcome.resolve
        answer.SetInParent()
        where = f"resolving for method {item.code}"
        if self._isolation is not None:
            resolve = self._isolation.guard(where, resolve)
        contexts = Answers(where, item.first_revision, self.alarms)
        contexts_of(item, resolve, call, contexts, self._read)
        answer.contexts = contexts.joined()
        errors = contexts.errors
        if self._reads.is_in_log:
            errors = self.budget.all_fitting(item.first_revision, errors)
        answer.errors.extend(errors)

    def _query(self, item: pb.QueryItem, outcome: pb.Outcome) -> None:
        answer = outcome.query
        answer.query_id = item.query_id
        if item.code == STATE_DIGEST_CODE:
            known, is_deferred = self._known_digest, self.defers_digests
            answer_digest = self._reads.answer_digest
            self._known_digest = answer_digest(answer, known, is_deferred, self.state_digest)
            return
        if self._reads.postpones(item):
            answer.postponed = True
            return
        if item.code == CHANGES_CODE:
            answer.results = self._reads.counted(self.changes.answer(item))
            return
        record = self._handlers.queries.get(item.code)
        if record is None:
            raise ApplyError(f"query code {item.code} is not claimed by this service")
        call = Call(
            revision=self.revision,
            timestamp=self._reads.clock_us,
            user_id=item.user_id if item.HasField("user_id") else None,
            credential_revision=item.credential_revision,
            session_id=item.session_id,
            feature_level=self._feature_level,
            caller_address=item.caller_address,
        )
        collected = self._reads.collect(record.full_name, item, self.revision, self.alarms)
        answers_of(record, item, call, collected, self._read)
        self._reads.finish(item, collected, answer)

    def digest_found(self, sequence: int, digest: bytes) -> None:
        """Remember the digest of the state after batch `sequence`, if that is still the state."""
        if sequence == self.sequence:
            self._known_digest = digest

    def _read(
        self, handler: Callable[[State, Any, Call], Any], request: Any, call: Call
    ) -> bytes | Deferred:
        """Run a handler that must leave no trace."""
        mark = self.undo.mark()
        try:
            result = handler(self.state, request, call)
        finally:
            left_trace = self.undo.mark() != mark or call.effects or call.proposals
            if left_trace:
                self._take_back(mark, call)
        if left_trace:
            raise RuntimeError("a read must not change, emit or propose anything")
        if isinstance(result, (bytes, Deferred)):
            return result
        encoded: bytes = result.SerializeToString(deterministic=True)
        return encoded

    def _savepoint(self, item: pb.SavepointItem, outcome: pb.Outcome) -> None:
        outcome.done.SetInParent()
        if self.undo.savepoint is not None:
            raise ApplyError("a savepoint is open already: keep or revert it first")
        self.undo.open_savepoint()

    def _keep(self, item: pb.KeepItem, outcome: pb.Outcome) -> None:
        outcome.done.SetInParent()
        self._demand_savepoint("kept")
        self.changes.note(self.revision, self.undo.entries)  # all its parts have this revision
        self.undo.keep_savepoint()
        self._proposals.extend(self._held_proposals)
        self._held_proposals.clear()

    def _revert(self, item: pb.RevertItem, outcome: pb.Outcome) -> None:
        outcome.done.SetInParent()
        self._demand_savepoint("reverted")
        self.undo.revert_savepoint()
        self._held_proposals.clear()

    def _demand_savepoint(self, done: str) -> None:
        if self.undo.savepoint is None:
            raise ApplyError(f"no savepoint is open that could be {done}")

    def _all_proposals(self, item: pb.ProposalsItem, outcome: pb.Outcome) -> None:
        outcome.done.SetInParent()
        self._proposals.extend(self.domain.proposals_for(item, self.state))

    def _cut(self, item: pb.CutItem, outcome: pb.Outcome) -> None:
        outcome.done.SetInParent()
        if self.undo.savepoint is not None:
            raise ApplyError(f"cut {item.generation} comes while a savepoint is open")
        try:
            self.freezer.freeze(item.generation, self.revision)
        except CutError as error:
            raise ApplyError(str(error)) from error


# By the item's kind. Not bound to a machine: a dropped machine must be freed at once, with its
# state, since the garbage collector may never visit it again (`viewstamp.garbage`).
_ITEMS: Final[Mapping[str, Callable[[Machine[Any], Any, pb.Outcome], None]]] = {
    "command": Machine._command,
    "resolve": Machine._resolve,
    "effect": Machine._effect,
    "query": Machine._query,
    "cut": Machine._cut,
    "savepoint": Machine._savepoint,
    "keep": Machine._keep,
    "revert": Machine._revert,
    "proposals": Machine._all_proposals,
}
