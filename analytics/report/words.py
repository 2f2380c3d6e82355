"""The findings as plain sentences, for a terminal or a log: the same words as on the page."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from analytics.report import units
from analytics.report.findings import findings
from analytics.report.overview import names_of
from analytics.report.reading import Number, load
from analytics.report.statements import Name, Part


class Sentence(NamedTuple):
    """A finding: its severity (one of statements.SEVERITIES) and its text."""

    severity: str
    text: str


def sentences(tables_directory: Path) -> list[Sentence]:
    """Return the findings on the page of these tables, the gravest first. Raises ReportError."""
    tables = load(tables_directory)
    return [
        Sentence(finding.severity, "".join(map(_told, finding.parts)) + ".")
        for finding in findings(tables, names_of(tables))
    ]


def _told(part: Part) -> str:
    if isinstance(part, Number):
        return units.show(part.value, part.unit)
    return part.short if isinstance(part, Name) else part
