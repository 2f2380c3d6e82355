"""The part of a domain's state in a snapshot: its entities, as canonical bytes, both ways.

A section is a table of kinds. Each kind makes entities of the rows of one table, and rows of
entities. Everything else in a state (indexes, caches) is derived from these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic

from google.protobuf.message import DecodeError

from viewstamp.format.digest import StateDigest
from viewstamp.machine.freezing import Entity, RowKind, State

# (key, canonical bytes) of what two domains must know equally.
Projected = tuple[bytes, bytes]
# Rewrites the entities of one version of a section as those of the next, in the same order.
Migration = Callable[[Iterator[Entity]], Iterator[Entity]]

# The kind of a projection's entries in its digest.
PROJECTION_KIND: Final = 0
# Entities loaded between two moments at which the caller may pause.
LOADED_BETWEEN_PAUSES: Final = 64


class SectionError(ValueError):
    """Entities that no machine of the domain can have written; the message says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityKind(RowKind[State]):
    """Rows of one table as entities, and the way back."""

    # Inserts the entity, and returns the key and the bytes that it would be encoded to. Raises
    # SectionError if it clashes with the state, DecodeError if the bytes are not an entity.
    load: Callable[[State, bytes], Projected]


@dataclass(frozen=True, slots=True)
class Section(Generic[State]):
    """The section of one domain.

    `check` verifies the loaded section as a whole, and finishes indexes that need all entities. It
    raises SectionError for entities that contradict others, and yields where the caller may pause.
    `projections` by name must equal the projection of the same name in another domain. `migrations`
    are by the version that they read; one is needed for each older version still to be loaded.
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
        wrong key, or contradict others; then the state must be dropped.
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
    """Return the name of an entity in messages."""
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
