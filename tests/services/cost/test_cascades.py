"""Effects that reach far: when their prepare has no room, they are processed in steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.consumer_groups.model import GroupsState
from services.consumer_groups.section import SECTION
from tests.services.cost.machines import SESSION, STREAM, TOPIC, Fed, groups
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.machine.tables import Table, UndoLog

STEP_ROWS = 40


def context(topic_id: int, partitions_count: int) -> bytes:
    """Return the effect of streams about a topic."""
    return effects_pb2.TopicContext(
        stream_id=STREAM, topic_id=topic_id, partitions_count=partitions_count, created_revision=1
    ).SerializeToString()


def create(fed: Fed, count: int) -> None:
    """Create groups 1, 2, and so on, on the topic of the context."""
    requests = [api.CreateConsumerGroupRequest(name=f"g{number}") for number in range(count)]
    assert set(fed.commands("CreateConsumerGroup", requests)) == {""}


def join(fed: Fed, group_ids: Sequence[int], session: int = SESSION, instance: str = "") -> None:
    """Let a session join groups, and give them targets."""
    requests = []
    for group_id in group_ids:
        requests.append(api.JoinConsumerGroupRequest(instance_id=instance))
        requests[-1].group.id = group_id
    assert set(fed.commands("JoinConsumerGroup", requests, session=session)) == {""}
    run(fed, fed.reply.proposals)


def run(fed: Fed, proposals: Sequence[pb.Proposal], *only: str) -> int:
    """Sequence proposals, and those that they cause; return the number of sweeps.

    With `only`, sequence the proposals of that name alone.
    """
    names = {code: name for name, code in fed.codes.items()}
    waiting, sweeps = list(proposals), 0
    while waiting:
        proposal = waiting.pop(0)
        name, held = names[proposal.code], fed.context
        if proposal.due or (only and name not in only):
            continue
        request = getattr(api, f"{name}Request").FromString(proposal.request)
        fed.context = b""
        fed.commands(name, [request], session=0, user=limits.SYSTEM_USER_ID)
        fed.context = held
        sweeps += name == "Sweep"
        waiting += fed.reply.proposals
        if name == "Sweep":
            reload(fed.machine.state)
    return sweeps


def reload(state: GroupsState) -> None:
    """Check that a snapshot taken now would be loaded as it is."""
    section = list(SECTION.entities(state))
    loaded = GroupsState(UndoLog())
    SECTION.load(loaded, section)
    assert list(SECTION.entities(loaded)) == section


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave little room to effects and steps, so that there are many of these."""
    monkeypatch.setattr(limits, "PREPARE_CASCADE_ROWS_MAX", STEP_ROWS)
    monkeypatch.setattr(limits, "SWEEP_ROWS_MAX", STEP_ROWS)


def test_a_session_with_many_memberships_ends_in_steps(narrow: None) -> None:
    """Places of an ended session go step by step, and a new primary knows that they must."""
    fed = groups()
    create(fed, 30)
    join(fed, range(1, 31))
    fed.prepare(fed.effect(session_ended=effects_pb2.SessionEnded(session_id=SESSION)))
    state = fed.machine.state
    left = len(state.members)
    assert 0 < left < 30 and len(state.chores) == 1
    told = list(fed.machine.domain.proposals(state))
    assert "Sweep" in {name for name, code in fed.codes.items() if code in {p.code for p in told}}
    assert run(fed, fed.reply.proposals) >= 5
    assert not state.members and not state.chores


def test_a_deleted_topic_goes_in_steps(narrow: None) -> None:
    """Groups of a deleted topic, with their members, go step by step, empty ones too."""
    fed = groups()
    create(fed, 20)
    for session in range(SESSION, SESSION + 10):
        join(fed, range(1, 5), session=session)
    deleted = effects_pb2.StreamDeleted(stream_id=STREAM, topic_ids=[TOPIC, TOPIC + 1])
    fed.prepare(fed.effect(stream_deleted=deleted))
    state = fed.machine.state
    assert state.groups and state.chores and 0 < state.members_count(1) < 10
    reload(state)
    assert run(fed, fed.reply.proposals) >= 3
    for name in ("groups", "members", "chores", "names", "topic_groups", "session_groups"):
        assert not getattr(state, name).rows, name


def change(fed: Fed, count: int) -> None:
    """Give the topic another number of partitions."""
    fed.context = context(TOPIC, count)
    changed = effects_pb2.PartitionsChanged(
        stream_id=STREAM, topic_id=TOPIC, partitions_count=count
    )
    fed.prepare(fed.effect(partitions_changed=changed))


def test_deleted_partitions_are_told_to_nobody(narrow: None) -> None:
    """Deleted partitions are hidden before their groups hear, and new ones are not shown early."""
    fed = groups(10)
    create(fed, 20)
    join(fed, range(1, 21))
    change(fed, 4)
    asked = list(fed.reply.proposals)
    state = fed.machine.state
    assert state.chores and state.groups.rows[20].partitions_count == 10
    assert owned(fed, 20) == [0, 1, 2, 3]
    change(fed, 8)
    assert owned(fed, 20) == [0, 1, 2, 3]  # 4 to 7 are others now
    run(fed, [*asked, *fed.reply.proposals])
    assert not state.chores
    assert owned(fed, 20) == owned(fed, 1) == list(range(8))


def test_long_assignments_are_cut_a_few_times() -> None:
    """Partitions deleted one by one cut a member that has a million a few times, not each time."""
    fed = groups(limits.PARTITIONS_PER_TOPIC_MAX)
    create(fed, 1)
    join(fed, [1])
    left = limits.PARTITIONS_PER_TOPIC_MAX - limits.TRANSACTION_PARTS_MAX
    deleted = [
        effects_pb2.PartitionsChanged(stream_id=STREAM, topic_id=TOPIC, partitions_count=count)
        for count in range(limits.PARTITIONS_PER_TOPIC_MAX - 1, left - 1, -1)
    ]
    fed.prepare(*(fed.effect(partitions_changed=effect) for effect in deleted))
    state = fed.machine.state
    cut = limits.PARTITIONS_PER_TOPIC_MAX - len(state.members.rows[1, SESSION].owned)
    assert 0 < cut < limits.TRANSACTION_PARTS_MAX // 8
    assert run(fed, fed.reply.proposals) == 1
    assert len(state.members.rows[1, SESSION].owned) == left


def test_who_goes_on_changing_keeps_nobody_waiting(narrow: None) -> None:
    """One step runs between changes of partitions: all groups hear, and other chores are done."""
    fed = groups(10)
    create(fed, 20)
    join(fed, range(1, 21))
    join(fed, range(1, 21), session=SESSION + 1)
    fed.prepare(fed.effect(user_deactivated=effects_pb2.UserDeactivated(user_id=0)))
    state = fed.machine.state
    for number in range(400):
        change(fed, 4 + number % 2)
        sweep_once(fed, 1)
    assert len(state.members) == 0
    assert state.groups.rows[20].partitions_count != 10


CHANGING_TOPICS = 30


def change_all(fed: Fed, count: int, *more: pb.Item) -> None:
    """Give every topic another number of partitions, and let more happen in the same prepare."""
    effects = [
        effects_pb2.PartitionsChanged(stream_id=STREAM, topic_id=topic_id, partitions_count=count)
        for topic_id in range(1, CHANGING_TOPICS + 1)
    ]
    fed.prepare(*(fed.effect(partitions_changed=effect) for effect in effects), *more)


def many_that_change() -> Fed:
    """Return groups of many topics, with a pending change for each, and a user who must leave."""
    fed = groups(10)
    for topic_id in range(1, CHANGING_TOPICS + 2):
        fed.context = context(topic_id, 10)
        create(fed, 1)
    join(fed, [CHANGING_TOPICS + 1])
    gone = fed.effect(user_deactivated=effects_pb2.UserDeactivated(user_id=0))
    change_all(fed, 4, gone)
    return fed


def test_many_who_go_on_changing_keep_nobody_waiting(narrow: None) -> None:
    """Before each step more topics change than it reaches: all groups hear, and the user leaves."""
    fed = many_that_change()
    state = fed.machine.state
    (step,) = [p for p in fed.reply.proposals if p.code == fed.codes["Sweep"]]
    assert len(state.members) == 1 and len(state.chores) > CHANGING_TOPICS // 2
    for number in range(2 * CHANGING_TOPICS):
        change_all(fed, 4 + number % 2)
        request = api.SweepRequest.FromString(step.request)
        fed.commands("Sweep", [request], session=0, user=limits.SYSTEM_USER_ID)
        (step,) = [p for p in fed.reply.proposals if p.code == fed.codes["Sweep"]]
    assert len(state.members) == 0
    told = [state.groups.rows[group_id] for group_id in range(1, CHANGING_TOPICS + 1)]
    assert 10 not in {group.partitions_count for group in told}


def test_below_the_level_a_step_begins_with_the_lowest(narrow: None) -> None:
    """Entries of level 1 keep their meaning: a place in a Sweep is neither sent nor read."""
    fed, other = many_that_change(), many_that_change()
    fed.level = other.level = limits.FEATURE_LEVEL_BOUNDED - 1
    keys = list(fed.machine.state.chores.sorted_keys())
    assert len(keys) > 1
    place = dict(zip(("after_kind", "after_first_id", "after_second_id"), keys[-2], strict=True))
    for each, request in ((fed, api.SweepRequest()), (other, api.SweepRequest(**place))):
        each.commands("Sweep", [request], session=0, user=limits.SYSTEM_USER_ID)
        (step,) = [p for p in each.reply.proposals if p.code == each.codes["Sweep"]]
        assert step.request == api.SweepRequest(revision=each.revision).SerializeToString()
    assert dump(fed.machine.state) == dump(other.machine.state)


def sweep_once(fed: Fed, count: int) -> list[pb.Proposal]:
    """Run so many Sweeps in one prepare, and return their proposals."""
    held, fed.context = fed.context, b""
    requests = [api.SweepRequest()] * count
    fed.commands("Sweep", requests, session=0, user=limits.SYSTEM_USER_ID)
    fed.context = held
    return [p for p in fed.reply.proposals if p.code == fed.codes["Sweep"]]


def test_steps_share_what_a_prepare_has(narrow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two Sweeps in one prepare do no more than one; the second asks to run again."""
    monkeypatch.setattr(limits, "PREPARE_CHORE_ROWS_MAX", STEP_ROWS)
    left = []
    for count in (1, 2):
        fed = groups()
        create(fed, 30)
        join(fed, range(1, 31))
        fed.prepare(fed.effect(session_ended=effects_pb2.SessionEnded(session_id=SESSION)))
        assert len(sweep_once(fed, count)) == count
        left.append(len(fed.machine.state.members))
    assert left[0] == left[1] < 30


def test_a_deleted_topic_asks_for_no_second_step(narrow: None) -> None:
    """A topic that is deleted while its partitions are pending begins no second chain."""
    fed = groups(10)
    create(fed, 20)
    join(fed, range(1, 21))
    change(fed, 4)
    deleted = effects_pb2.TopicDeleted(stream_id=STREAM, topic_id=TOPIC)
    fed.prepare(fed.effect(topic_deleted=deleted))
    assert fed.machine.state.chores
    assert fed.codes["Sweep"] not in {proposal.code for proposal in fed.reply.proposals}


def owned(fed: Fed, group_id: int) -> list[int]:
    """Return the partitions of the session in a group, equal in heartbeat, sync and view."""
    member = fed.machine.state.members.rows[group_id, SESSION]
    beat = api.HeartbeatConsumerGroupRequest(member_epoch=member.member_epoch)
    beat.group.id = group_id
    assert fed.commands("HeartbeatConsumerGroup", [beat]) == [""]
    (told,) = fed.answers(api.HeartbeatConsumerGroupResponse)
    sync = api.SyncConsumerGroupRequest()
    view = api.GetConsumerGroupRequest()
    sync.group.id = view.group.id = group_id
    synced = api.SyncConsumerGroupResponse.FromString(query(fed, "SyncConsumerGroup", sync))
    seen = api.GetConsumerGroupResponse.FromString(query(fed, "GetConsumerGroup", view))
    assert list(synced.owned_partitions) == list(told.owned_partitions)
    assert list(seen.group.members[0].owned_partitions) == list(told.owned_partitions)
    return list(told.owned_partitions)


def query(fed: Fed, name: str, request: Any) -> bytes:
    """Read between prepares."""
    return fed.query(name, request)


# The possible events of three topics of three groups each, and of their sessions.
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("partitions"), st.integers(1, 3), st.integers(1, 6)),
        st.tuples(st.just("topic"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("session"), st.integers(7, 10), st.just(0)),
        st.tuples(st.just("user"), st.integers(1, 2), st.just(0)),
    ),
    max_size=8,
)


@pytest.mark.parametrize("level", [limits.FEATURE_LEVEL_BOUNDED, limits.FEATURE_LEVEL_MEMBERS])
@given(events=EVENTS)
@settings(max_examples=30, deadline=None)
def test_steps_end_where_one_leap_does(level: int, events: list[tuple[str, int, int]]) -> None:
    """Effects left to sweeps make the state that they make at once, indexes and all."""
    at_once, in_steps = world(level), world(level)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(limits, "PREPARE_CASCADE_ROWS_MAX", 10)
        patched.setattr(limits, "SWEEP_ROWS_MAX", 20)
        waiting = happen(in_steps, events)
        run(in_steps, waiting, "Sweep")
    happen(at_once, events)
    assert not in_steps.machine.state.chores and not at_once.machine.state.chores
    assert dump(in_steps.machine.state) == dump(at_once.machine.state)


def world(level: int) -> Fed:
    """Return groups on three topics, with members of four sessions of two users.

    The last session keeps its places in the first groups and goes, if places are kept.
    """
    fed = groups(4, level)
    for topic_id in (1, 2, 3):
        fed.context = context(topic_id, 4)
        create(fed, 3)
        for session in range(7, 11):
            requests = []
            for offset in (1, 2):
                requests.append(api.JoinConsumerGroupRequest(instance_id=f"i{session}"))
                requests[-1].group.id = 3 * (topic_id - 1) + offset
            fed.commands("JoinConsumerGroup", requests, session=session, user=1 + session % 2)
            run(fed, fed.reply.proposals)
        leave = api.LeaveConsumerGroupRequest(keep_place=True)
        leave.group.id = 3 * topic_id - 2
        fed.commands("LeaveConsumerGroup", [leave], session=10, user=1)
    members = fed.machine.state.members.rows.values()
    away = [member for member in members if member.is_away]
    assert len(away) == (3 if level >= limits.FEATURE_LEVEL_MEMBERS else 0)
    return fed


def happen(fed: Fed, events: list[tuple[str, int, int]]) -> list[pb.Proposal]:
    """Apply effects, each in a prepare of its own; return the proposals."""
    proposals: list[pb.Proposal] = []
    gone: set[int] = set()
    for kind, number, count in events:
        if kind in ("partitions", "topic") and number in gone:
            continue
        if kind == "partitions":
            effect: dict[str, Any] = {
                "partitions_changed": effects_pb2.PartitionsChanged(
                    stream_id=STREAM, topic_id=number, partitions_count=count
                )
            }
        elif kind == "topic":
            gone.add(number)
            effect = {"topic_deleted": effects_pb2.TopicDeleted(stream_id=STREAM, topic_id=number)}
        elif kind == "session":
            effect = {"session_ended": effects_pb2.SessionEnded(session_id=number)}
        else:
            effect = {"user_deactivated": effects_pb2.UserDeactivated(user_id=number)}
        fed.prepare(fed.effect(**effect))
        proposals += fed.reply.proposals
        reload(fed.machine.state)
    return proposals


def dump(state: GroupsState) -> dict[str, Any]:
    """Return all rows without epochs: a group that hears of a change again counts it again.

    And without the revisions at which members heard.
    """
    tables = [name for name in GroupsState.__slots__ if name not in ("liveness", "notices")]
    found = {name: rows(getattr(state, name)) for name in tables}
    found["groups"] = {
        key: (g._replace(group_epoch=0, assignment_epoch=0, modified_revision=0))
        for key, g in state.groups.rows.items()
    }
    found["members"] = {
        key: member._replace(assignment_revision=0) for key, member in state.members.rows.items()
    }
    del found["waiting"]
    return found


def rows(table: Table[Any, Any]) -> dict[Any, Any]:
    """Return the rows of a table, nested ones too."""
    return {
        key: rows(value) if isinstance(value, Table) else value for key, value in table.rows.items()
    }
