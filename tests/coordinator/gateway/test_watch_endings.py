"""Each watch ends for a reason, behind everything that its caller may still see."""

from __future__ import annotations

from typing import Final

import pytest

from coordinator.gateway import change_feed
from coordinator.gateway.kept_changes import CHANGES_AT_ONCE
from coordinator.gateway.watch_filters import WatchFilter
from tests.coordinator.gateway.fake_changes import (
    ACCESS,
    CREATED,
    DELETED,
    GROUP,
    MEMBER,
    STREAM,
    TOPIC,
    UPDATED,
    USER,
    change,
)
from tests.coordinator.gateway.watch_trial import (
    ALICE,
    BOB,
    EVERYTHING,
    HOUR_US,
    OF_GROUP,
    OF_STREAM,
    OF_TOPIC,
    WatchesTrial,
    WatchingClient,
)
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.watch.v1.watch_service_pb2 import Change
from viewstamp.errors import Refusal
from viewstamp.limits import ROOT_USER_ID


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the feed be read and confirmed all the time, with little patience."""
    monkeypatch.setattr(change_feed, "WATCH_PROGRESS_MS", 1)
    monkeypatch.setattr(change_feed, "READ_DEADLINE_MS", 50)
    monkeypatch.setattr(change_feed, "FEED_INTERVAL_MS", 0)


ENDINGS: Final = [
    (OF_STREAM, change(ACCESS, user=ALICE), "ACCESS_CHANGED"),
    (EVERYTHING, change(ACCESS, user=ALICE), "ACCESS_CHANGED"),
    (OF_TOPIC, change(ACCESS, user=ALICE, kind=DELETED), "ACCESS_CHANGED"),
    (OF_STREAM, change(STREAM, 1, kind=DELETED), "STREAM_NOT_FOUND"),
    (OF_TOPIC, change(STREAM, 1, kind=DELETED), "STREAM_NOT_FOUND"),
    (OF_TOPIC, change(TOPIC, 1, 2, kind=DELETED), "TOPIC_NOT_FOUND"),
    (OF_GROUP, change(TOPIC, 1, 2, kind=DELETED), "TOPIC_NOT_FOUND"),
    (OF_GROUP, change(GROUP, 1, 2, 3, kind=DELETED), "GROUP_NOT_FOUND"),
]


@pytest.mark.parametrize("follows", [True, False], ids=["following", "catching-up"])
@pytest.mark.parametrize(("wanted", "last", "reason"), ENDINGS)
async def test_endings(wanted: WatchFilter, last: Change, reason: str, follows: bool) -> None:
    """Everything of the last revision is sent, nothing behind it, and then the reason."""
    trial = WatchesTrial()
    inside = change(MEMBER, 1, 2, 3, user=BOB)

    def commit() -> None:
        trial.services.commit(inside)
        trial.services.commit(inside, last, inside)
        trial.services.commit(inside)

    if not follows:
        commit()
    async with trial.watch(1, wanted) as client:
        if follows:
            commit()
        assert await trial.ends(client) == reason
    inner = [each for each in client.changes if each.entity_type == MEMBER]
    assert [each.revision for each in inner] == [1, 2, 2]
    shown = [each for each in client.changes if each.entity_type != MEMBER]
    assert [each.entity_type for each in shown] == [last.entity_type] * wanted.matches(last)
    assert client.headers[-1] == 2
    assert trial.feed.followers == 0


async def test_an_ending_in_the_midst_of_a_long_revision() -> None:
    """A revision in several parts is sent to its end, also behind the change that ends it."""
    trial = WatchesTrial()
    long = [change(TOPIC, 1, number) for number in range(3 * CHANGES_AT_ONCE)]
    async with trial.watch(1) as client:
        trial.services.commit(change(ACCESS, user=ALICE), *long)
        trial.services.commit(change(STREAM, 1))
        assert await trial.ends(client) == "ACCESS_CHANGED"
    assert client.details["revision"] == "1"
    assert client.revisions == [1] * len(long)
    assert (client.headers[-2], client.headers[-1]) == (0, 1)


async def test_a_revision_whose_rest_is_not_wanted_is_complete_before_the_end() -> None:
    """A watch of topics is told that it has all of a revision, although the rest is of others."""
    trial = WatchesTrial()
    topics = [change(TOPIC, 1, number) for number in range(CHANGES_AT_ONCE)]
    async with trial.watch(1, WatchFilter(frozenset((TOPIC,)))) as client:
        trial.services.commit(*topics, change(STREAM, 1))
        trial.services.commit(change(ACCESS, user=ALICE))
        assert await trial.ends(client) == "ACCESS_CHANGED"
    assert client.revisions == [1] * len(topics)
    assert client.headers[-1] in (1, 2)


@pytest.mark.parametrize(
    "beside",
    [
        change(ACCESS, user=BOB),
        change(ACCESS, user=ROOT_USER_ID),
        change(ACCESS, user=ALICE, kind=CREATED),
        change(USER, user=ALICE),
        change(USER, user=ALICE, kind=DELETED),
        change(STREAM, 2, kind=DELETED),
        change(TOPIC, 1, 4, kind=DELETED),
        change(GROUP, 1, 2, 4, kind=DELETED),
        change(MEMBER, 1, 2, 3, user=BOB, kind=DELETED),
        change(MEMBER, 1, 2, 3, user=ROOT_USER_ID, kind=DELETED),
        change(STREAM, 1, kind=UPDATED),
    ],
)
async def test_what_ends_no_watch(beside: Change) -> None:
    """Changes of others, and of what is beside or inside the place, leave the watch open."""
    trial = WatchesTrial()
    async with trial.watch(wanted=OF_GROUP) as client:
        trial.services.commit(beside)
        trial.services.commit(change(MEMBER, 1, 2, 3, user=BOB))
        await trial.until_complete(client, 2)
        assert (client.ended_with, client.revisions[-1]) == ([], 2)


async def test_access_is_shown_to_nobody() -> None:
    """Changes of access make no message, and their revisions are complete."""
    trial = WatchesTrial()
    async with trial.watch() as client:
        trial.services.commit(change(ACCESS, user=BOB))
        trial.services.commit(change(STREAM, 1))
        await trial.until_complete(client, 2)
    assert client.revisions == [2]


async def test_an_expired_token_ends_the_watch() -> None:
    """A watch ends with its token, even when nothing happens."""
    trial = WatchesTrial()
    async with trial.watch(client=trial.client(valid_us=1_000)) as client:
        assert await trial.ends(client) == "UNAUTHENTICATED"
    assert trial.feed.followers == 0


@pytest.mark.usefixtures("quick")
async def test_a_replica_that_is_cut_off_ends_its_watches() -> None:
    """The client learns that this replica cannot tell whether its feed is complete."""
    trial = WatchesTrial()
    async with trial.watch() as client, trial.watch(wanted=OF_STREAM) as other:
        trial.services.is_cut_off = True
        assert [await trial.ends(each) for each in (client, other)] == ["NO_QUORUM"] * 2
    assert trial.feed.followers == 0


async def test_what_is_kept_no_longer_is_refused() -> None:
    """A watch from before what the services keep ends with the oldest revision that they have."""
    trial = WatchesTrial()
    for number in range(5):
        trial.services.commit(change(STREAM, number))
    trial.services.forget(before=4)
    async with trial.watch(2) as client:
        assert await trial.ends(client) == "REVISION_COMPACTED"
    assert (client.details["revision"], client.details["oldest"]) == ("2", "4")
    assert client.headers == [1]
    async with trial.watch(4) as later:
        await trial.until_complete(later, 5)
    assert later.revisions == [4, 5]


async def test_a_service_that_is_away_ends_who_catches_up() -> None:
    """Who reads from a service that is away is told so, and may come again where it was."""
    trial = WatchesTrial()
    trial.services.commit(change(STREAM, 1))
    trial.services.refusal = Refusal(Reason.REASON_DOMAIN_RESTARTING, "")
    async with trial.watch(1) as client:
        assert await trial.ends(client) == "DOMAIN_RESTARTING"
    assert (client.headers, trial.feed.followers) == ([0], 0)


@pytest.mark.parametrize(
    ("token", "payload", "reason"),
    [
        (True, b"\xff", "MALFORMED_REQUEST"),
        (False, b"", "UNAUTHENTICATED"),
        (True, b"", "VIEW_CHANGE"),
    ],
)
async def test_calls_that_open_nothing(token: bool, payload: bytes, reason: str) -> None:
    """Malformed requests, strangers, and calls of a replica that answers no reads are refused."""
    trial = WatchesTrial()
    if reason == "VIEW_CHANGE":
        trial.reading_refusal = Refusal(Reason.REASON_VIEW_CHANGE, "")
    client = trial.client() if token else WatchingClient()
    await trial.serve(client, payload)
    assert (client.ended_with, client.messages) == ([reason], [])


async def test_an_expired_token_opens_nothing() -> None:
    """A token that has expired is refused before anything is asked."""
    trial = WatchesTrial()
    client = trial.client(valid_us=-HOUR_US)
    await trial.serve(client, b"")
    assert client.ended_with == ["UNAUTHENTICATED"]
    assert trial.services.started == []
