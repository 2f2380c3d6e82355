"""The cache of an informer: entities by type and key, and indexes over them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from google.protobuf.message import Message

# The ids that name an entity among those of its type, outermost first: (stream, topic) of a topic.
EntityKey: TypeAlias = tuple[int, ...]
# All entities of some types: full name of the type, key, message.
EntityTables: TypeAlias = dict[str, dict[EntityKey, Any]]
# Returns the values under which an index finds an entity.
IndexFunction: TypeAlias = Callable[[Any], Iterable[Hashable]]

ABSENT: Final = None


@dataclass(frozen=True, slots=True)
class EntityEvent:
    """What happened to an entity: it is new (`old` is None), changed, or gone (`new` is None)."""

    entity_type: str
    key: EntityKey
    old: Any
    new: Any


@dataclass(slots=True)
class _Index:
    entity_type: str
    values_of: IndexFunction
    keys: dict[Hashable, dict[EntityKey, None]] = field(default_factory=dict)


class EntityCache:
    """Entities of some types by key. Whoever takes one out must not change it."""

    def __init__(self, entity_types: Sequence[str]) -> None:
        self._tables: EntityTables = {name: {} for name in entity_types}
        self._indexes: dict[str, _Index] = {}

    def get(self, entity_type: str, key: EntityKey) -> Any:
        """Return an entity, or None. Raises ValueError for a type that it does not hold."""
        return self._table(entity_type).get(key)

    def all(self, entity_type: str) -> list[Any]:
        """Return all entities of a type, by key. Raises ValueError for another type."""
        table = self._table(entity_type)
        return [table[key] for key in sorted(table)]

    def add_index(self, name: str, entity_type: str, values_of: IndexFunction) -> None:
        """Keep an index from now on. Raises ValueError for a name that is taken, or another type.

        What `values_of` raises for an entity comes out of `put`, so it must take all of them.
        """
        if name in self._indexes:
            raise ValueError(f"there is an index {name!r} already: choose another name")
        table = self._table(entity_type)
        self._indexes[name] = index = _Index(entity_type, values_of)
        for key, entity in table.items():
            _enter(index, key, entity)

    def by_index(self, name: str, value: Hashable) -> list[Any]:
        """Return the entities that an index has under a value, by key. Raises KeyError."""
        index = self._indexes[name]
        table = self._tables[index.entity_type]
        return [table[key] for key in sorted(index.keys.get(value, ()))]

    def put(self, entity_type: str, key: EntityKey, new: Any) -> EntityEvent | None:
        """Set an entity, or remove it if `new` is None; return what happened, None for nothing."""
        table = self._table(entity_type)
        old = table.get(key)
        if old == new:
            return None
        for index in self._indexes.values():
            if index.entity_type == entity_type:
                _leave(index, key, old)
                _enter(index, key, new)
        if new is ABSENT:
            del table[key]
        else:
            table[key] = new
        return EntityEvent(entity_type, key, old, new)

    def replace(self, tables: Mapping[str, Mapping[EntityKey, Any]]) -> list[EntityEvent]:
        """Take over other entities; return the differences alone, removals first."""
        events = [*self._removals(tables), *self._entries(tables)]
        return [event for event in events if event is not None]

    def _removals(
        self, tables: Mapping[str, Mapping[EntityKey, Any]]
    ) -> Iterator[EntityEvent | None]:
        for name, table in self._tables.items():
            kept = tables.get(name, {})
            for key in sorted(key for key in table if key not in kept):
                yield self.put(name, key, ABSENT)

    def _entries(
        self, tables: Mapping[str, Mapping[EntityKey, Any]]
    ) -> Iterator[EntityEvent | None]:
        for name, table in tables.items():
            for key in sorted(table):
                yield self.put(name, key, table[key])

    def _table(self, entity_type: str) -> dict[EntityKey, Any]:
        if entity_type not in self._tables:
            known = ", ".join(self._tables)
            raise ValueError(f"no {entity_type} is kept here: {known}")
        return self._tables[entity_type]


def full_name_of(entity_type: type[Message]) -> str:
    """Return the full name of a type of entities."""
    return str(entity_type.DESCRIPTOR.full_name)


def _enter(index: _Index, key: EntityKey, entity: Any) -> None:
    if entity is not ABSENT:
        for value in index.values_of(entity):
            index.keys.setdefault(value, {})[key] = None


def _leave(index: _Index, key: EntityKey, entity: Any) -> None:
    if entity is ABSENT:
        return
    for value in index.values_of(entity):
        keys = index.keys[value]
        keys.pop(key, None)
        if not keys:
            del index.keys[value]
