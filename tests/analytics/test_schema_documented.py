"""The page on analytics names every table with its columns, and the schema version."""

from __future__ import annotations

import pytest

from analytics.otlp import quality
from analytics.otlp.ingest import NOTICES
from analytics.schema import EVENT, LINK, SCHEMA_VERSION, TABLES, TableSchema
from tests.tidy.tree import ROOT

PAGE = (ROOT / "docs" / "analytics.md").read_text()


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_columns_are_on_the_page(table: TableSchema) -> None:
    """Each table has a row with its columns and their types, word for word."""
    columns = table.columns.replace(EVENT, "EVENT").replace(LINK, "LINK")
    assert f"| `{table.name}` | {columns} |" in PAGE


def test_version_and_nested_types_are_on_the_page() -> None:
    """The page has the schema version and the types of events and links."""
    assert f"All tables have one schema version, now **{SCHEMA_VERSION}**." in PAGE
    assert EVENT in PAGE
    assert LINK in PAGE


@pytest.mark.parametrize("word", [*quality.REASONS, *(name for name, *_ in NOTICES)])
def test_words_for_bad_input_are_on_the_page(word: str) -> None:
    """The page explains each reason of `quarantine` and the name of each notice."""
    assert f"`{word}`" in PAGE
