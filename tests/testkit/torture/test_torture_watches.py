"""What watchers are shown is judged against each other, and against what callers were told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testkit.oracles.feeds import Shown, ShownFeed
from testkit.oracles.transactions import Transaction, TransactionOutcome, Written
from testkit.torture.judge import judge_watches
from testkit.torture.keys import LIST, STREAM, TOPIC, USER, KeyPlace, shown_by
from viewstamp.api.consumer_groups.v1.consumer_groups_pb2 import ConsumerGroup
from viewstamp.api.streams.v1.streams_pb2 import Stream, Topic
from viewstamp.api.users.v1.users_pb2 import User
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import Change

ANN = KeyPlace(USER, (1,))
ORDERS = KeyPlace(STREAM, (3,))
EVENTS = KeyPlace(TOPIC, (3, 4))
GROUPS = KeyPlace(LIST, (3, 5))
# What watchers are shown of each place, by the version that was written.
SHOW: dict[KeyPlace, Callable[[str], Change]] = {
    ANN: lambda v: _change(User(username=v), user_id=1),
    ORDERS: lambda v: _change(Stream(name=v), stream_id=3),
    EVENTS: lambda v: _change(Topic(name=v), stream_id=3, topic_id=4),
    GROUPS: lambda v: _change(ConsumerGroup(name=v), stream_id=3, topic_id=5, group_id=1),
}


def _change(entity: User | Stream | Topic | ConsumerGroup, **ids: int) -> Change:
    return Change(
        kind=watch_pb2.CHANGE_KIND_UPDATED,
        entity_type=entity.DESCRIPTOR.full_name,
        entity=entity.SerializeToString(),
        **ids,  # type: ignore[arg-type]
    )


def _wrote(revision: int | None, outcome: str, **versions: str) -> Transaction:
    places = {"ann": ANN, "orders": ORDERS, "events": EVENTS, "groups": GROUPS}
    writes = tuple(Written(places[name].key, version) for name, version in versions.items())
    return Transaction("a call", 0, 1, TransactionOutcome(outcome), revision, writes)


HISTORY = [
    _wrote(11, "committed", ann="a1", events="e1"),
    _wrote(12, "committed", events="e2"),
    _wrote(None, "unknown", ann="a3", groups="g3"),
    _wrote(None, "aborted", orders="o4"),
]
GOOD = {
    11: [SHOW[ANN]("a1"), SHOW[EVENTS]("e1")],
    12: [SHOW[EVENTS]("e2")],
    13: [SHOW[ANN]("a3"), SHOW[GROUPS]("g3")],
    14: [SHOW[ORDERS]("made by somebody else")],
}


def feed_of(shown: dict[int, list[Change]], *, only_topics: bool = False) -> Shown:
    """Return the life of a watcher that was shown so much, up to revision 20."""
    life = Shown(10, only_topics, 10)
    for revision, changes in shown.items():
        life.take(revision, changes)
    life.complete = 20
    return life


def verdict(*lives: Shown) -> str:
    """Return what the judge finds, in one text."""
    feed = ShownFeed()
    feed.lives += lives
    return "\n".join(judge_watches(feed, HISTORY))


def test_every_place_is_shown() -> None:
    """A change of each kind tells its place and version as its write does."""
    for place, show in SHOW.items():
        assert shown_by(show("new")) == Written(place.key, "new")
    gone = SHOW[ANN]("new")
    gone.kind = watch_pb2.CHANGE_KIND_DELETED
    assert shown_by(gone) is None
    assert shown_by(Change(entity_type="viewstamp.api.users.v1.PersonalAccessToken")) is None


def test_good_feeds_are_good() -> None:
    """Whole revisions of what was done, or may have been done, are right."""
    topics = {11: GOOD[11][1:], 12: GOOD[12]}
    assert verdict(feed_of(GOOD), feed_of(GOOD), feed_of(topics, only_topics=True)) == ""


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        ({11: GOOD[11]}, "was not shown a call of revision 12"),
        (GOOD | {11: GOOD[11][:1]}, "not what one transaction wrote"),
        (GOOD | {12: [*GOOD[12], *GOOD[13]], 13: []}, "not what one transaction wrote"),
        (GOOD | {12: [], 15: GOOD[12]}, "what was done at another one"),
        (GOOD | {15: GOOD[12]}, "at revision 12 and at 15"),
        (GOOD | {15: [SHOW[ORDERS]("o4")]}, "what was refused"),
    ],
    ids=["left out", "a part", "two as one", "too late", "twice", "refused"],
)
def test_wrong_feeds_are_found(shown: dict[int, list[Change]], says: str) -> None:
    """Each promise of the feed, broken once, is found even if all watchers were shown the same."""
    assert says in verdict(feed_of(shown), feed_of(shown))


@pytest.mark.parametrize("only_topics", [False, True])
def test_watchers_that_differ_are_found(*, only_topics: bool) -> None:
    """Two watchers that were shown other changes of a revision are found, whatever callers know."""
    other = feed_of({11: GOOD[11][1:], 12: []}, only_topics=only_topics)
    assert "other changes of 12 than another one" in verdict(feed_of(GOOD), other)


def test_a_feed_that_goes_back_is_refused() -> None:
    """A revision that is not behind all that were shown ends the watcher."""
    life = feed_of(GOOD)
    with pytest.raises(AssertionError, match="went back to revision 20 from 20"):
        life.take(20, [])
