"""Columns of a kind of entity: the names, types and values that an export has (docs/export.md).

Fields marked debug_redact have no column. Integers of 64 bits unsigned are DECIMAL(20, 0), as Spark
reads them from Parquet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

UINT64: Final = DecimalType(20, 0)
# Bytes with such names identify something: people and joins want them as text.
HEX_NAMES: Final = frozenset({"nonce", "root", "parent_root"})
HEX_SUFFIXES: Final = ("_id", "digest", "checksum")

_SCALARS: Final[Mapping[int, DataType]] = {
    FieldDescriptor.CPPTYPE_INT32: IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: LongType(),
    FieldDescriptor.CPPTYPE_UINT32: LongType(),
    FieldDescriptor.CPPTYPE_UINT64: UINT64,
    FieldDescriptor.CPPTYPE_DOUBLE: DoubleType(),
    FieldDescriptor.CPPTYPE_FLOAT: FloatType(),
    FieldDescriptor.CPPTYPE_BOOL: BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: StringType(),
}

Getter = Callable[[Message], Any]


def struct_of(descriptor: Descriptor) -> StructType:
    """Return the columns of a message."""
    return StructType([StructField(field.name, _type(field)) for field in _fields(descriptor)])


def row_of(message: Message) -> dict[str, Any]:
    """Return a message's values by column."""
    return {name: get(message) for name, get in _getters(message.DESCRIPTOR)}


def _fields(descriptor: Descriptor) -> list[FieldDescriptor]:
    shown = (field for field in descriptor.fields if not field.GetOptions().debug_redact)
    return sorted(shown, key=lambda field: field.number)


def _type(field: FieldDescriptor) -> DataType:
    one: DataType
    if field.message_type is not None:
        one = struct_of(field.message_type)
    elif field.type == FieldDescriptor.TYPE_BYTES and not _is_hex(field):
        one = BinaryType()
    else:
        one = _SCALARS.get(field.cpp_type, StringType())
    return ArrayType(one) if field.is_repeated else one


def _is_hex(field: FieldDescriptor) -> bool:
    return field.name in HEX_NAMES or field.name.endswith(HEX_SUFFIXES)


@cache
def _getters(descriptor: Descriptor) -> tuple[tuple[str, Getter], ...]:
    return tuple((field.name, _getter(field)) for field in _fields(descriptor))


def _getter(field: FieldDescriptor) -> Getter:
    name, convert = field.name, _converter(field)
    if field.is_repeated:
        return lambda message: [convert(value) for value in getattr(message, name)]
    if field.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name))


def _converter(field: FieldDescriptor) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return row_of
    if field.enum_type is not None:
        names = _enum_names(field)
        return lambda number: names.get(number, str(number))
    if field.type == FieldDescriptor.TYPE_BYTES and _is_hex(field):
        return bytes.hex
    return _same


def _same(value: Any) -> Any:
    return value


def _enum_names(field: FieldDescriptor) -> dict[int, str]:
    """Return the names of an enum's values in lower case, without what all of them begin with."""
    enum = field.enum_type
    assert enum is not None, f"{field.name} has no enum"
    zero: str = enum.values_by_number[0].name
    prefix = zero.removesuffix("UNSPECIFIED")
    return {value.number: value.name.removeprefix(prefix).lower() for value in enum.values}
