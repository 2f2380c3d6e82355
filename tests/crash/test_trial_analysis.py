"""The report at the end of a demonstration gives a reason, tells steps, or shows an error."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from testkit.load import analysis
from testkit.load.analysis import Analysis, AnalysisFailed
from testkit.load.display import FINDINGS_SHOWN_MAX, print_analysis


def printed(one: Analysis) -> str:
    """Return what a reader of the terminal sees."""
    screen = io.StringIO()
    print_analysis(Console(file=screen, width=200), one)
    return screen.getvalue()


def test_switch_leaves_it_out_visibly() -> None:
    """DEMO_ANALYTICS=0 alone prevents the analysis: no search for Java, and the line names it."""
    why = analysis.left_out({"DEMO_ANALYTICS": "0"})
    assert "DEMO_ANALYTICS=0" in why and "no report" in printed(Analysis(left_out=why))


def test_missing_java_is_named_with_its_package(tmp_path: Path) -> None:
    """Without Java the reason says what to install, and nothing is started."""
    why = analysis.left_out({**os.environ, "JAVA_HOME": str(tmp_path), "DEMO_ANALYTICS": "1"})
    assert "openjdk-17-jre-headless" in why and "Java is missing" in why


def script(directory: Path, text: str) -> tuple[str, ...]:
    """Return a command that stands in for `viewstamp`."""
    path = directory / "stand_in.sh"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o700)
    return (str(path),)


def test_steps_are_told_and_the_page_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are shown, noise of Java is not; the page remains when the tables are removed."""
    found = [{"severity": "warning", "text": f"finding {number}."} for number in range(20)]
    page = tmp_path / "made.html"
    page.write_text("the page")
    answer = json.dumps({"report": str(page), "findings": found, "tables": {}, "seconds": {}})
    lines = "echo 'WARN: noise' >&2; echo 'reading traces …' >&2; echo 'reading traces: 1.5 s' >&2"
    command = script(tmp_path, f"{lines}\necho '{answer}'\n")
    monkeypatch.setattr(analysis, "COMMAND", command)
    told: list[str] = []
    done = analysis.analyze(tmp_path, tmp_path / "kept" / "report.html", told.append)
    assert told == ["reading traces …", "reading traces: 1.5 s"]
    assert done.report is not None and done.report.read_text() == "the page"
    text = printed(done)
    assert f"finding {FINDINGS_SHOWN_MAX - 1}." in text and "finding 19." not in text
    assert str(done.report) in text and f"{20 - FINDINGS_SHOWN_MAX} more findings" in text


def test_failure_is_told_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An analysis that fails where it could run is reported, with its last lines as the error."""
    command = script(tmp_path, "echo 'analyze: orphan_rate is 0.9' >&2\nexit 1\n")
    monkeypatch.setattr(analysis, "COMMAND", command)
    with pytest.raises(AnalysisFailed, match="orphan_rate is"):
        analysis.analyze(tmp_path, tmp_path / "report.html", lambda _: None)
    assert not (tmp_path / "report.html").exists()


def test_analysis_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that hangs is killed after its time, with all the processes that it started."""
    monkeypatch.setattr(analysis, "COMMAND", script(tmp_path, "sleep 1000 & wait\n"))
    monkeypatch.setattr(analysis, "ANALYSIS_TIMEOUT_S", 0.1)
    with pytest.raises(AnalysisFailed, match="ended with -9"):
        analysis.analyze(tmp_path, tmp_path / "report.html", lambda _: None)
