"""What is heard of directories is on the disk soon, seldom, and never in anybody's way.

Method: the memory of one replica runs in virtual time over a simulated disk.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, NoReturn, TypeVar

import pytest

from coordinator.app.disk_memory import (
    KNOWN_DISKS_FILE,
    PROGRESS_INTERVAL_MS,
    PROMISE_INTERVAL_MS,
    DiskMemory,
)
from coordinator.peers.hello import NO_DISK, WIRE_VERSION, DiskMark, Hello
from coordinator.peers.known_disks_codec import MemoryOwner
from coordinator.replica.slot_file import SLOT_BYTES, SLOTS, SlotFile
from testkit.memory_storage import Loss, MemoryStorage
from testkit.world.process import WorldProcess, WorldThread
from testkit.world.schedule import NS_PER_MS
from testkit.world.world import World

Result = TypeVar("Result")

PATH: Final = f"/data/{KNOWN_DISKS_FILE}"
OWNER: Final = MemoryOwner(b"c" * 16, 0)
MARK: Final = DiskMark(b"d" * 16, 7, 6, 0, 40, 40, b"first start".ljust(16))
OLDER: Final = replace(MARK, last_sequence=39, boot_nonce=b"second start".ljust(16))
# Longer than a write takes, and shorter than any interval.
MOMENT_MS: Final = 20
LONG_MS: Final = 60_000


def hello(mark: DiskMark) -> Hello:
    """Return the hello of a start of replica 1 whose directory has come this far."""
    return Hello(b"c" * 16, WIRE_VERSION, 1, 3, b"l" * 32, mark.boot_nonce, 0, disk=mark)


class MemoryTrial:
    """The memory of a replica whose process restarts and whose disk stays."""

    def __init__(self, world: World, owner: MemoryOwner = OWNER) -> None:
        self.world = world
        self.machine = world.machine("10.0.0.1")
        self.memory: DiskMemory
        self.process: WorldProcess
        self.calls = 0
        """How many calls the memory has asked for."""
        self._thread: WorldThread
        self._owner = owner
        self.restart()

    @property
    def disk(self) -> MemoryStorage:
        """The disk that stays."""
        return self.machine.disk

    @property
    def writes(self) -> int:
        """How often the file was written so far."""
        return self.disk.log.count(f"sync {PATH}") + self.disk.log.count(f"sync {PATH}.tmp")

    def restart(self) -> None:
        """Kill the process, if there is one, and start the next one."""
        if hasattr(self, "process"):
            self.process.kill()
        process = self.process = self.world.process("memory", self.machine)

        async def main() -> None:
            self._thread = WorldThread("journal", process)
            memory = self.memory = DiskMemory(self._owner, SlotFile(self.disk, PATH), self)
            await memory.load()
            await memory.run()

        process.run(main)
        self.pass_ms(MOMENT_MS)

    def call(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Count a call, and make it in the thread of the present process."""
        self.calls += 1
        return self._thread.call(function)

    def hear(self, mark: DiskMark) -> None:
        """Have the replica hear a report."""
        with self.world.inside(self.process):
            self.memory.known_disks.heard(1, mark)

    def accepts(self, mark: DiskMark) -> bool:
        """Return whether a start that says this is welcome."""
        with self.world.inside(self.process):
            return self.memory.known_disks.judge(hello(mark)) is None

    def pass_ms(self, milliseconds: int) -> None:
        """Let time pass."""
        schedule = self.world.schedule
        schedule.after(milliseconds * NS_PER_MS, lambda: None)
        end_ns = schedule.now_ns + milliseconds * NS_PER_MS
        self.world.run(lambda: schedule.now_ns >= end_ns, milliseconds * NS_PER_MS)


@pytest.fixture
def trial() -> Iterator[MemoryTrial]:
    """Run a memory that knows the directory of replica 1, and has written that."""
    world = World(5)
    with world.running():
        trial = MemoryTrial(world)
        assert trial.accepts(MARK)
        trial.pass_ms(MOMENT_MS)
        yield trial


def test_an_older_copy_is_refused_by_the_next_process(trial: MemoryTrial) -> None:
    """What was heard is durable a moment later, and the next process knows it."""
    trial.process.kill()
    trial.disk.crash(Loss.DROP)
    trial.restart()
    assert not trial.accepts(OLDER)
    assert trial.accepts(replace(OLDER, last_sequence=40))


def test_an_idle_cluster_writes_nothing(trial: MemoryTrial) -> None:
    """Reports that tell nothing new, and starts of those that have no directory, cost no write."""
    before = trial.writes
    for number in range(10):
        trial.hear(MARK)
        start = replace(hello(NO_DISK), replica_id=2, boot_nonce=number.to_bytes(16))
        trial.memory.known_disks.judge(start)
        trial.pass_ms(LONG_MS // 10)
    assert trial.writes == before
    assert len(trial.disk.content(PATH)) == SLOTS * SLOT_BYTES


def further(count: int, name: str) -> list[DiskMark]:
    """Return marks of which each has come further in one number."""
    changes: list[dict[str, Any]] = [{name: 100 + number} for number in range(count)]
    return [replace(MARK, **change) for change in changes]


@pytest.mark.parametrize(
    ("name", "interval_ms"),
    [("journal_sequence", PROGRESS_INTERVAL_MS), ("view", PROMISE_INTERVAL_MS)],
)
def test_writes_are_limited(trial: MemoryTrial, name: str, interval_ms: int) -> None:
    """However often a peer tells more, at most one write comes per interval; none is forgotten."""
    trial.pass_ms(LONG_MS)
    before = trial.writes
    for mark in further(1_000, name):
        trial.hear(mark)
        trial.pass_ms(10)
    written = trial.writes - before
    assert 10_000 // interval_ms // 2 < written <= 10_000 // interval_ms + 1
    trial.pass_ms(LONG_MS)
    trial.restart()
    last = further(1_000, name)[-1]
    assert not trial.accepts(replace(OLDER, last_sequence=40))
    assert trial.accepts(replace(last, boot_nonce=OLDER.boot_nonce, last_sequence=2_000))


def test_a_promise_does_not_wait_for_the_interval_of_progress(trial: MemoryTrial) -> None:
    """Right after a write a new view is written within the interval of promises."""
    trial.pass_ms(LONG_MS)
    trial.hear(replace(MARK, journal_sequence=50))
    trial.pass_ms(MOMENT_MS)
    trial.hear(replace(MARK, view=8))
    trial.pass_ms(PROMISE_INTERVAL_MS + MOMENT_MS)
    trial.restart()
    assert not trial.accepts(replace(OLDER, last_sequence=50))
    assert trial.accepts(replace(OLDER, last_sequence=50, view=8))


def test_a_hanging_disk_takes_one_call(trial: MemoryTrial) -> None:
    """While a write does not return, nothing queues up, and hellos are judged as before."""
    trial.pass_ms(LONG_MS)
    trial.process.hangs = True
    before = trial.calls
    for mark in further(1_000, "view"):
        trial.hear(mark)
        trial.pass_ms(10)
    assert trial.calls == before + 1
    assert trial.process.is_alive
    assert not trial.accepts(OLDER)


def test_a_full_disk_is_tried_again() -> None:
    """Without room the memory works for this process, and is written once there is room."""
    world = World(5)
    with world.running():
        trial = MemoryTrial(world)
        trial.disk.capacity_bytes = 0
        assert trial.accepts(MARK)
        trial.pass_ms(LONG_MS)
        assert trial.disk.paths() == []
        assert not trial.accepts(OLDER)
        trial.disk.capacity_bytes = 1 << 20
        trial.pass_ms(PROGRESS_INTERVAL_MS + MOMENT_MS)
        trial.restart()
        assert not trial.accepts(OLDER)
    notes = [line for line in world.schedule.transcript if "waits for room" in line]
    assert len(notes) == 1


def test_a_lack_of_descriptors_passes(trial: MemoryTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that can open no file for a moment writes as soon as it can again, and says so."""
    trial.pass_ms(LONG_MS)
    with monkeypatch.context() as lacking:
        lacking.setattr(trial.disk, "open", _no_descriptor)
        trial.hear(replace(MARK, view=8))
        trial.pass_ms(LONG_MS)
    trial.pass_ms(PROGRESS_INTERVAL_MS + MOMENT_MS)
    trial.restart()
    assert not trial.accepts(replace(OLDER, last_sequence=40))
    notes = [line for line in trial.world.schedule.transcript if "descriptors" in line]
    assert len(notes) == 1


def _no_descriptor(path: str) -> NoReturn:
    raise OSError(errno.EMFILE, "Too many open files", path)


def test_a_failed_sync_ends_the_file_and_not_the_process(trial: MemoryTrial) -> None:
    """A disk that refuses the file costs what the next process would know, and is logged."""
    trial.pass_ms(LONG_MS)
    trial.disk.failing_syncs.add(trial.disk.syncs)
    before = trial.writes
    for mark in further(100, "view"):
        trial.hear(mark)
        trial.pass_ms(PROMISE_INTERVAL_MS)
    assert trial.writes == before + 1
    assert not trial.accepts(replace(OLDER, last_sequence=40))
    assert any("the disk refuses the file" in line for line in trial.world.schedule.transcript)


def damaged(trial: MemoryTrial) -> None:
    """Rot both slots."""
    for slot in range(SLOTS):
        trial.disk.flip(PATH, slot * SLOT_BYTES)


def removed(trial: MemoryTrial) -> None:
    """Remove the file, as an operator may whose replicas refuse each other wrongly."""
    trial.disk.remove(PATH)


def anothers(trial: MemoryTrial) -> None:
    """Put the file of another replica there."""
    foreign = MemoryTrial(trial.world, MemoryOwner(OWNER.cluster_id, 2))
    assert foreign.accepts(MARK)
    foreign.pass_ms(MOMENT_MS)
    trial.disk.replace(PATH, foreign.disk.content(PATH))


@pytest.mark.parametrize(("spoil", "warnings"), [(damaged, 1), (anothers, 1), (removed, 0)])
def test_a_file_that_says_nothing_keeps_nobody_away(
    trial: MemoryTrial, spoil: Callable[[MemoryTrial], None], warnings: int
) -> None:
    """With a damaged or missing file, or that of another replica, the memory begins anew, loudly
    if something is wrong; and what is heard from then on is kept."""
    spoil(trial)
    trial.restart()
    told = [each for each in trial.world.schedule.transcript if "directories is lost" in each]
    assert len(told) == warnings
    assert trial.accepts(OLDER)
    trial.pass_ms(MOMENT_MS)
    trial.restart()
    assert not trial.accepts(replace(OLDER, view=6, boot_nonce=b"third start".ljust(16)))
