"""Faults of the world: each kind strikes, the product stands it, and rare ways of it are reached.

Method: short runs with one kind of fault; where one single fault is wanted, the others are dropped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from coordinator.app.disk_memory import DiskMemory
from coordinator.vsr.quorum import QUORUMS
from testkit.world.branches import (
    DAMAGE_MET,
    HANDED_OVER,
    MENDED,
    PUT_BACK,
    REFUSED,
    TRANSFER_BEGUN,
    TRANSFER_FINISHED,
    TRANSFER_INTERRUPTED,
)
from testkit.world.disk import WorldDisk
from testkit.world.disk_faults import DiskFaults
from testkit.world.fault_plan import APART, KINDS
from testkit.world.ground import victims_of
from testkit.world.options import WorldOptions, flags
from testkit.world.process import WorldProcess
from testkit.world.replica import WorldReplica
from testkit.world.run import WorldOutcome, WorldRun
from testkit.world.schedule import NS_PER_MS
from testkit.world.seeds import good_until
from viewstamp.limits import NAME_BYTES_MAX

SMALL = WorldOptions(clients=2, callers=1, keys=2, seconds=3)


def ran(seed: int, options: WorldOptions) -> WorldOutcome:
    """Run a seed, in which nothing may go wrong that is not planned."""
    outcome = WorldRun(seed, options).run()
    assert outcome.violations == []
    return outcome


def first_alone(seed: int, options: WorldOptions) -> WorldOptions:
    """Return the options with the first planned fault of a seed as its only one."""
    return replace(options, dropped=frozenset(f.number for f in options.planned(seed)[1:]))


@pytest.mark.long
@pytest.mark.parametrize("kinds", [KINDS[first::9] for first in range(9)], ids="-".join)
def test_every_kind_of_fault_strikes(kinds: Sequence[str]) -> None:
    """Each of these kinds happens in some of few runs, and all promises hold."""
    counts: Counter[str] = Counter()
    options = replace(SMALL, seconds=4, faults=kinds, every_ms=(50, 500), flags=flags(15))
    for seed in range(1, 13):
        counts += ran(seed, options).faults
        if not set(kinds) - counts.keys():
            break
    assert counts.keys() == set(kinds)


AWAY = WorldOptions(seconds=3, faults=("away",))


@pytest.mark.long
def test_a_replica_that_was_away_for_long_needs_a_snapshot() -> None:
    """One that was away for longer than the journals of the others reach comes back by state
    transfer."""
    shown = good_until(range(1, 41), AWAY, TRANSFER_BEGUN, TRANSFER_FINISHED)
    assert shown[TRANSFER_FINISHED] > 0


@pytest.mark.long
def test_a_state_transfer_may_be_interrupted() -> None:
    """A replica that dies while it fetches a snapshot fetches it in its next life."""
    outcomes = (interrupted(seed) for seed in range(1, 11))
    outcome = next(each for each in outcomes if each.branches[TRANSFER_INTERRUPTED])
    assert outcome.violations == []
    assert outcome.branches[TRANSFER_FINISHED] > 0


def interrupted(seed: int) -> WorldOutcome:
    """Run a seed whose first replica that fetches a snapshot dies a moment later."""
    run = WorldRun(seed, AWAY)
    killed: list[WorldProcess] = []

    def kill_first(process: WorldProcess, message: str) -> None:
        if message == "state transfer began" and not killed:
            killed.append(process)
            run.world.schedule.after(NS_PER_MS, process.kill)

    run.world.logged.append(kill_first)
    return run.run()


@pytest.mark.long
def test_a_primary_whose_disk_hangs_hands_over() -> None:
    """While the disk of the primary does not return from a call, another replica leads."""
    options = replace(SMALL, seconds=10, faults=("hang_disk",))
    assert ran(8, first_alone(8, options)).branches[HANDED_OVER] == 1


@pytest.mark.long
def test_a_loss_of_power_within_a_write_tears_a_record() -> None:
    """A record of more than one unit is there in part, and the start cuts it off."""
    options = replace(SMALL, faults=("power_in_io",), name_bytes=NAME_BYTES_MAX)
    assert good_until(range(1, 41), options, "torn record cut off")["power_in_io"] > 0


@pytest.mark.exhaustive
def test_a_transfer_whose_sources_are_struck_is_tried_again() -> None:
    """All others die, or something else strikes, while a replica fetches a snapshot from them."""
    options = replace(SMALL, seconds=4, faults=("struck_transfer",))
    assert good_until(range(1, 61), options, "state transfer tried again")["struck_transfer"] > 0


@pytest.mark.long
def test_a_damaged_snapshot_is_mended_before_the_start() -> None:
    """A replica no copy of whose snapshot is intact gets it from the others, and then starts."""
    options = replace(SMALL, faults=("rot_snapshot",), seconds=12)
    assert good_until(range(1, 21), options, DAMAGE_MET, MENDED)[MENDED] > 0


@pytest.mark.long
def test_standbys_follow() -> None:
    """Two standbys have the state of three voters in the end, under faults of all."""
    faults = ("kill", "isolate", "lose_disk")
    outcome = ran(5, replace(SMALL, standbys=2, faults=faults))
    assert outcome.answered > 0
    assert outcome.faults.total() > 0


@pytest.mark.parametrize("voters", sorted(QUORUMS))
def test_an_intact_copy_of_each_entry_is_left(voters: int) -> None:
    """Fewer voters may be damaged than a commit needs, and any standby."""
    for seed in range(20):
        victims = victims_of(voters, 2, Random(seed))
        assert len({each for each in victims if each < voters}) < QUORUMS[voters].replication
        assert {voters, voters + 1} <= set(victims)
        assert max(victims) < voters + 2


@pytest.mark.long
def test_a_dropped_fault_does_not_happen() -> None:
    """Without its first two faults a run has the others, as planned."""
    options = replace(SMALL, faults=("blackout",))
    assert ran(4, options).faults["blackout"] == len(options.planned(4))
    fewer = replace(options, dropped=frozenset({0, 1}))
    assert ran(4, fewer).faults["blackout"] == ran(4, options).faults["blackout"] - 2


@pytest.mark.long
def test_a_volume_can_be_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of a victim is put back as it was before, once all others remember more."""
    rolled_back: list[tuple[bool, bool]] = []
    original = DiskFaults.put_back

    def noted(self: DiskFaults, victim: WorldReplica, saved: WorldDisk) -> None:
        then, now = saved.snapshot(), victim.machine.disk.snapshot()
        original(self, victim, saved)
        rolled_back.append((victim.machine.disk.snapshot() == then, then != now))

    monkeypatch.setattr(DiskFaults, "put_back", noted)
    options = replace(SMALL, seconds=8, faults=("rolled_back",))
    outcome = ran(2, first_alone(2, options))
    assert rolled_back == [(True, True)]
    assert outcome.branches[PUT_BACK] == 1
    assert outcome.branches[REFUSED] > 0
    assert not set(APART) & set(KINDS)


@pytest.mark.long
def test_a_volume_that_forgot_nothing_told_is_not_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas that remember nothing can refuse no volume, so the fault waits."""
    monkeypatch.setattr(DiskMemory, "run", lambda _: asyncio.sleep(0))
    options = replace(SMALL, seconds=8, faults=("rolled_back",))
    outcome = ran(2, first_alone(2, options))
    assert outcome.faults["rolled_back"] == 1
    assert outcome.branches[PUT_BACK] == 0


OLDER = WorldOptions(
    clients=2,
    callers=2,
    keys=2,
    seconds=6,
    faults=("rolled_back", "kill", "isolate"),
    every_ms=(100, 800),
)


@pytest.mark.long
def test_older_volumes_lose_nothing() -> None:
    """The others refuse replicas with older volumes, whenever their processes restart."""
    outcomes = [ran(seed, OLDER) for seed in (11, 22)]
    assert sum(outcome.branches[PUT_BACK] for outcome in outcomes) > 0
