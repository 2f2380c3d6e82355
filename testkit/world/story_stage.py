"""What a story acts on: the parts of its run, who is meant by a word, and time that passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from coordinator import vsr
from testkit.checkers.checker import Broken
from testkit.world.schedule import NS_PER_MS

if TYPE_CHECKING:
    from testkit.world.faults import Faults
    from testkit.world.replica import WorldReplica
    from testkit.world.run import WorldRun
    from testkit.world.workload import Demands

WAIT_MS: Final = 60_000


class StoryStage:
    """The run of one story. `names` are those that the story has given to replicas."""

    def __init__(self, run: WorldRun, faults: Faults, demands: Demands) -> None:
        self.run = run
        self.world = run.world
        self.faults = faults
        self.demands = demands
        self.names: dict[str, WorldReplica] = {}

    def who(self, word: str) -> WorldReplica:
        """Return the replica that a word means."""
        if word in self.names:
            return self.names[word]
        if word == "primary":
            return self.primary()
        if word == "backup":
            primary = self.primary()
            return next(r for r in self.run.members if r is not primary and is_running(r))
        return self.run.replicas[int(word.removeprefix("r"))]

    def all_or(self, word: str) -> list[WorldReplica]:
        """Return the replica that a word means, or all of them."""
        return self.run.replicas if word == "all" else [self.who(word)]

    def primary(self) -> WorldReplica:
        """Return the replica of the latest view that leads, once there is one."""
        self.wait(lambda: bool(self._leading()), "nobody leads")
        return self.run.replicas[max(self._leading())[1]]

    def _leading(self) -> list[tuple[int, int]]:
        return [(core_of(r).view, r.number) for r in self.run.replicas if r.is_primary]

    def wait(self, holds: Callable[[], bool], otherwise: str) -> None:
        """Let time pass until something holds. Raises Broken if it does not for too long."""
        if not self.world.run(holds, WAIT_MS * NS_PER_MS):
            raise Broken("Liveness", f"{otherwise} within {WAIT_MS} ms")

    def pass_time(self, duration_ms: int) -> None:
        """Let time pass."""
        self.world.run(lambda: False, duration_ms * NS_PER_MS)


def is_running(replica: WorldReplica) -> bool:
    """Whether the coordinator of a replica runs and has opened its directory."""
    process = replica.process
    return process is not None and process.is_alive and replica.coordinator is not None


def core_of(replica: WorldReplica) -> vsr.Replica:
    """Return the consensus core of a replica that runs."""
    assert replica.coordinator is not None, f"replica {replica.number} runs"
    return replica.coordinator.driver.core
