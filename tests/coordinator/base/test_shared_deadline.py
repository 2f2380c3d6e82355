"""Waits that share a deadline end in time, and nobody's cancellation is lost."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.base.shared_deadline import SharedDeadline

LONG_MS = 3_600_000


def new_future() -> asyncio.Future[int]:
    """Return a future of the running loop."""
    return asyncio.get_running_loop().create_future()


async def test_a_wait_returns_the_result() -> None:
    """Who is answered in time gets the answer."""
    deadline, future = SharedDeadline(LONG_MS), new_future()
    waiting = asyncio.create_task(deadline.wait(future))
    await asyncio.sleep(0)
    future.set_result(7)
    assert await waiting == 7


async def test_a_wait_raises_what_the_future_has() -> None:
    """A refusal reaches who waits."""
    deadline, future = SharedDeadline(LONG_MS), new_future()
    future.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await deadline.wait(future)


async def test_each_wait_ends_after_its_time() -> None:
    """One timer ends all waits, and waits that begin after it fired."""
    deadline = SharedDeadline(20)
    for _ in range(2):
        answered, futures = new_future(), [new_future() for _ in range(3)]
        answered.set_result(1)
        waits = [asyncio.create_task(deadline.wait(each)) for each in (answered, *futures)]
        await asyncio.sleep(0.01)
        late = asyncio.create_task(deadline.wait(new_future()))
        results = await asyncio.gather(*waits, late, return_exceptions=True)
        assert results[0] == 1
        assert [type(result) for result in results[1:]] == [TimeoutError] * 4
        assert all(future.cancelled() for future in futures)


async def test_what_is_shielded_goes_on() -> None:
    """A wait for a shielded future ends alone: others may still get the answer."""
    shared = new_future()
    with pytest.raises(TimeoutError):
        await SharedDeadline(1).wait(asyncio.shield(shared))
    assert not shared.done()


async def test_a_cancellation_goes_on() -> None:
    """A caller that is gone is no caller that waited for too long."""
    deadline, future = SharedDeadline(LONG_MS), new_future()
    waiting = asyncio.create_task(deadline.wait(future))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert future.cancelled()


async def test_a_cancellation_at_the_deadline_goes_on() -> None:
    """A caller that is cancelled in the turn in which its time is over ends as cancelled."""
    deadline, future = SharedDeadline(5), new_future()
    future.add_done_callback(lambda _: waiting.cancel())  # before the wait hears of it
    waiting = asyncio.create_task(deadline.wait(future))
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_future_that_another_cancels_is_no_timeout() -> None:
    """Only the deadline is told as one."""
    deadline, future = SharedDeadline(LONG_MS), new_future()
    waiting = asyncio.create_task(deadline.wait(future))
    await asyncio.sleep(0)
    future.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
