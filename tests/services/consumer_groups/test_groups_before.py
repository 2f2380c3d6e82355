"""Members below feature level 4, as replicas carry out the entries of old logs."""

from __future__ import annotations

import pytest

from tests.services.consumer_groups.harness import (
    LEVEL_BEFORE,
    GroupsHarness,
    refused,
    settled,
    settled_instances,
)
from viewstamp import limits


def revoking() -> GroupsHarness:
    """Return a harness in which member 11 has to give up 2 and 3, for which 12 waits."""
    harness = settled([11], partitions_count=4, level=LEVEL_BEFORE)
    harness.join(12)
    harness.propose_all()
    return harness


@pytest.mark.parametrize("user", [3, 4])
def test_an_instance_takes_its_place_over(user: int) -> None:
    """Whoever joins with an instance id has its place at once, with partitions, epochs and age."""
    harness = settled_instances({11: "one", 12: "two"}, level=LEVEL_BEFORE)
    former, group = harness.member(11), harness.group()
    assert harness.join(21, "one", user=user, rack="r") == former.member_epoch
    expected = former._replace(session_id=21, user_id=user, rack="r")
    assert harness.member(21) == expected
    assert (harness.group(), harness.pending) == (group, [])
    assert harness.members_of_session(11) == []
    assert expected in harness.members_of_user(user)
    assert refused(lambda: harness.heartbeat(11, former.member_epoch)) == "NOT_A_MEMBER"


def test_a_place_that_is_taken_over_still_waits() -> None:
    """The successor gets the partitions that its predecessor waited for."""
    harness = settled([11], partitions_count=4, level=LEVEL_BEFORE)
    harness.join(12, "two")
    harness.propose_all()
    harness.join(22, "two")
    harness.truthful(11)
    assert harness.member(22).owned == (2, 3)


def test_a_place_that_is_taken_over_still_has_to_release() -> None:
    """The successor inherits the revocation, and its deadline is proposed for it."""
    harness = settled_instances({11: "one"}, partitions_count=4, level=LEVEL_BEFORE)
    harness.join(12)
    harness.propose_all()
    harness.join(21, "one")
    harness.now = harness.member(21).revocation_deadline
    harness.propose_all()
    assert harness.member(21).revoking == ()
    assert harness.member(12).owned == (2, 3)


def test_ranges_stay_where_they_are_after_a_takeover() -> None:
    """A place keeps its age when another session takes it over."""
    harness = GroupsHarness(partitions_count=5, level=LEVEL_BEFORE)
    harness.create(range_assignor=True)
    harness.join(30, "first")
    harness.join(20)
    harness.settle()
    harness.join(40, "first")
    harness.change_partitions(6)
    harness.settle()
    assert (harness.member(40).owned, harness.member(20).owned) == ((0, 1, 2), (3, 4, 5))


@pytest.mark.parametrize("instance_id", ["", "one"])
def test_no_place_is_kept(instance_id: str) -> None:
    """A member that leaves with keep_place leaves for good, with an instance id or without."""
    harness = settled_instances({11: instance_id, 12: ""}, level=LEVEL_BEFORE)
    harness.leave(11, keep_place=True)
    assert [member.session_id for member in harness.members()] == [12]
    assert [proposal.due for proposal in harness.pending] == [0]
    harness.settle()
    assert set(harness.owners().values()) == {12}


def test_a_deadline_takes_partitions() -> None:
    """After the deadline the partitions go to who waits, and the silent owner stays a member."""
    harness = revoking()
    harness.now = harness.member(11).revocation_deadline
    harness.propose_all()
    old, new = harness.member(11), harness.member(12)
    assert (old.owned, old.revoking, old.revocation_deadline) == ((0, 1), (), 0)
    assert (new.owned, harness.pending) == ((2, 3), [])


def test_a_deadline_is_the_assign_plus_30_seconds() -> None:
    """A member has 30 seconds, whatever timeout members have at other levels."""
    harness = revoking()
    assert harness.member(11).revocation_deadline == harness.now + 30_000_000


def test_a_deadline_is_in_time() -> None:
    """A completion takes the partitions at its deadline, and not a microsecond before."""
    harness = revoking()
    (proposal,) = harness.pending
    harness.pending.clear()
    harness.now = proposal.due - 2
    harness.sequence(proposal)
    assert (harness.member(11).revoking, harness.pending) == ((2, 3), [proposal])
    harness.sequence(proposal)
    assert harness.now == proposal.due
    assert (harness.member(11).revoking, harness.member(12).owned) == ((), (2, 3))


def test_news_begin_the_time_anew() -> None:
    """A member that must give up more has the full time for all; then it loses all of them."""
    harness = revoking()
    first = harness.member(11).revocation_deadline
    harness.now += limits.REVOCATION_TIMEOUT_US // 2
    harness.join(13)
    harness.join(14)
    harness.propose_all()
    harness.now = first
    harness.propose_all()
    assert harness.member(11).revoking == (1, 2, 3)
    harness.now = harness.member(11).revocation_deadline
    harness.propose_all()
    assert (harness.member(11).owned, harness.member(11).revoking) == ((0,), ())


def test_a_deadline_of_before_removes_the_member_at_the_new_level() -> None:
    """A revocation that began below the level ends as the level in force at its deadline says."""
    harness = revoking()
    harness.level = limits.FEATURE_LEVEL_MEMBERS
    harness.now = harness.member(11).revocation_deadline
    harness.propose_all()
    assert harness.owners() == dict.fromkeys(range(4), 12)


@pytest.mark.parametrize("timeout_ms", [0, 1, 6_000, 2**32 - 1])
def test_timeouts_mean_nothing(timeout_ms: int) -> None:
    """A timeout is neither refused nor stored: members are not removed."""
    harness = GroupsHarness(level=LEVEL_BEFORE)
    harness.create(timeout_ms=timeout_ms)
    assert harness.group().member_timeout_ms == 0


def test_rows_have_no_new_field() -> None:
    """Whatever happens to a group, the new fields of its rows stay empty: bytes are as before."""
    harness = settled_instances({11: "one", 12: ""}, partitions_count=6, level=LEVEL_BEFORE)
    harness.join(13)
    harness.propose_all()
    harness.truthful(11)
    harness.join(21, "one")
    harness.change_partitions(5)
    harness.now += limits.REVOCATION_TIMEOUT_US
    harness.propose_all()
    harness.leave(13)
    harness.settle()
    rows = [(m.absence_deadline, m.assignment_revision) for m in harness.members()]
    assert rows == [(0, 0), (0, 0)]
    assert harness.group().member_timeout_ms == 0
