"""The page names tables that are absent, empty or unfit, and shows the others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from analytics import report
from analytics.schema import TABLES
from tests.analytics import report_pages, report_tables


def missing(page: report_pages.Page) -> dict[str, str]:
    """Return the tables that the page misses, with its reasons."""
    lines = [e for e in page.elements if "data-missing" in e.attributes]
    return {str(e.attributes["data-missing"]): e.text for e in lines}


REMEDY = "let `viewstamp analyze --output DIRECTORY` write it"


def written(tables: Path) -> report_pages.Page:
    """Return the page on the tables, which must be well-formed and free of `nan`."""
    page = report_pages.parse(report.write(tables, tables.parent / "p.html").read_text("utf-8"))
    assert page.faults == []
    assert not [e for e in page.elements if e.tag in {"data", "td"} and "nan" in e.text]
    return page


def test_nothing_at_all(tmp_path: Path) -> None:
    """For an empty directory, the page names every table and has no number and no plot."""
    (tmp_path / "tables").mkdir()
    page = written(tmp_path / "tables")
    assert missing(page).keys() == TABLES.keys()
    assert missing(page) == {name: f"{name}: is missing: {REMEDY}" for name in TABLES}
    assert str(tmp_path) not in "".join(missing(page).values())
    assert not page.all("data")
    assert not page.all("figure")
    assert not page.findings()


def test_every_table_empty(tmp_path: Path) -> None:
    """Tables without rows are named as empty; the page does not call anything healthy."""
    for name in TABLES:
        report_tables.write(tmp_path / "tables", name, [])
    page = written(tmp_path / "tables")
    assert missing(page) == {name: f"{name}: has no rows" for name in TABLES}
    assert not page.all("data")
    assert not page.findings()


def test_empty_table_without_files(tmp_path: Path) -> None:
    """A finished table without any Parquet file is empty, as Spark may leave it."""
    path = report_tables.write(tmp_path / "tables", "growth", [])
    (path / "part-00000.parquet").unlink()
    assert missing(written(tmp_path / "tables"))["growth"] == "growth: has no rows"


def check_without(names: set[str], directory: Path) -> None:
    """Check the page on the sample without these tables: the rest is shown, with right numbers."""
    tables = report_tables.sample(directory / "tables")
    for name in names:
        (tables / name).rename(directory / name)
    page = written(tables)
    assert missing(page).keys() == names
    assert list(report_pages.wrong_numbers(page, tables)) == []
    assert page.findings()


@pytest.mark.parametrize("name", ["rpc_red", "critical_path", "snapshot_sections"])
def test_table_that_others_lean_on_may_be_missing(tmp_path: Path, name: str) -> None:
    """Without a table whose numbers are combined with those of others, the rest is shown."""
    check_without({name}, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(TABLES))
def test_any_table_may_be_missing(tmp_path: Path, name: str) -> None:
    """Without any one table the rest is shown, and its numbers are right."""
    check_without({name}, tmp_path)


def test_every_value_may_be_null(tmp_path: Path) -> None:
    """Tables whose values are all null break nothing, and give no number."""
    for name in TABLES:
        report_tables.write(tmp_path / "tables", name, [{}, {}])
    page = written(tmp_path / "tables")
    assert list(report_pages.wrong_numbers(page, tmp_path / "tables")) == []
    assert [e.attributes["data-table"] for e in page.all("data")] == ["spans"]
    assert not page.findings()


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(TABLES))
def test_any_table_may_be_null(tmp_path: Path, name: str) -> None:
    """A table whose values are all null breaks nothing in the findings on the others."""
    tables = report_tables.sample(tmp_path / "tables")
    (tables / name).rename(tmp_path / "elsewhere")
    report_tables.write(tables, name, [{}, {}])
    assert list(report_pages.wrong_numbers(written(tables), tables)) == []


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: (path / "_SUCCESS").unlink(), "its writer did not finish"),
        (lambda path: (path / "_schema.json").write_text("{}"), "does not name a schema version"),
        (
            lambda path: (path / "_schema.json").write_text('{"schema_version": 99}'),
            "has schema version 99",
        ),
        (lambda path: (path / "part-00000.parquet").write_bytes(b"no"), "cannot be read"),
    ],
)
def test_unfit_table_is_named(tmp_path: Path, spoil: Callable[[Path], object], why: str) -> None:
    """A table that is unfinished, unknown or broken is named with the reason."""
    spoil(report_tables.sample(tmp_path / "tables") / "growth")
    page = written(tmp_path / "tables")
    assert missing(page).keys() == {"growth"}
    assert why in missing(page)["growth"]
    assert not any("Section streams" in words for _, words in page.findings())


def test_column_that_is_missing_is_named(tmp_path: Path) -> None:
    """A table that lacks a column is not shown in part, but named with the column."""
    path = report_tables.write(tmp_path / "tables", "churn", [])
    other = report_tables.write(tmp_path / "other", "growth", [{"section": "a"}])
    (other / "part-00000.parquet").rename(path / "part-00000.parquet")
    assert "has no column generation" in missing(written(tmp_path / "tables"))["churn"]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the program with these arguments."""
    command = [sys.executable, "-m", "analytics.report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_program_writes_the_page(tmp_path: Path) -> None:
    """`python -m analytics.report TABLES OUTPUT` writes the page, also into a new directory."""
    tables = report_tables.sample(tmp_path / "tables")
    done = run(tables, tmp_path / "new" / "report.html")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    again = report.write(tables, tmp_path / "again.html")
    assert (tmp_path / "new" / "report.html").read_bytes() == again.read_bytes()


def test_program_says_what_is_wrong(tmp_path: Path) -> None:
    """Without tables, or with an unwritable output, the program prints the reason in one line."""
    (tmp_path / "file").touch()
    for tables, output, why in (
        (tmp_path / "none", tmp_path / "a.html", "is no directory: name the one with the tables"),
        (tmp_path, tmp_path / "file" / "a.html", "choose another output"),
        (tmp_path, tmp_path, "choose another output"),
    ):
        done = run(tables, output)
        assert done.returncode == 1
        assert why in done.stderr
        assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
