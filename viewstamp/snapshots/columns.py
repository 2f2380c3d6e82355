"""The columns of entities as Arrow types: the schemas of an export."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from viewstamp.format.columns import fields_of, is_binary, is_list, is_nullable

# Arrow's name of the type that holds every value of a field's type exactly.
SCALARS: Final[Mapping[int, str]] = {
    FieldDescriptor.CPPTYPE_INT32: "int32",
    FieldDescriptor.CPPTYPE_INT64: "int64",
    FieldDescriptor.CPPTYPE_UINT32: "uint32",
    FieldDescriptor.CPPTYPE_UINT64: "uint64",
    FieldDescriptor.CPPTYPE_DOUBLE: "float64",
    FieldDescriptor.CPPTYPE_FLOAT: "float32",
    FieldDescriptor.CPPTYPE_BOOL: "bool_",
    FieldDescriptor.CPPTYPE_ENUM: "string",
}


def schema_of(descriptor: Descriptor) -> list[Any]:
    """Return the columns of a message as Arrow fields. Needs the extra `analytics`."""
    import pyarrow

    return [
        pyarrow.field(field.name, _column_type(field), nullable=is_nullable(field))
        for field in fields_of(descriptor)
    ]


def _column_type(field: FieldDescriptor) -> Any:
    import pyarrow

    one = _value_type(field)
    return pyarrow.list_(pyarrow.field("element", one, nullable=False)) if is_list(field) else one


def _value_type(field: FieldDescriptor) -> Any:
    import pyarrow

    if field.message_type is not None:
        return pyarrow.struct(schema_of(field.message_type))
    if is_binary(field):
        return pyarrow.binary()
    return getattr(pyarrow, SCALARS.get(field.cpp_type, "string"))()
