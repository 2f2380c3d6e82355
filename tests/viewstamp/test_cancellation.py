"""A loop over calls of gRPC ends when it is cancelled, also if a call answers with its status."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import grpc.aio
import pytest

from viewstamp.cancellation import answer_of, end_if_cancelled

TURNS_MAX = 3
STATUS = grpc.aio.AioRpcError(
    grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata(), grpc.aio.Metadata()
)


class RepeatingCaller:
    """Calls again and again; each call waits, and answers a cancellation with its status."""

    def __init__(self) -> None:
        self.turns = 0

    async def run(self) -> None:
        """Begin again after each failure."""
        while self.turns < TURNS_MAX:
            end_if_cancelled()
            self.turns += 1
            with contextlib.suppress(grpc.RpcError):
                await self._call()

    async def _call(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise STATUS from None


async def test_a_lost_cancellation_ends_the_loop() -> None:
    """One cancellation is enough for a loop that asks at each turn."""
    caller = RepeatingCaller()
    task = asyncio.create_task(caller.run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert caller.turns == 1


@pytest.mark.parametrize("raises", [False, True])
async def test_a_cancellation_lost_in_a_call_ends_the_task(*, raises: bool) -> None:
    """What a call answers when it is cancelled, or its status, does not have the task go on."""
    after: list[str] = []

    async def call() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if raises:
                raise STATUS from None
        return "answer"

    async def go_on() -> None:
        with contextlib.suppress(grpc.RpcError):
            after.append(await answer_of(call()))
        after.append("went on")

    task = asyncio.create_task(go_on())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert after == []


async def test_a_call_answers_in_time() -> None:
    """An answer and a status pass through, and a timeout around a call stays one."""

    async def refused() -> str:
        raise STATUS

    assert await answer_of(asyncio.sleep(0, "answer")) == "answer"
    with pytest.raises(grpc.RpcError):
        await answer_of(refused())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await answer_of(asyncio.Event().wait())


async def test_nothing_ends_without_a_cancellation() -> None:
    """A task that nobody cancelled goes on, as does one whose timeout has passed."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    end_if_cancelled()


async def test_a_cancelled_task_may_still_call() -> None:
    """What cleans up after a cancellation gets answers and statuses."""
    heard: list[str] = []

    async def refused() -> str:
        raise STATUS

    async def clean_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            heard.append(await answer_of(asyncio.sleep(0, "answer")))
            with contextlib.suppress(grpc.RpcError):
                await answer_of(refused())
            heard.append("went on")

    task = asyncio.create_task(clean_up())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert heard == ["answer", "went on"]


async def _lose() -> str:
    """Wait, and lose the cancellation that ends the waiting."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    return "answer"


async def _within_a_timeout() -> str:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    return "answer"


async def _within_a_group() -> str:
    async def fail() -> None:
        raise ValueError

    with contextlib.suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await asyncio.Event().wait()
    return "answer"


async def _within_wait_for() -> str:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.001)
    return "answer"


@pytest.mark.parametrize("call", [_within_a_timeout, _within_a_group, _within_wait_for])
@pytest.mark.parametrize("was_cancelled", [False, True])
async def test_what_a_call_cancels_itself_invents_no_cancellation(
    call: Callable[[], Awaitable[str]], *, was_cancelled: bool
) -> None:
    """Timeouts and groups inside a call end there, also while a cancelled task cleans up."""
    heard: list[str] = []

    async def clean_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            heard.append(await answer_of(call()))

    if was_cancelled:
        task = asyncio.create_task(clean_up())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        heard.append(await answer_of(call()))
    assert heard == ["answer"]


async def _timeout_of_two() -> None:
    async with asyncio.timeout(60), asyncio.timeout(0.001):
        await answer_of(_lose())


async def _timeout_of_a_task() -> None:
    await asyncio.wait_for(answer_of(_lose()), 0.001)


async def _timeout_behind_a_timeout() -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.001):
            await answer_of(_lose())
    assert await answer_of(asyncio.sleep(0, "answer")) == "answer"
    async with asyncio.timeout(0.001):
        await answer_of(_lose())


@pytest.mark.parametrize(
    "timed_out", [_timeout_of_two, _timeout_of_a_task, _timeout_behind_a_timeout]
)
async def test_a_lost_timeout_is_one(timed_out: Callable[[], Awaitable[None]]) -> None:
    """A timeout whose cancellation a call loses ends the call all the same, and as a timeout."""
    with pytest.raises(TimeoutError):
        await timed_out()
    end_if_cancelled()
    assert await answer_of(asyncio.sleep(0, "answer")) == "answer"


async def test_a_group_ends_a_call_that_loses_its_cancellation() -> None:
    """A task of a group is over when another one fails, and only that failure is told."""
    after: list[str] = []

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError

    async def go_on() -> None:
        after.append(await answer_of(_lose()))

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(go_on())
            group.create_task(fail())
    assert [type(each) for each in caught.value.exceptions] == [ValueError]
    assert after == []
    # A group of Python 3.11 leaves its own task counted as cancelled, which may go on calling.
    assert await answer_of(asyncio.sleep(0, "answer")) == "answer"
