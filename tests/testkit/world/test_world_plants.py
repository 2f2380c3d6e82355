"""The judges of the world see defects of parts that no other simulator runs.

Method: a defect is put in the place of one function of the product; some of a few seeds must fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from coordinator import vsr
from coordinator.replica.reads import ReplicaReads
from coordinator.replica.writer import JournalWriter
from testkit.plants.core_bugs import disks_lie
from testkit.world import observer
from testkit.world.fault_plan import EVERY_MS
from testkit.world.options import WorldOptions
from testkit.world.run import WorldRun
from viewstamp.client.commands import ClientCommands

Plant = Callable[[pytest.MonkeyPatch], None]


# The rarest defect shows in one of ten seeds: 80 miss it once in 5,000 changes of the product.
SEEDS_MAX = 80


@dataclass(frozen=True)
class Planted:
    """A defect, under which faults and what load it shows, and what the judges say."""

    plant: Plant
    faults: tuple[str, ...]
    complaint: str
    keys: int = WorldOptions.keys
    callers: int = WorldOptions.callers
    every_ms: tuple[int, int] = EVERY_MS


def reads_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    """A linearizable read is answered before the log is applied up to its index."""
    granted = ReplicaReads.granted

    def early(self: ReplicaReads, effect: vsr.ReadIndexGranted) -> None:
        granted(self, replace(effect, op=0))

    patch.setattr(ReplicaReads, "granted", early)


def commands_are_numbered_anew(patch: pytest.MonkeyPatch) -> None:
    """A client that lost its stream sends what is outstanding in a new session."""

    def detach(self: ClientCommands) -> None:
        owners = [owner for each in self.window.outstanding for owner in each.parcel.owners]
        self.start_session(0)
        self.waiting.extendleft(reversed(owners))

    patch.setattr(ClientCommands, "detach", detach)


def writes_are_not_awaited(patch: pytest.MonkeyPatch) -> None:
    """The writer reports entries as durable at once, and writes them a little later."""

    async def append(self: JournalWriter[Any], job: Any) -> None:
        def write() -> None:
            self._journal.append(job.prepares, use_reserve=job.use_reserve)

        asyncio.get_running_loop().call_later(0.05, self._thread.call, write)

    patch.setattr(JournalWriter, "_append", append)


PLANTED = (
    Planted(
        reads_do_not_wait,
        ("pause_service", "step_down"),
        "linearizable",
        keys=2,
        callers=6,
        every_ms=(50, 400),
    ),
    Planted(commands_are_numbered_anew, ("kill", "lose"), "linearizable"),
    Planted(writes_are_not_awaited, ("blackout",), "linearizable"),
    Planted(disks_lie, ("blackout",), "agree"),
)


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(
            each, marks=pytest.mark.exhaustive if each.plant is disks_lie else pytest.mark.long
        )
        for each in PLANTED
    ],
    ids=lambda each: each.plant.__name__,
)
def test_a_planted_defect_is_seen(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a few seeds fails, with the complaint that belongs to the defect. Checkers are off."""
    monkeypatch.setattr(observer, "CHECKERS", ())
    planted.plant(monkeypatch)
    options = WorldOptions(
        seconds=5,
        faults=planted.faults,
        every_ms=planted.every_ms,
        keys=planted.keys,
        callers=planted.callers,
    )
    found = (WorldRun(seed, options).run().violations for seed in range(1, SEEDS_MAX + 1))
    assert any(planted.complaint in each for violations in found for each in violations)
