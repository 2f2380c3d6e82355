"""The recent end of the replicated log, as far as the core needs it in memory.

The journal holds the whole log. This holds the head, whose checksum, revision and timestamp the
next entry continues, and the last `LOG_TAIL_PREPARES` entries with who holds them durably. The
bound is the number of entries that a primary may not have applied, plus two pipelines. An entry
leaves the tail only once it is durable here, so that the journal can be read for it.

Of a damaged record the op is known, and often the checksum: `faulty` holds the op until the record
is rewritten. If the head itself is damaged, `op` is its op and `head` is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from coordinator.vsr.errors import InvariantViolation, check
from coordinator.vsr.events import RecordId
from coordinator.vsr.messages import PARENT_OF_FIRST, Prepare, PrepareHeader
from viewstamp.limits import PIPELINE_PREPARES_MAX, UNAPPLIED_PREPARES_MAX

LOG_TAIL_PREPARES = 2 * PIPELINE_PREPARES_MAX + UNAPPLIED_PREPARES_MAX


@dataclass(slots=True, eq=False)
class LogEntry:
    """One entry of the tail.

    `prepare` is None for an entry that an earlier process journaled. `log_view` is the view whose
    log the entry belongs to here; an inherited entry's header names an earlier one. `acks` are the
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
        self._entries: dict[int, LogEntry] = {}
        self._writes: dict[tuple[int, bytes], list[LogEntry]] = {}
        """Records under way to the disk. Two writes of one record differ in their `LogEntry`."""
        self.op = 0
        """The op of the head; 0 for the empty log."""
        self.head: PrepareHeader | None = None
        """The header at `op`; None for the empty log, or if that record is damaged."""
        self.base_op = 0
        """The last op that a snapshot stands for, if the log began behind one; otherwise 0."""
        self.durable_op = 0
        """Every entry up to this op is durable here, except the faulty ones."""
        self.faulty: set[int] = set()
        """The ops whose records are damaged and not yet durably rewritten."""
        self._faulty_checksums: dict[int, bytes] = {}
        """Checksums of damaged entries, as named by their own frames, or by entries after them that
        may have left the tail."""
        self.head_uncertain = False
        """Whether there may have been entries above `op`, in the damaged part."""
        self.change_op = 0
        """The op of the entry that ends the present epoch, if the log has it; otherwise 0. It may
        be one of an earlier epoch until it is known to be committed."""
        self.discards: list[int] = []
        """The discards under way, in order."""
        self.discard_count = 0

    @property
    def checksum(self) -> bytes:
        """The parent of the next entry."""
        if self.head is None and self.op > 0:
            raise InvariantViolation(f"entry {self.op} is damaged: nothing can follow it yet")
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
    def intact_op(self) -> int:
        """The last op whose record is not known to be damaged; 0 for none."""
        op = self.op
        while op in self.faulty:
            op -= 1
        return op

    @property
    def has_room(self) -> bool:
        """Whether one more entry fits without dropping one that is not durable."""
        oldest = self._entries.get(self.op + 1 - LOG_TAIL_PREPARES)
        return oldest is None or oldest.durable

    @property
    def is_quiet(self) -> bool:
        """Whether the disk holds this log exactly: no write and no discard is under way."""
        return not self._writes and not self.discards

    def get(self, op: int) -> LogEntry | None:
        """Return the intact entry at `op`, or None if the tail does not hold it."""
        return self._entries.get(op)

    def checksum_of(self, op: int) -> bytes | None:
        """Return the checksum of the entry at `op`, damaged or not; None if it is unknown."""
        held, following = self._entries.get(op), self._entries.get(op + 1)
        if held is not None:
            return held.header.checksum
        if following is not None:
            return following.header.parent
        return self._faulty_checksums.get(op) if op in self.faulty else None

    def may_be(self, header: PrepareHeader) -> bool:
        """Return whether the entry at the op of `header`, damaged or not, can be that entry.

        If its checksum is unknown, the entries after it still bound its view: views never go back.
        """
        known = self.checksum_of(header.op)
        if known is not None:
            return known == header.checksum
        return all(later.header.view >= header.view for later in self.above(header.op))

    @property
    def last_view(self) -> int:
        """The latest view that an entry of the tail was made in; 0 for none."""
        return max((entry.header.view for entry in self._entries.values()), default=0)

    def above(self, op: int) -> Iterator[LogEntry]:
        """Yield the held entries after `op`, in op order."""
        first = max(op + 1, self.op - LOG_TAIL_PREPARES + 1)
        for later in range(first, self.op + 1):
            if later in self._entries:
                yield self._entries[later]

    def is_being_written(self, op: int) -> bool:
        """Return whether a record of `op` is under way to the disk."""
        return any(written == op for written, _ in self._writes)

    def append(self, entry: LogEntry) -> None:
        """Make `entry` the head, to be written; it must continue the hash chain."""
        check(self.has_room, "only durable entries leave the tail", self.op)
        check(entry.header.op == self.op + 1, "ops have no gap", (self.op, entry.header.op))
        follows = self.is_at_base or entry.header.parent == self.checksum
        check(follows, "entries chain by parent", entry.header.op)
        # The next start would reject a journal in which views go back.
        last_view = self.head.view if self.head else 0
        check(entry.header.view >= last_view, "views of entries never go back", entry.header)
        last_level = self.head.feature_level if self.head else 0
        falls = entry.header.feature_level < last_level
        check(not falls, "the feature level never falls along the log", entry.header)
        if self.is_at_base:
            self.faulty.discard(self.base_op)
        self._entries.pop(self.op + 1 - LOG_TAIL_PREPARES, None)
        self._entries[entry.header.op] = entry
        self.op, self.head = entry.header.op, entry.header
        self._note_change(entry.header)
        self._written(entry)

    def fill(self, entry: LogEntry) -> None:
        """Have a faulty record rewritten; it stays faulty until that is durable."""
        op = entry.header.op
        check(op in self.faulty, "only a faulty record is written anew", op)
        fits = self.checksum_of(op - 1) in (None, entry.header.parent)
        check(
            fits and self.may_be(entry.header),
            "a record written anew is the one that the entries around it tell of",
            op,
        )
        if op > self.op - LOG_TAIL_PREPARES:
            self._entries[op] = entry
        if op == self.op:
            self.head = entry.header
        if op - 1 in self.faulty:
            self._faulty_checksums[op - 1] = entry.header.parent
        self._note_change(entry.header)
        self._written(entry)

    def _note_change(self, header: PrepareHeader) -> None:
        if header.ends_epoch:
            self.change_op = max(self.change_op, header.op)

    def _written(self, entry: LogEntry) -> None:
        key = (entry.header.op, entry.header.checksum)
        self._writes.setdefault(key, []).append(entry)

    def inherit(self, suffix: tuple[PrepareHeader, ...], log_view: int) -> None:
        """Hold the last entries of the verified journal of an earlier process, oldest first."""
        for header in suffix[-LOG_TAIL_PREPARES:]:
            self._entries[header.op] = LogEntry(header, None, log_view, durable=True)
            self.op, self.head = header.op, header
        self.durable_op = self.op

    def inherit_change(self, change: Prepare) -> None:
        """Hold the body of an entry of that journal which ends an epoch."""
        entry = self._entries.get(change.op)
        if entry is not None and entry.header.checksum == change.checksum:
            entry.prepare = change
            self._note_change(entry.header)

    def inherit_faults(self, faulty: tuple[int, ...], checksums: Mapping[int, bytes]) -> None:
        """Note the damaged records of that journal, and checksums by op; the last may be the
        head."""
        self.faulty = set(faulty)
        self._faulty_checksums = dict(checksums)
        if faulty and faulty[-1] > self.op:
            self.op = self.durable_op = faulty[-1]
            self.head = None

    def begin_after(self, base_op: int) -> None:
        """Begin a log behind a snapshot that stands for all entries up to `base_op`."""
        self._entries.clear()
        self.change_op = 0
        self.op = self.durable_op = self.base_op = base_op
        self.head = None
        self.faulty = {base_op}
        self._faulty_checksums = {}

    @property
    def is_at_base(self) -> bool:
        """Whether the log begins behind a snapshot and no header is known yet.

        The header of the base entry is fetched. Peers may no longer have that entry; then a
        committed entry that comes next stands in, and the caller vouches that it is committed.
        """
        return self.head is None and 0 < self.op == self.base_op

    def awaits_write(self, record: RecordId) -> bool:
        """Whether the record is under way to the disk."""
        return (record.op, record.checksum) in self._writes

    def finish_write(self, record: RecordId) -> LogEntry | None:
        """Note that a record is durable; return its entry, or None if it was discarded
        meanwhile."""
        key = (record.op, record.checksum)
        writes = self._writes[key]
        entry = writes.pop(0)
        if not writes:
            del self._writes[key]
        if self._entries.get(record.op) is entry:
            self.faulty.discard(record.op)
            self.mark_durable(entry)
            return entry
        if record.op <= self.op - LOG_TAIL_PREPARES:
            self.faulty.discard(record.op)
        return None

    def mark_durable(self, entry: LogEntry) -> None:
        """Note that `entry` is durable here, and extend the durable prefix."""
        entry.durable = True
        following = self._entries.get(self.durable_op + 1)
        while following is not None and following.durable:
            self.durable_op += 1
            following = self._entries.get(self.durable_op + 1)

    def mark_faulty(self, op: int) -> LogEntry | None:
        """Note that the record of `op` is damaged; return the entry if the tail holds it."""
        self.faulty.add(op)
        entry = self._entries.get(op)
        if entry is not None:
            entry.durable = False
        return entry

    def discard_after(self, op: int) -> None:
        """Drop all entries after `op`, which is or becomes the head."""
        for later in range(op + 1, self.op + 1):
            self._entries.pop(later, None)
        held = self._entries.get(op)
        self.op, self.head = op, held.header if held else None
        self.durable_op = min(self.durable_op, op)
        self.change_op = self.change_op if self.change_op <= op else 0
        self.faulty = {faulty for faulty in self.faulty if faulty <= op}
        told = self._faulty_checksums
        self._faulty_checksums = {faulty: told[faulty] for faulty in told if faulty < op}
        self.discards.append(op)
        self.discard_count += 1

    def take_up(self, log_view: int) -> None:
        """Make the tail the log of `log_view`; nobody has vouched for it yet."""
        for entry in self._entries.values():
            entry.log_view = log_view
            entry.acks = set()
        self.head_uncertain = False
