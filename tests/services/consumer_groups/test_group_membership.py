"""Joining, leaving, taking over, and how often a target is computed."""

from __future__ import annotations

from tests.services.consumer_groups.harness import STREAM, TOPIC, USER, GroupsHarness, settled
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as views
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1 import effects_pb2


def test_first_member_gets_everything_at_once() -> None:
    """Free partitions are owned as soon as Assign is applied, before any heartbeat."""
    harness = GroupsHarness(partitions_count=5)
    harness.create()
    assert harness.describe().state == views.GROUP_STATE_EMPTY
    epoch = harness.join(11)
    assert harness.describe().state == views.GROUP_STATE_ASSIGNING
    harness.propose_all()
    assert harness.member(11).owned == (0, 1, 2, 3, 4)
    assert harness.describe().state == views.GROUP_STATE_RECONCILING
    answer = harness.heartbeat(11, epoch)
    assert list(answer.owned_partitions) == [0, 1, 2, 3, 4]
    assert answer.member_epoch == harness.group().assignment_epoch
    assert harness.describe().state == views.GROUP_STATE_STABLE


def test_partition_waits_for_its_old_owner() -> None:
    """A newcomer owns its target only as the old owner's heartbeats stop naming the partitions."""
    harness = settled([11], partitions_count=4)
    harness.join(12)
    harness.propose_all()
    old = harness.member(11)
    assert (old.owned, old.revoking) == ((0, 1), (2, 3))
    assert harness.member(12).target == (2, 3)
    view = {m.session_id: m.state for m in harness.describe().members}
    assert view[11] == views.MEMBER_STATE_UNREVOKED_PARTITIONS
    assert view[12] == views.MEMBER_STATE_UNRELEASED_PARTITIONS

    answer = harness.heartbeat(11, old.member_epoch, [0, 1, 2, 3])
    assert list(answer.revoking_partitions) == [2, 3]
    assert answer.member_epoch == old.member_epoch
    assert harness.member(12).owned == ()

    harness.heartbeat(11, old.member_epoch, [0, 1, 3])
    assert (harness.member(11).revoking, harness.member(12).owned) == ((3,), (2,))
    assert harness.member(11).revocation_deadline == old.revocation_deadline

    answer = harness.heartbeat(11, old.member_epoch, [0, 1])
    assert answer.member_epoch == harness.group().assignment_epoch
    assert harness.member(11).revocation_deadline == 0
    assert harness.member(12).owned == (2, 3)


def test_group_reconciles_while_a_member_waits() -> None:
    """A member that has reached the epoch but not its partitions keeps the group from stable."""
    harness = settled([11], partitions_count=4)
    harness.join(10)
    harness.propose_all()
    harness.truthful(10)
    assert harness.member(10).member_epoch == harness.group().assignment_epoch
    assert harness.describe().state == views.GROUP_STATE_RECONCILING


def test_heartbeat_from_before_the_present_epoch_releases_nothing() -> None:
    """A heartbeat sent before the member learned its present epoch releases nothing."""
    harness = settled([11], partitions_count=4)
    before = harness.member(11).member_epoch
    harness.change_partitions(6)
    harness.propose_all()
    assert harness.heartbeat(11, before, [0, 1, 2, 3]).member_epoch > before  # The reply is lost.
    harness.join(12)
    harness.propose_all()
    harness.heartbeat(11, before, [0, 1, 2])
    assert harness.member(11).revoking == (3, 4, 5)


def test_lost_replies_never_fence() -> None:
    """A member that hears none of several answers goes on with the epoch it knows."""
    harness = settled([11], partitions_count=4)
    known = harness.member(11).member_epoch
    for count in (5, 6, 7):
        harness.change_partitions(count)
        harness.propose_all()
        assert harness.heartbeat(11, known, range(4)).member_epoch > known
    assert harness.member(11).previous_member_epoch == known


def test_joining_twice_is_idempotent() -> None:
    """A second join of the same session answers the same and changes nothing."""
    harness = GroupsHarness()
    harness.create()
    first = harness.join(11, "one", rack="r")
    digest, proposals = harness.digest(), len(harness.pending)
    assert harness.join(11, "one", rack="r") == first
    assert (harness.digest(), len(harness.pending)) == (digest, proposals)


def test_heartbeat_without_news_changes_nothing() -> None:
    """A heartbeat of a settled member leaves the state as it is."""
    harness = settled([11, 12])
    digest = harness.digest()
    harness.truthful(11)
    assert harness.digest() == digest


def test_leaver_frees_what_it_held() -> None:
    """A leaver's pending partitions go to the member that waits for them; Assign moves the rest."""
    harness = settled([11], partitions_count=4)
    harness.join(12)
    harness.propose_all()
    harness.leave(11)
    assert harness.member(12).owned == (2, 3)
    harness.settle()
    assert harness.member(12).owned == (0, 1, 2, 3)


def test_partition_returns_to_an_owner_that_had_not_released_it() -> None:
    """If the newcomer leaves before the release, the old owner simply goes on."""
    harness = settled([11], partitions_count=4)
    harness.join(12)
    harness.propose_all()
    harness.leave(12)
    assert harness.member(11).revoking == (2, 3)
    harness.propose_all()
    member = harness.member(11)
    assert (member.owned, member.revoking, member.revocation_deadline) == ((0, 1, 2, 3), (), 0)


def test_rejoined_member_does_not_wait_for_its_former_target() -> None:
    """A session that left and joined again does not get the partitions it waited for before."""
    harness = settled([11], partitions_count=4)
    harness.join(12)
    harness.propose_all()
    harness.leave(12)
    harness.join(12)
    harness.truthful(11)
    assert (harness.member(11).revoking, harness.member(12).owned) == ((), ())
    harness.settle()
    assert len(harness.owners()) == 4


def test_last_leaver_leaves_an_empty_group() -> None:
    """An empty group needs no target, and its epoch still grows."""
    harness = settled([11])
    epoch = harness.group().group_epoch
    harness.leave(11)
    group = harness.group()
    assert (group.group_epoch, group.assignment_epoch) == (epoch + 1, epoch + 1)
    assert harness.describe().state == views.GROUP_STATE_EMPTY
    assert harness.all_proposals() == []


def test_thousand_joins_compute_few_targets() -> None:
    """All joins between two Assigns share one proposal."""
    harness = GroupsHarness(partitions_count=2000, is_checking=False)
    harness.create()
    for session in range(1, 1001):
        harness.join(session)
        if session % 250 == 0:
            assert len(harness.pending) == 1
            assert harness.propose_next()
    harness.propose_all()
    # Each round is a stale Assign, but for the last, which finds the epoch it names.
    assert harness.applied["Assign"] <= 5
    assert harness.group().assignment_epoch == harness.group().group_epoch
    assert {len(member.target) for member in harness.members()} == {2}


def test_stale_assign_proposes_the_present_epoch() -> None:
    """An Assign for an older epoch computes nothing and asks for the present one."""
    harness = GroupsHarness()
    harness.create()
    harness.join(11)
    harness.join(12)
    (first,) = harness.pending
    assert harness.propose_next()
    (second,) = harness.pending
    assert harness.member(11).target == ()
    assert api.AssignRequest.FromString(first.request).group_epoch == 2
    assert api.AssignRequest.FromString(second.request).group_epoch == 3
    assert harness.propose_next()
    assert harness.member(11).target != ()


def test_repeated_assign_changes_nothing() -> None:
    """An Assign that was applied already, or of a deleted group, is a no-op."""
    harness = settled([11])
    digest = harness.digest()
    harness.assign(harness.group().group_epoch)
    harness.assign(1)
    harness.assign(1, group_id=99)
    assert harness.digest() == digest
    assert harness.pending == []


def test_new_primary_is_told_everything_pending() -> None:
    """Assigns and deadlines follow from the state, so a new primary can ask for them."""
    harness = settled([11], partitions_count=4)
    harness.join(12)
    assert harness.all_proposals() == harness.pending
    harness.propose_all()
    assert harness.all_proposals() == harness.pending
    assert [proposal.due for proposal in harness.pending] == [
        harness.member(11).revocation_deadline
    ]


def test_validate_only_changes_nothing() -> None:
    """A rehearsed join answers like a real one, and leaves neither trace nor proposal."""
    harness = GroupsHarness()
    harness.create()
    digest = harness.digest()
    request = api.JoinConsumerGroupRequest(validate_only=True)
    request.group.id = 1
    answer = harness.command("JoinConsumerGroup", request, session=11)
    assert answer.member_epoch == 1
    assert (harness.digest(), harness.pending) == (digest, [])


def test_range_gives_contiguous_partitions_in_the_order_of_joins() -> None:
    """Ranges follow the age of places, not session numbers, also after a takeover."""
    harness = GroupsHarness(partitions_count=5)
    harness.create(range_assignor=True)
    harness.join(30, "first")
    harness.join(20)
    harness.settle()
    assert (harness.member(30).owned, harness.member(20).owned) == ((0, 1, 2), (3, 4))
    harness.leave(30, keep_place=True)
    harness.join(40, "first")
    harness.change_partitions(6)
    harness.settle()
    assert (harness.member(40).owned, harness.member(20).owned) == ((0, 1, 2), (3, 4, 5))


def test_groups_of_a_topic_are_apart() -> None:
    """Every group shares all partitions by itself; ids are never reused."""
    harness = GroupsHarness(partitions_count=2)
    first, second = harness.create("a"), harness.create("b")
    harness.join(11, name="a")
    harness.join(11, name="b")
    harness.propose_all()
    assert harness.member(11, "a").owned == harness.member(11, "b").owned == (0, 1)
    request = api.DeleteConsumerGroupRequest()
    request.group.id = second
    harness.command("DeleteConsumerGroup", request)
    assert [place.group_id for place in harness.members_of_session(11)] == [first]
    assert harness.create("b") == second + 1
    harness.effect(topic_deleted=effects_pb2.TopicDeleted(stream_id=STREAM, topic_id=TOPIC))
    assert not harness.state.members and not harness.state.groups
    assert harness.members_of_user(USER) == []
