"""What a domain provides to the shell: tables of handlers around one state.

Handlers are free functions `(state, request, call)`. They raise `viewstamp.errors.Refusal` to
refuse a command (what they changed until then is taken back), and any other exception is a defect:
the command is reverted and answered INTERNAL on every replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message

from services.runtime.cost import Allowance, Budget
from services.runtime.section import Section
from viewstamp import limits
from viewstamp.api.domain.v1 import domain_service_pb2, effects_pb2
from viewstamp.api.watch.v1 import watch_service_pb2
from viewstamp.machine.tables import Table, UndoLog

State = TypeVar("State")


@dataclass(slots=True)
class Call:
    """The command, effect or read being handled. One object serves a whole span.

    For a read, `revision` is the last one it sees, and `timestamp` the time by the clocks of all
    replicas: 0 for a read in the log, and from a coordinator that tells none. `user_id` is None
    only for a public method. `context` is the resolving stage's answer about this item.
    """

    revision: int
    timestamp: int  # log time of a command or effect, microseconds since 1970
    user_id: int | None
    credential_revision: int
    session_id: int
    feature_level: int
    context: bytes = b""
    caller_address: str = ""  # of a read; empty where nobody knows
    effects: list[tuple[tuple[int, ...], bytes]] = field(default_factory=list)
    proposals: list[domain_service_pb2.Proposal] = field(default_factory=list)
    # The rest of the prepare's budget for this command or effect; None for a read, which costs
    # nothing.
    budget: Budget | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether answers are kept short at the level in force."""
        return self.feature_level >= limits.FEATURE_LEVEL_BOUNDED

    @property
    def removes_members(self) -> bool:
        """Whether members that are silent or late are removed at the level in force."""
        return self.feature_level >= limits.FEATURE_LEVEL_MEMBERS

    @property
    def keeps_offsets(self) -> bool:
        """Whether offsets of partitions are kept at the level in force."""
        return self.feature_level >= limits.FEATURE_LEVEL_OFFSETS

    @property
    def retains_offsets(self) -> bool:
        """Whether offsets of groups without members may end at the level in force."""
        return self.feature_level >= limits.FEATURE_LEVEL_RETENTION

    @property
    def knows_brokers(self) -> bool:
        """Whether brokers may register at the level in force."""
        return self.feature_level >= limits.FEATURE_LEVEL_BROKERS

    @property
    def keeps_times(self) -> bool:
        """Whether it is remembered by when data was written at the level in force."""
        return self.feature_level >= limits.FEATURE_LEVEL_TIMES

    @property
    def has_guards(self) -> bool:
        """Whether changes of tokens, offsets and placements may name the revision they expect."""
        return self.feature_level >= limits.FEATURE_LEVEL_GUARDS

    @property
    def pages_all_lists(self) -> bool:
        """Whether lists come in pages that were answered whole below the level in force.

        Replicas of an older build would answer the next page with the whole list again.
        """
        return self.feature_level >= limits.FEATURE_LEVEL_GUARDS

    def charge(self, rows: int) -> None:
        """Pay for the rows to touch, before anything is changed. Raises Refusal COST_EXCEEDED.

        A command that touches at most COMMAND_FREE_ROWS need not call this.
        """
        if self.budget is not None:
            self.budget.charge(self.revision, rows)

    @property
    def cascade(self) -> Allowance:
        """The rows that effects of this prepare may still touch before the rest has to wait."""
        if self.budget is None:
            return Allowance(limits.PREPARE_CASCADE_ROWS_MAX)
        return self.budget.cascade

    def afford(self, rows: int) -> bool:
        """Take `rows` for an internal command if they are left now; return whether they were."""
        return self.budget is None or self.budget.afford(rows)

    def emit(
        self,
        to: tuple[int, ...],
        payload: effects_pb2.EffectPayload,
        rows: int = limits.EFFECT_ROWS,
    ) -> None:
        """Send an effect of this command to other stages (routing Stage numbers).

        `rows` is its cost there. Raises Refusal COST_EXCEEDED.
        """
        self.charge(rows)
        self.effects.append((to, payload.SerializeToString(deterministic=True)))

    def propose(self, code: int, request: Message, due: int = 0) -> None:
        """Ask the primary to sequence an internal command, not before log time `due` (us)."""
        encoded = request.SerializeToString(deterministic=True)
        self.proposals.append(domain_service_pb2.Proposal(code=code, request=encoded, due=due))


@dataclass(frozen=True, slots=True)
class Deferred:
    """A read that needs time outside the machine: `compute` runs in a thread, without the state.

    It returns the response or raises Refusal. Costly work belongs to a `share`, whose pieces take
    turns with those of others; trusted shares have their own places.
    """

    compute: Callable[[], Message]
    share: bytes | None = None
    is_trusted: bool = False


# A response message without header, or its encoding where that is faster.
CommandHandler = Callable[[State, Any, Call], Message | bytes]
QueryHandler = Callable[[State, Any, Call], Message | bytes | Deferred]
# Another stage has decided an effect: its handler may propose, but neither refuse nor emit.
EffectHandler = Callable[[State, Any, Call], None]
# (state, encoded items, call, gate) -> context per item; raises Refusal to refuse the item.
ResolveHandler = Callable[[State, bytes, Call, int], bytes]
GrantsResolver = Callable[[State, bytes, Call], bytes]
# (state, encoded requests of consecutive commands, call of the first) -> how many of these it
# carried out, from the first on, and their framed results. It does exactly what the command handler
# would do with each of them. It stops at one that would refuse, emit, propose, or only validate.
BulkHandler = Callable[[State, Sequence[bytes], Call], tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class Normalized:
    """The loggable form of one payload, and what only its caller may see."""

    request: Message
    suffix: bytes = b""


@dataclass(frozen=True, slots=True)
class NormalizeCall:
    """The origin of a payload, from which secrets may be derived.

    `origin` is unique to the command and the same on a retry.
    """

    user_id: int
    origin: bytes
    credential_revision: int = 0


@dataclass(frozen=True, slots=True)
class Costly:
    """A slow part of normalization: those of one caller take turns with others'."""

    compute: Callable[[], Normalized]


# (state, request, call) -> a function that a thread runs; it must not touch the state.
Normalizer = Callable[[State, Any, NormalizeCall], Callable[[], Normalized] | Costly]
# Only the suffix, without the costly part, for a retry of a request that is already logged.
SuffixFunction = Callable[[Any, NormalizeCall], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedKind(Generic[State]):
    """Rows of one table as watchers see them.

    `describe` fills a change with an entity and what identifies it, from a row and from the row of
    the `parent` table in which it is. Neither may depend on anything else: it is called later.
    """

    entity_type: str  # full name of the public message; empty for what no watcher sees
    table: Callable[[State], Table[Any, Any]]
    describe: Callable[[watch_service_pb2.Change, Any, Any], None]
    # What a change keeps in memory, roughly. Where rows vary much, `weigh` adds what the old row
    # has and the new one does not share; the new one is None if the row is gone.
    row_bytes: int = 1_024
    weigh: Callable[[Any, Any], int] | None = None
    # What of a row watchers see, if the row may change without that.
    seen: Callable[[Any], Any] | None = None
    parent: Callable[[State], Table[Any, Any]] | None = None
    parent_key: Callable[[Any], Any] = lambda row: None
    # Whether its rows say what a user may do; they have a `user_id`.
    is_access: bool = False
    # The stream that a row and its parent are in; 0 for none.
    stream_id: Callable[[Any, Any], int] = lambda row, parent: 0


@dataclass(frozen=True, slots=True)
class Domain(Generic[State]):
    """One domain: its proto files, its state, its handlers by RPC name."""

    stage: int  # routing_pb2.Stage
    files: Sequence[FileDescriptor]
    new_state: Callable[[UndoLog], State]
    commands: Mapping[str, CommandHandler[State]]
    queries: Mapping[str, QueryHandler[State]]
    # By EffectPayload field name; the handler is given that field's message (UserDeleted, ...).
    effects: Mapping[str, EffectHandler[State]]
    section: Section[State]
    proposals: Callable[[State], Iterable[domain_service_pb2.Proposal]]
    # Ends of what has been silent, while the primary leads.
    silent: Callable[[State, domain_service_pb2.Tenure], Iterable[domain_service_pb2.Proposal]] = (
        lambda state, tenure: ()
    )
    # Whose places have changed since they were taken last: hints, which nothing depends on.
    take_notices: Callable[[State], Iterable[domain_service_pb2.Notice]] = lambda state: ()
    resolve: ResolveHandler[State] | None = None
    resolve_grants: GrantsResolver[State] | None = None
    # By RPC name of a command, where a faster way through many of them pays.
    bulk: Mapping[str, BulkHandler[State]] = field(default_factory=dict)
    normalizers: Mapping[str, Normalizer[State]] = field(default_factory=dict)
    suffixes: Mapping[str, SuffixFunction] = field(default_factory=dict)
    # What watchers may see.
    watched: Sequence[WatchedKind[State]] = ()
    # Gets the id of the cluster to serve, before anything is applied.
    opened: Callable[[bytes], None] = lambda cluster_id: None

    def proposals_for(
        self, item: domain_service_pb2.ProposalsItem, state: State
    ) -> Iterable[domain_service_pb2.Proposal]:
        """Return what an item asks for: all that is pending, or ends of what has been silent."""
        if item.HasField("tenure"):
            return self.silent(state, item.tenure)
        return self.proposals(state)
