"""Records runs of the simulator, and of the world: the shipped coordinator in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from testkit.model.observed import ObservedRun
from testkit.model.recorder import RunRecorder, listening
from testkit.model.windows import windows
from testkit.simulation.options import FaultKind, Options, draw
from testkit.simulation.simulation import Simulation
from testkit.world.options import WorldOptions, flags
from testkit.world.run import WorldRun

REPLICAS: Final = 3
FAULTS: Final = frozenset(
    {
        FaultKind.LOSS,
        FaultKind.DUPLICATION,
        FaultKind.DELAY,
        FaultKind.CRASH,
        FaultKind.PARTITION,
    }
)
WORLD_FAULTS: Final = ("kill", "pause", "isolate", "cut")
WORLD_SECONDS: Final = 4
SNAPSHOT_NEVER: Final = 1_000_000


def options_of(seed: int) -> Options:
    """Return a run of three replicas, with the faults of processes and of the network."""
    return replace(
        draw(seed),
        replica_count=REPLICAS,
        standby_count=0,
        faults=FAULTS,
        loss_percent=10,
        duplication_percent=10,
        application="chain",
        snapshot_ops=SNAPSHOT_NEVER,
        commands=100,
        fault_interval_ms=300,
        is_ambushed=False,
        is_bootstrap_struck=False,
        leanings=frozenset(),
        poorly_carried="",
    )


def world_options_of(seconds: int) -> WorldOptions:
    """Return a run of three replicas without snapshots, whose processes and links are hurt."""
    return WorldOptions(
        replicas=REPLICAS,
        clients=2,
        callers=1,
        seconds=seconds,
        faults=WORLD_FAULTS,
        every_ms=(100, 900),
        flags=flags(snapshot_commands=SNAPSHOT_NEVER),
    )


def of_simulator(seed: int, changes: int) -> Iterator[ObservedRun]:
    """Yield windows of a run of the simulator. Raises SeedFailure if the run fails."""
    recorder = RunRecorder()
    with listening(recorder.stepped):
        Simulation(options_of(seed)).run()
    yield from windows(recorder.entries, recorder.seen, replica_count=REPLICAS, changes=changes)


def of_world(seed: int, changes: int, seconds: int = WORLD_SECONDS) -> Iterator[ObservedRun]:
    """Yield windows of a run of the world. Raises AssertionError if the run fails."""
    recorder = RunRecorder()
    with listening(recorder.stepped):
        outcome = WorldRun(seed, world_options_of(seconds)).run()
    assert outcome.is_good, outcome.violations
    yield from windows(recorder.entries, recorder.seen, replica_count=REPLICAS, changes=changes)
