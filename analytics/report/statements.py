"""The parts of a finding: words, numbers that name their source, and a severity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from analytics.report.overview import Names
from analytics.report.reading import Number, Source, Tables

CRITICAL: Final = "critical"
WARNING: Final = "warning"
NOTICE: Final = "notice"
GOOD: Final = "good"
# The gravest first, as they stand on the page.
SEVERITIES: Final = (CRITICAL, WARNING, NOTICE, GOOD)


@dataclass(frozen=True, slots=True)
class Name:
    """A name from the data: an RPC, a stage, a section. `short` abbreviates `full`."""

    short: str
    full: str


Part: TypeAlias = str | Name | Number


@dataclass(frozen=True, slots=True)
class ReportFinding:
    """A sentence that an operator can act on. `rule` is the name of the rule that found it."""

    severity: str
    parts: tuple[Part, ...]
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A question to the tables. It is not asked if one of the tables in `needs` has no row."""

    name: str
    needs: tuple[str, ...]
    find: Callable[[Tables, Names], list[ReportFinding]]


def only(tables: Tables, unit: str, table: str, column: str, **where: object) -> Number:
    """Return the value of a column in the one row that has all these values."""
    return tables.number(unit, Source(table, column, tuple(where.items())))


def total(tables: Tables, unit: str, table: str, column: str, **where: object) -> Number:
    """Return the sum of a column over the rows that have all these values."""
    return tables.number(unit, Source(table, column, tuple(where.items()), "sum"))


def largest(tables: Tables, unit: str, table: str, column: str, **where: object) -> Number:
    """Return the maximum of a column over the rows that have all these values."""
    return tables.number(unit, Source(table, column, tuple(where.items()), "max"))


def named(names: Names, rpc: object) -> Name:
    """Return the short and the full name of an RPC."""
    return Name(names.short(str(rpc)), str(rpc))


def same(value: object) -> Name:
    """Return a name that has no shorter form."""
    return Name(str(value), str(value))


def graded(value: float, warning: float, critical: float) -> str:
    """Return the severity of a value; larger values are worse."""
    if value >= critical:
        return CRITICAL
    return WARNING if value >= warning else NOTICE
