"""Services leave out what nobody follows: the feed knows what it asked for, and since when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import count

import pytest

from coordinator.gateway import change_feed
from coordinator.gateway.change_feed import ChangeFeed, FeedFollower
from coordinator.gateway.change_pages import ChangePages, ChangesLostError, followed_streams
from coordinator.gateway.followed_keys import (
    EVERYTHING,
    FollowedKey,
    access_key,
    keys_of_change,
    keys_of_watch,
    place_key,
    read_key,
    streams_in,
)
from tests.coordinator.gateway.fake_changes import (
    ACCESS,
    DELETED,
    GROUP,
    STREAM,
    TOPIC,
    UPDATED,
    USER,
    FakeChanges,
    change,
    told,
    turns,
    until,
)
from viewstamp.api.domain.v1 import domain_service_pb2 as domain
from viewstamp.api.watch.v1.watch_service_pb2 import Change

STREAMS = (1, 2, 3)
TOPICS = (1, 2)
USERS = (7, 8)


def asked_streams(services: FakeChanges) -> list[int] | None:
    """Return the streams that the last page was asked for; None for everything."""
    asked = [each.asked()[0] for each in services.started if each.read.spans]
    if not asked[-1].HasField("followed"):
        return None
    return list(domain.FollowedStreams.FromString(asked[-1].followed).stream_ids)


async def test_what_is_asked_for_follows_the_followers() -> None:
    """Pages are of the streams that are followed, and of everything while somebody follows that."""
    services = FakeChanges()
    feed = ChangeFeed(services, lambda: services.revision, lambda error: None)
    steps: list[tuple[str, FollowedKey, list[int] | None]] = [
        ("add", place_key(2), [2]),
        ("add", place_key(1), [1, 2]),
        ("add", EVERYTHING, None),
        ("add", place_key(3), None),
        ("remove", EVERYTHING, [1, 2, 3]),
        ("remove", place_key(2), [1, 3]),
        ("add", access_key(7), [1, 3]),
        ("remove", place_key(1), [3]),
    ]
    following: dict[FollowedKey, FeedFollower] = {}
    for verb, key, streams in steps:
        if verb == "add":
            following[key] = feed.add((key,))
        else:
            feed.remove(following.pop(key))
        services.commit()  # a page that waits for the log is as it was asked for
        await until(lambda: feed.complete_revision == services.revision)
        await until(lambda: bool(services.waiting))
        assert asked_streams(services) == streams, (verb, key)
    for follower in following.values():
        feed.remove(follower)


async def test_who_comes_while_the_log_rests_follows_at_once() -> None:
    """A page that only waits for the log is called off, so that the next one is of the newcomer."""
    services = FakeChanges()
    feed = ChangeFeed(services, lambda: services.revision, lambda error: None)
    first = feed.add((place_key(1),))
    await until(lambda: bool(services.waiting))
    second = feed.add((place_key(2),))
    assert second.follow_from(1)
    await turns()
    services.commit(change(STREAM, 2))
    await until(lambda: feed.complete_revision == 1)
    second_took = second.take()
    assert second_took is not None
    assert [each.change.revision for each in second_took.changes] == [1]
    for follower in (first, second):
        feed.remove(follower)


async def test_who_comes_beside_a_page_under_way_waits_for_the_next() -> None:
    """What the page under way leaves out is not taken for read: the newcomer reads it itself."""
    services = FakeChanges()
    services.is_held = True
    feed = ChangeFeed(services, lambda: services.revision, lambda error: None)
    first = feed.add((place_key(1),))
    services.commit(change(STREAM, 2))
    await turns()
    newcomer = feed.add((place_key(2),))
    assert not newcomer.follow_from(1)
    read = asyncio.create_task(feed.reads_for(newcomer))
    await turns()
    assert not read.done()
    services.is_held = False
    services.release()
    await read
    assert not newcomer.follow_from(1)
    assert newcomer.follow_from(2)
    for follower in (first, newcomer):
        feed.remove(follower)


async def test_a_revision_that_is_read_in_part_is_not_had() -> None:
    """Who comes between two pages of one revision has it from the revision behind it on."""
    services = FakeChanges(page_max=1)
    services.is_held = True
    feed = ChangeFeed(services, lambda: services.revision, lambda error: None)
    first = feed.add((place_key(1),))
    two_of_each = [change(USER), change(TOPIC, 2, 1), change(GROUP, 2, 1, 1)] * 2
    services.commit(*two_of_each)
    await turns()
    newcomer = feed.add((place_key(2),))
    services.release()
    await feed.reads_for(newcomer)
    assert not newcomer.follow_from(1)
    assert newcomer.follow_from(2)
    for follower in (first, newcomer):
        feed.remove(follower)


class KeysWatcher:
    """One who follows keys as a watch does, and notes what it is given."""

    def __init__(
        self, feed: ChangeFeed, services: FakeChanges, keys: Sequence[FollowedKey], first: int
    ) -> None:
        """Begin at a revision."""
        self.first = first
        self.complete = first - 1
        self.keys = keys
        self.given: list[Change] = []
        self._services = services
        self._feed = feed
        self.follower = feed.add(keys)

    async def run(self) -> None:
        """Catch up and follow for ever."""
        while True:
            if not self.follower.follow_from(self.complete + 1):
                await self._feed.reads_for(self.follower)
                await self._catch_up()
            await self._follow()

    def wants(self, each: Change) -> bool:
        """Whether a change is for it."""
        if EVERYTHING in self.keys:
            return True
        return any(key in self.keys for key in keys_of_change(each))

    async def _catch_up(self) -> None:
        pages = ChangePages(self._services, self.complete + 1)
        if EVERYTHING not in self.keys:
            pages.followed = followed_streams(streams_in(map(read_key, self.keys)))
        while not self.follower.follow_from(self.complete + 1):
            revisions = await pages.next()
            self._note(revisions.changes, revisions.complete_revision)

    async def _follow(self) -> None:
        while True:
            await self.follower.woken()
            taken = self.follower.take()
            if taken is None:
                self.complete = max(self.complete, self.follower.quiet_revision)
                return
            self._note([each.change for each in taken.changes], taken.complete_revision)

    def _note(self, changes: Sequence[Change], complete_revision: int) -> None:
        self.given += [each for each in changes if each.revision > self.complete]
        self.complete = max(self.complete, complete_revision)


@pytest.mark.parametrize("seed", range(40))
async def test_everybody_is_given_what_concerns_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes and goes, whatever pages are cut off: each gets all of its keys, once."""
    monkeypatch.setattr(change_feed, "FEED_INTERVAL_MS", 0)
    chance = random.Random(seed)
    services = FakeChanges(page_max=chance.choice((1, 2, 3)))
    services.is_held = True
    failures: list[BaseException] = []
    feed = ChangeFeed(services, lambda: services.revision, failures.append)
    present: list[tuple[KeysWatcher, asyncio.Task[None]]] = []
    numbers = count(1)
    for _ in range(150):
        await turns(chance.randrange(4))
        draw = chance.random()
        if draw < 0.15 or not present:
            near_feed = max(1, feed.complete_revision + chance.randint(-1, 2))
            first = min(services.revision + 1, near_feed)
            watcher = KeysWatcher(feed, services, keys_of(chance), first)
            present.append((watcher, asyncio.create_task(watcher.run())))
        elif draw < 0.25:
            await leave(feed, services, *present.pop(chance.randrange(len(present))))
        elif draw < 0.6:
            services.commit(*changes_of(chance, next(numbers)))
        else:
            services.release()
    services.is_held = False
    services.release()
    for watcher, task in present:
        await until(lambda: feed.complete_revision == services.revision)
        await turns()
        await leave(feed, services, watcher, task, is_end=True)
    assert failures == []


def keys_of(chance: random.Random) -> tuple[FollowedKey, ...]:
    """Draw what one follows: everything, a stream, a topic or a group."""
    if chance.random() < 0.2:
        return (EVERYTHING,)
    topic_id = chance.choice((0, *TOPICS))
    group_id = chance.randrange(2) if topic_id else 0
    return keys_of_watch(chance.choice(USERS), chance.choice(STREAMS), topic_id, group_id)


def changes_of(chance: random.Random, number: int) -> list[Change]:
    """Draw the changes of one revision."""
    kinds = [
        change(STREAM, chance.choice(STREAMS), entity=str(number).encode()),
        change(STREAM, chance.choice(STREAMS), kind=DELETED),
        *(
            change(TOPIC, stream, topic, kind=chance.choice((UPDATED, DELETED)))
            for stream in STREAMS
            for topic in TOPICS
        ),
        change(GROUP, chance.choice(STREAMS), chance.choice(TOPICS), 1),
        change(USER, user=chance.choice(USERS)),
        change(ACCESS, user=chance.choice(USERS)),
    ]
    return [each for each in kinds if chance.random() < 0.4]


async def leave(
    feed: ChangeFeed,
    services: FakeChanges,
    watcher: KeysWatcher,
    task: asyncio.Task[None],
    *,
    is_end: bool = False,
) -> None:
    """Have a watcher go, and compare what it was given with what there is."""
    feed.remove(watcher.follower)
    task.cancel()
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError | ChangesLostError), ended
    wanted = [
        each
        for each in services.all_changes(watcher.first)
        if watcher.wants(each) and each.revision <= watcher.complete
    ]
    assert told(filter(watcher.wants, watcher.given)) == told(wanted)
    if is_end:
        last = [each.revision for each in services.all_changes() if watcher.wants(each)]
        assert watcher.complete >= max([0, *last]), (watcher.keys, watcher.complete)
