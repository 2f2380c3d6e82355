"""Test session policy: properties are repeatable, and under CI no test is skipped."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

from viewstamp import transports

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

# `make test` sets this too, so that a red run is red on every machine.
IS_CI = os.environ.get("CI") == "true"

# The cores are shared, so a wall-clock deadline would only measure the neighbours.
settings.register_profile("local", deadline=None)
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci" if IS_CI else "local")
# `make test-transports` runs tests, and the processes that they start, on the gRPC library.
transports.use(transports.chosen())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Return a test's report; under CI a skip or an expected failure in it counts as a failure."""
    report = yield
    return _refuse_skip(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Return a collection report; under CI a file that skips itself counts as a failure."""
    report = yield
    return _refuse_skip(report)


def _refuse_skip(report: Report) -> Report:
    """Return the report, failed if it was skipped under CI: an unrun check proves nothing."""
    if IS_CI and report.skipped:
        report.outcome = "failed"
        # An expected failure would else not count: nothing may be known to be broken.
        report.__dict__.pop("wasxfail", None)
        report.longrepr = f"{report.nodeid}: skipped, and skips are failures: {report.longrepr}"
    return report
