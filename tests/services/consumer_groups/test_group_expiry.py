"""Members that are removed for silence, or because they were away for too long."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.services.consumer_groups.harness import (
    GroupsHarness,
    refused,
    settled,
    settled_instances,
)
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1 import domain_service_pb2 as pb


def revoking() -> GroupsHarness:
    """Return a harness in which 11 has to give up 2 and 3, for which 12 waits."""
    harness = settled([11], partitions_count=4)
    harness.join(12)
    harness.propose_all()
    return harness


def one_away() -> tuple[GroupsHarness, pb.Proposal]:
    """Return a harness whose member 11 ("one") is away, and the proposal to remove it."""
    harness = settled_instances({11: "one", 12: ""}, partitions_count=4)
    harness.leave(11, keep_place=True)
    (proposal,) = harness.pending
    harness.pending.clear()
    return harness, proposal


def test_a_silent_member_is_removed() -> None:
    """Its partitions go to who waits for them at once, and the rest with a new target."""
    harness = revoking()
    epoch = harness.group().group_epoch
    harness.expire(11)
    assert harness.owners() == {2: 12, 3: 12}
    assert harness.group().group_epoch == epoch + 1
    assert refused(lambda: harness.heartbeat(11, epoch)) == "NOT_A_MEMBER"
    harness.settle()
    assert harness.owners() == dict.fromkeys(range(4), 12)


def test_the_last_silent_member_leaves_an_empty_group() -> None:
    """A group without members needs no target."""
    harness = settled([11])
    harness.expire(11)
    group = harness.group()
    assert (harness.members(), group.group_epoch) == ([], group.assignment_epoch)
    assert harness.all_proposals() == []


def test_an_absence_ends_at_its_deadline() -> None:
    """A place is removed at its deadline, to the microsecond, and its partitions are given on."""
    harness, proposal = one_away()
    harness.now = proposal.due - 1
    harness.sequence(proposal)
    assert harness.now == proposal.due
    assert [member.session_id for member in harness.members()] == [12]
    harness.propose_all()
    assert harness.owners() == dict.fromkeys(range(4), 12)


def test_an_early_end_is_proposed_again() -> None:
    """An end that is sequenced a microsecond before its time takes nothing and is not forgotten."""
    harness, proposal = one_away()
    digest = harness.digest()
    harness.now = proposal.due - 2
    harness.sequence(proposal)
    assert (harness.digest(), harness.pending) == (digest, [proposal])


def test_a_late_end_finds_the_place_taken() -> None:
    """A place that is taken over after its deadline, but before its end, is kept."""
    harness, proposal = one_away()
    harness.now = proposal.due
    harness.join(11, "one")
    digest = harness.digest()
    harness.sequence(proposal)
    assert (harness.digest(), harness.pending) == (digest, [])


@pytest.mark.parametrize("session", [11, 21])
def test_who_goes_away_again_has_its_full_time(session: int) -> None:
    """The end of an absence does nothing to a later one."""
    harness, proposal = one_away()
    harness.join(session, "one")
    harness.now += 1_000_000
    harness.leave(session, keep_place=True)
    digest = harness.digest()
    harness.now = proposal.due
    harness.sequence(proposal)
    assert harness.digest() == digest
    harness.now = harness.member(session).absence_deadline
    harness.propose_all()
    assert [member.session_id for member in harness.members()] == [12]


# What differs from an ExpireMember of member 12, which is here and has joined at revision 103.
OTHER_MEMBERS: dict[str, dict[str, int]] = {
    "another group": {"group_id": 2},
    "another session": {"session_id": 13},
    "an earlier join": {"joined_revision": 102},
    "a later join": {"joined_revision": 104},
    "an absence": {"absence_deadline": 1},
}


@pytest.mark.parametrize("name", OTHER_MEMBERS)
def test_another_member_is_meant(name: str) -> None:
    """What was decided about another member, or another time of this one, changes nothing."""
    harness, _ = one_away()
    assert harness.member(12).joined_revision == 103
    digest = harness.digest()
    fields = {"session_id": 12, "joined_revision": 103, **OTHER_MEMBERS[name]}
    harness.expire(fields.pop("session_id"), **fields)
    assert (harness.digest(), harness.pending) == (digest, [])
    harness.expire(12, joined_revision=103)
    assert harness.digest() != digest


def test_silence_does_not_end_an_absence() -> None:
    """Who was held for silent, and then left its place for a while, keeps it."""
    harness, _ = one_away()
    digest = harness.digest()
    harness.expire(11)
    assert (harness.digest(), harness.pending) == (digest, [])


@pytest.mark.parametrize("offset", [-1, 1])
def test_another_absence_is_meant(offset: int) -> None:
    """An end that names another deadline than the present one changes nothing, even late."""
    harness, proposal = one_away()
    digest = harness.digest()
    harness.now = proposal.due + 1_000_000
    harness.expire(11, absence_deadline=proposal.due + offset)
    assert (harness.digest(), harness.pending) == (digest, [])


def test_who_joined_anew_is_not_removed_for_former_silence() -> None:
    """An end that was decided before the member left and joined again does nothing."""
    harness = settled([11])
    joined = harness.member(11).joined_revision
    harness.leave(11)
    harness.join(11)
    digest = harness.digest()
    harness.expire(11, joined_revision=joined)
    assert harness.digest() == digest


def _silent(harness: GroupsHarness) -> tuple[str, int]:
    harness.expire(11)
    return "ExpireMember", 0


def _away(harness: GroupsHarness) -> tuple[str, int]:
    harness.pending.clear()  # the revocation, which is over
    harness.leave(11, keep_place=True)
    due = harness.now = harness.member(11).absence_deadline
    harness.propose_next()
    return "ExpireMember", due


def _late(harness: GroupsHarness) -> tuple[str, int]:
    due = harness.now = harness.member(11).revocation_deadline
    harness.propose_next()
    return "CompleteRevocation", due


@pytest.mark.parametrize("remove", [_silent, _away, _late])
def test_a_removal_without_room_is_put_off(
    monkeypatch: pytest.MonkeyPatch, remove: Callable[[GroupsHarness], tuple[str, int]]
) -> None:
    """A removal that its prepare cannot afford is proposed again, and done in the next one."""
    harness = settled_instances({11: "one"}, partitions_count=4)
    harness.join(12)
    harness.propose_all()
    harness.join(13)
    harness.pending = [proposal for proposal in harness.pending if proposal.due]
    monkeypatch.setattr(limits, "COMMAND_FREE_ROWS", 0)
    monkeypatch.setattr(limits, "PREPARE_CHORE_ROWS_MAX", 1)
    harness.is_checking = False  # a rehearsal would use up the rows
    harness.op += 1
    harness.expire(13)  # the first one always fits
    harness.pending = [proposal for proposal in harness.pending if proposal.due]
    name, due = remove(harness)
    assert 11 in [member.session_id for member in harness.members()]
    proposal = harness.pending[-1]
    request = getattr(api, f"{name}Request").FromString(proposal.request)
    assert (proposal.due, request.put_off_revision) == (due, harness.revision)
    harness.op += 1
    harness.sequence(proposal)
    assert [member.session_id for member in harness.members()] == [12]
