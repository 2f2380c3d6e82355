"""The time a member has to give partitions up."""

from __future__ import annotations

import pytest

from tests.services.consumer_groups.harness import (
    GroupsHarness,
    refused,
    settled,
    settled_instances,
)
from viewstamp import limits


def revoking() -> GroupsHarness:
    """Return a harness in which member 11 has to give up 2 and 3, for which 12 waits."""
    harness = settled([11], partitions_count=4)
    harness.join(12)
    harness.propose_all()
    return harness


@pytest.mark.parametrize(
    ("timeout_ms", "time_us"),
    [
        (0, 49_500_000),
        (6_000, 30_000_000),
        (27_272, 30_000_000),
        (27_273, 30_000_300),
        (3_600_000, 3_960_000_000),
    ],
)
def test_deadline_is_the_assign_plus_the_timeout(timeout_ms: int, time_us: int) -> None:
    """From the Assign on a member has its own timeout and a tenth, or 30 seconds if that is less.

    So whoever could not be told has stopped by itself before.
    """
    harness = GroupsHarness(partitions_count=4)
    harness.create(timeout_ms=timeout_ms)
    harness.join(11)
    harness.settle()
    harness.join(12)
    harness.propose_all()
    deadline = harness.now + time_us
    assert harness.member(11).revocation_deadline == deadline
    assert [proposal.due for proposal in harness.pending] == [deadline]


def test_deadline_removes_the_member() -> None:
    """After the deadline the silent owner is out, and who waited has what it held back."""
    harness = revoking()
    epoch = harness.group().group_epoch
    harness.now = harness.member(11).revocation_deadline
    assert harness.propose_next()
    assert [member.session_id for member in harness.members()] == [12]
    assert (harness.member(12).owned, harness.group().group_epoch) == ((2, 3), epoch + 1)
    assert harness.members_of_session(11) == []
    harness.propose_all()
    assert harness.member(12).owned == (0, 1, 2, 3)
    assert harness.pending == []


def test_who_was_late_hears_of_it() -> None:
    """A member that gave up too late is no member any more, and may join again."""
    harness = revoking()
    epoch = harness.member(11).member_epoch
    harness.now = harness.member(11).revocation_deadline
    harness.propose_all()
    assert refused(lambda: harness.heartbeat(11, epoch, [0, 1])) == "NOT_A_MEMBER"
    harness.join(11)
    harness.settle()
    assert [len(member.owned) for member in harness.members()] == [2, 2]


def test_a_static_member_is_removed_too() -> None:
    """A static member that gives up too late has no place that waits for it."""
    harness = settled_instances({11: "one"}, partitions_count=4)
    harness.join(12)
    harness.propose_all()
    harness.now = harness.member(11).revocation_deadline
    harness.propose_all()
    assert harness.owners() == dict.fromkeys(range(4), 12)
    joined = harness.revision + 1
    harness.join(13, "one")
    assert harness.member(13).joined_revision == joined


def test_deadline_is_in_time() -> None:
    """A completion at its deadline, to the microsecond, removes the member."""
    harness = revoking()
    (proposal,) = harness.pending
    harness.pending.clear()
    # The harness advances its clock by one with each command.
    harness.now = proposal.due - 1
    harness.sequence(proposal)
    assert harness.now == proposal.due
    assert harness.owners() == {2: 12, 3: 12}


def test_early_completion_is_proposed_again() -> None:
    """A completion sequenced before its time takes nothing, and is not forgotten either."""
    harness = revoking()
    (proposal,) = harness.pending
    harness.pending.clear()
    digest = harness.digest()
    harness.now = proposal.due - 2
    harness.sequence(proposal)
    assert harness.now == proposal.due - 1
    assert harness.digest() == digest
    assert harness.pending == [proposal]


def test_completion_after_release_is_stale() -> None:
    """A member that released in time loses nothing more."""
    harness = revoking()
    deadline = harness.member(11).revocation_deadline
    harness.truthful(11)
    digest = harness.digest()
    harness.now = deadline
    harness.propose_all()
    assert harness.digest() == digest


def test_completion_of_a_gone_member_is_stale() -> None:
    """A completion for a member that left does nothing."""
    harness = revoking()
    harness.leave(11)
    digest = harness.digest()
    harness.complete_revocation(11, 1)
    assert harness.digest() == digest


def test_news_begin_the_time_anew() -> None:
    """A member that must give up more has the full time for all; the old deadline is stale."""
    harness = revoking()
    first = harness.member(11).revocation_deadline
    harness.now += limits.REVOCATION_TIMEOUT_US // 2
    harness.join(13)
    harness.join(14)
    harness.propose_all()
    member = harness.member(11)
    assert (member.owned, member.revoking) == ((0,), (1, 2, 3))
    assert member.revocation_deadline > first
    harness.now = first
    harness.propose_all()
    assert harness.member(11).revoking == (1, 2, 3)
    harness.now = member.revocation_deadline
    harness.propose_all()
    assert [member.session_id for member in harness.members()] == [12, 13, 14]


def test_assign_without_news_keeps_the_deadline() -> None:
    """A new target that takes nothing more from a member does not give it more time."""
    harness = revoking()
    deadline = harness.member(11).revocation_deadline
    harness.change_partitions(5)
    harness.propose_all()
    member = harness.member(11)
    assert (member.revoking, member.revocation_deadline) == ((3,), deadline)
