"""Which entries of a journal are committed, proved by the entries themselves. Pure.

The header of an entry says up to which op its primary knew the log to be committed, and names the
entry before it. So of an intact entry, wherever it was found, the entries before it up to that op
are the committed ones, whatever else the journal holds of these ops: what a new view discarded is
no parent of it. A replica that runs can also say what is committed, by op and checksum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

_ANY_OP: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """An intact entry of a journal, without its body, and where it lies."""

    op: int
    checksum: bytes
    parent: bytes
    commit: int
    entry_bytes: int
    segment: int
    offset: int
    record_bytes: int


@dataclass(frozen=True, slots=True)
class CommittedHead:
    """An entry that is known to be committed: its op, and its checksum of 16 bytes."""

    op: int
    checksum: bytes


@dataclass(frozen=True, slots=True)
class ProvedRange:
    """Committed entries, ascending, none missing between. `hole` is the op that is missing before.

    Without a hole they follow what was shipped before.
    """

    entries: tuple[EntryPlace, ...] = ()
    hole: int | None = None


@dataclass(slots=True)
class CommittedChain:
    """The entries of a journal that are not shipped yet, among them discarded ones."""

    shipped: CommittedHead | None = None
    _by_checksum: dict[bytes, EntryPlace] = field(default_factory=dict)
    _at_shipped: set[bytes] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._by_checksum)

    def add(self, place: EntryPlace) -> None:
        """Take an entry, unless it lies below what was shipped."""
        if self.shipped is None or place.op > self.shipped.op:
            self._by_checksum[place.checksum] = place
        elif place.op == self.shipped.op:
            self._at_shipped.add(place.checksum)

    def ship(self, head: CommittedHead) -> None:
        """Forget all entries up to the last one that was shipped."""
        if self.shipped is None or self.shipped.op != head.op:
            self._at_shipped = {
                place.checksum for place in self._by_checksum.values() if place.op == head.op
            }
        self.shipped = head
        self._by_checksum = {
            checksum: place for checksum, place in self._by_checksum.items() if place.op > head.op
        }

    def found_at_shipped(self) -> frozenset[bytes]:
        """Return the checksums that the journal has at the last op that was shipped.

        None of them, if it has dropped that entry, or ends before it.
        """
        return frozenset(self._at_shipped)

    def forget(self) -> None:
        """Forget all entries: another journal took the place of theirs."""
        self._by_checksum = {}
        self._at_shipped = set()

    def keep_only(self, segments: Collection[int]) -> None:
        """Forget the entries of segments that are gone."""
        self._by_checksum = {
            checksum: place
            for checksum, place in self._by_checksum.items()
            if place.segment in segments
        }

    def first_segment(self) -> int | None:
        """Return the first segment that holds an entry, None without any."""
        return min((place.segment for place in self._by_checksum.values()), default=None)

    def only_at(self, op: int) -> CommittedHead | None:
        """Return the entry of an op, None unless there is exactly one."""
        found = [place for place in self._by_checksum.values() if place.op == op]
        return CommittedHead(op, found[0].checksum) if len(found) == 1 else None

    def proved(self, told: Iterable[CommittedHead | None] = ()) -> ProvedRange:
        """Return the committed entries behind what was shipped, as far as they prove themselves.

        `told` are heads that others know to be committed. If entries are missing, those before
        them are returned, or, if the first one is missing, those behind with the hole.
        """
        best = ProvedRange()
        below = _ANY_OP
        for head in self._heads(told):
            if head.op >= below:
                continue
            found = self._chain_to(head)
            if found.hole is None:
                return found
            # No head above the hole leads past it, and one below may: the oldest come first.
            best, below = (found if found.entries else best), found.hole
        return best

    def _heads(self, told: Iterable[CommittedHead | None]) -> Iterator[CommittedHead]:
        """Yield heads that are known to be committed, the furthest first of each kind."""
        known = (head for head in told if head is not None)
        yield from sorted(known, key=lambda head: head.op, reverse=True)
        shipped_op = self.shipped.op if self.shipped else 0
        seen: set[int] = set()
        for place in sorted(self._by_checksum.values(), key=lambda each: -each.commit):
            if place.commit <= shipped_op or place.commit in seen:
                continue
            head = self._ancestor(place)
            if head is not None:
                seen.add(place.commit)
                yield head

    def _ancestor(self, witness: EntryPlace) -> CommittedHead | None:
        """Return the entry that a witness knows to be committed, None if the way is broken."""
        place = witness
        while place.op > witness.commit + 1:
            before = self._by_checksum.get(place.parent)
            if before is None:
                return None
            place = before
        return CommittedHead(witness.commit, place.parent)

    def _chain_to(self, head: CommittedHead) -> ProvedRange:
        """Return the entries up to a head, back to what was shipped or to the first missing one."""
        shipped = self.shipped
        entries: list[EntryPlace] = []
        checksum, op = head.checksum, head.op
        while op > (shipped.op if shipped else 0):
            place = self._by_checksum.get(checksum)
            if place is None or place.op != op:
                return ProvedRange(tuple(reversed(entries)), op)
            entries.append(place)
            checksum, op = place.parent, op - 1
        if shipped is not None and op == shipped.op and checksum != shipped.checksum:
            raise ForkError(op, checksum, shipped.checksum)
        return ProvedRange(tuple(reversed(entries)))


class ForkError(Exception):
    """The committed log here has another entry at an op than the archive."""

    def __init__(self, op: int, here: bytes, archived: bytes) -> None:
        super().__init__(f"entry {op} is {here.hex()} here and {archived.hex()} in the archive")
