"""The snapshots of all replicas are read from their disks, verified and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.load.generations import TakenGeneration
from testkit.torture.judge import judge_snapshots
from tests.viewstamp.snapshots.generations import SnapshotDirectory, flip, two_generations
from viewstamp.api.users.v1 import users_pb2

TAKEN = [TakenGeneration(number, "COMPLETED", True, 10 * number, 21, 900, "") for number in (1, 2)]


@pytest.fixture
def replicas(tmp_path: Path) -> list[SnapshotDirectory]:
    """Three data directories with equal generations 1 and 2."""
    return [two_generations(tmp_path / f"replica-{number}") for number in range(3)]


def judged(replicas: list[SnapshotDirectory]) -> list[str]:
    """The verdict on some directories."""
    return judge_snapshots(TAKEN, [replica.path for replica in replicas])


def forget(replica: SnapshotDirectory, generation: int) -> None:
    """Remove every manifest of a generation."""
    for copy in replica.copies:
        next(copy.glob(f"manifests/*{generation}.manifest")).unlink()


def test_equal_snapshots_are_good(replicas: list[SnapshotDirectory]) -> None:
    """Three replicas with the same files verify, and agree."""
    assert judged(replicas) == []


def test_a_replica_may_have_been_away_for_an_older_snapshot(
    replicas: list[SnapshotDirectory],
) -> None:
    """Without files of generation 1 a replica is good; without those of the newest it is not."""
    forget(replicas[1], 1)
    assert judged(replicas) == []
    forget(replicas[1], 2)
    (found,) = judged(replicas)
    assert "replica 1: generation 2" in found


def test_damage_is_found_on_each_replica(replicas: list[SnapshotDirectory]) -> None:
    """A changed byte in one copy of one replica is told, with the replica."""
    flip(next(replicas[2].copies[1].glob("layers/*")))
    found = judged(replicas)
    assert found != []
    assert [text for text in found if not text.startswith("replica 2: generation")] == []


def test_other_content_is_found(replicas: list[SnapshotDirectory], tmp_path: Path) -> None:
    """A replica whose snapshots verify, but hold another state, has other roots than the rest."""
    other = SnapshotDirectory(tmp_path / "other")
    for number in range(2):
        other.snapshot([users_pb2.UserEntity(id=number, username=f"user-{number}")])
    found = judged([replicas[0], replicas[1], other])
    assert [text.partition(" has the roots")[0] for text in found] == [
        "generation 1",
        "generation 2",
    ]
