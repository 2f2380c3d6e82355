"""A replica whose state changes without an entry of the log is found within a second.

Method: the shipped programs run in a world. After a while the state machine of streams on a backup
loses an id, as bad memory or a defect might do it. Commands go on. The transcript says when the
replicas notice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from coordinator.mux.stage import Stage
from services.runtime.machine import Machine
from services.streams.model import NEXT_TOPIC_ID
from testkit.checkers.log_checkers import OneHistory
from testkit.world import observer
from testkit.world.options import WorldOptions
from testkit.world.replica import WorldReplica
from testkit.world.run import DIVERGED, WorldRun
from testkit.world.schedule import NS_PER_S
from viewstamp.limits import MIB

# No snapshot is cut and nothing is scrubbed: only digests can show the difference.
FLAGS = (f"--snapshot-reserve-bytes={MIB}", "--scrub-interval-ms=0")
OPTIONS = WorldOptions(seconds=4, faults=(), flags=FLAGS)
LOOK_AGAIN_NS = NS_PER_S // 10
LOST_AFTER_NS = NS_PER_S
NOTICED_WITHIN_NS = NS_PER_S


@dataclass
class LostId:
    """The state of streams on a backup, which loses an id a second after a primary is there."""

    run: WorldRun
    machines: dict[str, Machine[Any]] = field(default_factory=dict)
    """The newest machine of each process, by the name of the process."""
    victim: str = ""
    lost_ns: int = 0
    alarms_ns: list[int] = field(default_factory=list)
    """When each replica noticed."""
    last_words: list[str] = field(default_factory=list)

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Note every machine, and every line about a difference."""
        begin = Machine.__init__

        def begun(machine: Machine[Any], *arguments: Any) -> None:
            begin(machine, *arguments)
            process = self.run.world.current
            if process is not None:
                self.machines[process.name] = machine

        patch.setattr(Machine, "__init__", begun)
        self.run.world.schedule.watches.append(self._read)
        self.run.world.schedule.after(LOOK_AGAIN_NS, self._look, LOST_AFTER_NS)

    def _read(self, line: str) -> None:
        if "ALARM_KIND_REPLICA_DIVERGED" in line and "alarm raised" in line:
            self.alarms_ns.append(self.run.world.schedule.now_ns)
        if "ends: DivergedError" in line:
            self.last_words.append(line)

    def _look(self, left_ns: int) -> None:
        """Take the id once the cluster has worked for a while."""
        backups = [replica for replica in self.run.replicas if not replica.is_primary]
        if len(backups) == len(self.run.replicas):
            self.run.world.schedule.after(LOOK_AGAIN_NS, self._look, LOST_AFTER_NS)
        elif left_ns > 0:
            self.run.world.schedule.after(LOOK_AGAIN_NS, self._look, left_ns - LOOK_AGAIN_NS)
        else:
            self._lose(backups[0])

    def _lose(self, backup: WorldReplica) -> None:
        self.victim = f"r{backup.number}"
        machine = self.machines[backup.services[Stage.STREAMS].name]
        machine.state.take_id(NEXT_TOPIC_ID)
        machine.undo.settle()
        self.lost_ns = self.run.world.schedule.now_ns


def test_a_state_that_changed_by_itself_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that touch the state show it within a second, and the wrong replica ends."""
    # A checker would see the difference before the replicas do.
    monkeypatch.setattr(observer, "CHECKERS", (OneHistory,))
    run = WorldRun(5, OPTIONS)
    lost = LostId(run)
    lost.watch(monkeypatch)

    outcome = run.run()

    assert lost.lost_ns > 0
    assert lost.lost_ns < min(lost.alarms_ns) <= lost.lost_ns + NOTICED_WITHIN_NS
    assert [lost.victim in line.split() for line in lost.last_words] == [True]
    assert outcome.marks[DIVERGED] == len(lost.alarms_ns)
    *ends, last = outcome.violations
    assert [f"{lost.victim} ended: DivergedError" in end for end in ends] == [True]
    assert last == "one log led replicas to different ends"
