"""A watch gives out every revision once, whatever happens to the calls that bring it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

import viewstamp
from tests.viewstamp.client.fake_feed import (
    DELETED,
    UPDATED,
    Ending,
    FakeFeed,
    change_of,
    stream_change,
)
from tests.viewstamp.client.fake_gateway import CLUSTER_ID, PASSWORD
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.client import CannotConnect, Client, ProtocolError, Refusal, watch_calls
from viewstamp.client.blocking import watch_blocking
from viewstamp.client.errors import RevisionTooLarge
from viewstamp.client.revisions import WatchedRevision
from viewstamp.client.watching import EntityType, Watch, decoded

STREAMS = routing_pb2.STAGE_STREAMS
# Revisions 2, 4 and 7; the second one has three changes.
HISTORY = [
    stream_change(2, 1),
    stream_change(4, 2),
    stream_change(4, 3),
    stream_change(4, 1, UPDATED),
    stream_change(7, 2, DELETED),
]
REVISIONS = [(2, [1]), (4, [2, 3, 1]), (7, [2])]
# The first header, and a message for each change.
MESSAGES = 1 + len(HISTORY)


@pytest.fixture
async def feed() -> AsyncIterator[FakeFeed]:
    """A feed with the history above, complete up to revision 8."""
    async with FakeFeed() as running:
        running.commit(*HISTORY, head=8)
        yield running


@pytest.fixture
async def client(feed: FakeFeed) -> AsyncIterator[Client]:
    """A client of the feed."""
    async with await viewstamp.connect(
        feed.address, username="root", password=PASSWORD
    ) as connected:
        yield connected


async def taken(watch: Watch, count: int) -> list[tuple[int, list[int]]]:
    """Return the next revisions, with the streams that they changed."""
    return [shown(await anext(watch)) for _ in range(count)]


def shown(revision: WatchedRevision) -> tuple[int, list[int]]:
    """Return a revision with the streams that it changed."""
    return revision.revision, [change.stream_id for change in revision.changes]


def refused(name: str, **details: object) -> Refusal:
    """Return a refusal."""
    return Refusal(Reason.Value(f"REASON_{name}"), "as the test wants it", **details)


@pytest.mark.parametrize("part_size", [1, 2, 5])
async def test_revisions_are_whole(feed: FakeFeed, client: Client, part_size: int) -> None:
    """A transaction is one revision, however its changes are spread over messages."""
    feed.part_size = part_size
    async with client.watch(from_revision=1) as watch:
        assert await taken(watch, 3) == REVISIONS
        assert watch.revision == 8


@pytest.mark.parametrize("after", range(MESSAGES + 1))
@pytest.mark.parametrize(
    "refusal",
    [
        None,
        refused("NO_QUORUM"),
        refused("DOMAIN_RESTARTING"),
        refused("VIEW_CHANGE"),
        refused("OVERLOADED"),
        refused("READ_DEADLINE"),
        refused("UNAUTHENTICATED"),
    ],
    ids=lambda refusal: "BREAK" if refusal is None else refusal.name,
)
async def test_every_break_loses_and_repeats_nothing(
    feed: FakeFeed, client: Client, after: int, refusal: Refusal | None
) -> None:
    """A call that ends after any message is followed by one that begins at the right revision."""
    feed.endings = [Ending(after, refusal)]
    async with client.watch(from_revision=1) as watch:
        assert await taken(watch, 3) == REVISIONS
        feed.commit(stream_change(9, 4))
        assert await taken(watch, 1) == [(9, [4])]


@pytest.mark.parametrize("first", range(1, MESSAGES + 1))
@pytest.mark.parametrize("second", range(MESSAGES + 1))
async def test_two_breaks_lose_and_repeat_nothing(
    feed: FakeFeed, client: Client, first: int, second: int
) -> None:
    """The place of a watch holds over a break of the call that followed a break."""
    feed.endings = [Ending(first), Ending(second)]
    async with client.watch(from_revision=1) as watch:
        assert await taken(watch, 3) == REVISIONS


async def test_a_resumed_watch_names_place_and_cluster(feed: FakeFeed, client: Client) -> None:
    """The next call begins behind the last complete revision, and names the header's cluster."""
    feed.endings = [Ending(3)]  # the first header, revision 2, a part of revision 4
    async with client.watch(from_revision=1) as watch:
        await taken(watch, 3)
    assert [each.from_revision for each in feed.asked] == [1, 4]
    assert feed.asked[1].cluster_id == CLUSTER_ID
    assert all(each.progress_notifications for each in feed.asked)


async def test_the_next_revision_is_that_of_the_first_header(
    feed: FakeFeed, client: Client
) -> None:
    """A watch from the next revision on misses nothing that came while its first call broke."""
    feed.endings = [Ending(1)]
    async with client.watch() as watch:
        assert watch.revision == 8
        feed.commit(stream_change(9, 4))
        assert await taken(watch, 1) == [(9, [4])]
    assert [each.from_revision for each in feed.asked] == [0, 9]


async def test_the_revision_says_what_was_given_out(feed: FakeFeed, client: Client) -> None:
    """`revision` is before the next revision that waits: who begins behind it misses none."""
    feed.part_size = len(HISTORY)
    places = []
    async with client.watch(from_revision=1) as watch:
        for _ in range(3):
            await anext(watch)
            places.append(watch.revision)
    assert places == [3, 6, 8]


async def test_a_cancelled_iteration_loses_nothing(feed: FakeFeed, client: Client) -> None:
    """A wait for the next revision may be cancelled, and the next one begins where it was."""
    async with client.watch(from_revision=1) as watch:
        assert await taken(watch, 3) == REVISIONS
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        feed.commit(stream_change(9, 4))
        assert await taken(watch, 1) == [(9, [4])]


async def test_a_cancelled_task_may_still_watch(feed: FakeFeed, client: Client) -> None:
    """A program that cleans up after a cancellation opens a watch, and reads it."""
    seen: list[int] = []

    async def clean_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            async with client.watch(from_revision=1) as watch:
                seen.append((await anext(watch)).revision)

    task = asyncio.create_task(clean_up())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(seen) == 1


async def test_a_changed_access_is_no_end(feed: FakeFeed, client: Client) -> None:
    """A watch whose user got other rights goes on behind the revision at which that happened."""
    feed.endings = [Ending(1, refused("ACCESS_CHANGED", revision=1))]
    async with client.watch(from_revision=1) as watch:
        assert await taken(watch, 3) == REVISIONS
    assert [each.from_revision for each in feed.asked] == [1, 2]


async def test_an_expired_token_is_replaced(feed: FakeFeed, client: Client) -> None:
    """A watch whose token is refused logs in again and goes on."""
    feed.endings = [Ending(3, refused("UNAUTHENTICATED"))]
    async with client.watch(from_revision=1) as watch:
        feed.valid_token = "access-1"
        assert await taken(watch, 3) == REVISIONS
    assert feed.logins == 2


async def test_watches_share_a_login(feed: FakeFeed, client: Client) -> None:
    """Of watches whose common token is refused, one logs in, and the others use the new token."""
    feed.endings = [Ending(3, refused("UNAUTHENTICATED"))] * 2
    async with client.watch(from_revision=1) as first, client.watch(from_revision=1) as second:
        feed.valid_token = "access-1"
        assert await taken(first, 3) == REVISIONS
        assert await taken(second, 3) == REVISIONS
    assert feed.logins == 2


async def test_a_token_alone_cannot_be_renewed(feed: FakeFeed) -> None:
    """A watch that has no password ends with UNAUTHENTICATED when its token is refused."""
    feed.endings = [Ending(3, refused("UNAUTHENTICATED"))]
    async with await viewstamp.connect(feed.address, access_token="access-0") as client:
        watch = client.watch(from_revision=1)
        assert await taken(watch, 1) == REVISIONS[:1]
        with pytest.raises(Refusal, match="as the test wants it") as caught:
            await anext(watch)
        assert caught.value.name == "UNAUTHENTICATED"
        await watch.close()


async def test_a_token_that_stays_refused_ends_the_watch(feed: FakeFeed, client: Client) -> None:
    """A watch that is refused right after a login ends, and does not log in for ever."""
    feed.refuse_watches = lambda _: refused("UNAUTHENTICATED")
    with pytest.raises(Refusal) as caught:
        await anext(client.watch())
    assert caught.value.name == "UNAUTHENTICATED"
    assert feed.logins == 2


@pytest.mark.parametrize(
    "name",
    [
        "REVISION_COMPACTED",
        "PERMISSION_DENIED",
        "STREAM_NOT_FOUND",
        "TOPIC_NOT_FOUND",
        "GROUP_NOT_FOUND",
        "MALFORMED_REQUEST",
        "UNIMPLEMENTED",
        "INTERNAL",
    ],
)
async def test_a_final_refusal_is_raised(feed: FakeFeed, client: Client, name: str) -> None:
    """What no other call can mend is told, behind everything that came before it."""
    feed.endings = [Ending(MESSAGES, refused(name, oldest=5))]
    async with client.watch(from_revision=1) as watch:
        assert await taken(watch, 3) == REVISIONS
        with pytest.raises(Refusal) as caught:
            await anext(watch)
        assert (caught.value.name, caught.value.details["oldest"]) == (name, "5")
        assert watch.revision == 8


async def test_a_silent_replica_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that hears nothing, not even progress, goes on at another replica."""
    monkeypatch.setattr(watch_calls, "WATCH_SILENCE_MAX_S", 0.2)
    monkeypatch.setattr("random.randrange", lambda _: 0)
    async with FakeFeed() as silent, FakeFeed() as other:
        for feed in (silent, other):
            feed.commit(*HISTORY, head=8)
        silent.endings = [Ending(3, is_silent=True)]
        async with (
            await viewstamp.connect(
                [silent.address, other.address], username="root", password=PASSWORD
            ) as client,
            client.watch(from_revision=1) as watch,
        ):
            assert await taken(watch, 3) == REVISIONS
    assert [each.from_revision for each in silent.asked] == [1]
    assert [each.from_revision for each in other.asked] == [4]


async def test_watches_spread_over_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watches of one client begin at any of the replicas, not all at the one that it talks to."""
    places = iter([0, 1, 1])
    monkeypatch.setattr("random.randrange", lambda _: next(places))
    async with (
        FakeFeed() as first,
        FakeFeed() as second,
        await viewstamp.connect(
            [first.address, second.address], username="root", password=PASSWORD
        ) as client,
    ):
        for _ in range(3):
            async with client.watch():
                pass
    assert (len(first.asked), len(second.asked)) == (1, 2)


@pytest.mark.parametrize("name", ["QUOTA_EXCEEDED", "UNIMPLEMENTED"])
async def test_a_replica_without_room_is_no_end(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A watch is opened at another replica when one has no place, or is too old."""
    monkeypatch.setattr("random.randrange", lambda _: 0)
    async with FakeFeed() as full, FakeFeed() as other:
        full.refuse_watches = lambda _: refused(name)
        other.commit(*HISTORY)
        async with (
            await viewstamp.connect(
                [full.address, other.address], username="root", password=PASSWORD
            ) as client,
            client.watch(from_revision=1) as watch,
        ):
            assert await taken(watch, 3) == REVISIONS
    assert len(full.asked) == 1


@pytest.mark.parametrize("name", ["QUOTA_EXCEEDED", "UNIMPLEMENTED"])
async def test_a_watch_that_nobody_has_room_for_is_refused(
    feed: FakeFeed, client: Client, name: str
) -> None:
    """The refusal of the only replica is told on opening."""
    feed.refuse_watches = lambda _: refused(name)
    with pytest.raises(Refusal) as caught:
        await anext(client.watch())
    assert caught.value.name == name


async def test_an_open_watch_waits_for_a_place(feed: FakeFeed, client: Client) -> None:
    """A watch that was open asks again for a place after it lost its own."""
    feed.endings = [Ending(2)]
    refusals = [refused("QUOTA_EXCEEDED"), refused("QUOTA_EXCEEDED")]
    async with client.watch(from_revision=1) as watch:
        feed.refuse_watches = lambda _: refusals.pop() if refusals else None
        assert await taken(watch, 3) == REVISIONS
    assert not refusals


async def test_another_cluster_is_told(feed: FakeFeed, client: Client) -> None:
    """A header of another cluster ends the watch with an error that names both."""
    feed.endings = [Ending(3)]
    async with client.watch(from_revision=1) as watch:
        await taken(watch, 1)
        feed.cluster_id = b"\xee" * 16
        with pytest.raises(ProtocolError, match=f"{'ee' * 16}, and .* {CLUSTER_ID.hex()}"):
            await anext(watch)


async def test_nobody_there_is_told_on_opening(feed: FakeFeed) -> None:
    """A first opening that no replica answers ends after the client's time for a call."""
    async with await viewstamp.connect(
        feed.address, username="root", password=PASSWORD, timeout_s=0.1
    ) as client:
        feed.endings = [Ending(0)] * 1000
        with pytest.raises(CannotConnect, match="the connection broke"):
            await anext(client.watch())


async def test_a_revision_beyond_the_limit_is_told(
    feed: FakeFeed, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A revision with more changes than may wait ends the watch, and names the revision."""
    size = HISTORY[1].ByteSize()
    monkeypatch.setattr("viewstamp.client.revisions.INCOMPLETE_REVISION_BYTES_MAX", size)
    async with client.watch(from_revision=1) as watch:
        assert await taken(watch, 1) == REVISIONS[:1]
        with pytest.raises(RevisionTooLarge, match="2 changes of revision 4"):
            await anext(watch)


async def test_names_are_ids_from_the_beginning(feed: FakeFeed, client: Client) -> None:
    """A watch asks for the ids that the names had when it began, also after a rename."""
    created = await client.streams.create("orders")
    feed.endings = [Ending(1)]
    async with client.watch(stream="orders", from_revision=1) as watch:
        feed.domain.streams["orders"].name = "renamed"
        await taken(watch, 3)
    assert [each.stream.id for each in feed.asked] == [created.stream_id] * 2


async def test_an_unknown_name_is_refused(feed: FakeFeed, client: Client) -> None:
    """A watch of a stream that is not there is refused before it begins."""
    with pytest.raises(Refusal) as caught:
        await anext(client.watch(stream="nothing"))
    assert caught.value.name == "STREAM_NOT_FOUND"
    assert not feed.asked


async def test_filters_reach_the_cluster(feed: FakeFeed, client: Client) -> None:
    """Ids, domains and types are sent as given; classes of messages become their names."""
    types: list[EntityType] = [streams_pb2.Topic, "viewstamp.api.streams.v1.Stream"]
    async with client.watch(stream=1, topic=2, group=3, domains=[STREAMS], entity_types=types):
        pass
    (asked,) = feed.asked
    assert (asked.stream.id, asked.topic.id, asked.group.id) == (1, 2, 3)
    assert list(asked.domains) == [STREAMS]
    assert list(asked.entity_types) == [
        "viewstamp.api.streams.v1.Topic",
        "viewstamp.api.streams.v1.Stream",
    ]


async def test_a_closed_watch_ends(feed: FakeFeed, client: Client) -> None:
    """The iteration of a closed watch ends, and its call ends at the replica."""
    watch = client.watch(from_revision=1)
    await taken(watch, 1)
    await watch.close()
    assert [each async for each in watch] == []
    await feed.until(lambda: feed.open_watches == 0)


async def test_a_negative_revision_is_no_revision(client: Client) -> None:
    """A revision before the first one is refused at once."""
    with pytest.raises(ValueError, match="revisions start at 1"):
        client.watch(from_revision=-1)


@pytest.mark.parametrize(
    "entity",
    [
        streams_pb2.Stream(id=1, name="a"),
        streams_pb2.Topic(id=1, name="a"),
        users_pb2.User(id=1, username="a"),
        consumer_groups_pb2.ConsumerGroup(id=1, name="a"),
    ],
    ids=lambda entity: entity.DESCRIPTOR.name,
)
def test_changes_are_decoded(
    entity: streams_pb2.Stream | streams_pb2.Topic | users_pb2.User,
) -> None:
    """The entity of a change comes out as the public message that it was."""
    assert decoded(change_of(5, entity)) == entity


@pytest.mark.parametrize(
    "name", ["viewstamp.api.streams.v1.Nothing", "os.path", "", "viewstamp.api.users.v2.User"]
)
def test_unknown_types_are_told(name: str) -> None:
    """A type that this build does not know is an error that says so, and loads no module."""
    with pytest.raises(ProtocolError, match="upgrade it"):
        decoded(watch_pb2.Change(entity_type=name))


def blocking(feed: FakeFeed, taken_of: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Return what an iteration without asyncio brings, up to revisions that end it."""
    found = []
    with watch_blocking(feed.address, from_revision=1, username="root", password=PASSWORD) as watch:
        for revision in watch:
            found.append(shown(revision))
            if revision.revision in taken_of:
                break
        assert watch.revision == 8
    assert list(watch) == []
    return found


async def test_a_program_without_asyncio_watches(feed: FakeFeed) -> None:
    """The blocking iterator brings the same revisions over a break, and closes its call."""
    feed.endings = [Ending(3)]
    assert await asyncio.to_thread(blocking, feed, [7]) == REVISIONS
    await feed.until(lambda: feed.open_watches == 0)


async def test_a_blocking_watch_raises_what_ends_it(feed: FakeFeed) -> None:
    """The blocking iterator raises the refusal that ends the watch, again if asked again."""
    feed.endings = [Ending(MESSAGES, refused("PERMISSION_DENIED"))]

    def ended() -> list[str]:
        opened = watch_blocking(feed.address, from_revision=1, username="root", password=PASSWORD)
        names = []
        with opened as watch:
            for _ in REVISIONS:
                next(watch)
            for _ in range(2):
                with pytest.raises(Refusal) as caught:
                    next(watch)
                names.append(caught.value.name)
        return names

    assert await asyncio.to_thread(ended) == ["PERMISSION_DENIED"] * 2


async def test_a_blocking_watch_raises_what_the_login_raises(feed: FakeFeed) -> None:
    """Entering a blocking watch with a wrong password raises the refusal, and leaves no thread."""

    def entered() -> None:
        with watch_blocking(feed.address, username="root", password="wrong"):
            pass

    with pytest.raises(Refusal) as caught:
        await asyncio.to_thread(entered)
    assert caught.value.name == "INVALID_CREDENTIALS"
