"""Rounds are kept a line each, summed up, and not run again; what a round ends with is judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from testkit.torture import figures
from testkit.torture.__main__ import EXIT_BROKEN, EXIT_KEPT, main
from testkit.torture.judge import judge_replicas
from testkit.torture.round import RoundFigures, in_words
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2


def made(seed: int, *findings: str) -> RoundFigures:
    """The figures of a round with three kills."""
    return RoundFigures(
        number=seed,
        seed=seed,
        kills={"coordinator": 2, "users": 1},
        counts={"transaction committed": 10},
        transactions=12,
        silences_ms=[600, 900 * seed],
        recovery_ms=1_000,
        findings=list(findings),
    )


@pytest.mark.long
def test_rounds_are_kept(tmp_path: Path) -> None:
    """What was saved is loaded again, but nothing that other code has done."""
    path = tmp_path / "figures.jsonl"
    assert figures.load(path) == []
    figures.save(path, made(1))
    figures.save(path, made(2))
    assert figures.load(path) == [made(1), made(2)]
    first, second = map(json.loads, path.read_text().splitlines())
    path.write_text("\n".join(map(json.dumps, [first | {"code": "other"}, second])))
    assert figures.load(path) == [made(2)]


def test_rounds_are_summed_up() -> None:
    """Kills, transactions and findings of all rounds are added, times are the median and worst."""
    total = figures.total([made(1), made(2, "something was lost")])
    assert total["kills"] == 6
    assert total["kills_by_process"] == {"coordinator": 4, "users": 2}
    assert total["transactions"] == 24
    assert total["silence_median_ms"] == 750
    assert total["silence_worst_ms"] == 1_800
    assert total["findings"] == ["seed 2: something was lost"]
    console = Console(record=True, width=120)
    figures.print_report(console, [made(1), made(2, "something was lost")])
    assert "something was lost" in console.export_text()


def test_rounds_that_are_done_are_not_run_again(tmp_path: Path) -> None:
    """With all rounds in the file nothing is started, and the exit code is that of the findings."""
    path = tmp_path / "figures.jsonl"
    options = ["--figures", str(path), "--rounds", "1", "--json", "--directory", str(tmp_path)]
    figures.save(path, made(1))
    figures.save(path, made(7, "something was lost"))
    assert main([*options, "--seed", "1"]) == EXIT_KEPT
    assert main([*options, "--seed", "7"]) == EXIT_BROKEN


def status(digest: str, *alarms: cluster_pb2.AlarmKind.ValueType) -> cluster_pb2.GetStatusResponse:
    """What a replica says of itself."""
    found = cluster_pb2.GetStatusResponse(sessions_digest=digest)
    for kind in alarms:
        found.alarms.add(kind=kind, message="as planted")
    return found


def test_replicas_must_be_equal_and_without_grave_alarms() -> None:
    """Other digests are found, and an alarm of divergence, but not one that passes."""
    passing = cluster_pb2.ALARM_KIND_STATE_TRANSFER
    assert judge_replicas([status("a"), status("a", passing), status("a")]) == []
    assert judge_replicas([status("a"), status("b"), status("a")]) == [
        "the replicas are in 2 different states"
    ]
    (found,) = judge_replicas([status("a", cluster_pb2.ALARM_KIND_REPLICA_DIVERGED)])
    assert found == "replica 0 raises ALARM_KIND_REPLICA_DIVERGED: as planted"


def test_every_error_of_a_group_is_told() -> None:
    """A finding names the errors that ended a round, not the group that held them."""
    inner = ExceptionGroup("callers", [TimeoutError("too late"), OSError("gone")])
    assert in_words(ExceptionGroup("all", [inner])) == "TimeoutError: too late; OSError: gone"
