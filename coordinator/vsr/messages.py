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

    Checksums and ids are 16 bytes; `timestamp` is microseconds, `size` bytes of the body. An entry
    of 0 commands has a `last_revision` of `first_revision - 1`.
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
    """A backup tells the primary of `view` that it holds the entry durably."""

    cluster_id: bytes
    from_replica: int
    view: int
    op: int
    checksum: bytes


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
class BlankQueryMessage:
    """The founding primary, itself blank, asks whether the receiver is blank too."""

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


Message: TypeAlias = (
    PrepareMessage
    | PrepareOkMessage
    | CommitMessage
    | CommitOkMessage
    | BlankQueryMessage
    | BlankAnswerMessage
)
