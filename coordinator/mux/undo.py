"""Tables whose changes since a savepoint can be taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from coordinator.mux.freezing import ChangeLog

Key = TypeVar("Key")
Value = TypeVar("Value")


class UndoLog:
    """What was changed since the savepoint, newest last; nothing is recorded without one."""

    __slots__ = ("_actions",)

    def __init__(self) -> None:
        """Begin without a savepoint."""
        self._actions: list[Callable[[], object]] | None = None

    def savepoint(self) -> None:
        """Begin to record. There is one savepoint at a time."""
        assert self._actions is None, "a savepoint is open already"
        self._actions = []

    def keep(self) -> None:
        """Let the changes since the savepoint stand."""
        assert self._actions is not None, "no savepoint is open"
        self._actions = None

    def revert(self) -> None:
        """Take back the changes since the savepoint, newest first."""
        assert self._actions is not None, "no savepoint is open"
        actions, self._actions = self._actions, None
        for action in reversed(actions):
            action()

    def record(self, action: Callable[[], object]) -> None:
        """Remember how to take back a change that is about to be made."""
        if self._actions is not None:
            self._actions.append(action)


class Table(Generic[Key, Value]):
    """A dictionary of immutable values. Its own order means nothing: readers sort."""

    __slots__ = ("_rows", "_undo")

    def __init__(self, undo: UndoLog) -> None:
        """Begin empty; changes are recorded in `undo`."""
        self._rows: dict[Key, Value] = {}
        self._undo = undo

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def get(self, key: Key) -> Value | None:
        """Return the value of a key, None if it has none."""
        return self._rows.get(key)

    def load(self, key: Key, value: Value) -> None:
        """Set the value of a key of a table that is being restored."""
        self._rows[key] = value

    def keys(self) -> list[Key]:
        """Return all keys, in no order that means anything."""
        return list(self._rows)

    def values(self) -> list[Value]:
        """Return all values, in no order that means anything: references alone."""
        return list(self._rows.values())

    def put(self, key: Key, value: Value) -> None:
        """Set the value of a key."""
        self._remember(key)
        self._rows[key] = value

    def drop(self, key: Key) -> None:
        """Remove a key that is there."""
        self._remember(key)
        del self._rows[key]

    def _remember(self, key: Key) -> None:
        """Record how the key's row comes back to what it is now."""
        if key in self._rows:
            old = self._rows[key]
            self._undo.record(lambda: self._rows.__setitem__(key, old))
        else:
            self._undo.record(lambda: self._rows.pop(key, None))


class EntityTable(Table[Key, Value]):
    """A table whose rows are entities: `log` tells what changed since the last cut.

    What is taken back stays in the log, with the old value that the row has again.
    """

    __slots__ = ("log",)

    def __init__(self, undo: UndoLog) -> None:
        """Begin empty and unchanged."""
        super().__init__(undo)
        self.log: ChangeLog[Key, Value] = ChangeLog()

    def put(self, key: Key, value: Value) -> None:
        """Set the value of a key."""
        self.log.first.setdefault(key, self._rows.get(key))
        self._remember(key)
        self._rows[key] = value

    def drop(self, key: Key) -> None:
        """Remove a key that is there."""
        if self.log.note_drop(key, self._rows[key]):
            self._undo.record(lambda: self.log.note(key, None))
        super().drop(key)
