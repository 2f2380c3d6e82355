"""The recent end of the replicated log, as far as the core needs it in memory.

The journal holds the log; this holds the head, whose checksum, revision and timestamp the next
entry continues, and the last `LOG_TAIL_PREPARES` entries with who holds them durably. The bound
is what a primary can have unretired, and a pipeline on either side of it. An entry leaves the
tail only once it is durable here, so that the journal can be read for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from coordinator.vsr.errors import check
from coordinator.vsr.messages import PARENT_OF_FIRST, Prepare, PrepareHeader
from viewstamp.limits import PIPELINE_PREPARES_MAX, UNRETIRED_PREPARES_MAX

LOG_TAIL_PREPARES = 2 * PIPELINE_PREPARES_MAX + UNRETIRED_PREPARES_MAX


@dataclass(slots=True)
class Entry:
    """One entry of the tail.

    `prepare` is None for an entry that an earlier process journaled. `log_view` is the view whose
    log the entry belongs to here, which an inherited entry's header does not tell. `acks` are the
    replicas known, in that view, to hold it durably; only a primary fills it.
    """

    header: PrepareHeader
    prepare: Prepare | None
    log_view: int
    durable: bool = False
    acks: set[int] = field(default_factory=set)


class LogTail:
    """The head of the log and the entries shortly before it."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self.head: PrepareHeader | None = None
        self.durable_op = 0
        """Every entry up to this op is durable here."""

    @property
    def op(self) -> int:
        """The op of the head; 0 for the empty log."""
        return self.head.op if self.head else 0

    @property
    def checksum(self) -> bytes:
        """The parent of the next entry."""
        return self.head.checksum if self.head else PARENT_OF_FIRST

    @property
    def last_revision(self) -> int:
        """The revision of the last command in the log; 0 for the empty log."""
        return self.head.last_revision if self.head else 0

    @property
    def timestamp_us(self) -> int:
        """The timestamp of the head, in microseconds; 0 for the empty log."""
        return self.head.timestamp if self.head else 0

    @property
    def has_room(self) -> bool:
        """Whether one more entry can be held without letting go of one that is not durable."""
        oldest = self._entries.get(self.op + 1 - LOG_TAIL_PREPARES)
        return oldest is None or oldest.durable

    def get(self, op: int) -> Entry | None:
        """The entry at `op` if the tail still holds it."""
        return self._entries.get(op)

    def above(self, op: int) -> Iterator[Entry]:
        """The held entries after `op`, in op order."""
        first = max(op + 1, self.op - LOG_TAIL_PREPARES + 1)
        for later in range(first, self.op + 1):
            if later in self._entries:
                yield self._entries[later]

    def append(self, entry: Entry) -> None:
        """Make `entry` the head; it must continue the hash chain."""
        check(self.has_room, "only durable entries leave the tail", self.op)
        check(entry.header.op == self.op + 1, "ops have no gap", (self.op, entry.header.op))
        check(entry.header.parent == self.checksum, "entries chain by parent", entry.header.op)
        self._entries.pop(self.op + 1 - LOG_TAIL_PREPARES, None)
        self._entries[entry.header.op] = entry
        self.head = entry.header

    def inherit(self, suffix: tuple[PrepareHeader, ...], log_view: int) -> None:
        """Hold the last entries of the verified journal of an earlier process, oldest first."""
        for header in suffix[-LOG_TAIL_PREPARES:]:
            self._entries[header.op] = Entry(header, None, log_view, durable=True)
            self.head = header
        self.durable_op = self.op

    def mark_durable(self, entry: Entry) -> None:
        """Note that `entry` is durable here, and how far the durable prefix reaches now."""
        entry.durable = True
        following = self._entries.get(self.durable_op + 1)
        while following is not None and following.durable:
            self.durable_op += 1
            following = self._entries.get(self.durable_op + 1)
