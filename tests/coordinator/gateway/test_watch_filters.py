"""Filters of watches: which changes they want, with which they end, and which say nothing."""

from __future__ import annotations

from itertools import product
from typing import Any, Final

import pytest

from coordinator.gateway.followed_keys import EVERYTHING, keys_of_change
from coordinator.gateway.watch_filters import WatchFilter, check_shape, wanted_types
from tests.coordinator.gateway.fake_changes import (
    ACCESS,
    CREATED,
    DELETED,
    GROUP,
    MEMBER,
    STREAM,
    TOKEN,
    TOPIC,
    UPDATED,
    USER,
    WATCHED,
    change,
)
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import Change, WatchRequest
from viewstamp.errors import Refusal
from viewstamp.limits import ROOT_USER_ID

ALL: Final = frozenset((USER, TOKEN, STREAM, TOPIC, GROUP, MEMBER))
INSIDE: Final = ALL - {USER, TOKEN}
BY_STAGE: Final = {int(stage): names for stage, names in WATCHED.items()}
NAMED: Final = Identifier(name="a")
EVERY: Final = WatchFilter(ALL)
OF_STREAM: Final = WatchFilter(INSIDE, 1)
OF_TOPIC: Final = WatchFilter(INSIDE, 1, 2)
OF_GROUP: Final = WatchFilter(INSIDE, 1, 2, 3)
FILTERS: Final = (EVERY, OF_STREAM, OF_TOPIC, OF_GROUP)
# What each entity has of a stream, a topic and a group.
DEPTHS: Final = {USER: 0, ACCESS: 0, STREAM: 1, TOPIC: 2, GROUP: 3, MEMBER: 3}
IDS: Final = ((1, 2), (2, 3), (3, 4))
EVERY_KIND_OF_CHANGE: Final = tuple(
    change(entity_type, *ids, user=user, kind=kind)
    for entity_type, depth in DEPTHS.items()
    for ids in product(*IDS[:depth])
    for user in (7, 8)
    for kind in (CREATED, UPDATED, DELETED)
)


@pytest.mark.parametrize(
    ("made", "wanted_by"),
    [
        (change(USER, user=4), (EVERY,)),
        (change(TOKEN, user=4), (EVERY,)),
        (change(STREAM, 1), (EVERY, OF_STREAM)),
        (change(STREAM, 2), (EVERY,)),
        (change(TOPIC, 1, 2), (EVERY, OF_STREAM, OF_TOPIC)),
        (change(TOPIC, 1, 3), (EVERY, OF_STREAM)),
        (change(TOPIC, 2, 2), (EVERY,)),
        (change(GROUP, 1, 2, 3), FILTERS),
        (change(GROUP, 1, 2, 4), (EVERY, OF_STREAM, OF_TOPIC)),
        (change(GROUP, 2, 2, 3), (EVERY,)),
        (change(MEMBER, 1, 2, 3, user=4), FILTERS),
        (change(MEMBER, 1, 2, 3, user=ROOT_USER_ID), FILTERS),
        (change(MEMBER, 1, 3, 3, user=4), (EVERY, OF_STREAM)),
        (change(ACCESS, user=4), ()),
    ],
)
def test_what_is_wanted(made: Change, wanted_by: tuple[WatchFilter, ...]) -> None:
    """A place has what is in it; access is shown to nobody."""
    assert tuple(each for each in FILTERS if each.matches(made)) == wanted_by


@pytest.mark.parametrize("entity_type", sorted(ALL))
def test_types_are_wanted_by_name(entity_type: str) -> None:
    """Only types that are wanted match, also inside the place that is watched."""
    made = change(entity_type, 1, 2, 3)
    assert WatchFilter(frozenset((entity_type,)), 1).matches(made)
    assert not WatchFilter(ALL - {entity_type}, 1).matches(made)


@pytest.mark.parametrize(
    ("removed", "ended"),
    [
        (change(STREAM, 1, kind=DELETED), (OF_STREAM, OF_TOPIC, OF_GROUP)),
        (change(STREAM, 2, kind=DELETED), ()),
        (change(TOPIC, 1, 2, kind=DELETED), (OF_TOPIC, OF_GROUP)),
        (change(TOPIC, 1, 3, kind=DELETED), ()),
        (change(TOPIC, 2, 2, kind=DELETED), ()),
        (change(GROUP, 1, 2, 3, kind=DELETED), (OF_GROUP,)),
        (change(GROUP, 1, 2, 4, kind=DELETED), ()),
        (change(GROUP, 1, 4, 3, kind=DELETED), ()),
        (change(MEMBER, 1, 2, 3, user=4, kind=DELETED), ()),
        (change(MEMBER, 1, 2, 3, user=ROOT_USER_ID, kind=DELETED), ()),
        (change(USER, user=4, kind=DELETED), ()),
        (change(USER, user=ROOT_USER_ID, kind=DELETED), ()),
        (change(ACCESS, user=ROOT_USER_ID, kind=DELETED), ()),
        (change(STREAM, 1, kind=UPDATED), ()),
        (change(TOPIC, 1, 2, kind=UPDATED), ()),
        (change(GROUP, 1, 2, 3, kind=UPDATED), ()),
    ],
)
def test_what_ends_a_watch(removed: Change, ended: tuple[WatchFilter, ...]) -> None:
    """The removal of the place, or of what it is in, ends its watch; a member of root's is none."""
    assert tuple(each for each in FILTERS if each.ends_with(removed)) == ended


def test_a_watch_of_no_place_follows_everything() -> None:
    """Nothing else wakes it, so no change has two of its keys."""
    assert EVERY.keys(7) == (EVERYTHING,)


@pytest.mark.parametrize("watched", FILTERS[1:])
def test_what_wakes_a_watch_of_a_place(watched: WatchFilter) -> None:
    """It follows what it wants, what ends it, and what its user may do: by one key, and no more."""
    for made in EVERY_KIND_OF_CHANGE:
        concerns = watched.matches(made) or watched.ends_with(made)
        concerns = concerns or (not made.entity_type and made.user_id == 7)
        keys = [key for key in keys_of_change(made) if key in watched.keys(7)]
        assert len(keys) == int(concerns), made


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, ALL),
        ({"domains": [routing_pb2.STAGE_USERS]}, {USER, TOKEN}),
        ({"domains": [routing_pb2.STAGE_STREAMS]}, {STREAM, TOPIC}),
        ({"domains": [4, 4, 3]}, INSIDE),
        ({"entity_types": [USER, GROUP]}, {USER, GROUP}),
        ({"entity_types": [USER, USER], "domains": [2, 3]}, {USER}),
        ({"stream": NAMED}, INSIDE),
        ({"stream": NAMED, "topic": NAMED, "group": NAMED}, INSIDE),
        ({"stream": NAMED, "domains": [4]}, {GROUP, MEMBER}),
        ({"stream": NAMED, "entity_types": [MEMBER]}, {MEMBER}),
    ],
)
def test_types_that_are_asked_for(fields: dict[str, Any], wanted: set[str]) -> None:
    """Without types those of the domains are wanted; in a stream there are no users."""
    assert wanted_types(WatchRequest(**fields), BY_STAGE) == wanted


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"domains": [0]}, "domain 0 cannot be watched: choose of 2 (STAGE_USERS), 3"),
        ({"domains": [routing_pb2.STAGE_SESSIONS]}, "domain 1 cannot"),
        ({"domains": [routing_pb2.STAGE_CATALOG]}, "domain 5 cannot"),
        ({"domains": [3, -1]}, "domain -1 cannot"),
        ({"domains": [99]}, "domain 99 cannot"),
        ({"entity_types": [""]}, "no type ''"),
        ({"entity_types": ["Topic"]}, f"no type 'Topic' in what is watched: choose of {GROUP}"),
        ({"entity_types": [STREAM], "domains": [2]}, f"no type '{STREAM}'"),
        ({"entity_types": [USER], "stream": NAMED}, f"no type '{USER}'"),
        ({"entity_types": ["x" * 10**5]}, "no type '" + "x" * 100 + "'"),
        ({"domains": [2], "stream": NAMED}, "users are in no stream"),
        ({"domains": [3, 2], "stream": NAMED}, "users are in no stream"),
    ],
)
def test_types_that_nobody_can_watch(fields: dict[str, Any], said: str) -> None:
    """Domains and types that are not shown are refused, with those that are."""
    with pytest.raises(Refusal) as caught:
        wanted_types(WatchRequest(**fields), BY_STAGE)
    assert caught.value.reason == Reason.REASON_MALFORMED_REQUEST
    assert said in caught.value.message
    assert len(caught.value.message) < 1_000


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"topic": NAMED}, "it names a topic and no stream: name both"),
        ({"group": NAMED}, "it names a group and no topic: name both"),
        ({"stream": NAMED, "group": NAMED}, "it names a group and no topic: name both"),
        ({"topic": NAMED, "group": NAMED}, "it names a topic and no stream: name both"),
        ({"stream": Identifier()}, "its stream has neither an id nor a name: give one"),
        ({"stream": NAMED, "topic": Identifier()}, "its topic has neither"),
        ({"stream": NAMED, "topic": NAMED, "group": Identifier()}, "its group has neither"),
    ],
)
def test_places_that_are_incomplete(fields: dict[str, Any], said: str) -> None:
    """A place without the one that it is in, or without a name, is refused."""
    with pytest.raises(Refusal) as caught:
        check_shape(WatchRequest(**fields))
    assert caught.value.reason == Reason.REASON_MALFORMED_REQUEST
    assert said in caught.value.message


@pytest.mark.parametrize("depth", range(4))
def test_places_that_are_complete(depth: int) -> None:
    """A stream, a topic in it, a group of that, or none of them are places."""
    names = ("stream", "topic", "group")[:depth]
    request = WatchRequest(**{name: Identifier(id=1) for name in names})  # type: ignore[arg-type]
    check_shape(request)
    assert len(request.ListFields()) == depth
