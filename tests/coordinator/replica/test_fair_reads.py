"""Reads take turns: callers among one another, and all of them with commands."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.mux import types as mux
from coordinator.replica import read_shares
from coordinator.replica.fair_queue import FairQueue, QueuePlace
from coordinator.replica.lane import Lane
from coordinator.replica.read_shares import BYTES_PER_CALL, NOBODY, ReadShares, caller_of, weight_of
from tests.coordinator.replica.test_replica_reads import Setup
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import READ_GROUP_CALLS_MAX, READ_GROUP_CALLS_MIN


def place(name: str, weight: int = 1) -> QueuePlace[str]:
    """Return a place of a caller: "7b" is caller 7's."""
    caller, token = int(name[0]), int.from_bytes(name.encode(), "big")
    return QueuePlace(caller, token, weight, name)


def queue_of(*names: str) -> FairQueue[str]:
    """Return a queue to which these came in order."""
    queue: FairQueue[str] = FairQueue()
    for name in names:
        queue.add(place(name))
    return queue


def taken(queue: FairQueue[str], weight_max: int) -> list[str]:
    """Take a group."""
    return [each.item for each in queue.take(weight_max)]


def test_callers_take_turns() -> None:
    """A caller with many reads gets as many turns as one with few, in the next group, too."""
    queue = queue_of("1a", "1b", "1c", "1d", "2a", "2b", "3a")
    assert taken(queue, 4) == ["1a", "2a", "3a", "1b"]
    queue.add(place("3b"))
    assert taken(queue, 9) == ["2b", "1c", "3b", "1d"]
    assert not queue


def test_what_was_taken_for_nothing_comes_first() -> None:
    """A postponed read comes before the other reads that have had no turn."""
    queue = queue_of("1a", "1b", "2a")
    first = queue.take(3)
    queue.add(place("3a"))
    queue.add(place("1c"))
    queue.put_back(first[1:])
    assert [each.item for each in first] == ["1a", "2a", "1b"]
    assert taken(queue, 9) == ["2a", "1b", "3a", "1c"]


def test_who_leaves_has_no_turn() -> None:
    """A forgotten read is not taken, and forgetting one that is gone does nothing."""
    queue = queue_of("1a", "1b", "2a")
    for name in ("1a", "2a", "2a"):
        queue.remove(place(name))
    assert taken(queue, 9) == ["1b"]


def test_one_large_read_is_a_group() -> None:
    """A read larger than a group is taken alone."""
    queue: FairQueue[str] = FairQueue()
    for each in (place("1a", 100), place("2a", 1)):
        queue.add(each)
    assert [taken(queue, 8), taken(queue, 8)] == [["1a"], ["2a"]]


def test_two_groups_are_under_way() -> None:
    """New reads gather until all of a group has left the stages."""
    lane: Lane[str] = Lane()
    groups = []
    for name in ("1a", "1b", "1c", "1d"):
        lane.add(place(name))
        if lane.may_send:
            groups.append(lane.take())
    assert groups == [["1a"], ["1b"]]
    lane.left(place("1b").token)
    assert lane.take() == ["1c", "1d"]
    lane.add(place("1e"))
    found = [lane.may_send]
    for name in ("1c", "1d"):
        lane.left(place(name).token)
        found.append(lane.may_send)
    assert found == [False, False, True]


def test_groups_shrink_until_they_fit_into_a_slice() -> None:
    """A group with a postponed read halves the next; a full group that was done doubles it."""
    lane: Lane[str] = Lane()
    sizes = []
    for step in range(12):
        for letter in range(READ_GROUP_CALLS_MAX):
            lane.add(QueuePlace(1, step * READ_GROUP_CALLS_MAX + letter, 1, ""))
        before = set(lane.group_of)
        sizes.append(len(lane.take()))
        tokens = sorted(set(lane.group_of) - before)
        if step < 8:
            lane.postponed(QueuePlace(1, tokens[-1], 1, ""))
        for token in tokens:
            lane.left(token)
    assert sizes == [1024, 512, 256, 128, 64, 32, 16, 8, READ_GROUP_CALLS_MIN, 16, 32, 64]


def test_an_abandoned_read_is_not_sent_again() -> None:
    """A postponed read is not sent again if its caller left while its group was under way."""
    lane: Lane[str] = Lane()
    for name in ("1a", "1b"):
        lane.add(place(name))
    lane.take()
    for name in ("1a", "1b"):
        lane.postponed(place(name))
    lane.remove(place("1a"))
    for name in ("1a", "1b"):
        lane.left(place(name).token)
    assert lane.take() == ["1b"]


def a_read(token: int, user_id: int | None = 7, size: int = 10) -> mux.Read:
    """Return a read of two calls."""
    return mux.Read(token, (mux.ReadSpan(450, 2, b"x" * size),), user_id, 0)


def test_whose_turn_a_read_takes() -> None:
    """A read takes its user's turn, whatever its way in; calls and large requests count."""
    assert [caller_of(a_read(1, user_id)) for user_id in (7, 0, None)] == [7, 0, NOBODY]
    sizes = (10, 3 * BYTES_PER_CALL)
    assert [weight_of(a_read(1, size=size)) for size in sizes] == [2, 3]


@pytest.mark.parametrize(
    ("name", "limit", "users"),
    [
        ("READS_WAITING_PER_CALLER_MAX", 2, [7, 7]),
        ("READS_WAITING_PER_CALLER_BYTES_MAX", 29, [7, 7]),
        ("READ_INDEXES_WAITING_MAX", 2, [7, 8]),
        ("READS_WAITING_BYTES_MAX", 29, [7, 8]),
    ],
)
def test_what_may_wait(
    monkeypatch: pytest.MonkeyPatch, name: str, limit: int, users: list[int]
) -> None:
    """A caller beyond its share is refused, with a time to come again; others are not."""
    monkeypatch.setattr(read_shares, name, limit)
    shares = ReadShares()
    reads = [a_read(token, user) for token, user in enumerate(users)]
    for each in reads:
        shares.take(each)
    with pytest.raises(Refusal) as caught:
        shares.take(a_read(9))
    assert caught.value.reason == Reason.REASON_OVERLOADED
    assert "retry_delay_ms" in caught.value.details
    if "PER_CALLER" in name:
        shares.take(a_read(10, 8))
    shares.give_back(reads[0])
    shares.take(a_read(9))


async def test_a_postponed_read_is_sent_again_and_answered_once() -> None:
    """The caller of a postponed read notices nothing."""
    setup = Setup()
    future = setup.reads.start(a_read(1), linearizable=False, revision=0)
    await asyncio.sleep(0)
    setup.reads.postponed(1)
    setup.reads.left((1,))
    await asyncio.sleep(0)
    assert setup.mux.led == [1, 1]
    setup.reads.answered(mux.ReadAnswered(1, 10, 7, (), None))
    setup.reads.left((1,))
    assert (await future).first_revision == 10
    assert len(setup.reads) == 0


def signs(token: int, size: int = 10) -> mux.Read:
    """Return a read of two callers."""
    callers = tuple(mux.Caller(user_id, 0, user_id, 1) for user_id in (1, 2))
    return mux.Read(token, (mux.ReadSpan(450, 2, b"x" * size),), None, 0, callers=callers)


def test_reads_of_several_callers_have_turns_and_shares_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What signs of life hold keeps no others out, and their turns are nobody else's."""
    monkeypatch.setattr(read_shares, "READS_WAITING_PER_CALLER_BYTES_MAX", 15)
    monkeypatch.setattr(read_shares, "READS_WAITING_PER_CALLER_MAX", 1)
    shares = ReadShares()
    reads = [signs(1), signs(2), a_read(3, 0), a_read(4, None)]
    for each in reads:
        shares.take(each)
    assert len({caller_of(each) for each in reads}) == len(reads)
    for each in reads:
        shares.give_back(each)
    with pytest.raises(Refusal):
        shares.take(signs(5, size=16))


async def test_signs_of_life_are_read_beside_busy_users() -> None:
    """However many reads of several callers come, each waits for about a turn of each user."""
    setup, users, waits = Setup(), 20, []
    begun: dict[int, int] = {}  # the step at which each read of signs came, by token
    user_of: dict[int, int] = {}

    def begin_load(user_id: int) -> None:
        token = setup.reads.next_token()
        user_of[token] = user_id
        span = mux.ReadSpan(450, READ_GROUP_CALLS_MAX, b"")  # a group of its own
        read = mux.Read(token, (span,), user_id, 0)
        setup.reads.start(read, linearizable=False, revision=0)

    for user_id in (*range(users), *range(users)):
        begin_load(user_id)
    for step in range(400):  # of one read each: 25 ms, while signs come each 100 ms
        if step % 4 == 0:
            token = setup.reads.next_token()
            begun[token] = step
            setup.reads.start(signs(token), linearizable=False, revision=0)
        await asyncio.sleep(0)
        served = setup.mux.led[step]
        setup.reads.answered(mux.ReadAnswered(served, 10, 7, (), None))
        setup.reads.left((served,))
        if served in user_of:
            begin_load(user_of[served])
        else:
            waits.append(step - begun[served])
        await asyncio.sleep(0)
    assert len(waits) > 90
    assert max(waits) < 2 * users


async def test_abandoned_reads_count_until_they_have_left() -> None:
    """A caller that asks and leaves, again and again, fills no stage with useless work."""
    setup = Setup()
    for token in range(1, 9):
        setup.reads.start(a_read(token), linearizable=False, revision=0).cancel()
        await asyncio.sleep(0)
    kept = setup.reads.start(a_read(20), linearizable=False, revision=0)
    await asyncio.sleep(0)
    assert setup.mux.led == [20]
    abandoned = [setup.reads.start(a_read(n), linearizable=False, revision=0) for n in (21, 22, 23)]
    await asyncio.sleep(0)
    for future in abandoned:
        future.cancel()
    await asyncio.sleep(0)
    setup.reads.start(a_read(24), linearizable=False, revision=0)
    await asyncio.sleep(0)
    assert setup.mux.led == [20, 21, 22, 23]
    setup.reads.left((21, 22, 23))
    await asyncio.sleep(0)
    assert setup.mux.led == [20, 21, 22, 23, 24]
    kept.cancel()
