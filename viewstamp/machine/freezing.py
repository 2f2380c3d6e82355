"""Cuts: what changed since the last snapshot, frozen as references while the machine goes on.

Tables of a section remember the first old value of each row that changes. A cut takes these old
values and the present values. Rows are immutable, so a cut copies only references. Later the
section is encoded from them in small steps, as a delta against the generation released last.

A cut that was never released (its snapshot failed, or was overtaken) is folded into the next one,
and its old values win, so that a chain of layers never has a hole. The changes of each cut are kept
as well: a replica may adopt the older cut after the newer one was taken, and from then on the older
one is the base of the newer one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
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
# Keys to sort at once; this takes about as long as a slice of encoding may take.
SORTED_AT_ONCE: Final = 256
# A look at one row takes as long as copying this many rows of a table: old rows are anywhere in
# memory, and a table is copied from its begin to its end (0.8 and 0.04 us).
ROWS_COPIED_PER_LOOK: Final = 16
# Rows to forget at once; this takes a fraction of a millisecond.
FORGOTTEN_AT_ONCE: Final = 1_024
# Unreleased cuts that are kept apart; if there are more, the oldest two become one. All unreleased
# cuts but the last have failed, or are about to be adopted.
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

    If `whole_table` is set, all rows together are one entity with an empty key, which exists as
    long as any row exists; `encode` then gets all rows by key.
    """

    number: int  # as the protos state it
    table: Callable[[State], Any]  # Rows; a Table, for `entities`
    encode: Callable[[Any], bytes]  # a row, or all rows -> canonical bytes
    encode_key: Callable[[Any, Any], bytes] = lambda key, row: WHOLE_TABLE_KEY
    # (key, row) -> a value that sorts like the encoded key; None if the table's keys do so.
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
    """Old and present rows of one table, by key: `olds` holds those that changed.

    `news` holds every row if `is_whole`, else only the changed ones. Both may hold ABSENT.
    """

    olds: dict[Any, Any]
    news: dict[Any, Any]
    is_whole: bool

    def behind(self, older: FrozenTable) -> FrozenTable:
        """Return the changes from the start of the older one to the end of this one."""
        news = self.news if self.is_whole else {**older.news, **self.news}
        is_whole = self.is_whole or older.is_whole
        return FrozenTable({**self.olds, **older.olds}, news, is_whole)


@dataclass(frozen=True, slots=True)
class Frozen(Generic[State]):
    """A section at a cut, as what changed against `base_generation`. Immutable.

    `revision` is the last revision that it includes.
    """

    generation: int
    base_generation: int
    revision: int
    kinds: tuple[RowKind[State], ...]
    tables: tuple[FrozenTable, ...]

    def walk(self) -> Iterator[Change | None]:
        """Yield the changes in ascending (kind, key) order, some with equal old and new bytes.

        Yields None at times, before a change that takes long.
        """
        for kind, table in zip(self.kinds, self.tables, strict=True):
            yield from _whole(kind, table) if kind.whole_table else _rows(kind, table)

    def forget(self) -> Iterator[None]:
        """Give up all rows, and yield where the caller may pause: freeing many takes long.

        Nobody may need the cut any more, nor a cut that was folded into it.
        """
        for table in self.tables:
            for rows in (table.olds, table.news):
                while rows:
                    for _ in range(min(FORGOTTEN_AT_ONCE, len(rows))):
                        rows.popitem()
                    yield


class Freezer(Generic[State]):
    """Tracks the changes of one state, and freezes it at cuts.

    `base_generation` is the generation released last. `frozen` is the last cut, None once released.
    """

    def __init__(
        self, kinds: Iterable[RowKind[State]], state: State, base_generation: int | None = None
    ) -> None:
        """Track `state` from now on. Without a base, all present rows count as changed."""
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
        """Freeze the present state. The cost grows with the changes since the last cut.

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

        It is then the base of the cut after it. Returns its changes against the base before, or
        None for a generation that is not frozen here.
        """
        for position, cut in enumerate(self._cuts):
            if cut.generation == generation:
                released, self._cuts = self._cuts[: position + 1], self._cuts[position + 1 :]
                self.base_generation = generation
                self.frozen = reduce(folded, self._cuts) if self._cuts else None
                return reduce(folded, released)
        return None


def folded(older: Frozen[State] | None, newer: Frozen[State]) -> Frozen[State]:
    """Return the changes from the start of the older one to the end of the newer one."""
    if older is None:
        return newer
    pairs = zip(newer.tables, older.tables, strict=True)
    tables = tuple(new.behind(old) for new, old in pairs)
    return Frozen(newer.generation, older.base_generation, newer.revision, newer.kinds, tables)


def _freeze(kind: RowKind[State], table: Rows) -> FrozenTable:
    """Take the changes of a table, and begin a new record of changes."""
    olds, table.changed = table.changed, {}
    assert olds is not None, "every table of a section is followed"
    rows = table.rows
    if isinstance(rows, dict) and (
        kind.whole_table or len(rows) < len(olds) * ROWS_COPIED_PER_LOOK
    ):
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
        """Return an old or present row of this key; both give the same key of an entity."""
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
