"""What of a domain's state goes into a snapshot: its entities, as canonical bytes, both ways.

A section is a table of kinds. Each kind makes entities of the rows of one table, and rows of
entities. Everything else that a state holds (indexes, caches) follows from these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import DecodeError

from services.runtime.tables import Table
from viewstamp.format.digest import StateDigest

State = TypeVar("State")

# (kind, key, canonical bytes), in ascending (kind, key) order.
Entity = tuple[int, bytes, bytes]
# (key, canonical bytes) of what one domain knows of another, or lets it know.
Projected = tuple[bytes, bytes]
# Rewrites the entities of one version of a section as those of the next, in the same order.
Migration = Callable[[Iterator[Entity]], Iterator[Entity]]

# The key of a kind whose whole table is one entity.
WHOLE_TABLE_KEY: Final = b""
# What a projection's entries have as their kind, for the digest.
PROJECTION_KIND: Final = 0
# Entities that are loaded between two moments at which the caller may pause.
LOADED_BETWEEN_PAUSES: Final = 64


class SectionError(ValueError):
    """Entities that no machine of the domain can have written; the message says which and why."""


@dataclass(frozen=True, slots=True)
class EntityKind(Generic[State]):
    """Entities of one kind: the rows of one table, each under a key of its own.

    Where `whole_table` is set, all rows together are one entity with an empty key, which is there
    as long as any row is; `encode` is then given all rows by key.
    """

    number: int  # as the domain's protos state it
    table: Callable[[State], Table[Any, Any]]
    encode: Callable[[Any], bytes]  # a row, or all rows -> canonical bytes
    # Inserts what the bytes say, and returns the key and the bytes that it would be encoded to.
    # Raises SectionError for what clashes with the state, DecodeError for what is no entity.
    load: Callable[[State, bytes], Projected]
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

    def _keys(self, table: Table[Any, Any]) -> Iterable[Any]:
        order = self.order
        if order is None:
            return table.sorted_keys()
        return sorted(table.rows, key=lambda key: order(key, table.rows[key]))


@dataclass(frozen=True, slots=True)
class Section(Generic[State]):
    """The section of one domain.

    `check` looks at what was loaded as a whole, and finishes what indexes need all entities; it
    raises SectionError for entities at odds with others, and yields wherever the caller may pause.
    `projections` name what must be equal to a projection of the same name in another domain.
    `migrations` by the version that they read; there must be one for each older version that is
    still to be loaded.
    """

    version: int
    kinds: Sequence[EntityKind[State]]  # ascending
    check: Callable[[State], Iterable[None]] = lambda state: ()
    projections: Mapping[str, Callable[[State], Iterable[Projected]]] = field(default_factory=dict)
    migrations: Mapping[int, Migration] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError for a section that is not whole."""
        numbers = [kind.number for kind in self.kinds]
        if numbers != sorted(set(numbers)):
            raise ValueError(f"the kinds of a section must ascend, and these are {numbers}")
        wrong = sorted(version for version in self.migrations if version >= self.version)
        if wrong:
            raise ValueError(f"migrations from versions {wrong} lead beyond {self.version}")

    def entities(self, state: State) -> Iterator[Entity]:
        """Yield every entity of a state in ascending (kind, key) order; none of an empty one."""
        for kind in self.kinds:
            yield from kind.entities(state)

    def digest(self, state: State) -> StateDigest:
        """Return the digest of all entities of a state."""
        digest = StateDigest()
        for entity in self.entities(state):
            digest.add(*entity)
        return digest

    def projection_digests(self, state: State) -> dict[str, bytes]:
        """Return the digest of every projection, 32 bytes, by name."""
        digests = {}
        for name, project in self.projections.items():
            digest = StateDigest()
            for key, canonical in project(state):
                digest.add(PROJECTION_KIND, key, canonical)
            digests[name] = digest.to_bytes()
        return digests

    def load(self, state: State, entities: Iterable[Entity]) -> None:
        """Fill an empty state with all entities of a section, indexes included.

        Raises SectionError for entities that are unknown, out of order, not canonical, under a
        wrong key, or at odds with others; then the state must be dropped.
        """
        for _ in self.loading(state, entities):
            pass

    def loading(self, state: State, entities: Iterable[Entity]) -> Iterator[None]:
        """Do what `load` does; whenever this yields, the caller may pause or settle the undo log.

        The section is loaded and checked once the iterator has ended.
        """
        loaders = {kind.number: kind.load for kind in self.kinds}
        last_kind, left = -1, LOADED_BETWEEN_PAUSES
        last_key: bytes | None = None
        for kind, key, canonical in entities:
            if kind != last_kind:
                if kind < last_kind:
                    raise SectionError(f"{where(kind, key)} is out of order")
                last_kind, last_key = kind, None
                load = _loader(loaders, kind)
            if last_key is not None and last_key >= key:
                raise SectionError(f"{where(kind, key)} is out of order, or there twice")
            last_key = key
            try:
                expected = load(state, canonical)
            except DecodeError as error:
                raise SectionError(f"{where(kind, key)} is not a protobuf message") from error
            if expected != (key, canonical):
                raise SectionError(f"{where(kind, key)} is not canonical, or under a wrong key")
            left -= 1
            if not left:
                left = LOADED_BETWEEN_PAUSES
                yield
        yield from self.check(state)


def where(kind: int, key: bytes) -> str:
    """Return how messages call an entity."""
    return f"the entity of kind {kind} under key {key.hex() or '(empty)'}"


def id_key(*ids: int) -> bytes:
    """Return the key made of ids, each as 8 bytes big-endian, so that keys sort like ids."""
    return b"".join(id_.to_bytes(8, "big") for id_ in ids)


def _loader(loaders: Mapping[int, Callable[..., Projected]], kind: int) -> Callable[..., Projected]:
    loader = loaders.get(kind)
    if loader is None:
        known = ", ".join(map(str, loaders))
        raise SectionError(f"entity kind {kind} is unknown to this section; it has {known}")
    return loader
