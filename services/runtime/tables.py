"""State that can be taken back: tables whose every change is remembered until it is kept.

All state of a machine (entities, indexes, counters) lives in tables that share one undo log, so
that a revert restores everything. Values are immutable: a change replaces the value.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

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
        """Forget what can no longer be taken back: everything, unless a savepoint is open."""
        if self.savepoint is None:
            self.entries.clear()

    def open_savepoint(self) -> None:
        """From here on `revert_savepoint` can take changes back. Savepoints do not nest."""
        if self.savepoint is not None:
            raise ValueError("a savepoint is already open: keep or revert it first")
        self.savepoint = len(self.entries)

    def keep_savepoint(self) -> None:
        """Let the changes since the savepoint stand."""
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


class Table(Generic[Key, Value]):
    """A dict whose changes go to the undo log. `rows` may be read directly, never written.

    `changed` is for `services.runtime.freezing` alone: None unless the table is in a section, else
    the first old value of every row that was touched since the last cut, ABSENT where there was
    none. A change that was taken back stays in it, with an old value that equals the one there.
    """

    __slots__ = ("rows", "changed", "_undo", "_sorted_keys")

    def __init__(self, undo: UndoLog) -> None:
        self.rows: dict[Key, Value] = {}
        self.changed: dict[Key, Any] | None = None
        self._undo = undo
        self._sorted_keys: list[Any] | None = None

    def nested(self) -> Table[Any, None]:
        """Return an empty table in the same undo log: a set of keys, to be a row of an index."""
        return Table(self._undo)

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
        """Replace a row that the caller has just read; `put` without looking for it again."""
        self._undo.entries.append((self, key, old))
        if self.changed is not None:
            self.changed.setdefault(key, old)
        self.rows[key] = value

    def delete(self, key: Key) -> Value:
        """Remove a row and return it. Raises KeyError if there is none."""
        old = self.rows.pop(key)
        self._undo.entries.append((self, key, old))
        if self.changed is not None:
            self.changed.setdefault(key, old)
        self._sorted_keys = None
        return old

    def restore(self, key: Key, old: object) -> None:
        """Put back what was there before a change; only the undo log calls this."""
        if old is ABSENT:
            del self.rows[key]
        else:
            self.rows[key] = old  # type: ignore[assignment]
        self._sorted_keys = None

    def sorted_keys(self) -> list[Key]:
        """Return all keys in ascending order. The list is shared: do not change it.

        Dict order differs between a live machine and a restored one, so nothing may depend on it;
        whoever walks a table walks these keys.
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
