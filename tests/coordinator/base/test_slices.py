"""Long work in slices: the event loop turns between them, and ordered work keeps its order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from coordinator.base.slices import SLICE_MS, SlicedWork, Steps, at_once
from coordinator.mux import types as mux_types
from coordinator.replica.mux_effects import MuxEffects

STEPS = 5


def take_a_slice() -> None:
    """Work for as long as a slice lasts."""
    time.sleep(SLICE_MS / 1000)  # a slice lasts this long; the sleep waits for no condition


def long_work(result: str) -> Steps[str]:
    """Take a slice at each step."""
    for _ in range(STEPS):
        take_a_slice()
        yield
    return result


class LoopTurns:
    """Counts the turns of the loop until it is stopped."""

    def __init__(self) -> None:
        self.count = 0
        self._is_stopped = False
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self.count += 1
        if not self._is_stopped:
            asyncio.get_running_loop().call_soon(self._turn)

    def stop(self) -> int:
        """Return how many turns there were."""
        self._is_stopped = True
        return self.count


async def test_the_loop_turns_between_slices() -> None:
    """Work that takes several slices lets the loop turn after each."""
    turns = LoopTurns()
    assert await SlicedWork(long_work("done")).finish() == "done"
    assert turns.stop() >= STEPS


async def test_short_work_is_done_at_once() -> None:
    """Work that takes no slice lets nothing else run in between."""
    turns = LoopTurns()
    assert await SlicedWork(short_work()).finish() == "done"
    assert turns.stop() == 0
    assert at_once(short_work()) == "done"


def short_work() -> Steps[str]:
    """Take no time."""
    yield
    return "done"


def batch(stage: mux_types.Stage, sequence: int) -> mux_types.SendBatch:
    """Return the function that sends a batch."""
    return mux_types.SendBatch(mux_types.StageBatch(stage, sequence, 1, 2, ()))


class Carried:
    """Remembers what was carried out; each effect takes a slice, and one may cause others."""

    def __init__(self) -> None:
        self.seen: list[mux_types.MuxEffect] = []
        self.follow: dict[int, mux_types.MuxEffect] = {}
        self.effects = MuxEffects(self, self.carry_out, self.guard)  # type: ignore[arg-type]

    def carry_out(self, effect: mux_types.MuxEffect) -> None:
        """Note an effect."""
        take_a_slice()
        self.seen.append(effect)
        if (follows := self.follow.get(len(self.seen))) is not None:
            self.effects.lead(lambda: [follows])

    def fail_reads(self, stage: mux_types.Stage, error: bytes) -> list[mux_types.MuxEffect]:
        """Have no reads."""
        return []

    def guard(self, action: Callable[[], None]) -> None:
        """Run an action."""
        action()

    async def until(self, count: int) -> None:
        """Wait until so many effects were carried out."""
        while len(self.seen) < count:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_effects_keep_their_order_over_slices() -> None:
    """An effect that comes while others wait runs after them, even if one of them caused it."""
    carried = Carried()
    expected = [batch(mux_types.Stage.STREAMS, sequence) for sequence in range(1, 6)]
    carried.follow[1] = expected[3]
    carried.effects.lead(lambda: expected[:3])
    assert len(carried.seen) < 3, "a slice has no end"
    turns = LoopTurns()
    await carried.until(3)
    carried.effects.lead(lambda: expected[4:])
    await carried.until(5)
    assert turns.stop() >= 2
    assert carried.seen == expected


@pytest.mark.parametrize("sequence", [0, 1])
async def test_reads_that_wait_are_not_sent_to_the_next_process(sequence: int) -> None:
    """Batches outside the log die with the process, even those on their way; logged ones do not."""
    carried = Carried()
    effects = [batch(mux_types.Stage.STREAMS, 9), batch(mux_types.Stage.STREAMS, sequence)]
    other = batch(mux_types.Stage.USERS, 0)
    carried.effects.lead(lambda: [*effects, other])
    assert len(carried.seen) == 1
    carried.effects.stage_lost(mux_types.Stage.STREAMS)
    expected = [effects[0], *([effects[1]] if sequence else []), other]
    await carried.until(len(expected))
    assert carried.seen == expected


async def test_nobody_sees_half_of_what_a_prepare_tells() -> None:
    """The loop turns before a cut or after its `Applied`, but never between: a task that looked
    at the generation then would see it frozen and not cut, and end the replica."""
    carried = Carried()
    nothing: Any = None
    told: list[mux_types.MuxEffect] = [
        mux_types.CutTaken(4, 7, 0, 9, 1, 1, nothing, nothing),
        mux_types.CatalogChanged((), ()),
        mux_types.Applied(7, 0, 9, (), ()),
    ]
    later = batch(mux_types.Stage.STREAMS, 1)
    carried.effects.lead(lambda: [*told, later])
    assert carried.seen == told
    await carried.until(4)
    assert carried.seen == [*told, later]
