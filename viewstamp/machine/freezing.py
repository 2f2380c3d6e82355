"""Cuts: what changed since the last snapshot, frozen as references while the machine goes on.

Tables of a section remember the first old value of each row that changes. A cut takes these, and
the values of that moment beside them: rows are immutable, so nothing is copied but references. From
that the section is encoded at leisure, as a delta against the last generation that was released.

A cut that was never released (its snapshot failed, or was overtaken) is folded into the next one,
old values of the older one first, so that a chain of layers never has a hole. What each of them
took is kept beside that: a replica may adopt the older one only after the newer was cut, and from
then on the newer one is against it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from viewstamp.machine.tables import ABSENT

State = TypeVar("State")
# (kind, key, canonical bytes), in ascending (kind, key) order.
Entity: TypeAlias = tuple[int, bytes, bytes]
# Kind, key, old and new canonical bytes; None where there is no entity. Ascending by (kind, key).
Change: TypeAlias = tuple[int, bytes, bytes | None, bytes | None]

# The key of a kind whose whole table is one entity.
WHOLE_TABLE_KEY: Final = b""
# Keys that are sorted at once: about as long as a slice of encoding may take.
SORTED_AT_ONCE: Final = 256
# Cuts that are kept apart until they are released; of more the oldest become one. Of those not
# released all but the last have failed, or are about to be adopted.
CUTS_MAX: Final = 8


class CutError(Exception):
    """A cut that cannot be taken now; the message says why."""


class Rows(Protocol):
    """Rows of a section: those of a `Table`, or rows derived from other state."""

    changed: dict[Any, Any] | None

    @property
    def rows(self) -> Any:
        """The rows by key: a dictionary, or `DerivedRows`."""
        ...


@dataclass(frozen=True, slots=True)
class RowKind(Generic[State]):
    """Entities of one kind: the rows of one table, each under a key of its own.

    Where `whole_table` is set, all rows together are one entity with an empty key, which is there
    as long as any row is; `encode` is then given all rows by key.
    """

    number: int  # as the protos state it
    table: Callable[[State], Any]  # Rows; a Table, for `entities`
    encode: Callable[[Any], bytes]  # a row, or all rows -> canonical bytes
    encode_key: Callable[[Any, Any], bytes] = lambda key, row: WHOLE_TABLE_KEY
    # (key, row) -> what sorts like the encoded key; None if the table's keys do themselves.
    order: Callable[[Any, Any], Any] | None = None
    whole_table: bool = False

    def entities(self, state: State) -> Iterator[Entity]:
        """Yield the entities of this kind in ascending order of keys."""
        table = self.table(state)
        rows = table.rows
        if self.whole_table:
            if rows:
                yield self.number, WHOLE_TABLE_KEY, self.encode(rows)
            return
        for key in self._keys(table):
            row = rows[key]
            yield self.number, self.encode_key(key, row), self.encode(row)

    def _keys(self, table: Any) -> Iterable[Any]:
        order = self.order
        if order is None:
            keys: Iterable[Any] = table.sorted_keys()
            return keys
        return sorted(table.rows, key=lambda key: order(key, table.rows[key]))


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
    kinds: tuple[RowKind[State], ...]
    tables: tuple[FrozenTable, ...]

    def walk(self) -> Iterator[Change | None]:
        """Yield the changes in ascending (kind, key) order, some with equal old and new bytes.

        Yields None now and then, where the next change takes a while.
        """
        for kind, table in zip(self.kinds, self.tables, strict=True):
            yield from _whole(kind, table) if kind.whole_table else _rows(kind, table)


class Freezer(Generic[State]):
    """Follows what changes in one state, and freezes it at cuts.

    `base_generation` is the one released last, `frozen` the cut taken last unless it was released.
    """

    def __init__(
        self, kinds: Iterable[RowKind[State]], state: State, base_generation: int | None = None
    ) -> None:
        """Follow `state` from now on. Without a base, all that is there counts as changed."""
        self.frozen: Frozen[State] | None = None
        self.base_generation = base_generation or 0
        self._kinds = tuple(kinds)
        self._tables: list[Rows] = [kind.table(state) for kind in self._kinds]
        # Cuts that were not released, oldest first: what changed since the one before.
        self._cuts: list[Frozen[State]] = []
        for table in self._tables:
            is_new = base_generation is None
            table.changed = dict.fromkeys(table.rows, ABSENT) if is_new else {}

    def freeze(self, generation: int, revision: int) -> Frozen[State]:
        """Freeze the state as it is now. Costs what changed since the last cut.

        Raises CutError unless generations ascend.
        """
        older = self.frozen
        last = self.base_generation if older is None else older.generation
        if generation <= last:
            raise CutError(f"cut {generation} comes after cut {last}: generations ascend")
        tables = tuple(_freeze(*pair) for pair in zip(self._kinds, self._tables, strict=True))
        own = Frozen(generation, last, revision, self._kinds, tables)
        self._cuts.append(own)
        if len(self._cuts) > CUTS_MAX:
            oldest, second = self._cuts[:2]
            self._cuts[:2] = [folded(oldest, second)]
        self.frozen = folded(older, own)
        return self.frozen

    def release(self, generation: int) -> Frozen[State] | None:
        """Make a frozen generation the base, and forget what was frozen up to it; ignore any other.

        A cut that came after it is against it from now on. Returns what it changed against the base
        before, None for a generation that is not frozen here.
        """
        for position, cut in enumerate(self._cuts):
            if cut.generation == generation:
                released, self._cuts = self._cuts[: position + 1], self._cuts[position + 1 :]
                self.base_generation = generation
                self.frozen = reduce(folded, self._cuts) if self._cuts else None
                return reduce(folded, released)
        return None


def folded(older: Frozen[State] | None, newer: Frozen[State]) -> Frozen[State]:
    """Return what changed since the older one began, as of the newer one."""
    if older is None:
        return newer
    pairs = zip(newer.tables, older.tables, strict=True)
    tables = tuple(new.behind(old) for new, old in pairs)
    return Frozen(newer.generation, older.base_generation, newer.revision, newer.kinds, tables)


def _freeze(kind: RowKind[State], table: Rows) -> FrozenTable:
    """Take what changed in a table, and begin anew."""
    olds, table.changed = table.changed, {}
    assert olds is not None, "every table of a section is followed"
    rows = table.rows
    # To copy all rows is several times faster per row than to look for some, unless they are made.
    if isinstance(rows, dict) and (kind.whole_table or len(olds) > len(rows) // 2):
        return FrozenTable(olds, rows.copy(), is_whole=True)
    return FrozenTable(olds, {key: rows.get(key, ABSENT) for key in olds}, is_whole=False)


def _whole(kind: RowKind[State], table: FrozenTable) -> Iterator[Change]:
    """Yield the change of a kind whose table is a single entity, if it changed."""
    if not table.olds:
        return
    news = {key: row for key, row in table.news.items() if row is not ABSENT}
    olds = {key: row for key, row in news.items() if key not in table.olds}
    olds |= {key: row for key, row in table.olds.items() if row is not ABSENT}
    old = kind.encode(olds) if olds else None
    new = kind.encode(news) if news else None
    if old is not None or new is not None:
        yield kind.number, WHOLE_TABLE_KEY, old, new


def _rows(kind: RowKind[State], table: FrozenTable) -> Iterator[Change | None]:
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
