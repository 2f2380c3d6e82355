"""Whose places or epochs change is told to the primary, once, and nobody else."""

from __future__ import annotations

import pytest

from services.consumer_groups.domain import DOMAIN
from tests.services.consumer_groups.harness import (
    GROUP_NAME,
    GroupsHarness,
    settled,
    settled_instances,
)
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as views
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api


def told(harness: GroupsHarness) -> list[int]:
    """Return the sessions of the notices since the last look, ascending."""
    sessions = sorted(session for session, _ in harness.noticed)
    harness.noticed.clear()
    return sessions


def test_who_gains_and_who_loses_is_told() -> None:
    """A new assignment concerns everybody; what is given up then concerns who gets it alone."""
    harness = settled([11, 12], partitions_count=3)
    told(harness)
    harness.join(13)
    assert told(harness) == [], "its own answer tells it"
    harness.propose_all()
    assert harness.member(12).owned == harness.member(12).target, "it keeps its one partition"
    assert told(harness) == [11, 12, 13], "each once"
    harness.truthful(11)
    harness.truthful(11)
    assert set(told(harness)) == {11, 13}
    assert {group for _, group in harness.noticed} <= {harness.group().id}


def test_a_group_is_stable_once_those_that_were_told_have_heard() -> None:
    """Nobody else is waited for, whoever keeps its partitions; who is away is not told."""
    harness = settled_instances({11: "", 12: "", 14: "kept"}, partitions_count=3)
    harness.leave(14, keep_place=True)
    told(harness)
    harness.join(13)
    harness.propose_all()
    states = []
    while sessions := told(harness):
        assert 14 not in sessions
        states.append(harness.describe().state)
        for session in sorted(set(sessions)):
            harness.truthful(session)
    assert set(states) == {views.GROUP_STATE_RECONCILING}
    assert harness.describe().state == views.GROUP_STATE_STABLE


def test_who_is_removed_is_told() -> None:
    """A member that was removed should join again at once, and those that gain hear of it."""
    harness = settled([11, 12], partitions_count=2)
    told(harness)
    request = api.ExpireMemberRequest(
        group_id=harness.group().id,
        session_id=12,
        joined_revision=harness.member(12).joined_revision,
    )
    harness.command("ExpireMember", request, user=limits.SYSTEM_USER_ID)
    assert 12 in told(harness)
    harness.propose_all()
    assert told(harness) == [11]


def test_what_changes_nothing_tells_nobody() -> None:
    """Signs of life, heartbeats and a replay of the present assignment are no news."""
    harness = settled([11, 12])
    told(harness)
    for session in (11, 12):
        harness.truthful(session)
    harness.update(member_timeout_ms=50_000)
    assert told(harness) == []
    assert list(DOMAIN.take_notices(harness.state)) == []


@pytest.mark.parametrize(
    ("timeout_ms", "interval_ms"),
    [(45_000, 15_000), (30_000, 10_000), (6_000, 5_000), (3_600_000, 15_000)],
)
def test_who_is_told_shows_life_less_often(timeout_ms: int, interval_ms: int) -> None:
    """A settled member with notices shows life three times in its timeout, if that is enough."""
    harness = GroupsHarness()
    harness.create(timeout_ms=timeout_ms)
    harness.join(11)
    harness.settle()
    for takes_notices, expected_ms in ((True, interval_ms), (False, limits.MEMBER_HEARTBEAT_MS)):
        request = api.KeepAliveConsumerGroupRequest(
            member_epoch=harness.member(11).member_epoch, takes_notices=takes_notices
        )
        request.group.name = GROUP_NAME
        answer = harness.query("KeepAliveConsumerGroup", request, session=11)
        assert (answer.interval_ms, answer.group_id) == (expected_ms, harness.group().id)
