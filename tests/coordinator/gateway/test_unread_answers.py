"""Answers that a client leaves unread: their weight is bounded, and making them takes turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from coordinator.base.slices import SLICE_MS, at_once
from coordinator.gateway import answers
from coordinator.gateway.answers import AnswerQueue, UserAnswers
from coordinator.gateway.replies import weight_of
from coordinator.mux.replies import weight
from coordinator.mux.sessions import HeaderVerdict
from coordinator.mux.types import IndexedError, RequestReply, SpanReply
from coordinator.replica.answers import request_reply
from coordinator.stages import codec
from tests.coordinator.gateway.test_admission import SESSION
from tests.coordinator.gateway.test_stream_fences import Face, FencedWire, turns
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.framing import EMPTY_FRAME
from viewstamp.limits import REQUEST_COMMANDS_MAX

ERROR = errors_pb2.Error(reason=Reason.REASON_PERMISSION_DENIED).SerializeToString()
ASKED = 25


def all_refused(number: int = 1) -> RequestReply:
    """Return a reply that refuses all commands of a request."""
    refused = tuple(IndexedError(index, ERROR) for index in range(REQUEST_COMMANDS_MAX))
    span = SpanReply(EMPTY_FRAME * REQUEST_COMMANDS_MAX, refused)
    return RequestReply(SESSION, number, 1, 1, 1, (span,))


async def keep(face: Face, stream: FencedWire) -> RequestReply:
    """Have the table keep a reply to request 1, and let its first caller leave."""
    stream.send(1)
    await turns()
    (request,) = at_once(codec.logged_requests([face.world.logged[0].logged]))
    mux, reply = face.world.mux, all_refused()
    assert mux.sessions.check_header(request) is HeaderVerdict.APPLY
    mux.admission.apply(SESSION, 1)
    mux.replies.store(reply)
    face.world.logged[0].future.set_result(request_reply(reply))
    await stream.written.get()
    return reply


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[IndexedError]]:
    """Yield the refusals that are decoded in the block."""
    seen: list[IndexedError] = []
    decode = codec.indexed_error

    def indexed_error(error: IndexedError) -> errors_pb2.IndexedError:
        seen.append(error)
        return decode(error)

    monkeypatch.setattr(codec, "indexed_error", indexed_error)
    yield seen


async def test_a_kept_reply_is_not_made_for_who_does_not_read(decoded: list[IndexedError]) -> None:
    """All questions for a kept reply share it until its answer is about to be written, and the
    stream reads nothing more once the due answers weigh too much."""
    face = Face()
    async with face.stream() as stream:
        reply = await keep(face, stream)
        decoded.clear()
        stream.may_write.clear()
        for _ in range(ASKED):
            stream.send(1)
        async with asyncio.timeout(30):
            await turns()
        due = ASKED - stream.arrived.qsize()
        assert due <= 2 + answers.ANSWERS_DUE_BYTES_MAX // weight(reply)
        assert len(decoded) <= REQUEST_COMMANDS_MAX
        stream.may_write.set()
        async with asyncio.timeout(60):
            for _ in range(ASKED):
                assert (await stream.written.get()).command.number == 1
        await turns()
        assert face.streams.answers_of(0).weight == 0


async def test_one_answer_may_always_be_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream goes on, one answer at a time, whatever it and its user's other streams owe."""
    monkeypatch.setattr(answers, "ANSWERS_DUE_BYTES_MAX", 0)
    monkeypatch.setattr(answers, "ANSWERS_DUE_BYTES_PER_USER_MAX", 0)
    face = Face()
    async with face.stream(0) as greedy, face.stream() as stream:
        greedy.may_write.clear()
        greedy.send(1)  # no session, which is answered at once
        await turns()
        stream.may_write.clear()
        stream.send(3, 4, 5)  # gaps
        await turns()
        stream.may_write.set()
        async with asyncio.timeout(10):
            numbers = [(await stream.written.get()).command.number for _ in range(3)]
        assert numbers == [3, 4, 5]


async def test_streams_of_one_user_owe_so_much_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a user's unread answers reach their limit each stream has one answer due; a stream
    that ends owes nothing."""
    limit = 8 * answers.ANSWER_OVERHEAD_BYTES
    monkeypatch.setattr(answers, "ANSWERS_DUE_BYTES_PER_USER_MAX", limit)
    face = Face()
    async with face.stream() as stream:
        async with face.stream(0) as greedy:
            for each in greedy, stream:
                each.may_write.clear()
                for _ in range(ASKED):
                    each.send(2)  # a gap, or no session
                await turns()
            read = [ASKED - each.arrived.qsize() for each in (greedy, stream)]
            assert 8 <= read[0] <= 10
            assert 1 <= read[1] <= 2
        stream.may_write.set()
        async with asyncio.timeout(10):
            for _ in range(ASKED):
                await stream.written.get()


def test_what_comes_after_the_end_is_not_owed() -> None:
    """An answer that is ready after its stream has ended weighs nothing."""
    of_user = UserAnswers()
    queue = AnswerQueue(packs=True, of_user=of_user)
    queue.add(submit.CommandReply())
    queue.close()
    queue.add(submit.CommandReply(), 1_000)
    assert (len(queue), of_user.weight) == (0, 0)


async def test_streams_of_one_user_take_turns_at_making_answers() -> None:
    """The loop turns between slices of making answers, whatever the number of streams."""
    of_user = UserAnswers()
    made, made_in_turn = 0, [0]

    def make() -> submit.CommandReply:
        nonlocal made
        made += 1
        time.sleep(SLICE_MS / 1000)  # a slice lasts this long; the sleep waits for no condition
        return submit.CommandReply()

    async def take() -> None:
        queue = AnswerQueue(packs=True, of_user=of_user)
        queue.add(make)
        await queue.take()

    taking = [asyncio.create_task(take()) for _ in range(8)]
    while made < len(taking):
        await asyncio.sleep(0)
        made_in_turn.append(made)
    await asyncio.gather(*taking)
    assert max(b - a for a, b in pairwise(made_in_turn)) <= 2


async def test_a_large_answer_is_not_made_ahead() -> None:
    """An answer too large for the current message is made only when it is first in the next one."""
    made: list[int] = []

    def make(number: int) -> submit.CommandReply:
        made.append(number)
        return submit.CommandReply(number=number)

    queue = AnswerQueue(packs=True, of_user=UserAnswers())
    queue.add(lambda: make(1))
    queue.add(lambda: make(2), answers.PACKED_ANSWERS_BYTES_MAX)
    assert [len(await queue.take()), made] == [1, [1]]
    assert [len(await queue.take()), made] == [1, [1, 2]]


async def test_what_was_weighed_is_what_is_kept() -> None:
    """An answer weighs what the table says of its reply, or hardly less."""
    reply = all_refused()
    weighed = answers.ANSWER_OVERHEAD_BYTES + weight_of(request_reply(reply))
    assert weight(reply) <= weighed <= weight(reply) + answers.ANSWER_OVERHEAD_BYTES
