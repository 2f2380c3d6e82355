"""Shares of the processors: what is written to the kernel for the services of a replica."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from viewstamp.cluster import precedence as module
from viewstamp.cluster.precedence import EQUAL_NICE, YIELDING_NICE, Precedence

PIDS = (11, 12, 13)
EQUAL = [EQUAL_NICE] * 3
YIELDING = [YIELDING_NICE] * 3
TIMEOUT_S = 60


class Processes:
    """Stands in for `/proc`: a directory per process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for pid in ("self", *map(str, PIDS)):
            (directory / pid).mkdir()
            self.begin(pid)

    def begin(self, pid: int | str) -> None:
        """A process begins with an equal share."""
        (self.directory / str(pid) / "autogroup").write_text("/autogroup-7 nice 0\n")

    def nices(self) -> list[int]:
        """Return what the processes have, in the order of `PIDS`."""
        texts = [(self.directory / str(pid) / "autogroup").read_text() for pid in PIDS]
        return [int(text.split()[-1]) for text in texts]


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    """Three processes, and this one."""
    return Processes(tmp_path)


@pytest.fixture
def refusals(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The errors, by number, with which the kernel answers the next writes; others come soon."""
    monkeypatch.setattr(module, "RAISE_RETRY_S", 0)
    monkeypatch.setattr(module, "LOWER_RETRY_S", 0)
    numbers: list[int] = []
    write = Path.write_text

    def refuse(path: Path, text: str) -> int:
        if numbers:
            raise OSError(numbers.pop(0), "refused", str(path))
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", refuse)
    yield numbers
    assert numbers == []


async def until(processes: Processes, nices: list[int]) -> None:
    """Wait until the processes have these shares."""
    async with asyncio.timeout(TIMEOUT_S):
        while processes.nices() != nices:  # noqa: ASYNC110 - a file tells of no event
            await asyncio.sleep(0)


def test_shares_follow_what_the_replica_says(processes: Processes) -> None:
    """Its services come last while it yields, and no longer."""
    precedence = Precedence(processes.directory)

    precedence.settle(PIDS, yields=True)
    assert processes.nices() == YIELDING

    precedence.settle(PIDS, yields=False)
    assert processes.nices() == EQUAL


def test_a_new_process_gets_the_share_of_its_replica(processes: Processes) -> None:
    """A process that was started again begins with an equal share, whoever had its number."""
    precedence = Precedence(processes.directory)
    precedence.settle(PIDS, yields=True)
    precedence.settle(PIDS[:2], yields=True)
    processes.begin(PIDS[2])

    precedence.settle(PIDS, yields=True)

    assert processes.nices() == YIELDING


def test_a_replica_that_is_started_again(processes: Processes) -> None:
    """After a stop no process counts as lowered, not even one that got an old number."""
    precedence = Precedence(processes.directory)
    precedence.settle(PIDS, yields=True)
    precedence.stop()
    for pid in PIDS:
        processes.begin(pid)

    precedence.settle(PIDS, yields=True)

    assert processes.nices() == YIELDING


async def test_a_value_refused_for_now_comes_later(
    processes: Processes, refusals: list[int]
) -> None:
    """The kernel takes few values from those it does not trust."""
    refusals += [errno.EAGAIN] * 3
    precedence = Precedence(processes.directory)

    precedence.settle(PIDS, yields=False)
    assert len(refusals) == 3, "an equal share is what a process has from the start"
    precedence.settle(PIDS, yields=True)
    assert processes.nices() == EQUAL

    await until(processes, YIELDING)


async def test_the_last_change_counts(
    processes: Processes, refusals: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another change is tried at once, though an earlier one waits, and that is forgotten."""
    precedence = Precedence(processes.directory)
    precedence.settle(PIDS, yields=True)
    monkeypatch.setattr(module, "RAISE_RETRY_S", TIMEOUT_S)
    refusals += [errno.EAGAIN]
    precedence.settle(PIDS, yields=False)
    assert processes.nices() == YIELDING

    precedence.settle(PIDS, yields=False)
    assert processes.nices() == EQUAL

    refusals += [errno.EAGAIN]
    precedence.settle(PIDS, yields=True)
    precedence.settle(PIDS, yields=False)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert processes.nices() == EQUAL


async def test_who_came_last_is_not_left_there(processes: Processes, refusals: list[int]) -> None:
    """Whatever keeps a share from being taken back, it is tried until it works."""
    precedence = Precedence(processes.directory)
    precedence.settle(PIDS, yields=True)
    refusals += [errno.EAGAIN, errno.EMFILE, errno.EACCES]

    precedence.settle(PIDS, yields=False)

    await until(processes, EQUAL)


async def test_a_stop_ends_trying(processes: Processes, refusals: list[int]) -> None:
    """What was refused for now is left when the replica stops."""
    refusals += [errno.EAGAIN]
    precedence = Precedence(processes.directory)
    precedence.settle(PIDS, yields=True)

    precedence.stop()
    await asyncio.sleep(0)

    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert processes.nices() == EQUAL


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESRCH])
def test_a_process_that_ended_meanwhile(
    processes: Processes, refusals: list[int], number: int
) -> None:
    """It needs no share, and the others get theirs."""
    refusals += [number]
    Precedence(processes.directory).settle(PIDS, yields=True)
    assert processes.nices() == [EQUAL_NICE, *YIELDING[1:]]


def test_where_shares_cannot_be_given(
    processes: Processes, refusals: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """All go on with equal shares, and it is said once."""
    refusals += [errno.EROFS]
    precedence = Precedence(processes.directory)
    precedence.settle(PIDS, yields=True)
    precedence.settle(PIDS, yields=True)
    assert processes.nices() == EQUAL
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "shares of the processors cannot be changed"
    ]


def test_a_kernel_without_autogroups(tmp_path: Path) -> None:
    """Nothing is tried."""
    (tmp_path / "self").mkdir()
    (tmp_path / "11").mkdir()
    Precedence(tmp_path).settle((11,), yields=True)
    assert list((tmp_path / "11").iterdir()) == []


async def test_the_kernel_takes_it() -> None:
    """A process in a session of its own has what it was given, where it can be given."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as process:
        precedence = Precedence()
        precedence.settle((process.pid,), yields=True)
        async with asyncio.timeout(TIMEOUT_S):
            while precedence._is_possible and not precedence._lowered:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)
        if precedence._is_possible:
            taken = Path(f"/proc/{process.pid}/autogroup").read_text()
            assert taken.endswith(f" nice {YIELDING_NICE}\n")
        precedence.stop()
        process.communicate(b"\n")
