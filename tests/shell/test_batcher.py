"""The batcher: nothing it makes is beyond what the core accepts, whatever callers send."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.replica import batcher as module
from coordinator.replica.batcher import Batcher, LooseCommand, SessionRequest
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.log.v1 import log_pb2
from viewstamp.errors import Refusal
from viewstamp.limits import PREPARE_BODY_BYTES_MAX, PREPARE_COMMANDS_MAX, SYSTEM_USER_ID

TRACE_PARENT = "00-" + 32 * "a" + "-" + 16 * "b" + "-01"
U64_MAX = 2**64 - 1


def loose(size: int, user_id: int = U64_MAX) -> LooseCommand:
    """Return a command with everything that adds to its size."""
    future = asyncio.Future[module.Reply](loop=_LOOP)
    return LooseCommand(2**32 - 1, bytes(size), user_id, U64_MAX, TRACE_PARENT, future)


def acknowledgement() -> SessionRequest:
    """Return a request without commands."""
    logged = log_pb2.LoggedRequest(session_id=1, acked=1)
    return SessionRequest(logged, asyncio.Future[module.Reply](loop=_LOOP))


_LOOP = asyncio.new_event_loop()


@given(st.lists(st.integers(0, PREPARE_BODY_BYTES_MAX), min_size=1, max_size=12), st.data())
def test_prepares_are_never_too_large(sizes: list[int], data: st.DataObject) -> None:
    """However commands are sized and mixed, bodies fit, and every command is in exactly one."""
    batcher, accepted = Batcher(), 0
    for size in sizes:
        try:
            batcher.add(loose(size, data.draw(st.sampled_from([0, 1, SYSTEM_USER_ID, U64_MAX]))))
        except Refusal as refusal:
            assert refusal.reason == Reason.REASON_COMMAND_TOO_LARGE
            assert size > PREPARE_BODY_BYTES_MAX - 200
        else:
            accepted += 1
    taken = 0
    while (batch := batcher.take()) is not None:
        assert batch.command_count
        assert len(batch.body) <= PREPARE_BODY_BYTES_MAX
        body = log_pb2.PrepareBody.FromString(batch.body)
        assert sum(span.count for r in body.requests for span in r.spans) == batch.command_count
        taken += batch.command_count
    assert taken == accepted


@pytest.mark.parametrize("below", range(0, 400, 7))
def test_largest_command(below: int) -> None:
    """Around the limit a lone command is either refused or makes a body that fits."""
    batcher = Batcher()
    try:
        batcher.add(loose(PREPARE_BODY_BYTES_MAX - below))
    except Refusal as refusal:
        assert refusal.reason == Reason.REASON_COMMAND_TOO_LARGE
        assert below < 200
    else:
        batch = batcher.take()
        assert batch is not None and len(batch.body) <= PREPARE_BODY_BYTES_MAX


def test_acknowledgements_do_not_make_a_prepare_endless() -> None:
    """Requests without commands are counted as such: a prepare holds a limited number."""
    batcher = Batcher()
    for _ in range(PREPARE_COMMANDS_MAX + 1):
        batcher.add(acknowledgement())
    sizes = []
    while (batch := batcher.take()) is not None:
        assert batch.command_count == 0
        sizes.append(len(batch.requests))
    assert sizes == [PREPARE_COMMANDS_MAX, 1]


def test_waiting_bytes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even the smallest requests count, and what is taken makes room again."""
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 10 * 600)
    batcher = Batcher()
    with pytest.raises(Refusal) as caught:
        for _ in range(20):
            batcher.add(acknowledgement())
    assert caught.value.reason == Reason.REASON_OVERLOADED
    assert batcher.take() is not None
    batcher.add(acknowledgement())


async def test_refusing_all() -> None:
    """Everyone who waits is told, callers who have left excepted."""
    batcher = Batcher()
    futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
    for future in futures:
        batcher.add(LooseCommand(200, b"", 0, 1, "", future))
    futures[0].cancel()
    batcher.refuse_all(Refusal(Reason.REASON_NO_SPACE, "full"))
    assert len(batcher) == 0
    for future in futures[1:]:
        with pytest.raises(Refusal, match="full"):
            await future


def request_of(user_id: int, commands: int, size: int = 0) -> SessionRequest:
    """Return a request of a session."""
    logged = log_pb2.LoggedRequest(session_id=user_id, number=1)
    logged.spans.add(code=1, count=commands, items=bytes(size), user_id=user_id)
    return SessionRequest(logged, asyncio.Future[module.Reply](loop=_LOOP), user_id)


def prepares(batcher: Batcher) -> list[list[int]]:
    """Take everything; return whose requests are in which prepare."""
    taken = []
    while (batch := batcher.take()) is not None:
        taken.append([request.session_id for request in batch.requests])
    return taken


@pytest.mark.parametrize(("commands", "size"), [(1_000, 0), (8_190, 0), (1, 1_000_000)])
def test_a_flood_of_one_user_delays_nobody_by_more_than_a_turn(commands: int, size: int) -> None:
    """Who comes last with little is in one of the first prepares, and has their order there."""
    batcher = Batcher()
    for _ in range(40):
        batcher.add(request_of(1, commands, size))
    for commands_of_two in (1, 2, 3):
        batcher.add(request_of(2, commands_of_two))
    batcher.add(request_of(3, 1))
    taken = prepares(batcher)
    assert sorted(user_id for prepare in taken for user_id in prepare) == [1] * 40 + [2] * 3 + [3]
    assert [user_id for prepare in taken[:2] for user_id in prepare if user_id > 1] == [2, 2, 2, 3]


def test_large_requests_get_no_more_than_small_ones() -> None:
    """Whoever sends the largest requests waits while others have as many turns as they take."""
    batcher = Batcher()
    for _ in range(4):
        batcher.add(request_of(1, 8_190))
    for _ in range(32):
        batcher.add(request_of(2, 1_023))
    order = [user_id for prepare in prepares(batcher) for user_id in prepare]
    second = [index for index, user_id in enumerate(order) if user_id == 1][1]
    assert 14 <= order[:second].count(2) <= 18


def test_loose_commands_of_many_users_share_a_request() -> None:
    """Turns cost a crowd of single callers no request each."""
    batcher = Batcher()
    for user_id in range(100):
        batcher.add(loose(10, user_id))
    batch = batcher.take()
    assert batch is not None
    assert (batch.command_count, len(batch.requests)) == (100, 1)
    assert [span.user_id for span in batch.requests[0].spans] == list(range(100))
