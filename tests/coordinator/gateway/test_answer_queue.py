"""Answers of a Submit stream are in order, packed where allowed, and made one at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from coordinator.base.slices import SLICE_MS
from coordinator.gateway.answers import PACKED_ANSWERS_BYTES_MAX, Answer, AnswerQueue, UserAnswers
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2


def command(number: int, size: int = 0) -> submit_pb2.CommandReply:
    """Return an answer to commands of about so many bytes."""
    spans = [submit_pb2.SpanReply(results=bytes(size))]
    return submit_pb2.CommandReply(number=number, spans=spans)


def read(read_id: int) -> submit_pb2.ReadReply:
    """Return an answer to reads."""
    return submit_pb2.ReadReply(read_id=read_id)


def made(answer: Answer) -> Callable[[], Answer]:
    """Return a function that takes a slice to make an answer."""

    def make() -> Answer:
        time.sleep(SLICE_MS / 1000)  # a slice lasts this long; the sleep waits for no condition
        return answer

    return make


async def taken(queue: AnswerQueue) -> list[list[int]]:
    """Return the numbers of all answers, message by message."""
    messages = []
    while queue:
        answers = await queue.take()
        messages.append([_number(answer) for answer in answers])
    return messages


def _number(answer: Answer) -> int:
    return answer.number if isinstance(answer, submit_pb2.CommandReply) else answer.read_id


@pytest.mark.parametrize(
    ("packs", "expected"),
    [(True, [[1, 2], [3], [4], [5]]), (False, [[1], [2], [3], [4], [5]])],
)
async def test_answers_keep_their_order(packs: bool, expected: list[list[int]]) -> None:
    """Only answers to commands share a message, up to its size, whenever they were made."""
    queue = AnswerQueue(packs=packs, of_user=UserAnswers())
    queue.add(command(1))
    queue.add(made(command(2)))
    queue.add(made(read(3)))
    queue.add(command(4))
    queue.add(made(command(5, PACKED_ANSWERS_BYTES_MAX)))
    assert await taken(queue) == expected


async def test_the_loop_turns_between_two_answers() -> None:
    """Answers that share a message and take long to make let the loop turn between them."""
    queue = AnswerQueue(packs=True, of_user=UserAnswers())
    for number in range(1, 5):
        queue.add(made(command(number)))
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while queue:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    assert await taken(queue) == [[1, 2, 3, 4]]
    await turning
    assert turns >= 3


async def test_an_answer_that_cannot_be_made_holds_up_none_before_it() -> None:
    """The answers before a failed one are written, and then the writer learns of the failure."""

    def fail() -> Answer:
        raise ValueError("planted")

    queue = AnswerQueue(packs=True, of_user=UserAnswers())
    queue.add(command(1))
    queue.add(fail)
    assert [_number(answer) for answer in await queue.take()] == [1]
    with pytest.raises(ValueError, match="planted"):
        await queue.take()
    assert not queue
