"""An informer's cache is the state of the cluster at one revision, whatever the pages showed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import viewstamp
from tests.viewstamp.client.fake_domain import Domain
from tests.viewstamp.client.fake_feed import (
    CREATED,
    DELETED,
    UPDATED,
    Ending,
    FakeFeed,
    change_of,
    stream_change,
)
from tests.viewstamp.client.fake_gateway import PASSWORD
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_pb2, streams_service_pb2
from viewstamp.api.users.v1 import users_pb2, users_service_pb2
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.client import Client, ClientClosed, ProtocolError, Refusal
from viewstamp.client.informer import Informer

Stream = streams_pb2.Stream
PAGE_SIZE = 2


class PagedStreams(Domain):
    """Lists streams in short pages by id, as the cluster does; tests act before each page."""

    def __init__(self) -> None:
        super().__init__()
        self.by_id: dict[int, Stream] = {}
        self.before_page: Callable[[], None] = lambda: None

    def _ListStreams(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        self.before_page()
        after = int(request.page_token or 0)
        ids = sorted(each for each in self.by_id if each > after)
        token = str(ids[PAGE_SIZE - 1]) if len(ids) > PAGE_SIZE else ""
        page = [self.by_id[each] for each in ids[:PAGE_SIZE]]
        return streams_service_pb2.ListStreamsResponse(streams=page, next_page_token=token)

    def _ListUsers(self, _: Any) -> Any:  # noqa: N802 - named as the RPC
        users = [users_pb2.User(id=each.id, username=each.username) for each in self.users.values()]
        return users_service_pb2.ListUsersResponse(users=users)

    def _GetUser(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        user = next(user for user in self.users.values() if user.id == request.user.id)
        return users_service_pb2.GetUserResponse(user=user)


class InformerTrial:
    """A feed and its streams, which change together; notes what handlers are told."""

    def __init__(self, feed: FakeFeed, client: Client) -> None:
        self.feed = feed
        self.client = client
        self.streams = PagedStreams()
        feed.domain = self.streams
        self.told: list[tuple[str, str]] = []
        self.seen: dict[int, Stream] = {}

    def put(self, stream_id: int, name: str) -> watch_pb2.Change:
        """Create or rename a stream at the next revision; return the change, not yet told."""
        kind = UPDATED if stream_id in self.streams.by_id else CREATED
        change = stream_change(self.feed.revision + 1, stream_id, kind, name)
        self.streams.by_id[stream_id] = Stream.FromString(change.entity)
        # What a list says, and no change.
        self.streams.by_id[stream_id].topics_count = stream_id
        return change

    def remove(self, stream_id: int) -> watch_pb2.Change:
        """Delete a stream at the next revision; return the change, not yet told."""
        last = self.streams.by_id.pop(stream_id)
        return stream_change(self.feed.revision + 1, stream_id, DELETED, last.name)

    def commit(self, *changes: watch_pb2.Change) -> int:
        """Tell changes of one revision; return it."""
        self.feed.commit(*changes)
        return self.feed.revision

    def informer(self) -> Informer:
        """Return an informer of streams whose handlers note what they are told."""
        informer = self.client.informer(Stream)
        informer.on_change(added=self._added, updated=self._updated, deleted=self._deleted)
        return informer

    def names(self) -> list[str]:
        """Return the names of the streams that there are, by id."""
        return [self.streams.by_id[each].name for each in sorted(self.streams.by_id)]

    def _added(self, new: Stream) -> None:
        assert new.id not in self.seen
        self.seen[new.id] = new
        self.told.append(("added", new.name))

    def _updated(self, old: Stream, new: Stream) -> None:
        assert self.seen[old.id] == old != new
        self.seen[new.id] = new
        self.told.append((old.name, new.name))

    def _deleted(self, old: Stream) -> None:
        assert self.seen.pop(old.id) == old
        self.told.append(("deleted", old.name))


@pytest.fixture
async def feed() -> AsyncIterator[FakeFeed]:
    """A running feed."""
    async with FakeFeed() as running:
        yield running


@pytest.fixture
async def client(feed: FakeFeed) -> AsyncIterator[Client]:
    """A client of the feed."""
    async with await viewstamp.connect(
        feed.address, username="root", password=PASSWORD
    ) as connected:
        yield connected


@pytest.fixture
def trial(feed: FakeFeed, client: Client) -> InformerTrial:
    """Five streams, a to e, with the ids 1 to 5."""
    made = InformerTrial(feed, client)
    for stream_id, name in enumerate("abcde", 1):
        made.commit(made.put(stream_id, name))
    return made


def names_in(informer: Informer) -> list[str]:
    """Return the names of the streams in the cache."""
    return [stream.name for stream in informer.all(Stream)]


async def test_an_informer_has_what_was_there(trial: InformerTrial) -> None:
    """After the first sync the cache has all entities, at the revision of the feed."""
    async with trial.informer() as informer:
        await informer.synced()
        assert names_in(informer) == [*"abcde"]
        assert informer.get(Stream, 3).name == "c"
        assert informer.get(Stream, 6) is None
        assert informer.revision == trial.feed.revision
    assert trial.told == [("added", name) for name in "abcde"]


async def test_handlers_hear_of_what_happens(trial: InformerTrial) -> None:
    """Creations, changes and deletions are told in order, with the entity before and after."""
    async with trial.informer() as informer:
        await informer.synced()
        trial.commit(trial.put(6, "f"))
        trial.commit(trial.put(1, "x"))
        await informer.come_to(trial.commit(trial.remove(2)))
        assert names_in(informer) == ["x", *"cdef"]
        assert trial.told[5:] == [("added", "f"), ("a", "x"), ("deleted", "b")]


async def test_derived_fields_are_never_held(trial: InformerTrial) -> None:
    """Counts that changes do not have are not in the cache, listed or not."""
    async with trial.informer() as informer:
        await informer.synced()
        await informer.come_to(trial.commit(trial.put(6, "f")))
        assert [each.topics_count for each in informer.all(Stream)] == [0] * 6


Step = Callable[[InformerTrial], watch_pb2.Change]


@pytest.mark.parametrize(
    ("step", "names"),
    [
        (lambda trial: trial.remove(1), "bcde"),
        (lambda trial: trial.remove(3), "abde"),
        (lambda trial: trial.put(1, "x"), "xbcde"),
        (lambda trial: trial.put(4, "x"), "abcxe"),
        (lambda trial: trial.put(6, "x"), "abcdex"),
    ],
    ids=["deleted-after", "deleted-before", "renamed-after", "renamed-before", "created"],
)
async def test_a_change_between_pages_counts_once(
    trial: InformerTrial, step: Step, names: str
) -> None:
    """What happens while pages are read is in the cache as it is, and told as one state."""
    pages = iter([None, step, None])

    def act() -> None:
        if (due := next(pages)) is not None:
            trial.commit(due(trial))

    trial.streams.before_page = act
    async with trial.informer() as informer:
        await informer.synced()
        assert names_in(informer) == [*names]
    assert trial.told == [("added", name) for name in names]


async def test_nothing_is_shown_before_the_pages_agree(trial: InformerTrial) -> None:
    """Pages of several revisions stay hidden until the watch has come to the last of them."""
    trial.streams.before_page = lambda: trial.feed.commit(trial.put(5, "x"))
    # The second call begins once the informer has taken in what came over the first one.
    trial.feed.endings = [Ending(2), Ending(0, is_silent=True)]
    async with trial.informer() as informer:
        await trial.feed.until(lambda: len(trial.feed.asked) == 2)
        assert (informer.revision, names_in(informer), trial.told) == (0, [], [])


async def test_a_revision_is_in_the_cache_before_it_is_told(trial: InformerTrial) -> None:
    """The handler of the first change of a transaction sees all of it."""
    seen: list[list[str]] = []
    async with trial.informer() as informer:
        await informer.synced()
        informer.on_change(updated=lambda *_: seen.append(names_in(informer)))
        done = trial.commit(trial.put(1, "x"), trial.put(2, "y"))
        await informer.come_to(done)
        await informer.come_to(trial.commit(trial.put(6, "f")))
    assert seen == [["x", "y", *"cde"]] * 2


async def test_a_lost_place_brings_the_differences_alone(trial: InformerTrial) -> None:
    """When its revision is not kept any more it lists again, and tells what is different."""
    compacted = Refusal(Reason.REASON_REVISION_COMPACTED, "too old")
    async with trial.informer() as informer:
        await informer.synced()
        kept = informer.get(Stream, 2)
        told_before = len(trial.told)
        refusals = [compacted]
        trial.feed.refuse_watches = lambda _: refusals.pop() if refusals else None
        trial.streams.by_id.pop(3)
        trial.put(1, "x")
        trial.put(6, "f")
        trial.feed.commit(head=trial.feed.revision + 7)
        trial.feed.end_watches()
        await informer.come_to(trial.feed.revision)
        assert names_in(informer) == ["x", *"bdef"]
        assert informer.get(Stream, 2) is kept
    assert trial.told[told_before:] == [("deleted", "c"), ("a", "x"), ("added", "f")]


async def test_a_failing_handler_is_reported(trial: InformerTrial) -> None:
    """What a handler raises is told with the event, and neither cache nor other handlers care."""
    failures: list[tuple[str, str]] = []

    def fail(_: Stream) -> None:
        raise ValueError("a bug of the program")

    informer = trial.client.informer(Stream)
    informer.on_change(
        added=fail, failed=lambda error, event: failures.append((str(error), event.new.name))
    )
    informer.on_change(added=lambda new: trial.told.append(("added", new.name)))
    async with informer:
        await informer.synced()
        assert names_in(informer) == [*"abcde"]
        await informer.come_to(trial.commit(trial.put(6, "f")))
        assert names_in(informer) == [*"abcdef"]
    assert failures == [("a bug of the program", name) for name in "abcdef"]
    assert trial.told == [("added", name) for name in "abcdef"]


async def test_an_unreported_failure_is_logged(
    trial: InformerTrial, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler that fails without anybody who is told of it stands in the log, by its event."""

    async def fail(_: Stream) -> None:
        raise ValueError("a bug of the program")

    informer = trial.client.informer(Stream)
    informer.on_change(added=fail)
    async with informer:
        await informer.synced()
        await informer.come_to(trial.commit(trial.put(6, "f")))
    assert "a handler failed at viewstamp.api.streams.v1.Stream (1,)" in caplog.text
    assert "a bug of the program" in caplog.text


async def test_an_event_waits_for_the_handler_of_the_last_one(trial: InformerTrial) -> None:
    """Coroutines as handlers run one after the other, in the order of the feed."""
    steps: list[str] = []

    async def note(new: Stream) -> None:
        steps.append(f"begin {new.name}")
        await asyncio.sleep(0)
        steps.append(f"end {new.name}")

    informer = trial.client.informer(Stream)
    informer.on_change(added=note)
    async with informer:
        await informer.synced()
        await informer.come_to(trial.commit(trial.put(6, "f")))
    assert steps[:10] == [f"{word} {name}" for name in "abcde" for word in ("begin", "end")]


async def test_an_index_follows_the_entities(trial: InformerTrial) -> None:
    """An index finds entities by their values of now, also after a rename or a deletion."""
    informer = trial.client.informer(Stream)
    informer.add_index("first letter", Stream, lambda stream: [stream.name[0]])
    async with informer:
        await informer.synced()
        trial.commit(trial.put(1, "bx"))
        trial.commit(trial.put(6, "by"))
        await informer.come_to(trial.commit(trial.remove(2)))
        assert [each.name for each in informer.by_index("first letter", "b")] == ["bx", "by"]
        assert informer.by_index("first letter", "a") == []
        informer.add_index("length", Stream, lambda stream: [len(stream.name)])
        assert [each.name for each in informer.by_index("length", 2)] == ["bx", "by"]
        with pytest.raises(ValueError, match="choose another name"):
            informer.add_index("length", Stream, lambda _: [])


async def test_users_are_held_with_their_permissions(trial: InformerTrial) -> None:
    """Users, which lists show without permissions, are held as changes have them."""
    granted = users_pb2.Permissions(streams=[users_pb2.StreamPermissions(read_stream=True)])
    trial.streams.users["root"].permissions.CopyFrom(granted)
    async with trial.client.informer(users_pb2.User) as informer:
        await informer.synced()
        assert informer.get(users_pb2.User, 0).permissions == granted
        user = users_pb2.User(id=7, username="alice", permissions=granted)
        await informer.come_to(trial.commit(change_of(trial.feed.revision + 1, user)))
        assert informer.get(users_pb2.User, 7) == user


async def test_the_end_of_what_it_is_about_empties_the_cache(trial: InformerTrial) -> None:
    """When the watched stream is gone, what was in it is told as deleted, and the end is raised."""
    async with trial.informer() as informer:
        await informer.synced()
        trial.feed.refuse_watches = lambda _: Refusal(Reason.REASON_STREAM_NOT_FOUND, "it is gone")
        trial.feed.end_watches()
        with pytest.raises(Refusal, match="it is gone"):
            await informer.ended()
        assert names_in(informer) == []
    assert trial.told[5:] == [("deleted", name) for name in "abcde"]


async def test_a_final_refusal_is_raised_by_whoever_waits(trial: InformerTrial) -> None:
    """A watch that is not allowed ends the informer, and `synced` says why."""
    trial.feed.refuse_watches = lambda _: Refusal(Reason.REASON_PERMISSION_DENIED, "not yours")
    async with trial.informer() as informer:
        for _ in range(2):
            with pytest.raises(Refusal, match="not yours"):
                await informer.synced()


async def test_an_informer_that_does_not_run_says_so(trial: InformerTrial) -> None:
    """Waiting for an informer before it begins is an error that names the cure."""
    with pytest.raises(ClientClosed, match="use it within `async with`"):
        await trial.informer().synced()


async def test_another_cluster_is_not_mixed_in(trial: InformerTrial) -> None:
    """A feed of another cluster than the one that was listed ends the informer."""
    trial.feed.cluster_id = b"\xee" * 16
    async with trial.informer() as informer:
        with pytest.raises(ProtocolError, match="another cluster answers"):
            await informer.synced()
        assert names_in(informer) == []


async def test_a_list_of_another_cluster_is_not_taken_over(trial: InformerTrial) -> None:
    """A second list that another cluster answers ends the informer, and the cache stays."""
    refusals = [Refusal(Reason.REASON_REVISION_COMPACTED, "too old")]
    async with trial.informer() as informer:
        await informer.synced()
        trial.feed.refuse_watches = lambda _: refusals.pop() if refusals else None
        trial.feed.listed_cluster_id = b"\xee" * 16
        trial.streams.by_id.clear()
        trial.feed.end_watches()
        with pytest.raises(ProtocolError, match="than the one that is in the cache"):
            await informer.ended()
        assert names_in(informer) == [*"abcde"]


@pytest.mark.parametrize(
    ("types", "place", "told"),
    [
        ([], {}, "at least one of the types viewstamp.api.streams.v1.Stream"),
        ([consumer_groups_pb2.Member], {}, "Member cannot be held: choose of"),
        ([users_pb2.User], {"stream": 1}, "User is not in a stream"),
        ([Stream], {"stream": 1, "topic": 2}, "Stream is not in a topic"),
        ([streams_pb2.Topic], {"topic": 2}, "a topic needs its stream"),
    ],
)
async def test_what_cannot_be_held_is_refused_at_once(
    client: Client, types: list[Any], place: dict[str, int], told: str
) -> None:
    """A type that cannot be listed, or not there, is an error that says what can."""
    with pytest.raises(ValueError, match=told):
        client.informer(*types, **place)


@pytest.mark.parametrize("seed", range(20))
async def test_any_history_leads_to_the_same_cache(trial: InformerTrial, seed: int) -> None:
    """Whatever happens between pages, messages and lists, cache and events agree with the truth."""
    chance = random.Random(seed)

    def step() -> None:
        changes = []
        for stream_id in chance.sample(range(1, 9), chance.randrange(3)):
            if stream_id in trial.streams.by_id and chance.random() < 0.5:
                changes.append(trial.remove(stream_id))
            else:
                changes.append(trial.put(stream_id, chance.choice("uvwxyz")))
        trial.feed.commit(*changes, head=trial.feed.revision + 1)

    def refused(request: watch_pb2.WatchRequest) -> Refusal | None:
        if chance.random() < 0.3:
            return Refusal(Reason.REASON_REVISION_COMPACTED, "too old", oldest=1)
        return None

    trial.streams.before_page = step
    trial.feed.refuse_watches = refused
    trial.feed.endings = [Ending(chance.randrange(1, 5)) for _ in range(8)]
    async with trial.informer() as informer:
        await informer.synced()
        for _ in range(30):
            step()
            if chance.random() < 0.5:
                await informer.come_to(trial.feed.revision)
        trial.streams.before_page = lambda: None
        trial.feed.commit(trial.put(9, "last"))
        await informer.come_to(trial.feed.revision)
        assert names_in(informer) == trial.names()
        assert [trial.seen[each].name for each in sorted(trial.seen)] == trial.names()
