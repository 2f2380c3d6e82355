"""Entities as rows: the columns of a message, and their values.

Columns follow the descriptor. A nested message becomes a structure, a repeated field a list, an
enum the name of its value in lower case without the prefix. Bytes that identify something become
hexadecimal text. Fields marked debug_redact have no column at all. docs/export.md has the columns
of every kind.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

# Bytes with such names identify something: people and joins need them as text.
_HEX_NAMES: Final = frozenset({"nonce", "root", "parent_root"})
_HEX_SUFFIXES: Final = ("_id", "digest", "checksum")

Row = dict[str, Any]
Getter = Callable[[Message], Any]


def row_of(message: Message) -> Row:
    """Return a message's values by column."""
    return {name: get(message) for name, get in _getters(message.DESCRIPTOR)}


def fields_of(descriptor: Descriptor) -> list[FieldDescriptor]:
    """Return the fields that have a column, by ascending number."""
    shown = (field for field in descriptor.fields if not field.GetOptions().debug_redact)
    return sorted(shown, key=lambda field: field.number)


def is_binary(field: FieldDescriptor) -> bool:
    """Return whether the values of a field stay bytes."""
    return field.type == FieldDescriptor.TYPE_BYTES and not _is_hex(field)


def is_list(field: FieldDescriptor) -> bool:
    """Return whether a field has a list of values."""
    return bool(field.is_repeated)


def is_nullable(field: FieldDescriptor) -> bool:
    """Return whether a field may be without a value."""
    return bool(field.has_presence) and not is_list(field)


def _is_hex(field: FieldDescriptor) -> bool:
    return field.name in _HEX_NAMES or field.name.endswith(_HEX_SUFFIXES)


@cache
def _getters(descriptor: Descriptor) -> tuple[tuple[str, Getter], ...]:
    return tuple((field.name, _getter(field)) for field in fields_of(descriptor))


def _getter(field: FieldDescriptor) -> Getter:
    name = field.name
    convert = _converter(field)
    if convert is None:
        return _plain_getter(field)
    if is_list(field):
        return lambda message: [convert(value) for value in getattr(message, name)]
    if is_nullable(field):
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name))


def _plain_getter(field: FieldDescriptor) -> Getter:
    """Return a fast getter of values that need no conversion, because most values need none."""
    name = field.name
    if is_list(field):
        return lambda message: list(getattr(message, name))
    if is_nullable(field):
        return lambda message: getattr(message, name) if message.HasField(name) else None
    return attrgetter(name)


def _converter(field: FieldDescriptor) -> Callable[[Any], Any] | None:
    """Return the function that converts a message's value for a row, None if none is needed."""
    if field.message_type is not None:
        return row_of
    if field.enum_type is not None:
        names = enum_words(field)
        return lambda number: names.get(number, str(number))
    if field.type == FieldDescriptor.TYPE_BYTES and _is_hex(field):
        return bytes.hex
    return None


def enum_words(field: FieldDescriptor) -> dict[int, str]:
    """Return the names of an enum's values in lower case, without their common prefix."""
    enum = field.enum_type
    assert enum is not None
    zero: str = enum.values_by_number[0].name
    # The style of our protos: the zero value is the enum's name in capitals, then UNSPECIFIED.
    prefix = zero.removesuffix("UNSPECIFIED")
    return {value.number: value.name.removeprefix(prefix).lower() for value in enum.values}
