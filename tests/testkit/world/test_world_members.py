"""Members of a group in a world: what they read, and how it is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from testkit.world.member_offsets import ASKED, COMMITTED, TOO_LATE, AcknowledgedOffsets
from testkit.world.members import PartitionsRead
from testkit.world.options import WorldOptions
from testkit.world.run import WorldRun
from testkit.world.schedule import WorldSchedule
from testkit.world.seeds import good_until

Verdict = Callable[[AcknowledgedOffsets, str, Mapping[int, int], Mapping[int, int]], None]

OPTIONS = WorldOptions(
    members=3,
    seconds=6,
    faults=("pause_client", "cut_client", "kill", "pause_service"),
    lasts_ms_max=3_000,
)


def readings(*looks: tuple[int, str, set[int]]) -> list[str]:
    """Return the verdict on looks, each at a time in nanoseconds."""
    schedule = WorldSchedule(1)
    read = PartitionsRead(schedule, AcknowledgedOffsets(Counter()))
    for now_ns, program, owned in looks:
        schedule.now_ns = now_ns
        read.look(program, owned)
    return read.violations()


def test_one_after_another_is_right() -> None:
    """A partition may go to another program once the first one has looked without it."""
    assert readings((1, "m0", {0, 1}), (5, "m0", {0}), (6, "m1", {1}), (9, "m1", {1})) == []


def test_a_program_that_stood_still_has_not_read() -> None:
    """Between its last look and the next one, which shows nothing, others may read."""
    assert readings((1, "m0", {0}), (5, "m1", {0}), (9, "m0", set()), (10, "m1", {0})) == []


def test_two_readers_are_found() -> None:
    """A look at a partition that another program read before and after is a violation."""
    (found,) = readings((1, "m0", {0}), (5, "m1", {0}), (9, "m0", {0}))
    assert found == "member m1 read partition 0 at 5 ns, and m0 until 9 ns"


@pytest.mark.parametrize("transport", ["grpcio", "wire"])
def test_members_come_and_go(transport: str) -> None:
    """Seeds in which members are paused and cut off keep the promise, on both transports."""
    options = replace(OPTIONS, transport=transport)
    counts = good_until(range(1, 41), options, "partitions read by members", "pause_client")
    assert counts["partitions read by members"] > 3


FLOOR = {0: 5, 1: 3}


@pytest.mark.parametrize("verdict", [AcknowledgedOffsets.stored, AcknowledgedOffsets.told])
@pytest.mark.parametrize(
    ("told", "partition"),
    [({0: 5, 1: 7}, None), ({0: 5, 1: 3, 2: 1}, None), ({0: 4, 1: 3}, 0), ({0: 6, 1: 2}, 1)],
)
def test_offsets_below_what_was_acknowledged_are_found(
    verdict: Verdict, told: dict[int, int], partition: int | None
) -> None:
    """Nobody may be told a lower offset, or store one; of other partitions any is right."""
    acknowledged = AcknowledgedOffsets(Counter())
    verdict(acknowledged, "m1", FLOOR, told)
    found = [each.partition(" of partition ")[2] for each in acknowledged.violations]
    low = [] if partition is None else [partition]
    assert found == [f"{each}, and {FLOOR[each]} had been committed" for each in low]


def test_the_highest_acknowledged_offset_counts() -> None:
    """A later commit that is lower excuses nobody, and an offset that is not told at all is 0."""
    acknowledged = AcknowledgedOffsets(Counter())
    for offset in (5, 3):
        acknowledged.stored("m0", {}, {0: offset})
    assert acknowledged.floor([0, 1]) == {0: 5}
    acknowledged.told("m1", acknowledged.floor([0, 1]), {})
    assert acknowledged.violations == [
        "member m1 was told offset 0 of partition 0, and 5 had been committed"
    ]


def test_members_commit_and_are_told() -> None:
    """Members commit as they go, others are told of it, and late commits are tried."""
    outcome = WorldRun(1, OPTIONS).run()
    assert outcome.violations == []
    assert outcome.marks[COMMITTED] > 10 and outcome.marks[ASKED] and outcome.marks[TOO_LATE]


@pytest.mark.long
def test_a_run_with_members_is_one_run() -> None:
    """The same seed gives the same digest: no clock of the machine gets in."""
    first, second = (WorldRun(3, OPTIONS).run() for _ in range(2))
    assert first.digest == second.digest
    assert first.violations == []
