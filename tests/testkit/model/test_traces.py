"""Recorded runs of the simulator and of real processes, against the specification."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from testkit.model.observed import ObservedRun
from testkit.model.real_runs import record_processes
from testkit.model.simulated_runs import REPLICAS, of_links, of_messages
from testkit.model.traces import validate
from testkit.model.windows import liveliest_window, with_last_change

# TLC takes some seconds for a run, and the runs themselves take longer.
pytestmark = pytest.mark.long

CHANGES = 60
FEW = 12
SOURCES = ("links", "messages", "processes")


def of_processes(directory: Path) -> ObservedRun:
    """A run of real processes in which the primary is killed."""
    run = asyncio.run(record_processes(directory, seed=5, strikes=1))
    return liveliest_window(run.entries, run.seen, replica_count=REPLICAS, changes=CHANGES)


def liveliest(found: Iterable[ObservedRun]) -> ObservedRun:
    """The run in which most happened."""
    return max(found, key=lambda run: run.liveliness)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, ObservedRun]:
    """The liveliest window of a run of each kind."""
    return {
        "links": liveliest(of_links(2, CHANGES, seconds=2)),
        "messages": liveliest(of_messages(1, CHANGES, seconds=2)),
        "processes": of_processes(tmp_path_factory.mktemp("processes")),
    }


@pytest.mark.parametrize("source", SOURCES)
def test_a_run_is_an_execution_of_the_specification(
    runs: Mapping[str, ObservedRun], source: str
) -> None:
    """TLC explains each change of a run with crashes or view changes by actions."""
    verdict = validate(runs[source])

    assert verdict.rejected is None
    assert verdict.changes > CHANGES // 2
    assert runs[source].liveliness > 0


@pytest.mark.parametrize(
    ("source", "field"),
    [
        *((source, "log") for source in SOURCES),
        ("messages", "log_view"),
        ("messages", "durable_op"),
    ],
)
def test_a_wrong_transition_is_rejected(
    runs: Mapping[str, ObservedRun], source: str, field: str
) -> None:
    """A change that no action explains is named: an entry that no primary made, a log view without
    votes, a record that was never written."""
    few = replace(runs[source], changes=runs[source].changes[:FEW])
    last = few.changes[-1]
    fields = {
        "log": (*last.log, 1_999_000),
        "log_view": last.log_view + 1,
        "durable_op": len(last.log) + 1,
    }
    wrong = with_last_change(few, **{field: fields[field]})

    verdict = validate(wrong)

    assert verdict.rejected == wrong.changes[-1]
    assert verdict.accepted == FEW - 1
