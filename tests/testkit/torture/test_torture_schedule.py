"""Faults are drawn from a seed, and a hurt coordinator has a full disk or another clock."""

from __future__ import annotations

import errno
import time
from collections import Counter
from pathlib import Path

import pytest

from coordinator.storage import DescriptorFile, FileStorage
from testkit.torture import hurt_coordinator
from testkit.torture.schedule import JUMP_MAX_S, PRIMARY_PERCENT, TortureFault, schedule
from viewstamp.cluster import Program
from viewstamp.limits import KIB

SEEDS = range(60)
SECONDS = 30.0
DAY_NS = 86_400 * 10**9


def test_a_seed_is_the_same_faults_again() -> None:
    """One seed gives one list, and another seed another one."""
    assert schedule(1, SECONDS, 3) == schedule(1, SECONDS, 3)
    assert schedule(1, SECONDS, 3) != schedule(2, SECONDS, 3)


def test_every_kind_of_fault_is_drawn() -> None:
    """Some rounds together have every kind; most are kills, and most hit the primary."""
    faults = [fault for seed in SEEDS for fault in schedule(seed, SECONDS, 3)]
    kinds = Counter(fault.kind for fault in faults)
    assert set(kinds) == set(TortureFault)
    kills = sum(kinds[kind] for kind in TortureFault if kind.value.endswith("killed"))
    assert kills > len(faults) / 2
    on_primary = 100 * sum(fault.on_primary for fault in faults) / len(faults)
    assert abs(on_primary - PRIMARY_PERCENT) < 10
    assert max(abs(fault.jump_s) for fault in faults) <= JUMP_MAX_S
    assert {fault.replica for fault in faults} == {0, 1, 2}


def test_a_round_has_faults_until_its_end() -> None:
    """The gaps between the faults add up to the seconds that were asked for, and hardly to more."""
    for seed in SEEDS:
        planned_s = sum(fault.gap_s for fault in schedule(seed, SECONDS, 3))
        assert SECONDS <= planned_s < SECONDS + 3.0


def test_only_the_coordinator_is_hurt() -> None:
    """A coordinator is replaced by the program that can be hurt, a service is not."""
    service = Program("users", ("/python", "-m", "services.users", "--listen", "x"))
    assert hurt_coordinator.hurt(0, service) == service
    program = Program("coordinator", ("/python", "-m", "coordinator", "--listen", "x"))
    command = hurt_coordinator.hurt(0, program).command
    assert command == ("/python", "-m", "testkit.torture.hurt_coordinator", "--listen", "x")


def test_a_full_disk_takes_nothing_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is full no file grows, what has its room can be rewritten, and none is free."""
    for owner, name in (
        (DescriptorFile, "write"),
        (DescriptorFile, "reserve"),
        (FileStorage, "free_bytes"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    marker = tmp_path / hurt_coordinator.FULL
    hurt_coordinator.let_the_disk_fill_up(marker)
    storage = FileStorage()
    file = storage.create(str(tmp_path / "file"))
    file.preallocate(4 * KIB)
    marker.touch()
    file.write(0, b"within")
    with pytest.raises(OSError, match="No space left") as caught:
        file.write(4 * KIB, b"beyond")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="No space left"):
        file.reserve(8 * KIB)
    assert storage.free_bytes(str(tmp_path)) == 0
    marker.unlink()
    file.write(4 * KIB, b"beyond")
    assert storage.free_bytes(str(tmp_path)) > 0
    assert file.read(0, 6) == b"within"
    file.close()


def test_the_clock_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with nanoseconds moves the wall clock back and forth; without it time is right."""
    true_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", true_ns)
    jump = tmp_path / hurt_coordinator.JUMP
    hurt_coordinator.let_the_clock_jump(jump)
    for jump_ns in (2 * DAY_NS, -2 * DAY_NS):
        jump.write_text(str(jump_ns))
        assert abs(time.time_ns() - true_ns() - jump_ns) < DAY_NS
    jump.unlink()
    assert abs(time.time_ns() - true_ns()) < DAY_NS
