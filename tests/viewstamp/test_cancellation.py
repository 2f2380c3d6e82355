"""A loop over calls of gRPC ends when it is cancelled, also if a call answers with its status."""

from __future__ import annotations

import asyncio
import contextlib

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
