"""ListAllConsumerGroups: the groups of a stream, or of all streams."""

from __future__ import annotations

from functools import partial
from typing import Final

import pytest

from services.runtime.handlers import handlers_of
from tests.services.consumer_groups.harness import METHODS, USER, GroupsHarness, refused
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import frame, unframe
from viewstamp.paging import PagedList

METHOD: Final = "ListAllConsumerGroups"
# Places of groups: stream, topic, group.
Place = tuple[int, int, int]
PLACES: Final[list[Place]] = [(7, 4, 3), (7, 9, 1), (7, 9, 6), (8, 2, 2), (8, 2, 5), (9, 1, 4)]
OF_STREAM_8: Final = [place for place in PLACES if place[0] == 8]


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> GroupsHarness:
    """Return a harness with groups at those places."""
    harness = GroupsHarness(is_checking=False)
    for stream_id, topic_id, group_id in sorted(PLACES, key=lambda place: place[2]):
        monkeypatch.setattr("tests.services.consumer_groups.harness.STREAM", stream_id)
        harness.create(f"group-{group_id}", topic=topic_id)
    return harness


def page(
    harness: GroupsHarness, stream_id: int = 0, *, size: int = 0, token: str = ""
) -> tuple[list[Place], str]:
    """Return a page of the groups of a stream that was resolved, or of all, and the next token."""
    request = api.ListAllConsumerGroupsRequest(page_size=size, page_token=token)
    context = effects_pb2.TopicContext(stream_id=stream_id).SerializeToString()
    item = pb.QueryItem(
        query_id=1,
        code=METHODS[METHOD].code,
        count=1,
        items=frame(request.SerializeToString()),
        user_id=USER,
        contexts=frame(context),
    )
    batch = pb.Batch(feature_level=harness.level, items=[pb.Item(query=item)])
    answer = harness.machine.apply(batch).reply.outcomes[0].query
    if answer.errors:
        raise Refusal.from_error(answer.errors[0].error)
    found = api.ListAllConsumerGroupsResponse.FromString(unframe(answer.results)[0])
    return [(each.stream_id, each.topic_id, each.id) for each in found.groups], (
        found.next_page_token
    )


def pages(harness: GroupsHarness, stream_id: int, size: int) -> list[list[Place]]:
    """Return the groups on each page."""
    found: list[list[Place]] = []
    token = ""
    while not found or token:
        places, token = page(harness, stream_id, size=size, token=token)
        found.append(places)
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7])
@pytest.mark.parametrize(("stream_id", "expected"), [(0, PLACES), (8, OF_STREAM_8), (5, [])])
def test_every_group_is_on_one_page(
    harness: GroupsHarness, stream_id: int, expected: list[Place], size: int
) -> None:
    """Pages are as long as asked for, in order, and the last one has no token."""
    found = pages(harness, stream_id, size)
    assert [place for places in found for place in places] == expected
    assert all(len(places) == size for places in found[:-1])


def test_groups_may_go_between_pages(harness: GroupsHarness) -> None:
    """A page goes on behind a group that is gone, also if its topic has no group any more."""
    first, token = page(harness, size=4)
    assert first == PLACES[:4]
    for group in [harness.state.groups.rows[2], harness.state.groups.rows[5]]:
        harness.state.remove_group(group)
    assert page(harness, token=token) == (PLACES[5:], "")


def test_views_are_those_of_the_groups(harness: GroupsHarness) -> None:
    """A group says what it knows: members, state, and its own number of partitions."""
    harness.state.groups.put(1, harness.state.groups.rows[1]._replace(partitions_count=3))
    harness.join(11, name="group-1")
    listed = harness.query(METHOD, api.ListAllConsumerGroupsRequest()).groups
    assert [(each.id, each.partitions_count, each.members_count) for each in listed] == [
        (3, harness.partitions_count, 0),
        (1, 3, 1),
        (6, harness.partitions_count, 0),
    ]


@pytest.mark.parametrize("place", [(7, 9, 1), (9, 1, 0), (7, 0, 0)])
def test_a_token_that_was_made_up_leads_nowhere_else(harness: GroupsHarness, place: Place) -> None:
    """Tokens are no secrets: whoever may list one stream sees no group of another by any token."""
    token = PagedList(METHOD, 8).ids_token(place)
    assert set(page(harness, 8, token=token)[0]) <= set(OF_STREAM_8)


def test_tokens_belong_to_a_stream(harness: GroupsHarness) -> None:
    """A token of another list, or of no list, is refused, and so is a page that is too large."""
    _, token = page(harness, 8, size=1)
    for stream_id, size, sent in ((7, 0, token), (0, 0, token), (8, 0, "x"), (8, 1_001, "")):
        reading = partial(page, harness, stream_id, size=size, token=sent)
        assert refused(reading) == "MALFORMED_REQUEST"


def test_the_method_is_claimed(harness: GroupsHarness) -> None:
    """The service serves it."""
    assert METHODS[METHOD].full_name in handlers_of(harness.machine.domain).methods
