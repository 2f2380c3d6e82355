"""The state of a generation as a tree: folders of entities, which have folders of their own.

    /streams/NAME/topics/NAME/partitions/ID         and groups, watermarks, placements
    /streams/NAME/topics/NAME/groups/NAME/members/SESSION     and offsets
    /users/NAME/tokens/NAME   /brokers/NAME   /sessions/ID/replies/NUMBER   /snapshots/GENERATION
    /sections/SECTION/KIND/KEY                      every entity of every kind, by its key

An entity is found by its id with one look by the index of each layer; by its name its folder is
read up to it. A folder is read entity by entity and never held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import dropwhile, islice
from typing import Any, Final

from google.protobuf.message import Message

from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.format.columns import Row, row_of
from viewstamp.format.kinds import KEY_INTEGER_BYTES, KINDS, key_of
from viewstamp.format.manifest import sections
from viewstamp.snapshots.entities import (
    KEY_SEPARATOR,
    SECTION_NAMES,
    Entity,
    key_text,
    kinds_of,
    selection,
)
from viewstamp.snapshots.errors import NoSuchEntity
from viewstamp.snapshots.explore.open_generation import OpenGeneration
from viewstamp.snapshots.explore.partition_rows import (
    partition_details,
    partition_row,
    partition_rows,
)
from viewstamp.snapshots.explore.path_parts import PATH_SEPARATOR, id_of, name_of, part_of
from viewstamp.snapshots.views import textual

PARTITIONS: Final = "partitions"
SECTIONS: Final = "sections"
# The values of a key of several integers, in a part of a path; the only entity of a kind.
KEY_COMMA: Final = ","
ONLY: Final = "only"


@dataclass(frozen=True, slots=True)
class FolderShape:
    """Entities of a kind below an entity, whose fields `above` begin their keys.

    `name` is the field that names them; without one they are named by the last number of the key.
    """

    folder: str
    stage: int
    number: int
    name: str = ""
    above: tuple[str, ...] = ()
    inside: tuple[FolderShape, ...] = ()
    has_partitions: bool = False


_OFFSETS: Final = FolderShape("offsets", routing_pb2.STAGE_CONSUMER_GROUPS, 6, above=("id",))
_MEMBERS: Final = FolderShape("members", routing_pb2.STAGE_CONSUMER_GROUPS, 2, above=("id",))
_GROUPS: Final = FolderShape(
    "groups",
    routing_pb2.STAGE_CONSUMER_GROUPS,
    1,
    "name",
    ("stream_id", "id"),
    (_MEMBERS, _OFFSETS),
)
_WATERMARKS: Final = FolderShape("watermarks", routing_pb2.STAGE_STREAMS, 5, above=("id",))
_PLACEMENTS: Final = FolderShape("placements", routing_pb2.STAGE_STREAMS, 7, above=("id",))
_TOPICS: Final = FolderShape(
    "topics",
    routing_pb2.STAGE_STREAMS,
    2,
    "name",
    ("id",),
    (_GROUPS, _WATERMARKS, _PLACEMENTS),
    has_partitions=True,
)
_TOKENS: Final = FolderShape("tokens", routing_pb2.STAGE_USERS, 2, "name", ("id",))
_REPLIES: Final = FolderShape("replies", routing_pb2.STAGE_SESSIONS, 4, above=("session_id",))
TOP: Final = (
    FolderShape("streams", routing_pb2.STAGE_STREAMS, 1, "name", inside=(_TOPICS,)),
    FolderShape("users", routing_pb2.STAGE_USERS, 1, "username", inside=(_TOKENS,)),
    FolderShape("brokers", routing_pb2.STAGE_STREAMS, 6, "name"),
    FolderShape("sessions", routing_pb2.STAGE_SESSIONS, 1, inside=(_REPLIES,)),
    FolderShape("snapshots", routing_pb2.STAGE_CATALOG, 1),
)


class StateNode:
    """A place in the tree. `kind` is the kind of its entity, empty for a folder."""

    kind = ""

    def __init__(self, generation: OpenGeneration, path: tuple[str, ...]) -> None:
        """Name the place: the parts of its path."""
        self.generation = generation
        self.path = path

    @property
    def text(self) -> str:
        """The path as people write it."""
        return PATH_SEPARATOR + PATH_SEPARATOR.join(self.path)

    @property
    def part(self) -> str:
        """The last part of the path."""
        return self.path[-1] if self.path else ""

    @property
    def has_children(self) -> bool:
        """Whether it is a folder, or an entity with folders."""
        return True

    def values(self) -> Row | None:
        """Return the values of the entity, without secrets, as JSON has them; None for a folder."""
        return None

    def children(self, after: StateNode | None = None) -> Iterator[StateNode]:
        """Yield what is in it, in order, all or behind a child. Raises SnapshotFilesError."""
        found = self._all()
        if after is not None:
            found = islice(dropwhile(lambda one: one.path != after.path, found), 1, None)
        yield from found

    def child(self, part: str) -> StateNode | None:
        """Return what has a name in it; None without such. Raises SnapshotFilesError."""
        return next((one for one in self._all() if one.part == part), None)

    def _all(self) -> Iterator[StateNode]:
        """Yield the few children of a place that has folders alone."""
        yield from ()


class RootNode(StateNode):
    """The state of a generation."""

    def __init__(self, generation: OpenGeneration) -> None:
        """Begin the tree."""
        super().__init__(generation, ())

    def _all(self) -> Iterator[StateNode]:
        for shape in TOP:
            yield EntityFolder(self.generation, (shape.folder,), shape)
        yield SectionsFolder(self.generation, (SECTIONS,))


class EntityFolder(StateNode):
    """Entities of a kind, those below an entity or all."""

    def __init__(
        self,
        generation: OpenGeneration,
        path: tuple[str, ...],
        shape: FolderShape,
        above: Message | None = None,
    ) -> None:
        """Name the entity above, unless all of the kind are in the folder."""
        super().__init__(generation, path)
        self.shape = shape
        self._prefix = b"".join(_number(getattr(above, name)) for name in shape.above)

    def children(self, after: StateNode | None = None) -> Iterator[StateNode]:
        """Yield the entities, in the order of their keys."""
        start = after.key + b"\0" if isinstance(after, EntityNode) else b""
        for entity in self._selected(start):
            yield self._node(entity)

    def child(self, part: str) -> StateNode | None:
        """Return an entity: by its id at once, by its name after a look at those before it."""
        number = id_of(part)
        if number is not None and not self._is_named_by_text():
            found = self._at(self._prefix + _number(number))
        else:
            found = self._named(name_of(part))
        return None if found is None else self._node(found)

    def _is_named_by_text(self) -> bool:
        """Whether no number is in the key behind those of the entity above: so with tokens."""
        return KINDS[self.shape.stage, self.shape.number].key_fields[-1] == self.shape.name

    def _selected(self, start: bytes = b"") -> Iterator[Entity]:
        return self.generation.selected(self.shape.stage, self.shape.number, self._prefix, start)

    def _at(self, key: bytes) -> Entity | None:
        return next(self.generation.selected(self.shape.stage, self.shape.number, key), None)

    def _named(self, name: str) -> Entity | None:
        if not self.shape.name:
            return None
        named = (one for one in self._selected() if getattr(one.message, self.shape.name) == name)
        return next(named, None)

    def _node(self, entity: Entity) -> EntityNode:
        part = self._part(entity)
        return EntityNode(self.generation, (*self.path, part), self.shape, entity)

    def _part(self, entity: Entity) -> str:
        if self.shape.name:
            return part_of(getattr(entity.message, self.shape.name))
        return key_text(entity.kind, key_of(*entity)).rpartition(KEY_SEPARATOR)[2]


class EntityNode(StateNode):
    """An entity, with what belongs to it."""

    def __init__(
        self,
        generation: OpenGeneration,
        path: tuple[str, ...],
        shape: FolderShape,
        entity: Entity,
    ) -> None:
        """Keep the entity."""
        super().__init__(generation, path)
        self.kind = entity.kind.name
        self.key = key_of(*entity)
        self.entity = entity
        self.shape = shape

    @property
    def has_children(self) -> bool:
        """Whether entities of its kind have folders."""
        return bool(self.shape.inside) or self.shape.has_partitions

    def values(self) -> Row | None:
        """Return its fields."""
        values: Row = textual(row_of(self.entity.message))
        return values

    def _all(self) -> Iterator[StateNode]:
        if self.shape.has_partitions:
            path = (*self.path, PARTITIONS)
            yield PartitionsFolder(self.generation, path, self.entity.message)
        for shape in self.shape.inside:
            path = (*self.path, shape.folder)
            yield EntityFolder(self.generation, path, shape, self.entity.message)


class PartitionsFolder(StateNode):
    """The partitions of a topic."""

    def __init__(self, generation: OpenGeneration, path: tuple[str, ...], topic: Any) -> None:
        """Keep the topic."""
        super().__init__(generation, path)
        self._topic = topic

    def children(self, after: StateNode | None = None) -> Iterator[StateNode]:
        """Yield the partitions, in order."""
        first = 0 if after is None else int(after.part) + 1
        for row in partition_rows(self._topic, first):
            yield self._node(row)

    def child(self, part: str) -> StateNode | None:
        """Return a partition by its number."""
        number = id_of(part)
        row = None if number is None else partition_row(self._topic, number)
        return None if row is None else self._node(row)

    def _node(self, row: Row) -> PartitionNode:
        return PartitionNode(self.generation, (*self.path, str(row["id"])), self._topic, row)


class PartitionNode(StateNode):
    """A partition of a topic."""

    kind = PARTITIONS

    def __init__(
        self, generation: OpenGeneration, path: tuple[str, ...], topic: Any, row: Row
    ) -> None:
        """Keep the topic, and what it says about the partition."""
        super().__init__(generation, path)
        self.row = row
        self._topic = topic

    @property
    def has_children(self) -> bool:
        """A partition has nothing in it."""
        return False

    def values(self) -> Row | None:
        """Return what the topic, the watermarks and the placements say about it."""
        return {**self.row, **partition_details(self.generation, self._topic, self.row["id"])}


class SectionsFolder(StateNode):
    """All sections of the generation."""

    def _all(self) -> Iterator[StateNode]:
        for stage, _ in sections(self.generation.manifest):
            yield SectionFolder(self.generation, (*self.path, SECTION_NAMES[stage]), stage)


class SectionFolder(StateNode):
    """A section: a folder for each of its kinds."""

    def __init__(self, generation: OpenGeneration, path: tuple[str, ...], stage: int) -> None:
        """Keep the stage."""
        super().__init__(generation, path)
        self._stage = stage

    def _all(self) -> Iterator[StateNode]:
        for number, info in kinds_of(self._stage).items():
            shape = FolderShape(info.name, self._stage, number)
            yield KindFolder(self.generation, (*self.path, info.name), shape)


class KindFolder(EntityFolder):
    """All entities of a kind, by their keys."""

    def child(self, part: str) -> StateNode | None:
        """Return an entity by its key."""
        info = KINDS[self.shape.stage, self.shape.number]
        *numbers, last = part.split(KEY_COMMA, max(0, len(info.key_fields) - 1))
        key = KEY_SEPARATOR.join([*numbers, name_of(last)])
        try:
            chosen = selection(
                SECTION_NAMES[self.shape.stage],
                info.name,
                key if info.key_fields or part != ONLY else None,
            )
        except NoSuchEntity:
            return None
        found = next(self._selected(chosen.key), None)
        is_it = found is not None and key_of(*found) == chosen.key
        return self._node(found) if found is not None and is_it else None

    def _part(self, entity: Entity) -> str:
        fields = entity.kind.key_fields
        if not fields:
            return ONLY
        text = key_text(entity.kind, key_of(*entity))
        *numbers, last = text.split(KEY_SEPARATOR, len(fields) - 1)
        is_text = isinstance(reduce(getattr, fields[-1].split("."), entity.message), str)
        return KEY_COMMA.join([*numbers, part_of(last) if is_text else last])


def _number(value: int) -> bytes:
    return value.to_bytes(KEY_INTEGER_BYTES, "big")
