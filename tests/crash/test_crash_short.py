"""The crash test itself, with one kill of each process, and one more during a cut."""

from __future__ import annotations

import json

import pytest

from testkit.load.cuts import Moment
from testkit.load.kills import IN_FLIGHT_MIN, PROCESSES
from tests.crash.crash_test import EXIT_KEPT, main


@pytest.mark.exhaustive
def test_every_process_may_die_under_load(capsys: pytest.CaptureFixture[str]) -> None:
    """Each process dies once with 100 commands in flight, and once during a cut."""
    exit_code = main(["--kills-per-process", "1", "--json", "--seed", "3"])
    report = json.loads(capsys.readouterr().out)

    assert report.get("violations") == [], report.get("error")
    assert exit_code == EXIT_KEPT
    plain = [kill["process"] for kill in report["kills"] if kill["cut"] is None]
    cut = [
        kill["process"]
        for kill in report["kills"]
        if kill["cut"] is not None and kill["cut"]["moment"] == Moment.CUT
    ]
    assert sorted(plain) == sorted(cut) == sorted(PROCESSES)
    assert all(kill["in_flight"] >= IN_FLIGHT_MIN for kill in report["kills"])
