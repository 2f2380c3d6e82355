"""What replicas say to each other, and the shape of the log entry they talk about.

`Prepare` and `PrepareHeader` are protocols: the real ones live in the on-disk format package,
whose checksums are not in the standard library. The core never computes a checksum. It compares
them, and asks the injected `Seal` for every prepare that it creates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

PARENT_OF_FIRST = bytes(16)
"""The parent of op 1, which has no predecessor."""


class PrepareHeader(Protocol):
    """The header of a log entry; its checksum is the entry's identity and the next one's parent.

    Checksums and ids are 16 bytes; `timestamp` is in microseconds, `size` in bytes of the body. An
    entry of 0 commands has a `last_revision` of `first_revision - 1`. An entry that `ends_epoch` is
    the last of its epoch, and its body says who has a vote in the next one.
    """

    @property
    def checksum(self) -> bytes: ...
    @property
    def body_checksum(self) -> bytes: ...
    @property
    def parent(self) -> bytes: ...
    @property
    def cluster_id(self) -> bytes: ...
    @property
    def view(self) -> int: ...
    @property
    def op(self) -> int: ...
    @property
    def commit(self) -> int: ...
    @property
    def first_revision(self) -> int: ...
    @property
    def command_count(self) -> int: ...
    @property
    def feature_level(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def last_revision(self) -> int: ...
    @property
    def ends_epoch(self) -> bool: ...


class Prepare(Protocol):
    """A log entry: a header, the opaque body whose checksum it holds, and the header's fields."""

    @property
    def header(self) -> PrepareHeader: ...
    @property
    def body(self) -> bytes: ...
    @property
    def op(self) -> int: ...
    @property
    def view(self) -> int: ...
    @property
    def checksum(self) -> bytes: ...
    @property
    def parent(self) -> bytes: ...
    @property
    def first_revision(self) -> int: ...
    @property
    def command_count(self) -> int: ...
    @property
    def last_revision(self) -> int: ...


class Seal(Protocol):
    """Makes the one prepare that these values determine, checksums included."""

    def __call__(
        self,
        *,
        parent: bytes,
        cluster_id: bytes,
        view: int,
        op: int,
        commit: int,
        first_revision: int,
        command_count: int,
        feature_level: int,
        timestamp: int,
        body: bytes,
        ends_epoch: bool = False,
    ) -> Prepare: ...


@dataclass(frozen=True, slots=True)
class PrepareMessage:
    """The primary asks a backup to journal an entry, which also says what is committed so far."""

    cluster_id: bytes
    from_replica: int
    view: int
    prepare: Prepare


@dataclass(frozen=True, slots=True)
class PrepareOkMessage:
    """A backup tells the primary of `view` that it holds the entry durably.

    `commit_min` is the last op that the backup has handed out: its lag.
    """

    cluster_id: bytes
    from_replica: int
    view: int
    op: int
    checksum: bytes
    commit_min: int = 0


@dataclass(frozen=True, slots=True)
class CommitMessage:
    """The primary's heartbeat: what is committed, and which read round wants a confirmation.

    `checksum` is that of the entry at `commit`, so that a backup with another history notices.
    """

    cluster_id: bytes
    from_replica: int
    view: int
    commit: int
    checksum: bytes
    read_round: int


@dataclass(frozen=True, slots=True)
class CommitOkMessage:
    """A backup confirms that it was in status normal of `view` when read round reached it."""

    cluster_id: bytes
    from_replica: int
    view: int
    read_round: int


@dataclass(frozen=True, slots=True)
class ReadIndexRequestMessage:
    """A backup asks the primary of `view` how far it must have applied the log for its reads.

    The answer repeats `nonce`, that of the asker's boot, and `token`, which numbers the requests of
    one boot.
    """

    cluster_id: bytes
    from_replica: int
    view: int
    nonce: bytes
    token: int


@dataclass(frozen=True, slots=True)
class ReadIndexReplyMessage:
    """Reads that began before the request are linearizable once the asker has applied `op`."""

    cluster_id: bytes
    from_replica: int
    view: int
    nonce: bytes
    token: int
    op: int


@dataclass(frozen=True, slots=True)
class BlankQueryMessage:
    """The bootstrap primary, itself blank, asks whether the receiver is blank too."""

    cluster_id: bytes
    from_replica: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class BlankAnswerMessage:
    """A blank replica's answer: the asker's boot nonce, which proves freshness, and its own."""

    cluster_id: bytes
    from_replica: int
    echo: bytes
    nonce: bytes


@dataclass(frozen=True, slots=True)
class StartViewChangeMessage:
    """A pre-vote: the sender wants to leave its view for one of at least `target_view`."""

    cluster_id: bytes
    from_replica: int
    target_view: int


@dataclass(frozen=True, slots=True)
class DoViewChangeMessage:
    """A vote for `view`, to its primary: the sender's log from `commit` on, as its disk holds it.

    `log_view` is the view whose log it is. `headers` are the intact durable entries from `commit`
    to `head_op`, in op order; `faulty` are the damaged ops after `commit`, up to `head_op`, in
    order. `head_uncertain` says that there may have been entries above `head_op`.
    """

    cluster_id: bytes
    from_replica: int
    view: int
    log_view: int
    commit: int
    head_op: int
    headers: tuple[PrepareHeader, ...]
    faulty: tuple[int, ...]
    head_uncertain: bool


@dataclass(frozen=True, slots=True)
class StartViewMessage:
    """The primary of `view` announces the log that the view begins, or continues, with.

    `headers` are all entries from `commit + 1` to `head_op`. `nonce` is that of the request it
    answers, or 16 zero bytes.
    """

    cluster_id: bytes
    from_replica: int
    view: int
    nonce: bytes
    commit: int
    head_op: int
    headers: tuple[PrepareHeader, ...]


@dataclass(frozen=True, slots=True)
class RequestStartViewMessage:
    """A replica that is not in `view`'s log asks its primary for it; the answer has the nonce."""

    cluster_id: bytes
    from_replica: int
    view: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class RequestPrepareMessage:
    """A replica asks for the one entry with this op and checksum, committed or not."""

    cluster_id: bytes
    from_replica: int
    op: int
    checksum: bytes


@dataclass(frozen=True, slots=True)
class RepairMessage:
    """The entry that a RequestPrepareMessage asked for."""

    cluster_id: bytes
    from_replica: int
    prepare: Prepare


@dataclass(frozen=True, slots=True)
class RequestCommittedMessage:
    """A replica asks for committed entries, by op; at most `CATCH_UP_OPS` of them."""

    cluster_id: bytes
    from_replica: int
    first_op: int
    last_op: int


@dataclass(frozen=True, slots=True)
class CommittedMessage:
    """An entry that the sender knows to be committed, and the sender's commit point."""

    cluster_id: bytes
    from_replica: int
    prepare: Prepare
    commit: int


@dataclass(frozen=True, slots=True)
class CommittedGoneMessage:
    """The entries asked for were truncated; a snapshot covers them.

    `first_held_op` is the first that the sender's journal still has, `generation` its newest
    snapshot, which was cut at `cut_op`.
    """

    cluster_id: bytes
    from_replica: int
    first_held_op: int
    generation: int
    cut_op: int


@dataclass(frozen=True, slots=True)
class RequestAdmissionMessage:
    """A replica that lost its disk asks the primary to be made a voter again.

    `commit` is how far it holds the committed log; `nonce` is that of its boot.
    """

    cluster_id: bytes
    from_replica: int
    nonce: bytes
    commit: int


@dataclass(frozen=True, slots=True)
class AdmissionMessage:
    """The primary of `view`: vote from `voting_view` on, once that is on your disk."""

    cluster_id: bytes
    from_replica: int
    view: int
    nonce: bytes
    voting_view: int


@dataclass(frozen=True, slots=True)
class AdmissionDurableMessage:
    """The newcomer's disk records its voting view; the primary of `view` may resign."""

    cluster_id: bytes
    from_replica: int
    view: int
    voting_view: int


@dataclass(frozen=True, slots=True)
class EpochEndedMessage:
    """Epoch `epoch` began behind entry `op`, which is committed: the receiver's epoch has ended.

    `checksum` is that of the entry.
    """

    cluster_id: bytes
    from_replica: int
    epoch: int
    op: int
    checksum: bytes


Message: TypeAlias = (
    PrepareMessage
    | PrepareOkMessage
    | CommitMessage
    | CommitOkMessage
    | ReadIndexRequestMessage
    | ReadIndexReplyMessage
    | BlankQueryMessage
    | BlankAnswerMessage
    | StartViewChangeMessage
    | DoViewChangeMessage
    | StartViewMessage
    | RequestStartViewMessage
    | RequestPrepareMessage
    | RepairMessage
    | RequestCommittedMessage
    | CommittedMessage
    | CommittedGoneMessage
    | RequestAdmissionMessage
    | AdmissionMessage
    | AdmissionDurableMessage
    | EpochEndedMessage
)
