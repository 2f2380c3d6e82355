"""Turns of watches: a few go on in each turn of the loop, the longest waiting first."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from coordinator.gateway import watch_turns
from coordinator.gateway.watch_turns import WATCH_COST_CHANGES, WatchTurns


@pytest.mark.parametrize(
    ("changes", "in_each_turn"),
    [
        pytest.param(0, 4, id="little"),
        pytest.param(WATCH_COST_CHANGES, 2, id="as much as the message"),
        pytest.param(10 * WATCH_COST_CHANGES, 1, id="more than a turn has room for"),
    ],
)
async def test_watches_share_a_turn(
    monkeypatch: pytest.MonkeyPatch, changes: int, in_each_turn: int
) -> None:
    """As many watches go on in a turn of the loop as have little enough to do together."""
    monkeypatch.setattr(watch_turns, "CHANGES_AT_ONCE", 4 * WATCH_COST_CHANGES)
    turns, done = WatchTurns(), list[int]()

    async def watch(number: int) -> None:
        await turns.take(changes)
        done.append(number)

    tasks = [asyncio.ensure_future(watch(number)) for number in range(9)]
    counts = [0]
    while len(done) < len(tasks):
        await asyncio.sleep(0)
        counts.append(len(done))
    steps = [later - earlier for earlier, later in pairwise(counts)]
    assert max(steps) == in_each_turn
    assert done == sorted(done)
    await asyncio.gather(*tasks)


async def test_a_watch_that_ends_while_it_waits_takes_no_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever waits behind a watch that was cancelled goes on in its place."""
    monkeypatch.setattr(watch_turns, "CHANGES_AT_ONCE", WATCH_COST_CHANGES)
    turns = WatchTurns()
    _, gone, next_one = (asyncio.ensure_future(turns.take(0)) for _ in range(3))
    await asyncio.sleep(0)
    gone.cancel()
    async with asyncio.timeout(1):
        await next_one
    assert gone.cancelled()


async def test_a_turn_that_was_lost_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watches that end at their turn, or all at once before it, leave later ones theirs."""
    monkeypatch.setattr(watch_turns, "CHANGES_AT_ONCE", WATCH_COST_CHANGES)
    for turns_passed in range(6):
        turns = WatchTurns()
        waiting = [asyncio.ensure_future(turns.take(0)) for _ in range(4)]
        for _ in range(turns_passed):
            await asyncio.sleep(0)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        async with asyncio.timeout(1):
            for _ in range(3):
                await turns.take(10 * WATCH_COST_CHANGES)
