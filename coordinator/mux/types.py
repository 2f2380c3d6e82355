"""The values that pass between the mux and its shell. They mirror the protos; nothing is encoded.

Blobs called `items`, `results` or `contexts` are joined frames (a 0x0A byte, the length as a
varint, the bytes) that the mux never takes apart. Stages are numbered like `routing.v1.Stage`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from coordinator.mux.catalog_types import (
    CatalogChanged,
    CatalogCommand,
    CutTaken,
)
from coordinator.mux.stage import SERVICE_STAGES, STAGES, Stage

# Defined in other modules, and parts of what is defined here.
__all__ = [
    "SERVICE_STAGES",
    "STAGES",
    "Stage",
    "CatalogChanged",
    "CatalogCommand",
    "CutTaken",
]

# An encoded errors.v1.Error: the mux carries refusals and never reads them.
Error: TypeAlias = bytes

# Stands in a blob for a refused command, so that indexes never shift.
EMPTY_FRAME = b"\x0a\x00"

# The code of SubmitService.Transact, the one command that has parts.
TRANSACT_CODE = 10
# The code of SnapshotsService.BeginSnapshot, the cut.
BEGIN_SNAPSHOT_CODE = 405
BEGIN_EPOCH_CODE = 413
# The codes of the builtin reads of a domain stage: its state digest, and its recent changes.
STATE_DIGEST_CODE = 0
CHANGES_CODE = 99
BUILTIN_READ_CODES = frozenset({STATE_DIGEST_CODE, CHANGES_CODE})


class MuxError(Exception):
    """A stage or the shell broke the protocol; the message says how. The replica must stop."""


@dataclass(frozen=True, slots=True)
class Route:
    """The method options of one code. Commands and reads share the numbering.

    `gate` is a routing.v1.Gate number, 0 without a resolve stage. `emits_backward` holds only
    stages before `owner` that the method does not enter itself. Raises ValueError otherwise.
    """

    code: int
    owner: Stage
    resolve_stage: Stage | None = None
    gate: int = 0
    emits_backward: frozenset[Stage] = frozenset()
    sets_grants: bool = False
    internal: bool = False
    is_query: bool = False

    def __post_init__(self) -> None:
        """Refuse options that the order of the stages cannot honour."""
        if any(stage >= self.owner for stage in self.emits_backward):
            raise ValueError(f"code {self.code}: emits_backward must lie before {self.owner.name}")
        if self.resolve_stage is not None and self.resolve_stage >= self.owner:
            raise ValueError(f"code {self.code}: it must resolve before {self.owner.name}")
        if self.emits_backward & {self.resolve_stage}:
            raise ValueError(f"code {self.code}: it emits backward to a stage that it enters")
        if self.sets_grants and (self.owner != Stage.USERS or self.resolve_stage is not None):
            raise ValueError(f"code {self.code}: sets_grants is for plain commands of users")

    def sends_forward(self, stage: Stage) -> bool:
        """Return whether an effect may go forward to the stage: to any later one except catalog."""
        return self.owner < stage < Stage.CATALOG


@dataclass(frozen=True, slots=True)
class IndexedError:
    """The refusal of one command of a span."""

    index: int
    error: Error


# --- The log -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegisterSession:
    """Open a session; `nonce` has limits.SESSION_NONCE_BYTES bytes."""

    nonce: bytes


@dataclass(frozen=True, slots=True)
class EndSession:
    """End the session that carries the request; only check, if validating."""

    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class ExpireSession:
    """End an idle session, unless it has used a later request number (internal)."""

    session_id: int
    last_request_number: int


SessionCommand: TypeAlias = RegisterSession | EndSession | ExpireSession


@dataclass(frozen=True, slots=True)
class LoggedSpan:
    """Consecutive commands of one method by one principal; each takes one revision.

    The codec fills `session_commands` and `catalog_commands` for methods that these stages own:
    one per index, None where `refused` names the index. It fills `parts` for TRANSACT_CODE only:
    per index the transaction's parts in order, each a span of count 1, and () where refused.
    `validated` are the indexes of transactions that ask to change nothing. `refused` names what
    does not parse (ascending), on every replica alike.
    """

    code: int
    count: int
    items: bytes
    user_id: int
    credential_revision: int
    refused: tuple[IndexedError, ...] = ()
    parts: tuple[tuple[LoggedSpan, ...], ...] = ()
    session_commands: tuple[SessionCommand | None, ...] = ()
    catalog_commands: tuple[CatalogCommand | None, ...] = ()
    validated: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request as sequenced. Without spans it is an acknowledgement and has no number.

    `fingerprint` tells requests of different content apart; empty where it is unknown.
    """

    session_id: int
    number: int
    acked: int
    spans: tuple[LoggedSpan, ...]
    trace_parent: str = ""
    fingerprint: bytes = b""


@dataclass(frozen=True, slots=True)
class CommittedPrepare:
    """One committed log entry. Its commands have the revisions from `first_revision` on."""

    op: int
    view: int
    first_revision: int
    timestamp: int  # log time, microseconds since 1970
    feature_level: int
    requests: tuple[LoggedRequest, ...]


# --- To the stages -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommandItem:
    """Commands that the stage owns. Parts of a transaction share one revision, one per item."""

    code: int
    first_revision: int
    count: int
    items: bytes
    user_id: int
    credential_revision: int
    session_id: int
    timestamp: int
    refused: tuple[int, ...] = ()
    contexts: bytes = b""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose `count` consecutive reads of a span are."""

    user_id: int
    credential_revision: int
    session_id: int
    count: int


@dataclass(frozen=True, slots=True)
class ResolveItem:
    """Commands or reads of a later stage, to be resolved and authorized here."""

    code: int
    first_revision: int
    count: int
    items: bytes
    user_id: int
    credential_revision: int
    gate: int
    grants: bool = False
    refused: tuple[int, ...] = ()
    callers: tuple[Caller, ...] = ()


@dataclass(frozen=True, slots=True)
class EffectItem:
    """The effect of another stage's command on this one."""

    revision: int
    payload: bytes
    timestamp: int


@dataclass(frozen=True, slots=True)
class QueryItem:
    """Reads that the stage owns; code 0 is the builtin state digest.

    An item that `continues` belongs to the same read as the query before it. One with `callers` has
    reads of several, and no user or session of its own.
    """

    query_id: int
    code: int
    count: int
    items: bytes
    user_id: int | None
    credential_revision: int
    session_id: int
    refused: tuple[int, ...] = ()
    contexts: bytes = b""
    caller_address: str = ""
    continues: bool = False
    callers: tuple[Caller, ...] = ()


@dataclass(frozen=True, slots=True)
class CutItem:
    """Freeze the section for a snapshot."""

    generation: int


@dataclass(frozen=True, slots=True)
class SavepointItem:
    """Later changes can be taken back."""


@dataclass(frozen=True, slots=True)
class KeepItem:
    """Keep the changes since the savepoint."""


@dataclass(frozen=True, slots=True)
class RevertItem:
    """Take back the changes since the savepoint."""


@dataclass(frozen=True, slots=True)
class Tenure:
    """How long this replica has led: `elapsed_ms` as it counts, in the tenure of a number."""

    number: int
    elapsed_ms: int


@dataclass(frozen=True, slots=True)
class ProposalsItem:
    """Repeat every pending proposal; with a tenure, tell what has been silent in it."""

    tenure: Tenure | None = None


Item: TypeAlias = (
    CommandItem
    | ResolveItem
    | EffectItem
    | QueryItem
    | CutItem
    | SavepointItem
    | KeepItem
    | RevertItem
    | ProposalsItem
)


@dataclass(frozen=True, slots=True)
class StageBatch:
    """Items for one stage. `sequence` grows by one per logged batch to it; 0 is not logged."""

    stage: Stage
    sequence: int
    op: int
    feature_level: int
    items: tuple[Item, ...]


# --- From the stages -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect of the command at `index` of its span; `payload` is an EffectPayload."""

    index: int
    to: tuple[Stage, ...]
    payload: bytes


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The result of a CommandItem: a frame per index, refusals by index, effects in order."""

    results: bytes
    errors: tuple[IndexedError, ...] = ()
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolveOutcome:
    """The result of a ResolveItem: a frame per index, refusals by ascending index."""

    contexts: bytes
    errors: tuple[IndexedError, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryOutcome:
    """The result of a QueryItem; `deferred` announces that it follows through `Mux.deferred`.

    `postponed` means that the stage had no time for it.
    """

    query_id: int
    results: bytes = b""
    errors: tuple[IndexedError, ...] = ()
    deferred: bool = False
    state_digest: bytes = b""
    postponed: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to every other item."""


Outcome: TypeAlias = CommandOutcome | ResolveOutcome | QueryOutcome | Done


@dataclass(frozen=True, slots=True)
class StageReply:
    """Answers to the oldest unanswered batch of the stage, one per item and in their order."""

    stage: Stage
    sequence: int
    outcomes: tuple[Outcome, ...]


# --- Reads ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """Consecutive reads of one method. Only builtin reads (count 1) set `owner`.

    `is_authorized` skips the resolving stage, for a caller who may read all of it; the owner then
    gets no contexts. Otherwise a `gate` is demanded there instead of the route's.
    """

    code: int
    count: int
    items: bytes
    owner: Stage | None = None
    is_authorized: bool = False
    gate: int | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """Reads answered together from one revision. The shell makes `token` and never reuses it.

    `user_id` is None only for public methods, and where the reads of one span have several
    `callers`.
    """

    token: int
    spans: tuple[ReadSpan, ...]
    user_id: int | None
    credential_revision: int
    session_id: int = 0
    caller_address: str = ""
    callers: tuple[Caller, ...] = ()


# --- To the shell --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpanReply:
    """Results of one span: a frame per index, refusals by ascending index."""

    results: bytes
    errors: tuple[IndexedError, ...] = ()
    state_digest: bytes = b""  # of a read with STATE_DIGEST_CODE alone


@dataclass(frozen=True, slots=True)
class RequestReply:
    """The answer to one request, the same on a retry: `spans`, or `error` if nothing was applied.

    `view`, `op` and `first_revision` are those of the prepare in which the request took effect; for
    a duplicate that is an earlier prepare. `fingerprint` is that of the request.
    """

    session_id: int
    number: int
    view: int
    op: int
    first_revision: int
    spans: tuple[SpanReply, ...]
    error: Error | None = None
    fingerprint: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class SendBatch:
    """Send the batch to its stage, after every batch sent to it before."""

    batch: StageBatch


@dataclass(frozen=True, slots=True)
class Applied:
    """A prepare is done, in op order. One reply per request, in its order."""

    op: int
    view: int
    last_revision: int
    replies: tuple[RequestReply, ...]
    ended_sessions: tuple[int, ...]
    users_with_ended_credentials: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadAnswered:
    """A read is done: a reply per span, or the error. It saw all up to `revision`, nothing
    later."""

    token: int
    revision: int
    op: int
    spans: tuple[SpanReply, ...]
    error: Error | None = None


@dataclass(frozen=True, slots=True)
class ReadPostponed:
    """A stage had no time for a read, which has ended; start it again at a later position."""

    token: int


@dataclass(frozen=True, slots=True)
class ReadsLeft:
    """Reads have left the stages, answered or not: none of their batches is under way any more."""

    tokens: tuple[int, ...]


MuxEffect: TypeAlias = (
    SendBatch | CutTaken | CatalogChanged | Applied | ReadAnswered | ReadPostponed | ReadsLeft
)
