"""What a feed keeps: followers find what concerns them, as if they had looked at every change.

Method: random revisions of random changes against a list of all that was ever added.
"""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.gateway import kept_changes
from coordinator.gateway.followed_keys import EVERYTHING, FollowedKey, access_key, place_key
from coordinator.gateway.kept_changes import FeedChange, KeptChanges, Taken
from tests.coordinator.gateway.fake_changes import ACCESS, STREAM, change

Keys = tuple[FollowedKey, ...]

NUMBERS = st.integers(1, 3)
CONCERNED = st.one_of(st.builds(place_key, NUMBERS), st.builds(access_key, NUMBERS))
REVISIONS = st.lists(st.lists(CONCERNED, min_size=1, max_size=6), max_size=12)
KEYS = st.one_of(
    st.just((EVERYTHING,)), st.tuples(st.builds(place_key, NUMBERS), st.just(access_key(1)))
)


def fed(revision: int, key: FollowedKey) -> FeedChange:
    """Return a change of a revision that concerns a key."""
    is_access = key == access_key(key[1])
    made = change(ACCESS, user=key[1]) if is_access else change(STREAM, key[1])
    made.revision = revision
    return FeedChange.of(made)


def filled(revisions: list[list[FollowedKey]]) -> tuple[KeptChanges, list[FeedChange]]:
    """Return what is kept of some revisions, and all of their changes."""
    kept, added = KeptChanges(), []
    for number, keys in enumerate(revisions, 1):
        changes = [fed(number, key) for key in keys]
        assert kept.add(changes) == list(dict.fromkeys(keys))
        added += changes
    return kept, added


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
    return [each for each in changes if EVERYTHING in keys or each.keys[0] in keys]


@given(revisions=REVISIONS, keys=KEYS, at_once=st.integers(1, 8), first=st.integers(1, 12))
def test_followers_take_what_concerns_them(
    revisions: list[list[FollowedKey]], keys: Keys, at_once: int, first: int
) -> None:
    """In parts of whole revisions a follower takes each change of its keys once, in order."""
    kept, added = filled(revisions)
    complete = max(first, len(revisions))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_changes, "CHANGES_AT_ONCE", at_once)
        parts = parts_from(kept, kept.index_of(first), keys, complete)
    assert [each for part in parts for each in part.changes] == concerning(
        [each for each in added if each.change.revision >= first], keys
    )
    for part, later in pairwise(parts):
        revisions_of = [each.change.revision for each in part.changes]
        sizes = [len(list(some)) for _, some in groupby(revisions_of)]
        assert sum(sizes[:-1]) < at_once <= sum(sizes)
        assert revisions_of[-1] <= part.complete_revision == later.changes[0].change.revision - 1
    assert parts[-1].complete_revision == complete


@given(revisions=REVISIONS, keys=KEYS, kept_bytes=st.integers(0, 8_000))
def test_what_is_gone_is_told(
    revisions: list[list[FollowedKey]], keys: Keys, kept_bytes: int
) -> None:
    """The oldest revisions go, as few as make room; who needs them is told, others miss nothing."""
    kept, added = filled(revisions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_changes, "FEED_BYTES_MAX", kept_bytes)
        gone = kept.shrink() or 0
    rest = [each for each in added if each.change.revision > gone]
    with_last_gone = [each for each in added if gone and each.change.revision >= gone]
    assert sum(each.size_bytes for each in rest) <= kept_bytes or gone >= len(revisions) - 1
    assert not with_last_gone or sum(each.size_bytes for each in with_last_gone) > kept_bytes
    first = len(added) - len(rest)
    assert [kept.since(index, keys, 99) for index in range(first)] == [None] * first
    taken = kept.since(first, keys, 99)
    assert taken is not None
    assert list(taken.changes) == concerning(rest, keys)


def test_what_was_cleared_is_gone() -> None:
    """After everything was forgotten, no index from before leads to anything that comes later."""
    kept, added = filled([[place_key(1)], [place_key(2)]])
    kept.clear()
    kept.add([fed(9, place_key(1))])
    indexes = range(len(added) + 1)
    assert [kept.since(index, (place_key(1),), 9) for index in indexes] == [None] * len(indexes)
    taken = kept.since(kept.index_of(9), (place_key(1),), 9)
    assert taken is not None
    assert [each.change.revision for each in taken.changes] == [9]
