"""Comparisons of values of an entity: fields by path, literals, and the signs between them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from viewstamp.format.columns import Row
from viewstamp.snapshots.explore.expression_kinds import FieldType, ValueType
from viewstamp.snapshots.views import textual

LIKE: Final = "~"
EQUALITIES: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
}
ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
SIGNS: Final = (*EQUALITIES, *ORDERS, LIKE)

Values = Callable[[Row], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of a comparison: the values that an entity has there, and their type."""

    values: Values
    type: FieldType


def field_operand(path: Sequence[str], field: FieldType) -> Operand:
    """Return what a path of names leads to: several values behind a list, null behind a null."""
    return Operand(lambda row: values_at(row, path), field)


def length_operand(path: Sequence[str]) -> Operand:
    """Return how many values a path leads to, nulls left out."""

    def count(row: Row) -> list[int]:
        return [sum(value is not None for value in values_at(row, path))]

    return Operand(count, FieldType(ValueType.NUMBER))


def literal_operand(value: Any, value_type: ValueType) -> Operand:
    """Return the value that stands in an expression."""
    return Operand(lambda _: (value,), FieldType(value_type))


def values_at(row: Row, path: Sequence[str]) -> list[Any]:
    """Return the values at a path; bytes are hexadecimal."""
    found: list[Any] = [row]
    for name in path:
        found = [
            inner for value in found for inner in _listed(None if value is None else value[name])
        ]
    return [textual(value) for value in found]


def compared(left: Operand, sign: str, right: Operand) -> Callable[[Row], bool]:
    """Return whether the sign holds between one of the values and one of the others."""
    holds = _holding(sign)

    def is_true(row: Row) -> bool:
        others = right.values(row)
        return any(holds(value, other) for value in left.values(row) for other in others)

    return is_true


def _holding(sign: str) -> Callable[[Any, Any], bool]:
    if sign in EQUALITIES:
        return EQUALITIES[sign]
    in_order = fnmatchcase if sign == LIKE else ORDERS[sign]
    # Null comes neither before nor after anything.
    return lambda value, other: value is not None and other is not None and in_order(value, other)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
