"""How commands of other domains affect groups."""

from __future__ import annotations

import pytest

from services.consumer_groups.effects import EFFECTS
from tests.services.consumer_groups.harness import (
    GROUP_NAME,
    STREAM,
    TOPIC,
    USER,
    GroupsHarness,
    dump,
    settled,
)
from viewstamp.api.domain.v1 import effects_pb2


def test_deleted_stream_drops_groups_of_its_topics() -> None:
    """All groups of the topics named are gone with members and indexes, others stay."""
    harness = GroupsHarness()
    harness.create("kept", topic=TOPIC + 2)
    harness.create()
    harness.create("other", topic=TOPIC + 1)
    harness.join(11)
    harness.settle()
    harness.join(12)
    harness.propose_all()
    assert harness.state.waiting
    harness.effect(
        stream_deleted=effects_pb2.StreamDeleted(stream_id=STREAM, topic_ids=[TOPIC, TOPIC + 1])
    )
    left = dump(harness.state)
    assert [group.name for group in left["groups"].values()] == ["kept"]
    for index in ("members", "group_members", "session_groups", "user_sessions", "waiting"):
        assert left[index] == {}


def test_shrinking_topic_takes_ownership_at_once() -> None:
    """Deleted partitions are neither owned, nor revoked, nor assigned."""
    harness = settled([11], partitions_count=4)
    harness.join(12)
    harness.propose_all()
    epoch = harness.group().group_epoch
    harness.change_partitions(2)
    old, new = harness.member(11), harness.member(12)
    assert (old.owned, old.revoking, old.revocation_deadline) == ((0, 1), (), 0)
    assert (new.target, harness.group().group_epoch) == ((), epoch + 1)
    harness.settle()
    assert sorted(harness.owners()) == [0, 1]


def test_partly_shrunk_revocation_keeps_its_deadline() -> None:
    """A member that still has something to give up keeps its time."""
    harness = settled([11], partitions_count=4)
    harness.join(12)
    harness.propose_all()
    deadline = harness.member(11).revocation_deadline
    harness.change_partitions(3)
    assert (harness.member(11).revoking, harness.member(11).revocation_deadline) == ((2,), deadline)


def test_growing_topic_is_shared_again() -> None:
    """New partitions are given by the next Assign, and the change counts as one of the group."""
    harness = settled([11, 12], partitions_count=2)
    owners = harness.owners()
    harness.change_partitions(4)
    assert harness.group().modified_revision == harness.revision
    assert harness.owners() == owners
    harness.propose_all()
    assert harness.owners().items() >= owners.items()
    assert sorted(harness.owners()) == [0, 1, 2, 3]


def test_same_number_of_partitions_changes_nothing() -> None:
    """Telling the present number again is no change."""
    harness = settled([11])
    digest = harness.digest()
    harness.change_partitions(12)
    assert harness.digest() == digest


def test_topics_without_groups_do_not_matter() -> None:
    """Effects on a topic that has no groups change nothing."""
    harness = settled([11])
    digest = harness.digest()
    harness.effect(topic_deleted=effects_pb2.TopicDeleted(stream_id=STREAM, topic_id=TOPIC + 1))
    assert harness.digest() == digest


def test_empty_group_follows_partitions_without_assign() -> None:
    """A group without members needs no target when its topic changes."""
    harness = GroupsHarness()
    harness.create()
    harness.change_partitions(3)
    assert (harness.group().partitions_count, harness.pending) == (3, [])


@pytest.mark.parametrize(
    "payload",
    [
        {"user_deleted": effects_pb2.UserDeleted(user_id=USER)},
        {"user_deactivated": effects_pb2.UserDeactivated(user_id=USER)},
    ],
    ids=lambda payload: next(iter(payload)),
)
def test_user_takes_members_along(payload: dict[str, object]) -> None:
    """All members of the user leave, in every session and group; other users' members stay."""
    harness = GroupsHarness()
    harness.create()
    harness.create("second")
    for session, user in ((11, USER), (12, 4), (13, USER)):
        harness.join(session, user=user)
        harness.join(session, user=user, name="second")
    harness.join(14, user=USER)
    harness.settle()
    harness.effect(**payload)
    assert [member.session_id for member in harness.members()] == [12]
    assert [member.session_id for member in harness.members("second")] == [12]
    assert harness.members_of_user(USER) == []
    assert len(harness.pending) == 2
    digest = harness.digest()
    harness.effect(**payload)
    assert harness.digest() == digest


@pytest.mark.parametrize(
    ("session_id", "kept", "left"),
    [(None, 0, [12]), (11, 0, [12, 13]), (12, 0, [11, 12, 13]), (None, 13, [12, 13])],
)
def test_ended_sessions_of_a_user_leave(session_id: int | None, kept: int, left: list[int]) -> None:
    """Members of the user's ended sessions leave; one that is another's or is kept does not."""
    harness = GroupsHarness()
    harness.create()
    for session, user in ((11, USER), (12, 4), (13, USER)):
        harness.join(session, user=user)
    harness.settle()
    ended = effects_pb2.UserSessionsEnded(user_id=USER, session_id=session_id, kept_session_id=kept)
    harness.effect(user_sessions_ended=ended)
    assert [member.session_id for member in harness.members()] == left


def test_session_of_two_users_loses_only_one() -> None:
    """A gateway's session may serve several users, and each ends alone."""
    harness = GroupsHarness()
    for name, user in ((GROUP_NAME, 4), ("second", 5), ("third", 5)):
        harness.create(name)
        harness.join(11, user=user, name=name)
    harness.leave(11, name="third")
    assert len(harness.members_of_user(5)) == 1
    harness.effect(user_deleted=effects_pb2.UserDeleted(user_id=5))
    assert len(harness.members_of_session(11)) == 1
    assert len(harness.members_of_user(4)) == 1


def test_session_end_leaves_all_its_groups() -> None:
    """The members of a session leave together, and each group asks for one target."""
    harness = GroupsHarness()
    for name in (GROUP_NAME, "second"):
        harness.create(name)
        harness.join(11, name=name)
        harness.join(12, name=name)
    harness.settle()
    harness.propose_all()
    harness.effect(session_ended=effects_pb2.SessionEnded(session_id=11))
    assert harness.members_of_session(11) == []
    assert len(harness.pending) == 2
    harness.settle()
    assert set(harness.owners().values()) == {12}


def test_members_leaving_together_may_hand_partitions_over_on_their_way() -> None:
    """A member that gains partitions from one leaving before it frees these too."""
    harness = GroupsHarness(partitions_count=4)
    harness.create()
    harness.join(11, user=USER)
    harness.settle()
    harness.join(12, user=USER)
    harness.join(13, user=4)
    harness.propose_all()
    harness.effect(user_deleted=effects_pb2.UserDeleted(user_id=USER))
    harness.settle()
    assert harness.owners() == dict.fromkeys(range(4), 13)


def test_every_effect_that_concerns_groups_has_a_handler() -> None:
    """The effects that the contract addresses to this domain are exactly those handled."""
    assert sorted(EFFECTS) == [
        "offsets_reported",
        "partitions_changed",
        "session_ended",
        "stream_deleted",
        "topic_deleted",
        "user_deactivated",
        "user_deleted",
        "user_sessions_ended",
    ]
