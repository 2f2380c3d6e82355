"""Fake stages and a fake codec: payloads are words, so that traces can be read.

A command is `name[,word...]`. The words: `fail` (the owner refuses it), `unresolved` (the resolving
stage refuses it), `emit=2.4` (an effect to the stages of these numbers), `end=7` (the effect says
to sessions that user 7 is no more), `later` (the answer of a read is deferred).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from coordinator.mux import types as mux_types
from coordinator.mux.catalog_types import CatalogResult, CreateSnapshotResult, PruneSnapshotsResult
from coordinator.mux.codec import (
    CredentialsChanged,
    EndResult,
    ExpireResult,
    RegisterResult,
    SessionEnded,
    SessionResult,
    UserEnded,
)
from coordinator.mux.entities import CatalogValue, SessionsValue
from coordinator.mux.types import (
    CommandItem,
    CommandOutcome,
    CutItem,
    Done,
    Effect,
    EffectItem,
    IndexedError,
    Item,
    KeepItem,
    Outcome,
    QueryItem,
    QueryOutcome,
    RequestReply,
    ResolveItem,
    ResolveOutcome,
    RevertItem,
    SavepointItem,
    Stage,
    StageBatch,
    StageReply,
)
from coordinator.stages.entities import EntityCodec
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.framing import frame, frame_all, unframe

# (checksum over own commands alone, checksum over everything seen).
Fingerprint: TypeAlias = tuple[int, int]


class FakeCodec(EntityCodec):
    """A codec of words instead of protobuf, except for entities."""

    def encode_entity(self, value: SessionsValue | CatalogValue) -> bytes:
        """Return the canonical bytes of an entity, whose errors are words."""
        if isinstance(value, RequestReply):
            value = _with_errors(
                value, lambda word: errors_pb2.Error(message=word.decode()).SerializeToString()
            )
        return super().encode_entity(value)

    def decode_sessions_entity(self, kind: int, canonical: bytes) -> SessionsValue:
        """Return an entity of the sessions section."""
        value = super().decode_sessions_entity(kind, canonical)
        if isinstance(value, RequestReply):
            value = _with_errors(
                value, lambda error: errors_pb2.Error.FromString(error).message.encode()
            )
        return value

    def encode_catalog_result(self, result: CatalogResult) -> bytes:
        """Return the result as a word."""
        match result:
            case CreateSnapshotResult():
                return frame(f"generation={result.generation}".encode())
            case PruneSnapshotsResult():
                return frame(f"pruned={list(result.generations)}".replace(" ", "").encode())
            case _:
                return frame(b"done")

    def encode_session_result(self, result: SessionResult) -> bytes:
        """Return the result as a word."""
        match result:
            case RegisterResult():
                return frame(f"session={result.session_id}".encode())
            case EndResult():
                return frame(b"ended")
            case ExpireResult():
                return frame(b"expired")

    def encode_transaction_result(self, results: tuple[bytes, ...]) -> bytes:
        """Return the parts' results in parentheses."""
        return frame(b"(" + b" ".join(unframe(result)[0] for result in results) + b")")

    def encode_effect(self, effect: SessionEnded) -> bytes:
        """Return the effect as words."""
        return f"session_ended:{effect.session_id}".encode()

    def decode_effect(self, payload: bytes) -> UserEnded | CredentialsChanged | None:
        """Return what the words mean for sessions."""
        kind, *arguments = payload.decode().split(":")
        if kind == "user_ended":
            return UserEnded(int(arguments[0]))
        if kind == "credentials":
            return CredentialsChanged(int(arguments[0]), int(arguments[1]))
        return None

    def encode_refusal(self, name: str, details: Mapping[str, str], case: str = "") -> bytes:
        """Return the name alone, and the facts that a client must know."""
        resend = f"({details['resend_from']})" if "resend_from" in details else ""
        return f"{name}{resend}".encode()

    def encode_without_text(self, error: bytes) -> bytes:
        """Return the name alone."""
        return error.split(b"(")[0]

    def encode_part_refusal(self, error: bytes, part: int) -> bytes:
        """Return the error with the part's index."""
        return error + f"(part {part})".encode()


@dataclass
class FakeStage:
    """A machine that remembers what it saw, and whose answers depend on all of it."""

    stage: Stage
    # Whether results contain the state's fingerprint.
    is_stateful: bool = False
    # Code -> (stages, payload with {name} and {revision}) of the effect that each success has.
    emits: dict[int, tuple[tuple[Stage, ...], str]] = field(default_factory=dict)
    # Resolving one of these is not remembered: reads leave no trace.
    query_codes: frozenset[int] = frozenset()
    seen: list[str] = field(default_factory=list)
    own: int = 0
    all: int = 0
    saved: tuple[int, int, int] | None = None

    @property
    def fingerprint(self) -> Fingerprint:
        """The state."""
        return self.own, self.all

    def apply(self, batch: StageBatch) -> StageReply:
        """Apply a batch and return the answer."""
        assert batch.stage == self.stage and batch.items
        outcomes = tuple(self.answer(item) for item in batch.items)
        return StageReply(self.stage, batch.sequence, outcomes)

    def answer(self, item: Item) -> Outcome:
        """Apply one item."""
        match item:
            case CommandItem():
                return self._command(item)
            case ResolveItem():
                return self._resolve(item)
            case QueryItem():
                return self._query(item)
            case EffectItem():
                self._see(f"effect r{item.revision} {item.payload.decode()}")
            case CutItem():
                assert self.saved is None, "a cut in a savepoint"
                self._see(f"cut {item.generation}")
            case SavepointItem():
                assert self.saved is None, "savepoint in a savepoint"
                self.saved = (self.own, self.all, len(self.seen))
            case KeepItem():
                assert self.saved is not None, "keep without a savepoint"
                self.saved = None
            case RevertItem():
                assert self.saved is not None, "revert without a savepoint"
                self.own, self.all, kept = self.saved
                del self.seen[kept:]
                self.saved = None
            case mux_types.ProposalsItem():
                pass
        return Done()

    def _see(self, event: str) -> None:
        """Remember an event; it changes every later answer."""
        self.seen.append(event)
        self.all = zlib.crc32(event.encode(), self.all)

    def _tell(self, name: str) -> bytes:
        """Return an answer about a name."""
        return f"{name}@{self.all:08x}".encode() if self.is_stateful else name.encode()

    def _command(self, item: CommandItem) -> CommandOutcome:
        """Apply commands."""
        results, errors, effects = [], [], []
        contexts = unframe(item.contexts) or [b""] * item.count
        for index, (payload, context) in enumerate(zip(unframe(item.items), contexts, strict=True)):
            if index in item.refused:
                results.append(b"")
                continue
            name, words = parse(payload)
            revision = item.first_revision + index
            event = f"command {item.code} r{revision} {payload.decode()} {context.decode()}"
            self.own = zlib.crc32(event.encode(), self.own)
            self._see(event)
            if "fail" in words:
                results.append(b"")
                errors.append(IndexedError(index, f"FAILED({name})".encode()))
                continue
            results.append(self._tell(name))
            effects += self._effects(item.code, index, revision, name, words)
        return CommandOutcome(frame_all(results), tuple(errors), tuple(effects))

    def _effects(
        self, code: int, index: int, revision: int, name: str, words: dict[str, str]
    ) -> list[Effect]:
        """Return the effects of a command."""
        effects = []
        if code in self.emits:
            stages, template = self.emits[code]
            payload = template.format(name=name, revision=revision)
            effects.append(Effect(index, stages, payload.encode()))
        if "emit" in words:
            stages = tuple(Stage(int(number)) for number in words["emit"].split("."))
            kind = f"user_ended:{words['end']}" if "end" in words else "emitted"
            payload = f"{kind}:{self._tell(name).decode()}"
            effects.append(Effect(index, stages, payload.encode()))
        return effects

    def _resolve(self, item: ResolveItem) -> ResolveOutcome:
        """Resolve. What grants resolve to depends on this stage's own commands alone."""
        contexts, errors = [], []
        for index, payload in enumerate(unframe(item.items)):
            if index in item.refused:
                contexts.append(b"")
                continue
            name, words = parse(payload)
            if not item.grants and item.code not in self.query_codes:
                self._see(f"resolve {item.code} r{item.first_revision + index} {name}")
            if "unresolved" in words:
                contexts.append(b"")
                errors.append(IndexedError(index, f"UNRESOLVED({name})".encode()))
                continue
            state = self.own if item.grants else self.all
            contexts.append(f"<{name}{f'@{state:08x}' if self.is_stateful else ''}>".encode())
        return ResolveOutcome(frame_all(contexts), tuple(errors))

    def _query(self, item: QueryItem) -> QueryOutcome:
        """Answer reads; nothing is remembered."""
        if item.code == mux_types.STATE_DIGEST_CODE:
            return QueryOutcome(item.query_id, state_digest=f"{self.all:08x}".encode())
        return self.query_outcome(item, is_now="later" not in item.items.decode())

    def query_outcome(self, item: QueryItem, is_now: bool) -> QueryOutcome:
        """Answer reads, now or as announced."""
        if not is_now:
            return QueryOutcome(item.query_id, deferred=True)
        results, errors = [], []
        contexts = unframe(item.contexts) or [b""] * item.count
        for index, (payload, context) in enumerate(zip(unframe(item.items), contexts, strict=True)):
            name, words = parse(payload)
            if index in item.refused or "fail" in words:
                results.append(b"")
                if index not in item.refused:
                    errors.append(IndexedError(index, f"FAILED({name})".encode()))
                continue
            results.append(self._tell(name) + context)
        return QueryOutcome(item.query_id, frame_all(results), tuple(errors))


def _with_errors(reply: RequestReply, translate: Callable[[bytes], bytes]) -> RequestReply:
    """Return the reply with its errors translated."""
    spans = tuple(
        replace(span, errors=tuple(IndexedError(e.index, translate(e.error)) for e in span.errors))
        for span in reply.spans
    )
    return replace(reply, spans=spans)


def parse(payload: bytes) -> tuple[str, dict[str, str]]:
    """Return the name of a command and its words with their values."""
    name, *words = payload.decode().split(",")
    return name, dict(word.partition("=")[::2] for word in words)


def holes(frames: bytes) -> list[str]:
    """Return the words of a blob, `-` where it has a hole."""
    return [item.decode() if item else "-" for item in unframe(frames)]
