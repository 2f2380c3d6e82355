"""Several replicas on one machine: what each coordinator learns of the others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from coordinator.app.config import Config, parse
from viewstamp.cluster import LocalReplicas, PreflightError, Program
from viewstamp.cluster.local import COORDINATOR
from viewstamp.limits import STANDBYS_MAX

READY = "import json, signal; print(json.dumps({'ready': True}), flush=True); signal.pause()"


class ToldLines:
    """Stands in for every program with one that does nothing, and keeps the coordinators' flags."""

    def __init__(self) -> None:
        """Begin with none."""
        self.configs: dict[int, Config] = {}

    def adapt(self, replica: int, program: Program) -> Program:
        """Note the flags of a coordinator."""
        if program.name == COORDINATOR:
            self.configs[replica] = parse(list(program.command[3:]))
        return Program(program.name, (sys.executable, "-S", "-c", READY))


async def test_all_are_told_of_the_standbys(tmp_path: Path) -> None:
    """Two replicas and two standbys: each has the addresses of all others, and the same counts."""
    told = ToldLines()
    async with LocalReplicas(tmp_path, 2, "127.0.0.1:0", adapt=told.adapt, standbys=2) as made:
        addresses, standbys = made.addresses, made.standby_addresses

    configs = [told.configs[replica] for replica in range(4)]
    listens = [config.peers.listen for config in configs if config.peers is not None]
    assert [config.replica_id for config in configs] == [0, 1, 2, 3]
    assert {(config.replica_count, config.standby_count) for config in configs} == {(2, 2)}
    for config in configs:
        assert config.peers is not None
        others = {replica: listens[replica] for replica in range(4) if replica != config.replica_id}
        assert config.peers.addresses == others
    assert (len(set(addresses)), len(set(standbys))) == (2, 2)
    assert set(addresses).isdisjoint(standbys)


async def test_a_stopped_cluster_starts_again(tmp_path: Path) -> None:
    """A stopped cluster leaves its directory to the next cluster of the same kind."""
    for _ in range(2):
        async with LocalReplicas(tmp_path, 2, "127.0.0.1:0", adapt=ToldLines().adapt):
            with pytest.raises(PreflightError, match="in use by another cluster"):
                await LocalReplicas(tmp_path, 2, "127.0.0.1:0").start()


@pytest.mark.parametrize(
    ("count", "standbys", "says"),
    [(1, 1, "standbys need at least 2"), (3, STANDBYS_MAX + 1, "0 to 6"), (3, -1, "0 to 6")],
)
def test_impossible_standbys(tmp_path: Path, count: int, standbys: int, says: str) -> None:
    """Impossible standbys are refused before anything is written."""
    with pytest.raises(PreflightError, match=says):
        LocalReplicas(tmp_path / "data", count, standbys=standbys)
    assert not (tmp_path / "data").exists()
