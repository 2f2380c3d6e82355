"""Static members that leave their places for a while: who may have them, and for how long."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.services.consumer_groups.harness import (
    STREAM,
    TOPIC,
    USER,
    GroupsHarness,
    dump,
    refused,
    settled,
    settled_instances,
)
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as views
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.errors import Refusal
from viewstamp.limits import MEMBER_TIMEOUT_US

STRANGER = USER + 1


def one_away() -> GroupsHarness:
    """Return a harness of 11 ("one") and 12 ("two"), of whom 11 is away; 2 partitions each."""
    harness = settled_instances({11: "one", 12: "two"}, partitions_count=4)
    harness.leave(11, keep_place=True)
    return harness


def waiting_away() -> GroupsHarness:
    """Return a harness in which 12 ("two") is away and waits for 2 and 3, which 11 has to give."""
    harness = settled([11], partitions_count=4)
    harness.join(12, "two")
    harness.propose_all()
    harness.leave(12, keep_place=True)
    return harness


def revoking_away() -> GroupsHarness:
    """Return a harness in which 11 ("one") went away without giving 2 and 3 to 12 before."""
    harness = settled_instances({11: "one"}, partitions_count=4)
    harness.join(12)
    harness.propose_all()
    harness.leave(11, keep_place=True)
    return harness


def test_a_place_waits() -> None:
    """A member that leaves for a while keeps its place as it was, and the group stays stable."""
    harness = settled_instances({11: "one", 12: "two"}, partitions_count=4)
    before, group = harness.member(11), harness.group()
    harness.leave(11, keep_place=True)
    deadline = harness.now + MEMBER_TIMEOUT_US
    assert harness.member(11) == before._replace(absence_deadline=deadline)
    assert harness.group() == group
    seen = harness.describe()
    assert (seen.state, seen.members_count) == (views.GROUP_STATE_STABLE, 2)
    assert [member.state for member in seen.members] == [
        views.MEMBER_STATE_AWAY,
        views.MEMBER_STATE_STABLE,
    ]


def test_no_session_has_the_place() -> None:
    """The session is no member while it is away, in no index and for no call."""
    harness = one_away()
    assert harness.members_of_session(11) == []
    assert [member.session_id for member in harness.members_of_user(USER)] == [12]
    epoch = harness.member(12).member_epoch
    sync = api.SyncConsumerGroupRequest()
    sync.group.id = 1
    calls: list[Callable[[], object]] = [
        lambda: harness.heartbeat(11, epoch),
        lambda: harness.leave(11),
        lambda: harness.leave(11, keep_place=True),
        lambda: harness.query("SyncConsumerGroup", sync, session=11),
    ]
    assert [refused(call) for call in calls] == ["NOT_A_MEMBER"] * 4


@pytest.mark.parametrize(
    ("timeout_ms", "waits_us"),
    [(0, 45_000_000), (6_000, 6_000_000), (3_600_000, 3_600_000_000)],
)
def test_a_place_waits_for_the_timeout_of_its_group(timeout_ms: int, waits_us: int) -> None:
    """The place is kept for the group's timeout of log time; then its removal is proposed."""
    harness = GroupsHarness()
    harness.create(timeout_ms=timeout_ms)
    harness.join(11, "one")
    harness.settle()
    harness.leave(11, keep_place=True)
    deadline = harness.now + waits_us
    assert harness.member(11).absence_deadline == deadline
    assert [proposal.due for proposal in harness.pending] == [deadline]
    assert harness.all_proposals() == harness.pending


def test_another_session_takes_the_place_over() -> None:
    """Another session of the user gets the place with partitions, epochs, age and number."""
    harness = one_away()
    former, number, group = harness.member(11), harness.assignment(11), harness.group()
    assert harness.join(21, "one", rack="r") == former.member_epoch
    expected = former._replace(session_id=21, rack="r", absence_deadline=0)
    assert harness.member(21) == expected
    assert (harness.assignment(21), harness.group()) == (number, group)
    assert harness.members_of_session(11) == []
    assert harness.members_of_session(21) == [expected]
    assert harness.describe().state == views.GROUP_STATE_STABLE


@pytest.mark.parametrize("rack", ["", "r"])
def test_the_same_session_comes_back(rack: str) -> None:
    """A session that joins again with its instance id has its place as it was, rack aside."""
    harness = settled_instances({11: "one", 12: "two"}, partitions_count=4)
    before = harness.member(11)
    for _ in range(2):
        harness.leave(11, keep_place=True)
        assert harness.join(11, "one", rack=rack) == before.member_epoch
        assert harness.members_of_session(11) == [before._replace(rack=rack)]
        assert len(harness.members_of_user(USER)) == 2


# The session, its instance id and user; the reason.
REFUSED_JOINS: dict[str, tuple[int, str, int, str]] = {
    "another user": (21, "one", STRANGER, "UNRELEASED_INSTANCE_ID"),
    "another user in the same session": (11, "one", STRANGER, "UNRELEASED_INSTANCE_ID"),
    "a member that is here": (21, "two", USER, "UNRELEASED_INSTANCE_ID"),
    "a member of another user that is here": (21, "two", STRANGER, "UNRELEASED_INSTANCE_ID"),
    "a member that is here, by who is away": (11, "two", USER, "INVALID_OPTION"),
    "another instance of who is away": (11, "three", USER, "INVALID_OPTION"),
    "no instance of who is away": (11, "", USER, "INVALID_OPTION"),
    "a second place of who is here": (12, "one", USER, "INVALID_OPTION"),
}


@pytest.mark.parametrize("name", REFUSED_JOINS)
def test_places_that_cannot_be_had(name: str) -> None:
    """Only the user of a place that is away gets it, and in a session without another place."""
    session, instance_id, user, reason = REFUSED_JOINS[name]
    harness = one_away()
    digest = harness.digest()
    assert refused(lambda: harness.join(session, instance_id, user=user)) == reason
    assert (harness.digest(), len(harness.pending)) == (digest, 1)


def test_the_refusal_names_who_has_the_instance() -> None:
    """A client learns which session has its instance id."""
    harness = one_away()
    with pytest.raises(Refusal) as caught:
        harness.join(21, "two")
    assert caught.value.details == {"instance_id": "two", "session_id": "12", "group_id": "1"}


def test_an_instance_is_free_once_its_member_has_left() -> None:
    """A member that leaves for good leaves no place, so anybody may join with its instance id."""
    harness = one_away()
    harness.leave(12)
    revision = harness.revision + 1
    harness.join(22, "two", user=STRANGER)
    assert (harness.member(22).owned, harness.member(22).joined_revision) == ((), revision)


def test_who_goes_away_gives_up_what_it_had_to() -> None:
    """What a leaver had to give up goes to who waits for it; the rest waits for the leaver."""
    harness = revoking_away()
    place = harness.member(11)
    assert (place.owned, place.revoking, place.revocation_deadline) == ((0, 1), (), 0)
    assert harness.member(12).owned == (2, 3)
    digest = harness.digest()
    harness.now = harness.pending[0].due  # the revocation is not completed any more
    assert harness.propose_next()
    assert harness.digest() == digest


def test_who_waits_while_it_is_away_gets_its_partitions() -> None:
    """Partitions that are released go to the place of a member that is away."""
    harness = waiting_away()
    assert harness.describe().state == views.GROUP_STATE_RECONCILING
    harness.truthful(11)
    assert harness.member(12).owned == (2, 3)
    assert harness.describe().state == views.GROUP_STATE_STABLE
    harness.join(22, "two")
    assert harness.member(22).owned == (2, 3)


@pytest.mark.parametrize("session", [12, 22])
def test_a_place_that_is_taken_over_still_waits(session: int) -> None:
    """Who has the place gets the partitions that its predecessor waited for."""
    harness = waiting_away()
    harness.join(session, "two")
    assert harness.member(session).owned == ()
    harness.truthful(11)
    assert harness.member(session).owned == (2, 3)


def test_nobody_waits_for_who_is_away() -> None:
    """A target takes partitions from a member that is away at once, and its deadline stays."""
    harness = one_away()
    deadline = harness.member(11).absence_deadline
    harness.join(13)
    harness.join(14)
    harness.propose_all()
    place, present = harness.member(11), harness.member(12)
    assert (place.owned, place.revoking, place.revocation_deadline) == ((0,), (), 0)
    assert place.absence_deadline == deadline
    assert (present.owned, present.revoking) == ((2,), (3,))
    assert (harness.member(13).owned, harness.member(14).owned) == ((1,), ())


def test_who_is_away_gets_its_share() -> None:
    """A target counts members that are away, and the last of them gets everything."""
    harness = one_away()
    harness.leave(12)
    harness.propose_all()
    assert harness.member(11).owned == (0, 1, 2, 3)
    assert harness.describe().state == views.GROUP_STATE_STABLE


def test_who_comes_back_hears_of_a_new_target() -> None:
    """A member that comes back after a new target has its old epoch, and learns the new one."""
    harness = one_away()
    before, number = harness.member(11).member_epoch, harness.assignment(11)
    harness.leave(12)
    harness.propose_all()
    assert harness.join(11, "one") == before
    assert harness.describe().state == views.GROUP_STATE_RECONCILING
    answer = harness.heartbeat(11, before, [0, 1], known=number)
    assert answer.member_epoch == harness.group().assignment_epoch > before
    assert list(answer.owned_partitions) == [0, 1, 2, 3]
    assert harness.describe().state == views.GROUP_STATE_STABLE


def test_an_old_heartbeat_of_who_came_back_releases_nothing() -> None:
    """What a member had released before it left is nothing that it releases after its return."""
    harness = settled_instances({11: "one"}, partitions_count=4)
    harness.join(12)
    harness.propose_all()
    epoch, number = harness.member(11).member_epoch, harness.assignment(11)
    harness.leave(11, keep_place=True)  # while a heartbeat with this number is on its way
    harness.leave(12)
    harness.propose_all()
    harness.join(11, "one")
    assert harness.member(11).owned == (0, 1, 2, 3)
    harness.join(12)
    harness.propose_all()
    assert harness.member(11).revoking == (2, 3)
    harness.heartbeat(11, epoch, [0, 1], known=number)
    assert harness.member(11).revoking == (2, 3)


def _delete_group(harness: GroupsHarness) -> None:
    request = api.DeleteConsumerGroupRequest()
    request.group.id = 1
    harness.command("DeleteConsumerGroup", request)


def _delete_topic(harness: GroupsHarness) -> None:
    harness.effect(topic_deleted=effects_pb2.TopicDeleted(stream_id=STREAM, topic_id=TOPIC))


def _delete_stream(harness: GroupsHarness) -> None:
    deleted = effects_pb2.StreamDeleted(stream_id=STREAM, topic_ids=[TOPIC])
    harness.effect(stream_deleted=deleted)


@pytest.mark.parametrize("delete", [_delete_group, _delete_topic, _delete_stream])
@pytest.mark.parametrize("situation", [one_away, waiting_away, revoking_away])
def test_places_go_with_their_group(
    situation: Callable[[], GroupsHarness], delete: Callable[[GroupsHarness], None]
) -> None:
    """A deleted group leaves no trace of members that are away, and nothing is done later."""
    harness = situation()
    deadline = max(proposal.due for proposal in harness.pending)
    delete(harness)
    left = dump(harness.state)
    assert {name for name, rows in left.items() if rows} == {"counters"}
    assert harness.all_proposals() == []
    digest = harness.digest()
    harness.now = deadline
    harness.propose_all()
    assert (harness.digest(), harness.pending) == (digest, [])


def test_deleted_partitions_are_taken_from_who_is_away() -> None:
    """A place loses partitions that are deleted, and stays for as long as before."""
    harness = one_away()
    deadline = harness.member(11).absence_deadline
    harness.change_partitions(1)
    place = harness.member(11)
    assert (place.owned, place.target, place.absence_deadline) == ((0,), (0,), deadline)
    harness.settle()
    assert harness.owners() == {0: 11}


ENDS: dict[str, dict[str, object]] = {
    "session_ended": {"session_ended": effects_pb2.SessionEnded(session_id=11)},
    "user_sessions_ended": {"user_sessions_ended": effects_pb2.UserSessionsEnded(user_id=USER)},
    "user_deactivated": {"user_deactivated": effects_pb2.UserDeactivated(user_id=USER)},
    "user_deleted": {"user_deleted": effects_pb2.UserDeleted(user_id=USER)},
}


@pytest.mark.parametrize("end", ENDS)
def test_a_place_outlives_sessions(end: str) -> None:
    """The end of the session, or of its user, leaves the place until it is taken or expires."""
    harness = one_away()
    before = harness.member(11)
    harness.effect(**ENDS[end])
    assert harness.member(11) == before
    assert harness.members_of_session(11) == []
    harness.propose_all()
    kept = harness.member(11)
    harness.join(21, "one")
    assert harness.member(21) == kept._replace(session_id=21, absence_deadline=0)


def test_the_place_of_a_deleted_user_goes_in_the_end() -> None:
    """A place that nobody can come back to is removed at its deadline."""
    harness = one_away()
    deadline = harness.member(11).absence_deadline
    harness.effect(user_deleted=effects_pb2.UserDeleted(user_id=USER))
    harness.propose_all()
    harness.now = deadline
    harness.propose_all()
    assert harness.members() == []


def test_the_end_of_a_session_takes_the_places_that_it_has() -> None:
    """A session that took a place over ends with it."""
    harness = one_away()
    harness.join(21, "one")
    harness.effect(session_ended=effects_pb2.SessionEnded(session_id=21))
    assert [member.session_id for member in harness.members()] == [12]
