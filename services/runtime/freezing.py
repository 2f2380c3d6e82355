"""Cuts: what changed since the last snapshot, frozen as references while the machine goes on.

Tables of a section remember the first old value of each row that changes. A cut takes these, and
the values of that moment beside them: rows are immutable, so nothing is copied but references. From
that a section is encoded at leisure: as a delta against the last generation that was released, and
its state digest as the digest of that generation minus the old values, plus the new ones.

A cut that was never released (its snapshot failed, or was overtaken) is folded into the next one,
old values of the older one first, so that a chain of layers never has a hole. What each of them
took is kept beside that: a replica may adopt the older one only after the newer was cut, and from
then on the newer one is against it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice
from typing import Any, Final, Generic

from services.runtime.section import WHOLE_TABLE_KEY, EntityKind, Section, State
from services.runtime.tables import ABSENT, Table
from viewstamp.format.section import Change, SectionTally

# Keys that are sorted at once: about as long as a slice of encoding may take.
SORTED_AT_ONCE: Final = 256
# Cuts that are kept apart until they are released; of more the oldest become one. Of those not
# released all but the last have failed, or are about to be adopted.
CUTS_MAX: Final = 8


class CutError(Exception):
    """A cut that cannot be taken now; the message says why."""


@dataclass(frozen=True, slots=True)
class Base:
    """What deltas are against: a generation (0: the empty state), its digest, its counts by kind.

    `digest` is as `StateDigest.value`.
    """

    generation: int = 0
    digest: int = 0
    kinds: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FrozenTable:
    """What one table had and has: `olds` by key of all that changed, and `news` by key.

    `news` holds every row if `is_whole`, else the changed ones alone. Both may hold ABSENT.
    """

    olds: Mapping[Any, Any]
    news: Mapping[Any, Any]
    is_whole: bool

    def behind(self, older: FrozenTable) -> FrozenTable:
        """Return what changed since the older one began, as of this one."""
        news = self.news if self.is_whole else {**older.news, **self.news}
        is_whole = self.is_whole or older.is_whole
        return FrozenTable({**self.olds, **older.olds}, news, is_whole)


@dataclass(frozen=True, slots=True)
class Frozen(Generic[State]):
    """A section at a cut, as what changed against `base_generation`. Immutable.

    `revision` is the last one that is in it.
    """

    generation: int
    base_generation: int
    revision: int
    kinds: tuple[EntityKind[State], ...]
    tables: tuple[FrozenTable, ...]

    def changes(self) -> Iterator[Change]:
        """Yield the changes in ascending (kind, key) order, some with equal old and new bytes."""
        return (change for change in self.walk() if change is not None)

    def walk(self) -> Iterator[Change | None]:
        """Yield what `changes` does, and None now and then, where the next one takes a while."""
        for kind, table in zip(self.kinds, self.tables, strict=True):
            yield from _whole(kind, table) if kind.whole_table else _rows(kind, table)


@dataclass(slots=True)
class _Cut(Generic[State]):
    """A cut that was not released: what changed since the one before it.

    `total` is what the section adds up to at it, once that was counted.
    """

    own: Frozen[State]
    total: Base | None = None


class Freezer(Generic[State]):
    """Follows what changes in one state, and freezes it at cuts.

    `base` is the generation released last, `frozen` the cut taken last unless it was released.
    """

    def __init__(self, section: Section[State], state: State, base: Base | None = None) -> None:
        """Follow `state` from now on. Without `base`, all that is there counts as changed."""
        self.frozen: Frozen[State] | None = None
        self._kinds = tuple(section.kinds)
        self._tables: list[Table[Any, Any]] = [kind.table(state) for kind in section.kinds]
        self._cuts: list[_Cut[State]] = []  # oldest first
        # A released cut whose digest was never asked for: it is behind the base.
        self._uncounted: Frozen[State] | None = None
        self._base = base or Base()
        for table in self._tables:
            table.changed = {} if base is not None else dict.fromkeys(table.rows, ABSENT)

    @property
    def base_generation(self) -> int:
        """The generation that the next cut is a delta against; 0 for a cut that is whole."""
        return self._base.generation if self._uncounted is None else self._uncounted.generation

    def freeze(self, generation: int, revision: int) -> None:
        """Freeze the state as it is now. Costs what changed since the last cut.

        Raises CutError unless generations ascend.
        """
        older = self.frozen
        last = self.base_generation if older is None else older.generation
        if generation <= last:
            raise CutError(f"cut {generation} comes after cut {last}: generations ascend")
        tables = tuple(_freeze(*pair) for pair in zip(self._kinds, self._tables, strict=True))
        own = Frozen(generation, last, revision, self._kinds, tables)
        self._cuts.append(_Cut(own))
        if len(self._cuts) > CUTS_MAX:
            oldest, second = self._cuts[:2]
            self._cuts[:2] = [_Cut(_folded(second.own, oldest.own), second.total)]
        self.frozen = _folded(own, older)

    def whole(self, revision: int) -> Frozen[State]:
        """Return the whole section as it is now, apart from all cuts. Copies references alone."""
        tables = tuple(
            FrozenTable(dict.fromkeys(table.rows, ABSENT), table.rows.copy(), is_whole=True)
            for table in self._tables
        )
        return Frozen(0, 0, revision, self._kinds, tables)

    def release(self, generation: int) -> None:
        """Make a frozen generation the base, and forget what was frozen up to it; ignore any other.

        A cut that came after it is against it from now on.
        """
        for position, cut in enumerate(self._cuts):
            if cut.own.generation == generation:
                self._release(position + 1)
                return

    def _release(self, count: int) -> None:
        released, self._cuts = self._cuts[:count], self._cuts[count:]
        total = released[-1].total
        if total is not None:
            self._base, self._uncounted = total, None
        else:
            self._uncounted = reduce(_behind, released, self._uncounted)
        self.frozen = reduce(_behind, self._cuts, None)

    def behind_base(self) -> Frozen[State] | None:
        """Return what must be counted before a cut is: a released one that nobody has read."""
        return self._uncounted

    def tally(self) -> SectionTally:
        """Return the tally of the base; it may be counted on from."""
        return SectionTally(self._base.digest, self._base.kinds)

    def counted(self, frozen: Frozen[State], tally: SectionTally) -> None:
        """Remember what a cut, or what is behind the base, adds up to."""
        base = Base(frozen.generation, tally.digest.value, tally.kinds)
        if frozen is self._uncounted:
            self._base, self._uncounted = base, None
        elif frozen is self.frozen:
            self._cuts[-1].total = base


def _behind(older: Frozen[State] | None, cut: _Cut[State]) -> Frozen[State]:
    return _folded(cut.own, older)


def _folded(newer: Frozen[State], older: Frozen[State] | None) -> Frozen[State]:
    if older is None:
        return newer
    pairs = zip(newer.tables, older.tables, strict=True)
    tables = tuple(new.behind(old) for new, old in pairs)
    return Frozen(newer.generation, older.base_generation, newer.revision, newer.kinds, tables)


def _freeze(kind: EntityKind[State], table: Table[Any, Any]) -> FrozenTable:
    """Take what changed in a table, and begin anew."""
    olds, table.changed = table.changed, {}
    assert olds is not None, "every table of a section is followed"
    rows = table.rows
    # To copy all rows is several times faster per row than to look for some.
    if kind.whole_table or len(olds) > len(rows) // 2:
        return FrozenTable(olds, rows.copy(), is_whole=True)
    return FrozenTable(olds, {key: rows.get(key, ABSENT) for key in olds}, is_whole=False)


def _whole(kind: EntityKind[State], table: FrozenTable) -> Iterator[Change]:
    """Yield the one change of a kind whose table is one entity, if there is any."""
    if not table.olds:
        return
    news = {key: row for key, row in table.news.items() if row is not ABSENT}
    olds = {key: row for key, row in news.items() if key not in table.olds}
    olds |= {key: row for key, row in table.olds.items() if row is not ABSENT}
    old = kind.encode(olds) if olds else None
    new = kind.encode(news) if news else None
    if old is not None or new is not None:
        yield kind.number, WHOLE_TABLE_KEY, old, new


def _rows(kind: EntityKind[State], table: FrozenTable) -> Iterator[Change | None]:
    """Yield the changed rows of a kind in the order of their keys."""
    number, encode, encode_key, order = kind.number, kind.encode, kind.encode_key, kind.order
    olds, news = table.olds, table.news

    def row_of(key: Any) -> Any:
        """Return a row of this key: any, since what is in an entity's key never changes."""
        old = olds[key]
        return news[key] if old is ABSENT else old

    sort_key = None if order is None else lambda key: order(key, row_of(key))
    chunks: list[list[Any]] = []
    remaining = iter(olds.items())
    while batch := list(islice(remaining, SORTED_AT_ONCE)):
        keys = [key for key, old in batch if old is not news.get(key, ABSENT)]
        keys.sort(key=sort_key)
        chunks.append(keys)
        yield None
    for key in heapq.merge(*chunks, key=sort_key):
        old, new = olds[key], news.get(key, ABSENT)
        old_bytes = None if old is ABSENT else encode(old)
        new_bytes = None if new is ABSENT else encode(new)
        yield number, encode_key(key, row_of(key)), old_bytes, new_bytes
