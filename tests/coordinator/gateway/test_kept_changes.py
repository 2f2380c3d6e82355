"""What a feed keeps: followers find what concerns them, as if they had looked at every change.

Method: random revisions of random changes against a list of all that was ever added.
"""

from __future__ import annotations

import gc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.gateway import kept_changes
from coordinator.gateway.followed_keys import (
    EVERYTHING,
    FollowedKey,
    keys_of_change,
    keys_of_watch,
    place_key,
)
from coordinator.gateway.kept_changes import FeedChange, KeptChanges, Taken
from tests.coordinator.gateway.fake_changes import (
    ACCESS,
    CREATED,
    DELETED,
    GROUP,
    STREAM,
    TOPIC,
    USER,
    change,
)
from viewstamp.api.watch.v1.watch_service_pb2 import Change

Keys = tuple[FollowedKey, ...]

KINDS = st.sampled_from((CREATED, DELETED))
STREAMS = st.integers(1, 3)
USERS = st.integers(7, 8)
MADE = st.one_of(
    st.builds(lambda stream, kind: change(STREAM, stream, kind=kind), STREAMS, KINDS),
    st.builds(lambda stream, kind: change(TOPIC, stream, 1, kind=kind), STREAMS, KINDS),
    st.builds(lambda stream, kind: change(GROUP, stream, 1, 1, kind=kind), STREAMS, KINDS),
    st.builds(lambda user: change(ACCESS, user=user), USERS),
    st.builds(lambda user: change(USER, user=user), USERS),
)
REVISIONS = st.lists(st.lists(MADE, min_size=1, max_size=6), max_size=12)
KEYS = st.builds(
    lambda user, stream, depth: keys_of_watch(user, *(stream, 1, 1)[:depth], *(0, 0, 0)[depth:]),
    USERS,
    STREAMS,
    st.integers(0, 3),
)


def fed(revision: int, made: Change) -> FeedChange:
    """Return a change of a revision."""
    of_revision = Change()
    of_revision.CopyFrom(made)
    of_revision.revision = revision
    return FeedChange.of(of_revision)


def filled(revisions: list[list[Change]]) -> tuple[KeptChanges, list[FeedChange]]:
    """Return what is kept of some revisions, and all of their changes."""
    kept, added = KeptChanges(), []
    for number, made in enumerate(revisions, 1):
        changes = [fed(number, each) for each in made]
        keys = dict.fromkeys(key for each in made for key in keys_of_change(each))
        assert kept.add(changes) == list(keys)
        kept.show()
        added += changes
    return kept, added


def shrunk(kept: KeptChanges) -> int:
    """Forget all that there is no room for; return the newest revision that is gone."""
    gone = 0
    while (newest := kept.shrink()) is not None:
        assert newest >= gone
        gone = newest
    return gone


def parts_from(kept: KeptChanges, index: int, keys: Keys, complete: int) -> list[Taken]:
    """Return what a follower takes, part after part."""
    parts: list[Taken] = []
    while not parts or parts[-1].complete_revision < complete:
        taken = kept.since(index, keys, complete)
        assert taken is not None
        parts.append(taken)
        index = taken.next_index
    return parts


def concerning(changes: list[FeedChange], keys: Keys) -> list[FeedChange]:
    """Return what concerns some keys, by a look at each change."""
    return [
        each
        for each in changes
        if EVERYTHING in keys or set(keys_of_change(each.change)) & set(keys)
    ]


@given(revisions=REVISIONS, keys=KEYS, at_once=st.integers(1, 8), first=st.integers(1, 12))
def test_followers_take_what_concerns_them(
    revisions: list[list[Change]], keys: Keys, at_once: int, first: int
) -> None:
    """In parts of whole revisions a follower takes each change of its keys once, in order."""
    kept, added = filled(revisions)
    complete = max(first, len(revisions))
    wanted = concerning([each for each in added if each.change.revision >= first], keys)
    start = kept.index_of(first)
    assert kept.count(start, keys) == len(wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_changes, "CHANGES_AT_ONCE", at_once)
        parts = parts_from(kept, start, keys, complete)
    assert [each for part in parts for each in part.changes] == wanted
    begin = first
    for part in parts:
        revisions_of = {each.change.revision for each in part.changes}
        assert len(part.changes) <= at_once or len(revisions_of) == 1
        assert all(begin <= each <= part.complete_revision for each in revisions_of)
        begin = part.complete_revision + 1
    for part, later in pairwise(parts):
        next_ones = [each.change.revision for each in later.changes]
        fitting = next_ones.count(min(next_ones, default=0))
        assert not fitting or len(part.changes) + fitting > at_once
    assert parts[-1].complete_revision == complete


@given(revisions=REVISIONS, keys=KEYS, kept_bytes=st.integers(0, 14_000), at_once=st.integers(1, 8))
def test_what_is_gone_is_told(
    revisions: list[list[Change]], keys: Keys, kept_bytes: int, at_once: int
) -> None:
    """The oldest revisions go, as few as make room; who needs them is told, others miss nothing."""
    kept, added = filled(revisions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_changes, "FEED_BYTES_MAX", kept_bytes)
        patch.setattr(kept_changes, "CHANGES_AT_ONCE", at_once)
        gone = shrunk(kept)
    rest = [each for each in added if each.change.revision > gone]
    with_last_gone = [each for each in added if gone and each.change.revision >= gone]
    assert sum(each.size_bytes for each in rest) <= kept_bytes or gone >= len(revisions) - 1
    assert not with_last_gone or sum(each.size_bytes for each in with_last_gone) > kept_bytes
    first = len(added) - len(rest)
    assert [kept.since(index, keys, 99) for index in range(first)] == [None] * first
    taken = kept.since(first, keys, 99)
    assert taken is not None
    assert list(taken.changes) == concerning(rest, keys)


def test_nothing_is_found_before_it_is_shown() -> None:
    """Of a revision that comes in parts, nobody finds the first part alone."""
    kept, _ = filled([[change(STREAM, 1)]])
    topics = [fed(2, change(TOPIC, 1, number)) for number in range(4)]
    for part in (topics[:2], topics[2:]):
        kept.add(part)
        for keys in ((place_key(1),), (EVERYTHING,)):
            taken = kept.since(kept.index_of(1), keys, 1)
            assert taken is not None
            assert [each.change.revision for each in taken.changes] == [1]
            assert (taken.next_index, kept.end, kept.index_of(2), kept.index_of(3)) == (1, 1, 1, 1)
            assert kept.count(0, keys) == 1
    kept.show()
    taken = kept.since(1, (place_key(1),), 2)
    assert taken is not None
    assert list(taken.changes) == topics


def test_followers_of_a_place_share_a_long_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands who wait with the same long revision have one list of it together."""
    monkeypatch.setattr(kept_changes, "CHANGES_AT_ONCE", 4)
    made = [change(TOPIC, stream, number) for number in range(5) for stream in (1, 2)]
    kept, added = filled([[change(STREAM, 1)], [*made, change(ACCESS, user=9)]])
    start = kept.index_of(2)
    taken = [kept.since(start, keys_of_watch(user, 1, 0, 0), 2) for user in (7, 8, 9)]
    other = kept.since(start, keys_of_watch(7, 2, 0, 0), 2)
    everything = kept.since(start, (EVERYTHING,), 2)
    changes = [each.changes for each in (*taken, other, everything) if each is not None]
    assert len(changes) == 5
    assert changes[0] is changes[1]
    for got, keys in zip(
        changes,
        (
            *(keys_of_watch(user, 1, 0, 0) for user in (7, 8, 9)),
            keys_of_watch(7, 2, 0, 0),
            (EVERYTHING,),
        ),
        strict=True,
    ):
        assert list(got) == concerning(added[1:], keys)


def objects_in(kept: KeptChanges) -> int:
    """Return how many objects are kept, places and keys included."""
    seen: dict[int, object] = {}
    found: list[object] = list(vars(kept).values())
    while found:
        each = found.pop()
        if id(each) not in seen and not isinstance(each, int | str | bytes | type):
            seen[id(each)] = each
            found += gc.get_referents(each)
    return len(seen)


def test_what_is_gone_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what came and went, neither changes nor keys nor lists that were shared stay."""
    monkeypatch.setattr(kept_changes, "CHANGES_AT_ONCE", 4)
    monkeypatch.setattr(kept_changes, "FEED_BYTES_MAX", 1)
    kept, _ = filled([[change(STREAM, 1)]])
    fresh = objects_in(kept)
    for revision in range(2, 20):
        topics = [change(TOPIC, revision, number, kind=DELETED) for number in range(1, 9)]
        kept.add([fed(revision, each) for each in topics])
        kept.show()
        taken = kept.since(kept.index_of(revision), (place_key(revision),), revision)
        assert taken is not None
        assert len(taken.changes) == 8
        shrunk(kept)
    del taken, topics
    kept.add([fed(20, change(STREAM, 1))])
    kept.show()
    shrunk(kept)
    assert objects_in(kept) == fresh
    kept.clear()
    assert objects_in(kept) == objects_in(KeptChanges())


def test_what_was_cleared_is_gone() -> None:
    """After everything was forgotten, no index from before leads to anything that comes later."""
    kept, added = filled([[change(STREAM, 1)], [change(STREAM, 2)]])
    kept.clear()
    kept.add([fed(9, change(STREAM, 1))])
    kept.show()
    indexes = range(len(added) + 1)
    assert [kept.since(index, (place_key(1),), 9) for index in indexes] == [None] * len(indexes)
    taken = kept.since(kept.index_of(9), (place_key(1),), 9)
    assert taken is not None
    assert [each.change.revision for each in taken.changes] == [9]
