"""Watches: nothing is left out, repeated or reversed, each one ends for a reason, nothing stays."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.gateway import change_feed, kept_changes, watches
from coordinator.gateway.kept_changes import CHANGES_AT_ONCE
from tests.coordinator.gateway.fake_changes import (
    GROUP,
    MEMBER,
    PATIENCE_S,
    STREAM,
    TOPIC,
    USER,
    change,
    told,
    turns,
    until,
)
from tests.coordinator.gateway.watch_trial import (
    ALICE,
    BOB,
    CLUSTER_ID,
    EVERYTHING,
    OF_STREAM,
    WatchesTrial,
    WatchingClient,
)
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.watch.v1.watch_service_pb2 import Change, WatchRequest
from viewstamp.errors import Refusal
from viewstamp.limits import CATCH_UPS_PER_USER_MAX, FEED_BYTES_MAX, WATCH_MESSAGE_BYTES_MAX

BIG: Final = b"x" * (WATCH_MESSAGE_BYTES_MAX // 2 - 100)
WATCHES: Final = 20


async def test_the_first_message_says_where_the_feed_begins() -> None:
    """It comes at once and has no changes; by default the next revision is the first one."""
    trial = WatchesTrial()
    for number in range(3):
        trial.services.commit(change(STREAM, number))
    async with trial.watch() as present, trial.watch(2) as past:
        await trial.until_complete(past, 3)
        assert (present.headers[0], past.headers[0]) == (3, 1)
        assert [len(each.messages[0].changes) for each in (present, past)] == [0, 0]
        assert {each.header.cluster_id for each in past.messages} == {CLUSTER_ID}
        assert past.revisions == [2, 3]
        trial.services.commit(change(STREAM, 9))
        await trial.until_complete(present, 4)
        assert present.revisions == [4]
        assert (present.messages[-1].header.op, present.messages[-1].header.view) == (4, 1)


async def test_catching_up_becomes_following() -> None:
    """While the log goes on, a watch that resumes from the past neither repeats nor misses any."""
    trial = WatchesTrial(page_max=3)
    for number in range(20):
        trial.services.commit(change(STREAM, number), change(GROUP, number, 1, 1))
    client = trial.client()
    more = iter(range(100, 130))

    def commit() -> None:
        if (number := next(more, None)) is not None:
            trial.services.commit(change(TOPIC, number, 1), change(MEMBER, number, 1, 1))

    client.reading = commit
    async with trial.watch(1, client=client):
        await trial.until_complete(client, 50)
    assert told(client.changes) == told(trial.services.all_changes())
    assert client.headers == sorted(client.headers)
    assert len(client.changes) == 100


async def test_a_watch_may_begin_before_the_feed_is_there() -> None:
    """A watch that was opened behind what the feed has read yet does not get the rest of that."""
    trial = WatchesTrial()
    async with trial.watch() as first:
        for number in range(3):
            trial.services.commit(change(STREAM, number))
        async with trial.watch() as second:
            await trial.until_complete(first, 3)
            trial.services.commit(change(STREAM, 9))
            await trial.until_complete(second, 4)
            assert (second.headers, second.revisions) == ([3, 4], [4])


async def test_followers_hear_of_their_stream_alone() -> None:
    """A watch of a stream gets its changes, each once, whatever happens beside it."""
    trial = WatchesTrial()
    async with trial.watch(wanted=OF_STREAM) as client, trial.watch() as all_of_it:
        for stream in (2, 1, 2, 2, 1, 1, 2):
            trial.services.commit(change(TOPIC, stream, stream), change(USER, user=3))
            await turns(stream)
        await trial.until_complete(client, 6)
        await trial.until_complete(all_of_it, 7)
        assert client.revisions == [2, 5, 6]
        assert all_of_it.revisions == [each for each in range(1, 8) for _ in range(2)]


@given(
    steps=st.lists(
        st.tuples(st.lists(st.integers(1, 3), max_size=3), st.integers(0, 8)), max_size=25
    ),
    page_max=st.integers(1, 4),
    first=st.integers(1, 6),
    stalls=st.lists(st.booleans(), min_size=1, max_size=5),
)
def test_every_history_arrives_whole(
    steps: list[tuple[list[int], int]], page_max: int, first: int, stalls: list[bool]
) -> None:
    """Whatever is committed when, and however slowly it is read while the feed forgets it, each
    watch gets each change that it wants once and in order, and headers claim no more than that."""

    async def run() -> None:
        trial = WatchesTrial(page_max)
        for _ in range(first - 1):
            trial.services.commit(change(STREAM, 1))
        begin = trial.services.revision
        async with (
            trial.watch(1) as everything,
            trial.watch(1, OF_STREAM) as inside,
            trial.watch(first, progress_notifications=True) as present,
        ):
            clients = ((everything, 1, 0), (inside, 1, 1), (present, first, 0))
            for number, (streams, pause) in enumerate(steps):
                inside.may_read.set()
                if stalls[number % len(stalls)]:
                    inside.may_read.clear()
                trial.services.commit(*[change(TOPIC, stream, number) for stream in streams])
                await turns(pause)
            inside.may_read.set()
            last = trial.services.commit(change(STREAM, 1))
            for client, start, stream in clients:
                await trial.until_complete(client, last)
                wanted = [
                    each
                    for each in trial.services.all_changes(start)
                    if stream in (0, each.stream_id)
                ]
                assert told(client.changes) == told(wanted)
                check_headers(client, wanted)
            assert begin + len(steps) + 1 == last

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(change_feed, "FEED_INTERVAL_MS", 0)
        patch.setattr(kept_changes, "FEED_BYTES_MAX", 4_000)
        patch.setattr(watches, "WATCH_PROGRESS_MS", 0)
        asyncio.run(run())


def check_headers(client: WatchingClient, wanted: list[Change]) -> None:
    """Check that all that a header claims was sent with it or before it."""
    assert client.headers == sorted(client.headers)
    count = 0
    for message in client.messages:
        count += len(message.changes)
        revision = message.header.revision
        assert sum(1 for each in wanted if each.revision <= revision) <= count


async def test_large_revisions_are_sent_in_parts() -> None:
    """Until the last part, headers say that the revision before it is complete."""
    trial = WatchesTrial()
    trial.services.commit(change(STREAM, 1))
    steps = [change(TOPIC, 1, number, entity=BIG) for number in range(5)]
    async with trial.watch(1) as client:
        await trial.until_complete(client, 1)
        trial.services.commit(*steps)
        await trial.until_complete(client, 2)
        trial.services.commit(*steps[:1])
        await trial.until_complete(client, 3)
    async with trial.watch(1) as again:
        await trial.until_complete(again, 3)
    assert client.headers == [0, 1, 1, 1, 2, 3]
    assert [len(each.changes) for each in client.messages] == [0, 1, 2, 2, 1, 1]
    assert max(client.sizes) < 1.1 * WATCH_MESSAGE_BYTES_MAX
    assert told(again.changes) == told(client.changes) == told(trial.services.all_changes())
    check_headers(again, again.changes)


async def test_long_lists_leave_the_loop_to_others() -> None:
    """However many watches have however many changes to go through, others have their turns."""
    trial = WatchesTrial()
    clients = [trial.client() for _ in range(WATCHES)]
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    requests = [trial.serve(each, WatchRequest().SerializeToString()) for each in clients]
    tasks = [asyncio.ensure_future(each) for each in requests]
    await until(lambda: all(each.messages for each in clients))
    trial.services.commit(*[change(TOPIC, 1, number) for number in range(8 * CHANGES_AT_ONCE)])
    await until(lambda: trial.feed.complete_revision == 1)
    ticking = asyncio.ensure_future(tick())
    await until(lambda: all(each.headers[-1] == 1 for each in clients))
    # One part of one watch in a turn; a few were done before the ticking began.
    assert ticks >= 7 * WATCHES
    for task in (ticking, *tasks):
        task.cancel()
    await asyncio.gather(ticking, *tasks, return_exceptions=True)
    assert [len(each.changes) for each in clients] == [8 * CHANGES_AT_ONCE] * WATCHES


async def test_watches_take_what_came_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands who are woken for one revision do not all take it in one turn of the loop."""
    takes_by_turn = Counter[int]()
    turn = 0
    real = change_feed.FeedFollower.take

    def take(self: change_feed.FeedFollower) -> kept_changes.Taken | None:
        takes_by_turn[turn] += 1
        return real(self)

    monkeypatch.setattr(change_feed.FeedFollower, "take", take)
    trial = WatchesTrial()
    clients = [trial.client() for _ in range(WATCHES)]
    requests = [trial.serve(each, WatchRequest().SerializeToString()) for each in clients]
    tasks = [asyncio.ensure_future(each) for each in requests]
    await until(lambda: all(each.messages for each in clients))
    await turns()
    takes_by_turn.clear()
    trial.services.commit(*[change(TOPIC, 1, number) for number in range(CHANGES_AT_ONCE)])
    while not all(each.changes for each in clients):
        await asyncio.sleep(0)
        turn += 1
    assert (takes_by_turn.total(), max(takes_by_turn.values())) == (WATCHES, 1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_slow_reader_catches_up() -> None:
    """Who falls behind what the feed keeps reads the services again, and misses nothing."""
    trial = WatchesTrial()
    async with trial.watch() as slow, trial.watch(wanted=OF_STREAM) as idle, trial.watch() as fast:
        slow.may_read.clear()
        idle.may_read.clear()
        for number in range(8):
            half = change(STREAM, number % 4, entity=b"x" * (FEED_BYTES_MAX // 2))
            await trial.until_complete(fast, trial.services.commit(half))
        assert trial.feed.oldest_revision > 6
        slow.may_read.set()
        idle.may_read.set()
        await trial.until_complete(slow, 8)
        await trial.until_complete(idle, 6)
        assert (slow.revisions, fast.revisions) == ([*range(1, 9)],) * 2
        assert idle.revisions == [2, 6]


async def test_a_quiet_place_is_not_behind() -> None:
    """Who falls behind the feed goes on from the last change before which nothing concerned it:
    whether services keep what others did does not matter."""
    trial = WatchesTrial()
    half = b"x" * (FEED_BYTES_MAX // 2)
    async with trial.watch(wanted=OF_STREAM) as idle, trial.watch() as fast:
        idle.may_read.clear()
        for stream in (1, 2, 2, 2, 1, 2, 2, 2):
            step = change(STREAM, stream, entity=half)
            await trial.until_complete(fast, trial.services.commit(step))
        assert trial.feed.oldest_revision > 5
        trial.services.forget(before=5)
        idle.may_read.set()
        await trial.until_complete(idle, 5)
        assert (idle.revisions, idle.ended_with) == ([1, 5], [])


async def test_a_client_that_reads_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that nobody reads in time ends the watch, and nothing of it stays."""
    monkeypatch.setattr(watches, "ANSWER_READING_TIMEOUT_MS", 1)
    trial = WatchesTrial()
    async with trial.watch() as client:
        client.may_read.clear()
        trial.services.commit(change(STREAM, 1))
        assert await trial.ends(client) == "QUOTA_EXCEEDED"
    assert client.details["share"] == "unread_answers"
    assert (client.headers, trial.feed.followers) == ([0], 0)


async def test_progress_is_told_to_who_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message without changes says how far the feed has come; others hear nothing."""
    monkeypatch.setattr(watches, "WATCH_PROGRESS_MS", 1)
    trial = WatchesTrial()
    async with (
        trial.watch(wanted=OF_STREAM, progress_notifications=True) as told_of_it,
        trial.watch(wanted=OF_STREAM) as other,
    ):
        trial.services.commit(change(STREAM, 2))
        await trial.until_complete(told_of_it, 1)
        assert (told_of_it.changes, other.headers) == ([], [0])


async def test_progress_claims_nothing_that_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is time to tell progress in the very turn that brings a change, the change comes
    first."""
    monkeypatch.setattr(watches, "WATCH_PROGRESS_MS", 0)
    monkeypatch.setattr(change_feed, "FEED_INTERVAL_MS", 0)
    trial = WatchesTrial()
    async with trial.watch(progress_notifications=True) as client:
        for number in range(300):
            await turns(number % 11)
            trial.services.commit(change(STREAM, number))
        await trial.until_complete(client, 300)
    assert client.revisions == [*range(1, 301)]
    check_headers(client, trial.services.all_changes())


async def test_progress_is_told_beside_changes_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch of little hears how far the feed has come while much else happens, and on its way
    through the past."""
    monkeypatch.setattr(watches, "WATCH_PROGRESS_MS", 50)
    trial = WatchesTrial(page_max=1)
    only_users = replace(EVERYTHING, entity_types=frozenset((USER,)))
    async with trial.watch(wanted=only_users, progress_notifications=True) as client:
        async with asyncio.timeout(PATIENCE_S):
            while client.headers[-1] == 0 or trial.services.revision < 3:
                trial.services.commit(change(STREAM, 1))
                await asyncio.sleep(0.005)
    monkeypatch.setattr(watches, "WATCH_PROGRESS_MS", 0)
    last = trial.services.commit(change(USER, user=1))
    async with trial.watch(1, only_users, progress_notifications=True) as late:
        await trial.until_complete(late, last)
    assert set(late.headers) > {0, 1, last}
    assert (client.changes, late.revisions) == ([], [last])


async def test_places_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user has so many watches, all have so many together, and each gives its place back."""
    monkeypatch.setattr(watches, "WATCHES_PER_USER_MAX", 2)
    monkeypatch.setattr(watches, "WATCHES_MAX", 3)
    trial = WatchesTrial()
    async with trial.watch(), trial.watch():
        async with trial.watch() as third:
            assert await trial.ends(third) == "QUOTA_EXCEEDED"
        assert (third.details["user"], third.details["held_max"]) == (str(ALICE), "2")
        async with trial.watch(client=trial.client(BOB)) as other:
            assert (other.headers, other.ended_with) == ([0], [])
            async with trial.watch(client=trial.client(9)) as fourth:
                assert await trial.ends(fourth) == "QUOTA_EXCEEDED"
            assert ("user" in fourth.details, fourth.details["held_max"]) == (False, "3")
    async with trial.watch() as again:
        assert (again.headers, again.ended_with) == ([0], [])


async def test_places_are_taken_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watches that are being opened count, and a refused one gives its place back."""
    monkeypatch.setattr(watches, "WATCHES_PER_USER_MAX", 1)
    trial = WatchesTrial()
    trial.openings.may_open.clear()
    trial.openings.refusal = Refusal(Reason.REASON_PERMISSION_DENIED, "")
    first = trial.client()
    opening = asyncio.ensure_future(trial.serve(first, b""))
    await turns()
    async with trial.watch() as second:
        assert await trial.ends(second) == "QUOTA_EXCEEDED"
    trial.openings.may_open.set()
    await opening
    assert first.ended_with == ["PERMISSION_DENIED"]
    assert first.messages == []
    async with trial.watch() as third:
        assert await trial.ends(third) == "PERMISSION_DENIED"


async def test_few_watches_of_a_user_catch_up_at_a_time() -> None:
    """A thousand watches that resume at once hold a few pages in memory, and all get through."""
    trial = WatchesTrial()
    for number in range(3):
        trial.services.commit(change(STREAM, number))
    clients = [trial.client() for _ in range(4 * CATCH_UPS_PER_USER_MAX)]
    clients.append(trial.client(BOB))
    for client in clients:
        client.reading = client.may_read.clear
    request = WatchRequest(from_revision=1).SerializeToString()
    tasks = [asyncio.ensure_future(trial.serve(each, request)) for each in clients]
    await until(lambda: all(each.messages for each in clients))
    await turns()
    reading = [each.read.user_id for each in trial.services.started if each.read.spans]
    assert (reading.count(ALICE), reading.count(BOB)) == (CATCH_UPS_PER_USER_MAX, 1)
    for client in clients:
        client.reading = lambda: None
        client.may_read.set()
    await until(lambda: all(each.headers[-1] == 3 for each in clients))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [each.revisions for each in clients] == [[1, 2, 3]] * len(clients)


@pytest.mark.parametrize("count", range(40))
async def test_a_client_may_leave_at_any_time(count: int) -> None:
    """Wherever a watch is when its client leaves, no task, follower, read or place stays."""
    trial = WatchesTrial(page_max=1)
    for number in range(3):
        trial.services.commit(change(STREAM, number), change(USER, user=number))
    before = asyncio.all_tasks()
    request = WatchRequest(from_revision=1, progress_notifications=True).SerializeToString()
    task = asyncio.ensure_future(trial.serve(trial.client(), request))
    await turns(count)
    trial.services.commit(change(STREAM, 1))
    await turns(count % 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await turns()
    assert asyncio.all_tasks() - before == set()
    assert trial.feed.followers == 0
    assert [each for each in trial.services.started if not each.future.done()] == []
    assert trial.failures == []
