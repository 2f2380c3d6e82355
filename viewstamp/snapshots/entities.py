"""Entities of sections by the names that people use, decoded and without secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.format import FormatError
from viewstamp.format.kinds import KEY_INTEGER_BYTES, KINDS, KindInfo, decode_entity, redacted
from viewstamp.format.section import SectionEntry
from viewstamp.snapshots.errors import BadSection, NoSuchEntity
from viewstamp.snapshots.generation import Generation

HEX_PREFIX: Final = "0x"
KEY_SEPARATOR: Final = "/"
UPGRADE: Final = "upgrade viewstamp if a newer version wrote it"

SECTION_NAMES: Final[Mapping[int, str]] = {
    number: name.removeprefix("STAGE_").lower()
    for name, number in sorted(routing_pb2.Stage.items(), key=lambda item: item[1])
    if number
}


class Entity(NamedTuple):
    """One entity; `message` has no secrets."""

    kind: KindInfo
    message: Message


@dataclass(frozen=True, slots=True)
class EntitySelection:
    """A choice of entities: all of a section, one kind, or the keys that begin with `key`.

    With `is_whole` the key must be equal to `key`.
    """

    stage: int
    kind: int = 0
    key: bytes = b""
    is_whole: bool = False


def stage_of(section: str) -> int:
    """Return the stage number of a section's name. Raises NoSuchEntity."""
    for number, name in SECTION_NAMES.items():
        if name == section:
            return number
    raise NoSuchEntity(
        f"{section!r} is no section", f"choose from {', '.join(SECTION_NAMES.values())}"
    )


def kinds_of(stage: int) -> dict[int, KindInfo]:
    """Return the kinds of a stage by number, ascending."""
    return {kind: info for (of, kind), info in sorted(KINDS.items()) if of == stage}


def selection(section: str, kind: str | None = None, key: str | None = None) -> EntitySelection:
    """Return the selection that arguments of a command line mean. Raises NoSuchEntity.

    `kind` is a name (its last s may be left out). `key` is the values of its key joined by slashes,
    the first of them for all keys that begin with these, or hexadecimal bytes after 0x.
    """
    stage = stage_of(section)
    if kind is None:
        if key is not None:
            raise NoSuchEntity("a key is unique in its kind alone", "give the kind too")
        return EntitySelection(stage)
    for number, info in kinds_of(stage).items():
        if kind in (info.name, info.name.removesuffix("s")):
            prefix, is_whole = (b"", False) if key is None else _key(info, key)
            return EntitySelection(stage, number, prefix, is_whole)
    names = ", ".join(info.name for info in kinds_of(stage).values())
    raise NoSuchEntity(f"section {section} has no kind {kind!r}", f"choose from {names}")


def select(generation: Generation, chosen: EntitySelection) -> Iterator[Entity]:
    """Yield the entities of a generation that were selected, in order. Raises SnapshotFilesError.

    Reads no block before the first of them, and stops after the last.
    """
    start = (chosen.kind, chosen.key) if chosen.kind else None
    for entry in generation.entries(chosen.stage, start):
        if chosen.kind and (entry.kind != chosen.kind or not entry.key.startswith(chosen.key)):
            return
        if chosen.is_whole and entry.key != chosen.key:
            return
        yield decode(chosen.stage, entry)


def decode(stage: int, entry: SectionEntry) -> Entity:
    """Return the entity of an entry, without secrets. Raises BadSection."""
    return Entity(kind_of(stage, entry.kind), redacted(decode_whole(stage, entry)))


def decode_whole(stage: int, entry: SectionEntry) -> Message:
    """Return the message of an entry with all its secrets: never to be shown. Raises BadSection."""
    assert entry.canonical is not None, "a merged section has no tombstones"
    try:
        return decode_entity(stage, entry.kind, entry.canonical)
    except FormatError as error:
        raise BadSection(f"section {SECTION_NAMES[stage]}: {error}", UPGRADE) from error


def kind_of(stage: int, kind: int) -> KindInfo:
    """Return the description of a kind in a section. Raises BadSection for an unknown kind."""
    info = KINDS.get((stage, kind))
    if info is None:
        text = f"section {SECTION_NAMES[stage]} has entities of kind {kind}, unknown here"
        raise BadSection(text, UPGRADE)
    return info


def key_text(info: KindInfo, key: bytes) -> str:
    """Return a key as people write it: its values joined by slashes."""
    values = []
    for path in info.key_fields:
        if _field(info, path).type == FieldDescriptor.TYPE_STRING:
            values.append(key.decode(errors="replace"))
            break  # text is always last
        values.append(str(int.from_bytes(key[:KEY_INTEGER_BYTES], "big")))
        key = key[KEY_INTEGER_BYTES:]
    return KEY_SEPARATOR.join(values)


def _key(info: KindInfo, text: str) -> tuple[bytes, bool]:
    """Return the bytes of a key, and whether all of its values were given."""
    if text.startswith(HEX_PREFIX):
        try:
            return bytes.fromhex(text.removeprefix(HEX_PREFIX)), False
        except ValueError as error:
            raise NoSuchEntity(f"{text!r} is no hexadecimal key", _example(info)) from error
    # Text is always last, and may hold slashes.
    values = text.split(KEY_SEPARATOR, len(info.key_fields) - 1) if info.key_fields else [text]
    if len(values) > len(info.key_fields):
        raise NoSuchEntity(f"the only entity of {info.name} has no key", "leave the key out")
    fields = zip(info.key_fields, values, strict=False)
    encoded = b"".join(_key_part(info, path, value) for path, value in fields)
    return encoded, len(values) == len(info.key_fields)


def _key_part(info: KindInfo, path: str, value: str) -> bytes:
    if _field(info, path).type == FieldDescriptor.TYPE_STRING:
        return value.encode()
    if not value.isascii() or not value.isdecimal() or int(value) >= 1 << 8 * KEY_INTEGER_BYTES:
        raise NoSuchEntity(f"{value!r} is no {path} of {info.name}: a number", _example(info))
    return int(value).to_bytes(KEY_INTEGER_BYTES, "big")


def _field(info: KindInfo, path: str) -> FieldDescriptor:
    """Return the field that a path of names, joined by dots, leads to."""
    *parents, last = path.split(".")
    descriptor: Any = info.message.DESCRIPTOR
    for name in parents:
        descriptor = descriptor.fields_by_name[name].message_type
    field: FieldDescriptor = descriptor.fields_by_name[last]
    return field


def _example(info: KindInfo) -> str:
    return f"write {KEY_SEPARATOR.join(name.upper() for name in info.key_fields)}"
