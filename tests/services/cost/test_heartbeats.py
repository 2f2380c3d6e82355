"""Heartbeats list partitions only after a change, and any number of them fits the reply."""

from __future__ import annotations

from typing import Any

import pytest

from tests.services.cost.machines import Fed, groups
from tests.services.cost.machines import reasons as reasons_of
from tests.services.cost.test_cascades import create, join, query
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1 import domain_service_pb2 as pb

# Stages whose answers make one reply.
STAGES = 3
LEVEL_BEFORE = limits.FEATURE_LEVEL_BOUNDED - 1
LEVELS = [limits.FEATURE_LEVEL_BOUNDED, limits.FEATURE_LEVEL_MEMBERS]


def member_of(partitions_count: int, level: int = limits.FEATURE_LEVEL_BOUNDED) -> Fed:
    """Return a machine with one member that owns all partitions of the topic."""
    fed = groups(partitions_count, level)
    create(fed, 1)
    join(fed, [1])
    return fed


def heartbeat(**fields: Any) -> api.HeartbeatConsumerGroupRequest:
    """Return a heartbeat in group 1."""
    request = api.HeartbeatConsumerGroupRequest(**fields)
    request.group.id = 1
    return request


def beat(fed: Fed, **fields: Any) -> api.HeartbeatConsumerGroupResponse:
    """Send one heartbeat and return its answer."""
    assert fed.commands("HeartbeatConsumerGroup", [heartbeat(**fields)]) == [""]
    (answer,) = fed.answers(api.HeartbeatConsumerGroupResponse)
    assert isinstance(answer, api.HeartbeatConsumerGroupResponse)
    return answer


@pytest.mark.parametrize("level", LEVELS)
def test_partitions_are_told_until_they_are_known(level: int) -> None:
    """A member that names its last answer gets no partitions again, until they change."""
    fed = member_of(6, level)
    first = beat(fed, member_epoch=1)
    assert list(first.owned_partitions) == list(range(6)) and first.assignment
    epoch, number = first.member_epoch, first.assignment
    again = beat(fed, member_epoch=epoch, known_assignment=number)
    assert again.partitions_omitted and not again.owned_partitions
    assert (again.member_epoch, again.assignment) == (epoch, number)
    join(fed, [1], session=8)
    changed = beat(fed, member_epoch=epoch, known_assignment=number)
    assert not changed.partitions_omitted and changed.assignment != number
    assert len(changed.owned_partitions) == len(changed.revoking_partitions) == 3
    number = changed.assignment
    given = changed.revoking_partitions[0]
    kept = changed.revoking_partitions[1:]
    less = beat(fed, member_epoch=epoch, known_assignment=number, owned_partitions=kept)
    assert list(less.revoking_partitions) == list(kept)
    assert fed.machine.state.members.rows[1, 8].owned == (given,)


@pytest.mark.parametrize(("limit", "is_told"), [(6, True), (5, False)])
def test_up_to_a_limit_partitions_are_told(
    monkeypatch: pytest.MonkeyPatch, limit: int, is_told: bool
) -> None:
    """A member of as many partitions as fit an answer hears of all of them, one of more of none."""
    monkeypatch.setattr(limits, "HEARTBEAT_PARTITIONS_MAX", limit)
    answer = beat(member_of(6), member_epoch=1)
    assert answer.partitions_omitted is not is_told
    assert list(answer.owned_partitions) == (list(range(6)) if is_told else [])


def test_level_before_is_answered_as_before() -> None:
    """At the previous feature level a heartbeat has all partitions and no new field."""
    fed = member_of(6)
    fed.level = LEVEL_BEFORE
    known = beat(fed, member_epoch=1, known_assignment=1)
    assert known == api.HeartbeatConsumerGroupResponse(
        member_epoch=known.member_epoch, owned_partitions=range(6)
    )


def alive(fed: Fed, **fields: Any) -> api.KeepAliveConsumerGroupResponse:
    """Let the member show life without a command, and return the answer."""
    request = api.KeepAliveConsumerGroupRequest(**fields)
    request.group.id = 1
    encoded = query(fed, "KeepAliveConsumerGroup", request)
    return api.KeepAliveConsumerGroupResponse.FromString(encoded)


@pytest.mark.parametrize(("limit", "is_told"), [(6, True), (5, False)])
def test_who_shows_life_is_told_as_much_as_by_a_heartbeat(
    monkeypatch: pytest.MonkeyPatch, limit: int, is_told: bool
) -> None:
    """A sign of life is answered like a heartbeat, at the limit of partitions and after it."""
    monkeypatch.setattr(limits, "HEARTBEAT_PARTITIONS_MAX", limit)
    fed = member_of(6, limits.FEATURE_LEVEL_MEMBERS)
    told = beat(fed, member_epoch=1)
    answer = alive(fed, member_epoch=told.member_epoch)
    assert answer.partitions_omitted is told.partitions_omitted is not is_told
    assert list(answer.owned_partitions) == list(told.owned_partitions)
    assert answer.assignment == told.assignment


def test_who_shows_life_is_told_until_it_knows() -> None:
    """A sign of life that names the last answer is answered without partitions."""
    fed = member_of(6, limits.FEATURE_LEVEL_MEMBERS)
    told = beat(fed, member_epoch=1)
    known = alive(fed, member_epoch=told.member_epoch, known_assignment=told.assignment)
    assert known.partitions_omitted and not known.owned_partitions


@pytest.mark.parametrize("level", [LEVEL_BEFORE, *LEVELS])
def test_many_heartbeats_of_a_large_member(level: int) -> None:
    """8,190 heartbeats of a member with 5,000 partitions fit one message, and an entity before."""
    fed = member_of(5_000)
    epoch = beat(fed, member_epoch=1).member_epoch
    fed.level = level
    requests = [heartbeat(member_epoch=epoch)] * limits.PREPARE_COMMANDS_MAX
    reasons = fed.commands("HeartbeatConsumerGroup", requests)
    is_before = level == LEVEL_BEFORE
    bound = limits.ENTITY_BYTES_MAX // STAGES if is_before else limits.MESSAGE_BYTES_MAX
    assert fed.reply.ByteSize() < bound
    assert set(reasons[:10]) == {""}
    assert set(reasons[-1_000:]) == {"COST_EXCEEDED"}  # not even looked up any more


def test_answers_before_the_bounds_have_room_by_session() -> None:
    """In one entry of the previous level many sessions get answers that are too large for one."""
    fed = groups(5_000)
    create(fed, 2)
    join(fed, [1], session=1)
    join(fed, [2], session=2)
    fed.level = LEVEL_BEFORE
    for first, expected in ((300, {""}), (800, {"", "ANSWER_TOO_LARGE"})):
        reply = fed.prepare(beats_of(fed, 1, first), beats_of(fed, 2, 300))
        assert set(reasons_of(reply.outcomes[0], first)) == expected
        assert set(reasons_of(reply.outcomes[1], 300)) == {""}


def beats_of(fed: Fed, number: int, count: int) -> pb.Item:
    """Return heartbeats of the session that is alone in a group, by the number of both."""
    requests = [heartbeat(member_epoch=1)] * count
    for request in requests:
        request.group.id = number
    return fed.span("HeartbeatConsumerGroup", requests, session=number)


def test_a_member_of_a_million_partitions() -> None:
    """A member of a million partitions sends small heartbeats, and reads its partitions in
    pages."""
    fed = member_of(limits.PARTITIONS_PER_TOPIC_MAX)
    told = beat(fed, member_epoch=1)
    assert told.partitions_omitted and told.assignment
    owned: list[int] = []
    token = ""
    while True:
        request = api.SyncConsumerGroupRequest(page_token=token)
        request.group.id = 1
        page = api.SyncConsumerGroupResponse.FromString(query(fed, "SyncConsumerGroup", request))
        assert page.assignment == told.assignment
        assert len(page.owned_partitions) <= limits.PARTITIONS_PAGE_MAX
        owned += page.owned_partitions
        token = page.next_page_token
        if not token:
            break
    assert owned == list(range(limits.PARTITIONS_PER_TOPIC_MAX))
    view = api.GetConsumerGroupRequest()
    view.group.id = 1
    seen = api.GetConsumerGroupResponse.FromString(query(fed, "GetConsumerGroup", view))
    assert seen.group.members[0].partitions_omitted


def test_pages_across_what_is_given_up() -> None:
    """Pages hold owned partitions first, then those to give up, each once."""
    fed = member_of(7)
    beat(fed, member_epoch=1)
    join(fed, [1], session=8)
    epoch = fed.machine.state.members.rows[1, 7].member_epoch
    told = beat(fed, member_epoch=epoch, owned_partitions=range(7))
    assert told.revoking_partitions
    owned: list[int] = []
    revoking: list[int] = []
    token = ""
    for _ in range(4):
        request = api.SyncConsumerGroupRequest(page_size=2, page_token=token)
        request.group.id = 1
        page = api.SyncConsumerGroupResponse.FromString(query(fed, "SyncConsumerGroup", request))
        owned += page.owned_partitions
        revoking += page.revoking_partitions
        token = page.next_page_token
    assert not token
    assert owned == list(told.owned_partitions) and revoking == list(told.revoking_partitions)


def test_members_come_in_pages() -> None:
    """Pages list each member of a group once, and fewer members if they have many partitions."""
    fed = groups(150_000)
    create(fed, 1)
    for session in range(7, 12):
        join(fed, [1], session=session)
    sessions, token, pages = [], "", 0
    while pages == 0 or token:
        request = api.GetConsumerGroupRequest(page_size=3, page_token=token)
        request.group.id = 1
        found = api.GetConsumerGroupResponse.FromString(query(fed, "GetConsumerGroup", request))
        sessions += [member.session_id for member in found.group.members]
        token, pages = found.next_page_token, pages + 1
    assert sessions == list(range(7, 12)) and pages > 2
