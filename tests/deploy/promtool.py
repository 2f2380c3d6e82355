"""Runs promtool, which judges metrics and rules as Prometheus would."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml

from tests.deploy.pod import ROOT

ALERTS: Final = ROOT / "deploy" / "monitoring" / "alerts.yaml"
DASHBOARDS: Final = ROOT / "deploy" / "monitoring" / "dashboards"
# A metric in a query; `up` is the one that Prometheus makes itself.
METRIC: Final = re.compile(r"\b((?:viewstamp|process)_\w+)\b")
_QUOTED: Final = re.compile(r'"[^"]*"')
_OF_HISTOGRAM: Final = re.compile(r"_seconds_(?:bucket|sum|count)$")


def promtool(*arguments: str | Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run promtool; fail with the package to install where there is none."""
    program = shutil.which("promtool")
    assert program is not None, "promtool is missing: install the Debian package `prometheus`"
    return subprocess.run(
        [program, *map(str, arguments)], input=text, capture_output=True, text=True, check=False
    )


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def metrics_in(query: str) -> set[str]:
    """Return the names of metrics in a query, as a page declares them."""
    names = METRIC.findall(_QUOTED.sub('""', query))
    return {_OF_HISTOGRAM.sub("_seconds", name) for name in names}


def documented_metrics() -> set[str]:
    """Return the metrics that docs/telemetry.md lists; a test compares them with the pages."""
    text = (ROOT / "docs" / "telemetry.md").read_text()
    return set(re.findall(r"^\| `((?:viewstamp|process)_\w+)`", text, re.MULTILINE))
