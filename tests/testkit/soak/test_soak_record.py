"""A soak goes on where it was, and tells broken promises and leaks."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from testkit.soak.process_samples import DISK, RESIDENT, ProcessLife
from testkit.soak.soak_figures import GrowthRule, SoakRecord, findings, print_soak, total
from testkit.torture.round import RoundFigures

RULE = GrowthRule(limit_percent_per_hour=1.0, warm_up_s=600.0, piece_s=60.0)


def life(percent_per_hour: float) -> ProcessLife:
    """Return two hours of a process that grows evenly."""
    one = ProcessLife(2, "streams", 4711)
    for at_s in range(0, 7_200, 10):
        one.add(at_s, {RESIDENT: 1e8 * (1 + percent_per_hour / 100 * at_s / 3_600)})
    return one


def record(percent_per_hour: float, *broken: str) -> SoakRecord:
    """Return a soak of one round with such a process and such findings."""
    figures = RoundFigures(1, 1, kills={"streams": 1}, findings=list(broken), took_s=7_200.0)
    return SoakRecord([figures], [life(percent_per_hour)], [2.0])


def test_leaks_and_broken_promises_are_findings() -> None:
    """A soak is good only if nothing was lost and nothing surely grows faster than the limit."""
    assert findings(record(0.2), RULE) == []
    (leak,) = findings(record(5.0), RULE)
    assert leak.startswith("resident_bytes of the streams of replica 2 grows by 4.")
    assert findings(record(0.2, "a topic is gone"), RULE) == ["seed 1: a topic is gone"]
    (grown,) = total(record(5.0), RULE)["growth"]
    assert (grown["process"], grown["verdict"]) == ("streams of replica 2", "above the limit")


@pytest.mark.long
def test_a_soak_goes_on(tmp_path: Path) -> None:
    """Rounds and lives are read back as they were written; another code begins anew."""
    path, written = tmp_path / "deep" / "soak.json", record(5.0)
    assert SoakRecord.load(path) == SoakRecord()
    written.save(path)
    read = SoakRecord.load(path)
    assert total(read, RULE) == total(written, RULE)
    assert read.hours == 2.0
    path.write_text(path.read_text().replace('{"code": "', '{"code": "another'))
    assert SoakRecord.load(path) == SoakRecord()


def test_the_report_names_everything() -> None:
    """The report has each figure of each process with its interval, and each finding."""
    console = Console(width=200, file=io.StringIO(), highlight=False)
    print_soak(console, record(5.0, "a topic is gone"), RULE)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for said in ("streams of replica 2", "above the limit", "a topic is gone", "grows by"):
        assert said in text


def test_the_table_of_the_docs_is_the_result() -> None:
    """Each row about memory and disk in the docs is what the committed run found."""
    root = Path(__file__).parents[3]
    found = json.loads((root / "benchmarks" / "results" / "soak.json").read_text())
    page = (root / "docs" / "soak.md").read_text()
    measured = [one for one in found["growth"] if one["figure"] in (RESIDENT, DISK)]
    assert len(measured) >= 4
    for one in measured:
        row = (
            f"| {one['process']} | {one['figure']} | {one['median'] / 1e6:.0f} MB"
            f" | {one['percent_per_hour']:.2f} | {one['low']:.2f} to {one['high']:.2f}"
            f" | {one['hours']:.2f} | {one['verdict']} |"
        )
        assert row in page
