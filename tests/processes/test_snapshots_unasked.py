"""Snapshots that the cluster begins by itself: after many commands, or after some time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from coordinator.snapshot.orchestrator import CHECK_INTERVAL_MS
from tests.processes import snapshots
from tests.processes.callers import Caller
from tests.processes.processes import (
    COORDINATOR,
    ReplicaProcesses,
    eventually,
    replica,
    unique,
)

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("processes-snapshot-triggers")]

COMMANDS = 40
KEPT = 2


@pytest.fixture(scope="module")
def busy() -> Iterator[ReplicaProcesses]:
    """A replica that takes a snapshot every few commands and keeps few."""
    flags = [
        "--snapshot-interval-ms=0",
        f"--snapshot-commands={COMMANDS}",
        f"--snapshot-keep-last={KEPT}",
        "--snapshot-keep-daily=0",
    ]
    with replica(flags=flags) as running:
        yield running


def write(root: Caller, commands: int) -> None:
    """Write some commands."""
    for _ in range(commands):
        root.create_stream(unique("s"))


def completed(root: Caller, generation: int) -> bool:
    """Whether a generation, or a later one, is completed."""
    newest = snapshots.current(root)
    return newest.generation >= generation and newest.state == snapshots.COMPLETED


def test_commands(busy: ReplicaProcesses) -> None:
    """After a number of commands there is a snapshot, and only the last ones are kept."""
    with busy.root() as root:
        for generation in range(1, KEPT + 3):
            write(root, COMMANDS // 2)
            assert snapshots.current(root).generation == generation - 1
            write(root, COMMANDS // 2)
            eventually(lambda: completed(root, generation))  # noqa: B023
        kept = snapshots.listed(root)
        assert len(kept) == KEPT
        for directory in snapshots.copy_directories(busy):
            manifests = directory / "manifests"
            eventually(lambda: len(list(manifests.iterdir())) == KEPT)  # noqa: B023
        assert snapshots.verified(root)[-1].is_intact


def with_coordinator(running: ReplicaProcesses, *flags: str) -> ReplicaProcesses:
    """Restart the coordinator with other flags."""
    running.kill(COORDINATOR)
    other = ReplicaProcesses(running.directory, flags=flags)
    other.processes, other.ready = running.processes, running.ready
    other.start(COORDINATOR)
    return other


@pytest.mark.long
def test_interval(busy: ReplicaProcesses) -> None:
    """After some time there is a snapshot if something changed, and none otherwise."""
    timely = with_coordinator(busy, "--snapshot-interval-ms=100", "--snapshot-commands=0")
    with timely.root() as root:
        newest = snapshots.current(root).generation
        write(root, 1)
        eventually(lambda: completed(root, newest + 1))
        settled = eventually(lambda: last_generation_adopted(timely, root))
        # The test cannot wait for an event here, since none may come: it gives it time.
        time.sleep(2.5 * CHECK_INTERVAL_MS / 1000)
        assert snapshots.current(root).generation == settled


def last_generation_adopted(running: ReplicaProcesses, root: Caller) -> int:
    """Return the newest generation if the replica has adopted it, else 0."""
    newest = snapshots.current(root).generation
    return newest if snapshots.is_adopted(running, newest) else 0
