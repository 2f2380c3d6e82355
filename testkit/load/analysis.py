"""The report on a trial: what `viewstamp analyze` makes of the traces and snapshots it left.

The analysis is a program of its own; here it is started, followed and read. Without Spark, or Java,
there is a reason in words instead of a report.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

SWITCH: Final = "DEMO_ANALYTICS"
COMMAND: Final = (sys.executable, "-m", "viewstamp.cli")
# Java that takes longer to say its version does not work.
CHECK_TIMEOUT_S: Final = 30
# A run of the demonstration takes about 40 s; whoever hangs is told apart from who is slow.
ANALYSIS_TIMEOUT_S: Final = 600
# Lines of a failed analysis that are shown.
EVIDENCE_LINES_MAX: Final = 12
# What the analysis says of its steps; Spark and Java write to the same place.
_STEP: Final = re.compile(r"[a-z][a-z ]+(?: …|: \d+\.\d s)|note: .+")


class AnalysisFailed(Exception):  # noqa: N818 - an outcome, as LoadFailed is
    """The analysis could run here and did not come to its end; the text is what it said."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The outcome of an analysis. Without a report `left_out` says why."""

    report: Path | None = None
    findings: Sequence[tuple[str, str]] = ()  # severity and sentence, the gravest first
    took_s: float = 0.0
    left_out: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it for machines."""
        return {
            "report": None if self.report is None else str(self.report),
            "findings": [{"severity": one[0], "text": one[1]} for one in self.findings],
            "took_s": self.took_s,
            "left_out": self.left_out,
        }


def left_out(environment: Mapping[str, str] | None = None) -> str:
    """Return why there will be no report, with what to do; empty if Spark can run here."""
    environment = os.environ if environment is None else environment
    if environment.get(SWITCH) == "0":
        return f"{SWITCH}=0 says so; without it the run ends with a report"
    done = subprocess.run(
        [*COMMAND, "analyze", "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=CHECK_TIMEOUT_S,
        env=dict(environment),
    )
    if not done.returncode:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"`viewstamp analyze --check` ended with {done.returncode}"


def analyze(data_directory: Path, report: Path, tell: Callable[[str], None]) -> Analysis:
    """Analyse a cluster's traces and snapshots; leave the page at `report`.

    `tell` gets each step. Raises AnalysisFailed, OSError.
    """
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="viewstamp-analysis-") as name:
        output = Path(name)
        command = [*COMMAND, "--json", "analyze", "--data-directory", str(data_directory)]
        told = _followed([*command, "--output", str(output)], tell)
        report.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(told["report"], report)
    findings = [(one["severity"], one["text"]) for one in told["findings"]]
    return Analysis(report.resolve(), findings, round(time.monotonic() - started_s, 1))


def _followed(command: Sequence[str], tell: Callable[[str], None]) -> dict[str, Any]:
    """Run the analysis, tell its steps, and return what it printed."""
    said: deque[str] = deque(maxlen=EVIDENCE_LINES_MAX)
    with tempfile.TemporaryFile("w+") as printed, _started(command, printed) as process:
        assert process.stderr is not None, "it was asked for"
        for line in process.stderr:
            said.append(line.rstrip())
            if _STEP.fullmatch(said[-1]):
                tell(said[-1])
        exit_code = process.wait()
        if exit_code:
            raise AnalysisFailed("\n".join(said) or f"it ended with {exit_code}")
        printed.seek(0)
        found: dict[str, Any] = json.loads(printed.read())
        return found


@contextmanager
def _started(command: Sequence[str], printed: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """Yield the analysis, started. It and all that it starts are gone in the end, or in time."""
    process = subprocess.Popen(
        command,
        stdout=printed,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    timer = threading.Timer(ANALYSIS_TIMEOUT_S, _end, [process.pid])
    timer.start()
    try:
        with process:
            try:
                yield process
            except BaseException:
                _end(process.pid)
                raise
    finally:
        timer.cancel()


def _end(group: int) -> None:
    with suppress(ProcessLookupError):  # all of them have ended by themselves
        os.killpg(group, signal.SIGKILL)
