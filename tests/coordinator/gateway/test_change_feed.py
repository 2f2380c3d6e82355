"""The feed of one replica: who is woken for what, and what is kept for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from coordinator.gateway import change_feed, kept_changes
from coordinator.gateway.change_feed import ChangeFeed, FeedFollower
from coordinator.gateway.followed_keys import EVERYTHING, FollowedKey, access_key, place_key
from coordinator.gateway.kept_changes import CHANGES_AT_ONCE
from tests.coordinator.gateway.fake_changes import (
    ACCESS,
    PATIENCE_S,
    STREAM,
    TOPIC,
    USER,
    FakeChanges,
    change,
    told,
    turns,
    until,
)
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import FEED_BYTES_MAX

HALF = b"x" * (FEED_BYTES_MAX // 2)


class FeedTrial:
    """A feed over services that the test drives."""

    def __init__(self) -> None:
        self.services = FakeChanges()
        self.failures: list[BaseException] = []
        self.applied_behind = 0
        self.feed = ChangeFeed(self.services, self.applied, self.failures.append)

    def applied(self) -> int:
        """Return how far the replica has come."""
        return self.services.revision - self.applied_behind

    @contextmanager
    def follower(self, *keys: FollowedKey, first: int | None = None) -> Iterator[FeedFollower]:
        """Follow in the block, by default from the next revision on."""
        follower = self.feed.add(keys or (EVERYTHING,))
        try:
            assert follower.follow_from(self.services.revision + 1 if first is None else first)
            yield follower
        finally:
            self.feed.remove(follower)

    async def until(self, revision: int) -> None:
        """Wait until the feed is complete up to a revision."""
        await until(lambda: self.feed.complete_revision >= revision)


async def news(follower: FeedFollower) -> list[int]:
    """Wait until a follower is woken; return the revisions that it takes."""
    async with asyncio.timeout(PATIENCE_S):
        await follower.woken()
    taken = follower.take()
    assert taken is not None
    return [each.change.revision for each in taken.changes]


async def refusal_of(follower: FeedFollower) -> Refusal:
    """Wait until a follower is ended."""
    with pytest.raises(Refusal) as caught:
        await news(follower)
    return caught.value


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the feed be confirmed all the time, with little patience."""
    monkeypatch.setattr(change_feed, "WATCH_PROGRESS_MS", 1)
    monkeypatch.setattr(change_feed, "READ_DEADLINE_MS", 50)


async def test_followers_are_woken_for_their_keys_alone() -> None:
    """A change wakes those who follow everything or its stream; one of access, its user's."""
    trial = FeedTrial()
    with (
        trial.follower() as everything,
        trial.follower(place_key(1), access_key(7)) as first,
        trial.follower(place_key(2), access_key(8)) as second,
    ):
        for follower in (everything, first, second):
            assert await news(follower) == []
        steps = [
            (change(TOPIC, 1, 1), [True, True, False]),
            (change(STREAM, 2), [True, False, True]),
            (change(STREAM, 3), [True, False, False]),
            (change(USER, user=7), [True, False, False]),
            (change(ACCESS, user=8), [True, False, True]),
        ]
        for step, woken in steps:
            await trial.until(trial.services.commit(step))
            assert [each.is_woken for each in (everything, first, second)] == woken, step
            for follower in (everything, first, second):
                if follower.is_woken:
                    follower.take()


async def test_revisions_without_changes_wake_nobody() -> None:
    """The feed is complete up to revisions that changed nothing, and nobody hears of it."""
    trial = FeedTrial()
    with trial.follower() as follower:
        await news(follower)
        await trial.until(trial.services.commit())
        assert not follower.is_woken


async def test_everything_since_the_first_wake_is_taken() -> None:
    """A follower takes what came since it was woken, however often it was woken, and once."""
    trial = FeedTrial()
    with trial.follower(), trial.follower(place_key(1)) as follower:
        await news(follower)
        trial.services.commit(change(STREAM, 2))
        await trial.until(trial.services.commit(change(STREAM, 1)))
        trial.services.commit(change(STREAM, 2))
        await trial.until(trial.services.commit(change(TOPIC, 1, 1)))
        await trial.until(trial.services.commit(change(STREAM, 3)))
        async with asyncio.timeout(PATIENCE_S):
            await follower.woken()
        taken = follower.take()
        assert taken is not None
        assert [each.change.revision for each in taken.changes] == [2, 4]
        assert taken.complete_revision == 5
        assert not follower.is_woken
        trial.services.commit(change(STREAM, 1))
        assert await news(follower) == [6]


async def test_followers_may_begin_in_what_is_kept() -> None:
    """A follower who comes later has all from its revision on, if the feed has read it."""
    trial = FeedTrial()
    trial.services.commit(change(STREAM, 1))
    with trial.follower():
        for number in (2, 3, 4):
            await trial.until(trial.services.commit(change(STREAM, number)))
        with trial.follower(first=3) as later:
            assert await news(later) == [3, 4]
        late = trial.feed.add((EVERYTHING,))
        assert not late.follow_from(1)
        assert late.follow_from(2)
        assert await news(late) == [2, 3, 4]
        trial.feed.remove(late)


async def test_the_feed_may_be_behind_who_begins() -> None:
    """Somebody who begins behind what the feed has read gets nothing twice, and nothing early."""
    trial = FeedTrial()
    trial.applied_behind = 2
    for number in range(4):
        trial.services.commit(change(STREAM, number))
    with trial.follower(first=5) as follower:
        assert trial.feed.complete_revision < 4
        await trial.until(4)
        await news(follower)
        trial.services.commit(change(STREAM, 5))
        assert (await news(follower))[-1] == 5


async def test_long_lists_are_taken_in_parts() -> None:
    """A part is of whole revisions, says how far it goes, and leaves the follower woken."""
    trial = FeedTrial()
    half = [change(TOPIC, 1, number) for number in range(CHANGES_AT_ONCE // 2 + 1)]
    with trial.follower() as follower:
        await news(follower)
        for _ in range(3):
            trial.services.commit(*half)
        await trial.until(3)
        parts = []
        while follower.is_woken:
            taken = follower.take()
            assert taken is not None
            parts.append((len(taken.changes), taken.complete_revision))
    assert parts == [(len(half), 1), (len(half), 2), (len(half), 3)]


async def test_a_long_revision_is_kept_in_parts_and_shown_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others have the loop while the feed takes it in, and while it goes; nobody sees a part."""
    monkeypatch.setattr(change_feed, "FEED_INTERVAL_MS", 0)
    monkeypatch.setattr(change_feed, "CHANGES_AT_ONCE", 2)
    monkeypatch.setattr(kept_changes, "CHANGES_AT_ONCE", 2)
    trial = FeedTrial()
    long = [change(TOPIC, 1, number) for number in range(10)]
    seen: set[tuple[int, int]] = set()
    with trial.follower() as follower:
        await news(follower)
        trial.services.commit(*long)
        for _ in range(30):
            await asyncio.sleep(0)
            assert follower.follow_from(1)
            taken = follower.take()
            assert taken is not None
            seen.add((len(taken.changes), taken.complete_revision))
        assert seen == {(0, 0), (10, 1)}
        monkeypatch.setattr(kept_changes, "FEED_BYTES_MAX", 1)
        trial.services.commit(change(STREAM, 2))
        going = set()
        for _ in range(30):
            await asyncio.sleep(0)
            going.add((trial.feed.oldest_revision, trial.feed.index_of(2) - trial.feed.index_of(1)))
        assert going >= {(2, 8), (2, 6), (2, 4), (2, 2), (2, 0)}


async def test_the_memory_of_the_feed_is_limited() -> None:
    """The oldest revisions go, each as a whole; who has not taken them is told that it lapsed."""
    trial = FeedTrial()
    with trial.follower() as slow, trial.follower(place_key(9)) as idle:
        await news(slow)
        await news(idle)
        await trial.until(trial.services.commit(change(STREAM, 0)))
        for number in range(1, 4):
            step = (change(STREAM, number, entity=HALF), change(TOPIC, number, 1))
            await trial.until(trial.services.commit(*step))
        assert trial.feed.oldest_revision == 4
        assert slow.take() is None
        assert slow.quiet_revision == 0
        with trial.follower(first=4) as other:
            assert await news(other) == [4, 4]
        assert not idle.is_woken
        await trial.until(trial.services.commit(change(STREAM, 9)))
        assert (await news(idle))[-1] == 5


async def test_the_last_revision_is_kept_whatever_its_size() -> None:
    """A revision beyond the limit is given out before it goes."""
    trial = FeedTrial()
    with trial.follower() as follower:
        await news(follower)
        await trial.until(trial.services.commit(*[change(STREAM, 1, entity=HALF)] * 3))
        assert await news(follower) == [1, 1, 1]
        await trial.until(trial.services.commit(change(STREAM, 1)))
        assert trial.feed.oldest_revision == 2
        assert await news(follower) == [2]


async def test_a_lapsed_follower_knows_how_far_it_has_come() -> None:
    """What came before the changes that it missed did not concern it."""
    trial = FeedTrial()
    with trial.follower(), trial.follower(place_key(1)) as follower:
        await news(follower)
        for stream in (2, 2, 1, 2):
            await trial.until(trial.services.commit(change(STREAM, stream)))
        for _ in range(3):
            await trial.until(trial.services.commit(change(STREAM, 2, entity=HALF)))
        assert follower.take() is None
        assert follower.quiet_revision == 2


async def test_lost_changes_begin_the_feed_anew() -> None:
    """If a service has restarted and does not keep what comes next, all followers lapse."""
    trial = FeedTrial()
    with (
        trial.follower() as busy,
        trial.follower(place_key(1)) as idle,
        trial.follower(place_key(3), first=2) as late,
    ):
        await news(busy)
        await news(idle)
        await trial.until(trial.services.commit(change(STREAM, 2)))
        assert late.follow_from(2)
        trial.services.refusal = Refusal(Reason.REASON_DOMAIN_RESTARTING, "")
        for _ in range(3):
            trial.services.commit(change(STREAM, 1))
        trial.services.forget(before=4)
        trial.services.refusal = None
        await trial.until(4)
        assert [each.take() for each in (busy, idle, late)] == [None] * 3
        assert (busy.quiet_revision, idle.quiet_revision) == (0, 1)
        assert not busy.follow_from(4)
        assert busy.follow_from(5)
        trial.services.commit(change(STREAM, 3))
        assert (await news(busy) or await news(busy)) == [5]
    assert trial.failures == []


async def test_a_feed_that_begins_anew_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A confirmation that waits for the feed goes on when the feed begins anew behind it."""
    monkeypatch.setattr(change_feed, "WATCH_PROGRESS_MS", 1)
    monkeypatch.setattr(change_feed, "FEED_INTERVAL_MS", 30)
    monkeypatch.setattr(change_feed, "READ_DEADLINE_MS", 2_000)
    trial = FeedTrial()
    with trial.follower() as follower:
        await news(follower)
        await trial.until(trial.services.commit(change(STREAM, 1)))
        trial.services.forget(before=4)
        for _ in range(2):
            trial.services.commit(change(STREAM, 1))
        await trial.until(3)
        count = len(trial.services.started)
        await until(lambda: len(trial.services.started) > count + 3)
        assert follower.take() is None


async def test_services_that_do_not_answer_are_asked_again() -> None:
    """Refusals of reads, also at once, neither end the feed nor lose a change."""
    trial = FeedTrial()
    with trial.follower() as follower:
        await news(follower)
        for reason in (Reason.REASON_OVERLOADED, Reason.REASON_DOMAIN_RESTARTING):
            await trial.until(trial.services.commit(change(STREAM, 1)))
            trial.services.refusal = Refusal(reason, "")
            trial.services.commit(change(STREAM, 2))
            count = trial.services.refused
            await until(lambda: trial.services.refused > count)  # noqa: B023
            trial.services.refusal = None
            await trial.until(trial.services.revision)
        assert await news(follower) == [1, 2, 3, 4]


@pytest.mark.usefixtures("quick")
async def test_a_replica_that_is_cut_off_ends_all() -> None:
    """Without confirmation nobody would know that the feed stands still: all who follow end."""
    trial = FeedTrial()
    with trial.follower() as one, trial.follower(place_key(1), access_key(1)) as other:
        await news(one)
        trial.services.is_cut_off = True
        for follower in (one, other):
            assert (await refusal_of(follower)).reason == Reason.REASON_NO_QUORUM
    assert [each for each in trial.services.waiting if not each.future.done()] == []


@pytest.mark.usefixtures("quick")
async def test_a_feed_that_does_not_come_along_ends_all() -> None:
    """A confirmed revision that the services do not give out ends all who follow, too."""
    trial = FeedTrial()
    with trial.follower() as follower:
        await news(follower)
        trial.services.commit(change(STREAM, 1))
        await trial.until(1)
        follower.take()
        trial.services.is_lagging = True
        trial.services.commit(change(STREAM, 2))
        assert (await refusal_of(follower)).reason == Reason.REASON_NO_QUORUM


async def test_a_view_change_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A confirmation that is refused is asked for again, until its time is up."""
    monkeypatch.setattr(change_feed, "WATCH_PROGRESS_MS", 1)
    monkeypatch.setattr(change_feed, "FEED_RETRY_MS", 1)
    trial = FeedTrial()
    with trial.follower() as follower:
        await news(follower)
        trial.services.refusal = Refusal(Reason.REASON_VIEW_CHANGE, "")
        await until(lambda: sum(each.linearizable for each in trial.services.started) >= 5)
        trial.services.refusal = None
        trial.services.commit(change(STREAM, 1))
        assert await news(follower) == [1]


async def test_reading_ends_with_the_last_follower() -> None:
    """The first follower has the feed read, the last one has it end: no read and no task stays."""
    trial = FeedTrial()
    before = asyncio.all_tasks()
    with trial.follower() as outer:
        await news(outer)
        with trial.follower():
            assert (trial.feed.followers, len(asyncio.all_tasks() - before)) == (2, 2)
        assert (trial.feed.followers, len(asyncio.all_tasks() - before)) == (1, 2)
        await turns()
    await turns()
    assert (trial.feed.followers, asyncio.all_tasks() - before) == (0, set())
    assert [each.future.done() for each in trial.services.started] == [True]
    count = len(trial.services.started)
    trial.services.commit(change(STREAM, 1))
    await turns()
    assert len(trial.services.started) == count
    assert trial.failures == []


async def test_a_new_feed_has_nothing_of_the_last_one() -> None:
    """The next first follower begins behind what is applied then, and sees nothing of before."""
    trial = FeedTrial()
    with trial.follower() as first:
        await trial.until(trial.services.commit(change(STREAM, 1)))
        assert await news(first) == [1]
    trial.services.commit(change(STREAM, 2))
    second = trial.feed.add((EVERYTHING,))
    assert not second.follow_from(2)
    assert second.follow_from(3)
    assert await news(second) == []
    trial.services.commit(change(STREAM, 3))
    assert await news(second) == [3]
    trial.feed.remove(second)


async def test_a_defect_of_the_feed_is_told() -> None:
    """A defect ends the process, as everywhere, and not the feed in silence."""
    trial = FeedTrial()
    with trial.follower() as follower:
        await news(follower)
        await until(lambda: bool(trial.services.waiting))
        (waiting,) = trial.services.waiting
        waiting.future.set_exception(ValueError("planted"))
        await turns()
    assert [str(each) for each in trial.failures] == ["planted"]


async def test_changes_are_encoded_once_and_in_order() -> None:
    """What followers take are the changes themselves, with the encodings that are sent."""
    trial = FeedTrial()
    with trial.follower() as follower:
        await news(follower)
        trial.services.commit(change(TOPIC, 1, 1, entity=b"t"), change(USER, user=1, entity=b"u"))
        async with asyncio.timeout(PATIENCE_S):
            await follower.woken()
        taken = follower.take()
        assert taken is not None
        found = [each.change for each in taken.changes]
        assert told(found) == told(trial.services.all_changes())
        assert [each.encoded for each in taken.changes] == [
            each.SerializeToString() for each in found
        ]
        assert len(found) == 2
