"""Measures the processor time of a command: prints a table, or one JSON object with `--json`.

`python -m benchmarks.command_line [--rounds N] [--json]`. A cluster of one replica is started here.
Each round runs every command once, as a process of its own, and the order is reversed from round to
round. The figure is the user and system time of the process from its start to its end, without the
cluster's own work. `python` is an interpreter that does nothing, the floor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.commands import machine
from viewstamp.cluster import LocalCluster

ROUNDS: Final = 15
TARGET_S: Final = 0.2  # for a command, and for TAB
VIEWSTAMP: Final = (sys.executable, "-m", "viewstamp.cli")
COMPLETION: Final = "_VIEWSTAMP_COMPLETE"

# `{round}` makes a name new in each round. A case with `TAB` completes the words after it.
CASES: Final = (
    "python",
    "--version",
    "--help",
    "TAB str",
    "TAB stream cr",
    "TAB topic create --part",
    "stream --help",
    "stream list",
    "stream create orders-{round}",
    "stream get 404",
    "topic list first",
    "user whoami",
    "group list first t",
    "status",
    "snapshot list",
)


def spent_s(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Run a program; return the seconds of processor time that it took."""
    quiet = subprocess.DEVNULL
    child = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, env=environment)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def measured_s(case: str, number: int, environment: Mapping[str, str]) -> float:
    """Return the processor time of one case in one round."""
    words = case.format(round=number).split()
    if words[0] == "python":
        return spent_s((sys.executable, "-c", "pass"), environment)
    if words[0] != "TAB":
        return spent_s((*VIEWSTAMP, *words), environment)
    typed = ["viewstamp", *words[1:]]
    shell = {"COMP_WORDS": " ".join(typed), "COMP_CWORD": str(len(typed) - 1)}
    return spent_s(VIEWSTAMP, {**environment, **shell, COMPLETION: "complete_bash"})


def compared(rounds: int, environment: Mapping[str, str]) -> dict[str, list[float]]:
    """Return the processor times of every case, one for each round."""
    found: dict[str, list[float]] = {case: [] for case in CASES}
    for case in CASES:  # from now on, all modules are compiled
        measured_s(case, rounds, environment)
    for number in range(rounds):
        for case in CASES[:: -1 if number % 2 else 1]:
            found[case].append(measured_s(case, number, environment))
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return found


def report_of(found: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the figures of each case in milliseconds, and whether all keep to the target."""
    cases = {
        case: {
            "median_ms": round(median(seconds) * 1000),
            "least_ms": round(min(seconds) * 1000),
            "most_ms": round(max(seconds) * 1000),
        }
        for case, seconds in found.items()
    }
    limit_ms = round(TARGET_S * 1000)
    is_met = all(figures["median_ms"] <= limit_ms for figures in cases.values())
    return {"machine": machine(), "limit_ms": limit_ms, "is_met": is_met, "cases": cases}


def table_of(report: Mapping[str, Any]) -> str:
    """Return the report as lines to read."""
    lines = [f"{'processor time':32}{'median':>8}{'least':>8}{'most':>8}"]
    for case, figures in report["cases"].items():
        name = case.replace("-{round}", "")
        lines.append(f"{name:32}" + "".join(f"{value:5} ms" for value in figures.values()))
    verdict = "all are" if report["is_met"] else "NOT all are"
    return "\n".join((*lines, f"{verdict} within {report['limit_ms']} ms"))


async def run(rounds: int) -> dict[str, Any]:
    """Start a cluster, log in, and measure every case."""
    with tempfile.TemporaryDirectory(prefix="vs-command-line") as directory:
        async with LocalCluster(Path(directory) / "data", "127.0.0.1:0") as cluster:
            environment = os.environ | {
                "VIEWSTAMP_ADDRESS": cluster.address,
                "XDG_CONFIG_HOME": directory,
                # Modules are compiled before the measurement, as in an installation.
                "PYTHONPYCACHEPREFIX": f"{directory}/compiled",
                "PYTHONDONTWRITEBYTECODE": "",
            }
            login = ["login", "--password-file", str(cluster.root_password_path)]
            for words in (login, ["stream", "create", "first"], ["topic", "create", "first", "t"]):
                await asyncio.to_thread(
                    subprocess.run, (*VIEWSTAMP, *words), env=environment, check=True, stdout=2
                )
            return report_of(await asyncio.to_thread(compared, rounds, environment))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.command_line", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    report = asyncio.run(run(options.rounds))
    print(json.dumps(report, indent=2) if options.json else table_of(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
