"""The time a member has to give partitions up."""

from __future__ import annotations

from tests.services.consumer_groups.harness import GroupsHarness, settled
from viewstamp import limits


def revoking() -> GroupsHarness:
    """Return a harness in which member 11 has to give up 2 and 3, for which 12 waits."""
    harness = settled([11], partitions_count=4)
    harness.join(12)
    harness.propose_all()
    return harness


def test_deadline_is_the_assign_plus_the_timeout() -> None:
    """The member has 30 seconds of log time from the Assign on."""
    harness = revoking()
    assert harness.member(11).revocation_deadline == harness.now + limits.REVOCATION_TIMEOUT_US


def test_deadline_takes_partitions() -> None:
    """After the deadline the partitions go to the waiting members, though the owner is silent."""
    harness = revoking()
    harness.now = harness.member(11).revocation_deadline
    harness.propose_all()
    old, new = harness.member(11), harness.member(12)
    assert (old.owned, old.revoking, old.revocation_deadline) == ((0, 1), (), 0)
    assert new.owned == (2, 3)
    assert harness.pending == []


def test_deadline_is_in_time() -> None:
    """A completion at its deadline, to the microsecond, takes the partitions."""
    harness = revoking()
    (proposal,) = harness.pending
    harness.pending.clear()
    # The harness advances its clock by one with each command.
    harness.now = proposal.due - 1
    harness.sequence(proposal)
    assert harness.now == proposal.due
    assert (harness.member(11).revoking, harness.member(12).owned) == ((), (2, 3))


def test_early_completion_is_proposed_again() -> None:
    """A completion sequenced before its time takes nothing, and is not forgotten either."""
    harness = revoking()
    (proposal,) = harness.pending
    harness.pending.clear()
    digest = harness.digest()
    harness.sequence(proposal)
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
    assert harness.member(11).revoking == ()


def test_assign_without_news_keeps_the_deadline() -> None:
    """A new target that takes nothing more from a member does not give it more time."""
    harness = revoking()
    deadline = harness.member(11).revocation_deadline
    harness.change_partitions(5)
    harness.propose_all()
    member = harness.member(11)
    assert (member.revoking, member.revocation_deadline) == ((3,), deadline)
