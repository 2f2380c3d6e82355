"""State that can be reverted: tables remember each change until it is kept.

All state of a machine (entities, indexes, counters) lives in tables that share one undo log, so
that a revert restores everything. Values are immutable: a change replaces the value.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
Item = TypeVar("Item")

# The old value of a row that was not there.
ABSENT: Final = object()


class UndoLog:
    """First-in-last-out record of replaced values, across all tables of one machine."""

    __slots__ = ("entries", "savepoint")

    def __init__(self) -> None:
        self.entries: list[tuple[Table[Any, Any], Any, Any]] = []
        self.savepoint: int | None = None

    def mark(self) -> int:
        """Return the position to which `revert` can go back."""
        return len(self.entries)

    def revert(self, mark: int) -> None:
        """Take back every change since `mark`, the last one first."""
        while len(self.entries) > mark:
            table, key, old = self.entries.pop()
            table.restore(key, old)

    def settle(self) -> None:
        """Forget the changes, so that nobody can revert them, unless a savepoint is open."""
        if self.savepoint is None:
            self.entries.clear()

    def open_savepoint(self) -> None:
        """Open a savepoint, to which `revert_savepoint` goes back. Savepoints do not nest."""
        if self.savepoint is not None:
            raise ValueError("a savepoint is already open: keep or revert it first")
        self.savepoint = len(self.entries)

    def keep_savepoint(self) -> None:
        """Keep the changes since the savepoint."""
        self._closed_savepoint()
        self.entries.clear()

    def revert_savepoint(self) -> None:
        """Take back the changes since the savepoint."""
        self.revert(self._closed_savepoint())

    def _closed_savepoint(self) -> int:
        if self.savepoint is None:
            raise ValueError("no savepoint is open")
        mark, self.savepoint = self.savepoint, None
        return mark


class Followed(Generic[Key]):
    """Rows that know which of them changed since the last cut.

    `changed` belongs to `freezing`: None unless the rows are in a section, else the first old value
    of every row that was touched since the last cut, ABSENT where there was none. A reverted change
    stays in it, with an old value that equals the present one. A row that was inserted and removed
    since the cut is forgotten, so that short-lived rows take no memory between cuts.
    """

    __slots__ = ("changed",)

    def __init__(self) -> None:
        self.changed: dict[Key, Any] | None = None

    def note(self, key: Key, old: object) -> None:
        """Remember a row that is about to be put; `old` is ABSENT if there is none yet."""
        if self.changed is not None:
            self.changed.setdefault(key, old)

    def note_gone(self, key: Key, old: object) -> None:
        """Remember a row that is about to be removed."""
        changed = self.changed
        if changed is not None and changed.setdefault(key, old) is ABSENT:
            del changed[key]


class Table(Followed[Key], Generic[Key, Value]):
    """A dict whose changes go to the undo log. Read `rows` directly, and never write to it.

    `watched` belongs to the holder of the undo log: a number by which it knows the table again.
    """

    __slots__ = ("rows", "watched", "_undo", "_sorted_keys")

    def __init__(self, undo: UndoLog) -> None:
        super().__init__()
        self.rows: dict[Key, Value] = {}
        self.watched: int | None = None
        self._undo = undo
        self._sorted_keys: list[Any] | None = None

    def get(self, key: Key) -> Value | None:
        """Return a row, None if there is none."""
        return self.rows.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Insert or replace a row."""
        old = self.rows.get(key, ABSENT)
        self._undo.entries.append((self, key, old))
        if self.changed is not None:
            self.changed.setdefault(key, old)
        self.rows[key] = value
        if old is ABSENT:
            self._inserted(key)

    def replace(self, key: Key, old: Value, value: Value) -> None:
        """Replace a row that the caller has just read, without the lookup of `put`."""
        self._undo.entries.append((self, key, old))
        if self.changed is not None:
            self.changed.setdefault(key, old)
        self.rows[key] = value

    def delete(self, key: Key) -> Value:
        """Remove a row and return it. Raises KeyError if there is none."""
        old = self.rows.pop(key)
        self._undo.entries.append((self, key, old))
        self.note_gone(key, old)
        self._sorted_keys = None
        return old

    def restore(self, key: Key, old: object) -> None:
        """Restore the value before a change; only the undo log calls this."""
        self.note(key, ABSENT)  # a row inserted since the last cut may have been forgotten
        if old is ABSENT:
            del self.rows[key]
        else:
            self.rows[key] = old  # type: ignore[assignment]
        self._sorted_keys = None

    def sorted_keys(self) -> list[Key]:
        """Return all keys in ascending order. The list is shared: do not change it.

        The order of a dict differs between a live machine and a restored one, so walk these keys.
        """
        if self._sorted_keys is None:
            self._sorted_keys = sorted(self.rows)
        return self._sorted_keys

    def keys_after(self, key: Key, count: int) -> list[Key]:
        """Return at most `count` keys greater than `key`, ascending."""
        keys: list[Any] = self.sorted_keys()
        start = bisect_right(keys, key)
        return keys[start : start + count]

    def _inserted(self, key: Key) -> None:
        keys = self._sorted_keys
        if keys is None:
            return
        if not keys or keys[-1] < key:  # ids grow, so most inserts go at the end
            keys.append(key)
        else:
            self._sorted_keys = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.rows == other.rows

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, key: object) -> bool:
        return key in self.rows


class TableIndex(Table[Key, Table[Item, Any]], Generic[Key, Item]):
    """The items of each key, each with a value if needed. A key without items has no row.

    An index is derived from rows of a section, and never part of one: its rows change.
    """

    __slots__ = ()

    def add(self, key: Key, item: Item, value: object = None) -> None:
        """Insert an item of a key, or replace its value."""
        items = self.rows.get(key)
        if items is None:
            items = Table(self._undo)
            self.put(key, items)
        items.put(item, value)

    def take(self, key: Key, item: Item) -> None:
        """Remove an item of a key. Raises KeyError if there is none."""
        items = self.rows[key]
        items.delete(item)
        if not items:
            self.delete(key)

    def of(self, key: Key) -> list[Item]:
        """Return the items of a key, ascending. The list may be shared: do not change it."""
        items = self.rows.get(key)
        return [] if items is None else items.sorted_keys()


class DerivedRows(Generic[Key, Value]):
    """Rows that are computed from other state at each look."""

    __slots__ = ("_keys", "_get")

    def __init__(
        self, keys: Callable[[], Iterable[Key]], get: Callable[[Key], Value | None]
    ) -> None:
        self._keys = keys
        self._get = get

    def __getitem__(self, key: Key) -> Value:
        value = self._get(key)
        if value is None:
            raise KeyError(key)
        return value

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the row of a key, or `default`."""
        value = self._get(key)
        return default if value is None else value

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys())


class DerivedTable(Followed[Key], Generic[Key, Value]):
    """Derived rows in a section. Code that changes their source must note the row here first."""

    __slots__ = ("rows",)

    def __init__(
        self, keys: Callable[[], Iterable[Key]], get: Callable[[Key], Value | None]
    ) -> None:
        super().__init__()
        self.rows = DerivedRows(keys, get)

    def sorted_keys(self) -> list[Any]:
        """Return all keys in ascending order."""
        keys: list[Any] = list(self.rows)
        return sorted(keys)
