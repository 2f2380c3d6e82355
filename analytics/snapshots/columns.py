"""The columns of a kind of entity as Spark types: the columns of an export (docs/export.md).

Integers of 64 bits unsigned are DECIMAL(20, 0), as Spark reads them from Parquet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
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

from viewstamp.format.columns import fields_of, is_binary, is_list

UINT64: Final = DecimalType(20, 0)

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
_BY_NAME: Final[Mapping[str, DataType]] = {
    "BIGINT": LongType(),
    "BINARY": BinaryType(),
    "BOOLEAN": BooleanType(),
    "STRING": StringType(),
}


def struct(columns: str) -> StructType:
    """Return columns written as `name TYPE, ...`. Unlike `StructType.fromDDL`, needs no session."""
    named = (column.split() for column in columns.split(","))
    return StructType([StructField(name, _BY_NAME[kind]) for name, kind in named])


def struct_of(descriptor: Descriptor) -> StructType:
    """Return the columns of a message."""
    return StructType([StructField(field.name, _type(field)) for field in fields_of(descriptor)])


def _type(field: FieldDescriptor) -> DataType:
    one: DataType
    if field.message_type is not None:
        one = struct_of(field.message_type)
    elif is_binary(field):
        one = BinaryType()
    else:
        one = _SCALARS.get(field.cpp_type, StringType())
    return ArrayType(one) if is_list(field) else one
