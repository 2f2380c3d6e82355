"""What expressions are about: kinds of entities, their fields, and the types of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from viewstamp.format.columns import Row, enum_words, fields_of, is_list, row_of
from viewstamp.format.kinds import KINDS
from viewstamp.snapshots.entities import Entity
from viewstamp.snapshots.explore.open_generation import OpenGeneration
from viewstamp.snapshots.explore.partition_rows import TOPICS, partition_rows, partitions_count

PARTITIONS: Final = "partitions"
# Short names, which the folders of the tree have, too.
SHORT_NAMES: Final[Mapping[str, str]] = {
    "groups": "consumer_groups",
    "members": "consumer_group_members",
    "offsets": "consumer_group_offsets",
    "tokens": "personal_access_tokens",
}
_NUMBERS: Final = frozenset(
    (
        *(FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64),
        *(FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64),
        *(FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT),
    )
)


class ValueType(Enum):
    """The type of a value; the value is its name for people."""

    NUMBER = "a number"
    TEXT = "a text"
    TRUTH = "true or false"
    NULL = "null"
    FIELDS = "a group of fields"


@dataclass(frozen=True, slots=True)
class FieldType:
    """A field: the values it may have, if they are words, and the fields inside, if it has any."""

    type: ValueType
    words: tuple[str, ...] = ()
    inside: Descriptor | None = None
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class ExpressionKind:
    """A kind of entities, or the partitions of all topics."""

    name: str
    stage: int
    number: int

    @property
    def is_partition(self) -> bool:
        """Whether it stands for partitions, which are parts of topics."""
        return self.name == PARTITIONS

    @property
    def fields(self) -> dict[str, FieldType]:
        """The fields of one of it, by name."""
        if self.is_partition:
            names = ("stream_id", "topic_id", "id", "created_revision")
            numbers = dict.fromkeys(names, FieldType(ValueType.NUMBER))
            return {**numbers, "topic": FieldType(ValueType.TEXT)}
        descriptor: Any = KINDS[self.stage, self.number].message.DESCRIPTOR
        return types_of(descriptor)

    def rows(self, generation: OpenGeneration) -> Iterator[Row]:
        """Yield the values of each of it, in the order of keys. Raises SnapshotFilesError."""
        for entity in generation.selected(self.stage, self.number):
            yield from self.rows_in(entity)

    def rows_in(self, entity: Entity) -> Iterator[Row]:
        """Yield what one entity has of this kind: itself, or its partitions."""
        message: Any = entity.message
        if self.is_partition:
            yield from partition_rows(message)
        else:
            yield row_of(message)

    def count(self, generation: OpenGeneration) -> int:
        """Return how many there are; only partitions need reading. Raises SnapshotFilesError."""
        if not self.is_partition:
            return generation.count_of(self.stage, self.number)
        topics: Iterator[Any] = (one.message for one in generation.selected(*TOPICS))
        return sum(partitions_count(topic) for topic in topics)


def expression_kinds() -> dict[str, ExpressionKind]:
    """Return all kinds by their names: in plural, in singular, and the short ones."""
    named = {
        info.name: ExpressionKind(info.name, stage, number)
        for (stage, number), info in KINDS.items()
    }
    named[PARTITIONS] = ExpressionKind(PARTITIONS, *TOPICS)
    named |= {short: named[name] for short, name in SHORT_NAMES.items()}
    return named | {_singular(name): kind for name, kind in named.items()}


def kind_names() -> list[str]:
    """Return the name of each kind that people would write, in singular, in order."""
    short = {name: one for one, name in SHORT_NAMES.items()}
    names = [*(info.name for info in KINDS.values()), PARTITIONS]
    return sorted(_singular(short.get(name, name)) for name in names)


def types_of(descriptor: Descriptor) -> dict[str, FieldType]:
    """Return the fields of a message that may be shown, by name."""
    return {field.name: _type(field) for field in fields_of(descriptor)}


def _type(field: FieldDescriptor) -> FieldType:
    of_list = is_list(field)
    if field.message_type is not None:
        return FieldType(ValueType.FIELDS, inside=field.message_type, is_list=of_list)
    if field.enum_type is not None:
        return FieldType(ValueType.TEXT, tuple(enum_words(field).values()), is_list=of_list)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return FieldType(ValueType.TRUTH, is_list=of_list)
    is_number = field.cpp_type in _NUMBERS
    return FieldType(ValueType.NUMBER if is_number else ValueType.TEXT, is_list=of_list)


def _singular(name: str) -> str:
    return name if name.endswith("ss") else name.removesuffix("s")
