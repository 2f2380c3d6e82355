"""How a section is frozen: what changed since the last released cut, as references.

A change log remembers, per row, its first old value since the last cut. Freezing takes the log and
looks at the rows as they are, so that it costs what changed and not what there is. Rows are
immutable, so the machine goes on at once; nothing is encoded before somebody iterates.

Cuts that were not released are folded: their logs stay, and the oldest value of each row wins.
Releasing a generation forgets its log and those before; what follows counts from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from coordinator.mux.catalog_types import Change, Entity

Key = TypeVar("Key")
Value = TypeVar("Value")


class ChangeLog(Generic[Key, Value]):
    """The first old value of each row that changed since the last cut; None: it was not there."""

    __slots__ = ("first",)

    def __init__(self) -> None:
        """Begin without changes."""
        self.first: dict[Key, Value | None] = {}

    def note(self, key: Key, old: Value | None) -> None:
        """Remember a row that is about to be put."""
        self.first.setdefault(key, old)

    def note_drop(self, key: Key, old: Value) -> bool:
        """Remember a row that is about to go; return whether it came and went since the cut.

        Such a row leaves no trace, so that what is short-lived takes no memory between cuts.
        """
        if self.first.setdefault(key, old) is not None:
            return False
        del self.first[key]
        return True

    def take(self) -> dict[Key, Value | None]:
        """Return the log and begin a new one."""
        first, self.first = self.first, {}
        return first

    def fold(self, older: dict[Key, Value | None]) -> None:
        """Take in the log before this one: its values win."""
        self.first |= older


@dataclass(frozen=True, slots=True)
class RowKind(Generic[Key, Value]):
    """One kind of rows: where changes are noted, what there is now, and how it is encoded.

    Encoded keys ascend as the keys of the section do.
    """

    number: int
    log: ChangeLog[Key, Value]
    keys: Callable[[], Iterable[Key]]
    get: Callable[[Key], Value | None]
    encode_key: Callable[[Key], bytes]
    encode: Callable[[Value], bytes]

    def entities(self) -> Iterator[Entity]:
        """Yield all rows by ascending key."""
        for encoded, key in sorted((self.encode_key(key), key) for key in self.keys()):
            value = self.get(key)
            assert value is not None, f"row {key!r} of kind {self.number} went away"
            yield self.number, encoded, self.encode(value)


@dataclass(frozen=True, slots=True)
class FrozenKind(Generic[Key, Value]):
    """Changed rows of one kind, as (key, old, new)."""

    kind: RowKind[Key, Value]
    rows: tuple[tuple[Key, Value | None, Value | None], ...]

    def changes(self) -> Iterator[Change]:
        """Yield the changes by ascending key; rows with equal old and new bytes are left out."""
        encode_key = self.kind.encode_key
        for encoded, index in sorted((encode_key(row[0]), i) for i, row in enumerate(self.rows)):
            _, old, new = self.rows[index]
            before, after = self._encode(old), self._encode(new)
            if before != after:
                yield self.kind.number, encoded, before, after

    def _encode(self, value: Value | None) -> bytes | None:
        """Return the canonical bytes of a row, None if there is none."""
        return None if value is None else self.kind.encode(value)


@dataclass(frozen=True, slots=True)
class FrozenRows:
    """A frozen section: the changes of all its kinds. See `catalog_types.FrozenSection`."""

    generation: int
    base_generation: int
    kinds: tuple[FrozenKind[Any, Any], ...]

    def changes(self) -> Iterator[Change]:
        """Yield the changes by ascending (kind, key)."""
        for kind in self.kinds:
            yield from kind.changes()


class Freezer:
    """Freezes the rows of one section, kinds in ascending order."""

    def __init__(self, kinds: Sequence[RowKind[Any, Any]], base_generation: int) -> None:
        """Begin unchanged against a generation; 0 stands for the empty state."""
        self._kinds = tuple(kinds)
        self._base_generation = base_generation
        # Cuts that were not released, oldest first: the logs of all kinds up to each.
        self._cuts: list[tuple[int, tuple[dict[Any, Any], ...]]] = []

    def freeze(self, generation: int) -> FrozenRows:
        """Freeze what changed since the base, for a generation above all that were frozen."""
        newest = self._cuts[-1][0] if self._cuts else self._base_generation
        assert generation > newest, f"generation {generation} is frozen after {newest}"
        self._cuts.append((generation, tuple(kind.log.take() for kind in self._kinds)))
        frozen = tuple(self._frozen_kind(index) for index in range(len(self._kinds)))
        return FrozenRows(generation, self._base_generation, frozen)

    def release(self, generation: int) -> None:
        """Make a generation the base; one that is not frozen here is ignored."""
        for position, (known, _) in enumerate(self._cuts):
            if known == generation:
                del self._cuts[: position + 1]
                self._base_generation = generation
                return

    def abandon(self, generation: int) -> None:
        """Fold the newest cut, which will never be released, into what changes from now on."""
        if self._cuts and self._cuts[-1][0] == generation:
            _, logs = self._cuts.pop()
            for kind, older in zip(self._kinds, logs, strict=True):
                kind.log.fold(older)

    def _frozen_kind(self, index: int) -> FrozenKind[Any, Any]:
        """Return the rows of one kind that changed since the base: the oldest old value wins."""
        kind = self._kinds[index]
        first: dict[Any, Any] = {}
        for _, logs in reversed(self._cuts):
            first |= logs[index]
        rows = ((key, old, kind.get(key)) for key, old in first.items())
        return FrozenKind(kind, tuple(row for row in rows if row[1] is not row[2]))
