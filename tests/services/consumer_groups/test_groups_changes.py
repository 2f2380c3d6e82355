"""What watchers are told of consumer groups and members: the changes of each command and effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from services.consumer_groups.commands import COMMANDS
from services.consumer_groups.effects import EFFECTS
from tests.services.consumer_groups.group_histories import (
    assigning,
    back_and_forth,
    complete,
    delete,
    empty_group,
    late,
    leave_place,
    nothing,
    overdue,
    sweep_of_nothing,
    unused_group,
    used_group,
)
from tests.services.consumer_groups.harness import (
    STREAM,
    TOPIC,
    USER,
    GroupsHarness,
    refused,
    settled,
)
from tests.services.consumer_groups.offset_requests import (
    EARLIEST,
    TIME,
    commit_as,
    forget,
    reset,
    told,
)
from tests.services.runtime.changes_reading import KINDS, changes_of, limit, page_of
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as views
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import Change

# What happened, to a group (session 0) or a member of it.
Told = tuple[str, int, int]
GROUP_TYPE: Final = "viewstamp.api.consumer_groups.v1.ConsumerGroup"
MEMBER_TYPE: Final = "viewstamp.api.consumer_groups.v1.Member"
# Group 1 has members 1 and 2, and session 1 is a member of group 2, too.
GROUP: Final[Told] = ("updated", 1, 0)


def two_groups() -> GroupsHarness:
    """Return a harness with two groups, whose partitions are all owned."""
    harness = settled([1, 2])
    harness.create("others")
    harness.join(1, "static", name="others")
    harness.propose_all()
    return harness


def tell(change: Change) -> Told:
    """Return a change in few words, after a look at its place."""
    assert change.domain == routing_pb2.STAGE_CONSUMER_GROUPS
    assert (change.stream_id, change.topic_id) == (STREAM, TOPIC)
    if change.entity_type == GROUP_TYPE:
        group = views.ConsumerGroup.FromString(change.entity)
        assert change.group_id == group.id
        assert change.user_id == 0
        assert change.key == b"".join(n.to_bytes(8, "big") for n in (STREAM, TOPIC, group.id))
        return KINDS[change.kind], group.id, 0
    assert change.entity_type == MEMBER_TYPE
    member = views.Member.FromString(change.entity)
    assert change.user_id == member.user_id == USER
    assert change.key == b"".join(
        n.to_bytes(8, "big") for n in (change.group_id, member.session_id)
    )
    return KINDS[change.kind], change.group_id, member.session_id


def new_changes(harness: GroupsHarness, do: Callable[[], object]) -> list[Change]:
    """Do something and return the changes that it makes, all of its last revision."""
    before = harness.revision
    do()
    changes = changes_of(harness.machine, from_revision=before + 1)
    assert {change.revision for change in changes} <= {harness.revision}
    return changes


# A watcher sees nothing of offsets, which change all the time: it asks for them.
NOTHING: Final[list[Told]] = []


# Command, what comes before it, the command, and the changes.
Doing = Callable[[GroupsHarness], object]
COMMAND_ROWS: Final[dict[str, tuple[str, Doing, Doing, list[Told]]]] = {
    "a new group": (
        "CreateConsumerGroup",
        nothing,
        lambda harness: harness.create("new"),
        [("created", 3, 0)],
    ),
    "a group goes with its members": (
        "DeleteConsumerGroup",
        nothing,
        delete,
        [("deleted", 1, 1), ("deleted", 1, 2), ("deleted", 1, 0)],
    ),
    "a member": (
        "JoinConsumerGroup",
        nothing,
        lambda harness: harness.join(3),
        [("created", 1, 3), GROUP],
    ),
    "a member that is one already": (
        "JoinConsumerGroup",
        nothing,
        lambda harness: harness.join(1),
        [],
    ),
    "a place that is taken over": (
        "JoinConsumerGroup",
        leave_place,
        lambda harness: harness.join(4, "static", name="others"),
        [("deleted", 2, 1), ("created", 2, 4)],
    ),
    "an own place again": (
        "JoinConsumerGroup",
        leave_place,
        lambda harness: harness.join(1, "static", name="others"),
        [("updated", 2, 1)],
    ),
    "a place that is left for a while": (
        "LeaveConsumerGroup",
        nothing,
        leave_place,
        [("updated", 2, 1)],
    ),
    "a group with another assignor": (
        "UpdateConsumerGroup",
        nothing,
        lambda harness: harness.update(assignor=views.ASSIGNOR_RANGE),
        [GROUP],
    ),
    "a group with another timeout": (
        "UpdateConsumerGroup",
        nothing,
        lambda harness: harness.update(member_timeout_ms=6_000),
        [GROUP],
    ),
    "a group without a change": (
        "UpdateConsumerGroup",
        nothing,
        lambda harness: harness.update(assignor=views.ASSIGNOR_UNIFORM, member_timeout_ms=0),
        [],
    ),
    "a member leaves": (
        "LeaveConsumerGroup",
        nothing,
        lambda harness: harness.leave(2),
        [("deleted", 1, 2), GROUP],
    ),
    "a heartbeat of old": (
        "HeartbeatConsumerGroup",
        nothing,
        lambda harness: harness.truthful(1),
        [],
    ),
    "a heartbeat that gives up partitions": (
        "HeartbeatConsumerGroup",
        assigning,
        lambda harness: harness.truthful(1),
        [("updated", 1, 1), ("updated", 1, 3)],
    ),
    "a heartbeat with a new epoch": (
        "HeartbeatConsumerGroup",
        back_and_forth,
        lambda harness: harness.truthful(2),
        [("updated", 1, 2)],
    ),
    "a target": (
        "Assign",
        lambda harness: harness.join(3),
        lambda harness: harness.propose_next(),
        [("updated", 1, 1), ("updated", 1, 2), ("updated", 1, 3), GROUP],
    ),
    "a target of long ago": ("Assign", nothing, lambda harness: harness.assign(1), []),
    "a revocation": (
        "CompleteRevocation",
        late,
        complete,
        [("deleted", 1, 1), ("updated", 1, 3), GROUP],
    ),
    "a revocation that is early": ("CompleteRevocation", assigning, complete, []),
    "a member that is silent": (
        "ExpireMember",
        nothing,
        lambda harness: harness.expire(2),
        [("deleted", 1, 2), GROUP],
    ),
    "a member that was away for too long": (
        "ExpireMember",
        overdue,
        lambda harness: harness.propose_next(),
        [("deleted", 2, 1), ("updated", 2, 0)],
    ),
    "a member that is not silent any more": (
        "ExpireMember",
        nothing,
        lambda harness: harness.expire(2, joined_revision=1),
        [],
    ),
    "a group whose offsets are to end": (
        "UpdateConsumerGroup",
        empty_group,
        lambda harness: harness.update_named("new", offsets_retention_ms=60_000),
        [("updated", 3, 0)],
    ),
    "offsets that have ended": (
        "ExpireOffsets",
        unused_group,
        lambda harness: harness.propose_next(),
        [("updated", 3, 0)],
    ),
    "offsets that are kept for longer": (
        "ExpireOffsets",
        used_group,
        lambda harness: harness.propose_next(),
        [],
    ),
    "a sweep without chores": ("Sweep", nothing, sweep_of_nothing, []),
    "offsets that a member commits": (
        "CommitOffsets",
        nothing,
        lambda harness: commit_as(harness, 1, {harness.member(1).owned[0]: 5}),
        NOTHING,
    ),
    "offsets that are reset": (
        "ResetOffsets",
        empty_group,
        lambda harness: reset(harness, to=EARLIEST, name="new"),
        NOTHING,
    ),
    "offsets that are reset to a time": (
        "ResetOffsets",
        empty_group,
        lambda harness: reset(harness, to=TIME, time_us=1, name="new"),
        NOTHING,
    ),
    "offsets that are forgotten": (
        "DeleteOffsets",
        empty_group,
        lambda harness: forget(harness, name="new"),
        NOTHING,
    ),
}

PARTITIONS: Final = {"stream_id": STREAM, "topic_id": TOPIC}
BOTH_GROUPS_GO: Final[list[Told]] = [
    ("deleted", 1, 1),
    ("deleted", 1, 2),
    ("deleted", 1, 0),
    ("deleted", 2, 1),
    ("deleted", 2, 0),
]
ALL_LEAVE: Final[list[Told]] = [
    ("deleted", 1, 1),
    GROUP,
    ("deleted", 2, 1),
    ("updated", 2, 0),
    ("deleted", 1, 2),
]
EFFECT_ROWS: Final[dict[str, tuple[dict[str, Any], list[Told]]]] = {
    "a stream is deleted": (
        {"stream_deleted": effects_pb2.StreamDeleted(stream_id=STREAM, topic_ids=[TOPIC, 10])},
        BOTH_GROUPS_GO,
    ),
    "a topic is deleted": (
        {"topic_deleted": effects_pb2.TopicDeleted(**PARTITIONS)},
        BOTH_GROUPS_GO,
    ),
    "another topic is deleted": (
        {"topic_deleted": effects_pb2.TopicDeleted(stream_id=STREAM, topic_id=10)},
        [],
    ),
    "more partitions": (
        {
            "partitions_changed": effects_pb2.PartitionsChanged(
                stream_id=STREAM, topic_id=TOPIC, partitions_count=13
            )
        },
        [GROUP, ("updated", 2, 0)],
    ),
    "no partitions": (
        {"partitions_changed": effects_pb2.PartitionsChanged(stream_id=STREAM, topic_id=TOPIC)},
        [("updated", 1, 1), ("updated", 1, 2), GROUP, ("updated", 2, 1), ("updated", 2, 0)],
    ),
    "as many partitions": (
        {
            "partitions_changed": effects_pb2.PartitionsChanged(
                stream_id=STREAM, topic_id=TOPIC, partitions_count=12
            )
        },
        [],
    ),
    "a user is deleted": ({"user_deleted": effects_pb2.UserDeleted(user_id=USER)}, ALL_LEAVE),
    "a user is deactivated": (
        {"user_deactivated": effects_pb2.UserDeactivated(user_id=USER)},
        ALL_LEAVE,
    ),
    "another user is deleted": ({"user_deleted": effects_pb2.UserDeleted(user_id=99)}, []),
    "a user's session ends": (
        {"user_sessions_ended": effects_pb2.UserSessionsEnded(user_id=USER, session_id=2)},
        [("deleted", 1, 2), GROUP],
    ),
    "a session ends": (
        {"session_ended": effects_pb2.SessionEnded(session_id=1)},
        # The first of them leaves its partitions to the other member.
        [("deleted", 1, 1), GROUP, ("deleted", 2, 1), ("updated", 2, 0)],
    ),
    "ends are reported": (
        {
            "offsets_reported": effects_pb2.OffsetsReported(
                stream_id=STREAM, topic_id=TOPIC, offsets=told({0: 5}), written_by=1
            )
        },
        NOTHING,
    ),
}


def test_every_command_and_effect_has_a_row() -> None:
    """The tables have a row for whatever changes the state."""
    assert {name for name, _, _, _ in COMMAND_ROWS.values()} == set(COMMANDS)
    assert {kind for fields, _ in EFFECT_ROWS.values() for kind in fields} == set(EFFECTS)


@pytest.mark.parametrize("name", COMMAND_ROWS)
def test_a_command_makes_these_changes(name: str) -> None:
    """Each command tells what it did to groups and members, each of them once."""
    command, prepare, do, expected = COMMAND_ROWS[name]
    harness = two_groups()
    prepare(harness)
    applied = harness.applied.get(command, 0)
    assert [tell(change) for change in new_changes(harness, lambda: do(harness))] == expected
    assert harness.applied[command] == applied + 1


@pytest.mark.parametrize("name", EFFECT_ROWS)
def test_an_effect_makes_these_changes(name: str) -> None:
    """Each effect of another domain tells which groups and members it reached."""
    fields, expected = EFFECT_ROWS[name]
    harness = two_groups()
    assert [tell(c) for c in new_changes(harness, lambda: harness.effect(**fields))] == expected


@pytest.mark.parametrize(
    "name", [name for name, (*_, expected) in COMMAND_ROWS.items() if expected is NOTHING]
)
def test_a_command_on_offsets_has_changed_something(name: str) -> None:
    """The commands of which watchers see nothing did change the state."""
    _, prepare, do, _ = COMMAND_ROWS[name]
    harness = two_groups()
    prepare(harness)
    before = harness.digest()
    do(harness)
    assert harness.digest() != before


def test_work_that_is_put_off_makes_its_changes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of a deleted topic that a sweep removes go at the revision of that sweep."""
    monkeypatch.setattr(limits, "PREPARE_CASCADE_ROWS_MAX", 12)
    harness = two_groups()
    harness.is_checking = False  # a rehearsal would use up the rows
    effect = effects_pb2.TopicDeleted(**PARTITIONS)
    found = new_changes(harness, lambda: harness.effect(topic_deleted=effect))
    assert [tell(change) for change in found] == BOTH_GROUPS_GO[:1]
    assert [tell(c) for c in new_changes(harness, harness.propose_next)] == BOTH_GROUPS_GO[1:]


def test_a_refused_command_makes_no_change() -> None:
    """A name that is taken changes nothing."""
    harness = two_groups()
    assert new_changes(harness, lambda: refused(harness.create)) == []


def test_a_group_that_comes_and_goes_in_one_transaction_was_never_there() -> None:
    """A transaction that creates a group, lets a member join, and deletes it, makes no change."""
    harness = two_groups()
    harness.is_checking = False

    def transact() -> None:
        apply(harness, pb.Item(savepoint=pb.SavepointItem()))
        harness.create("new")
        harness.revision -= 1
        harness.join(3, name="new")
        harness.revision -= 1
        delete(harness, "new")
        apply(harness, pb.Item(keep=pb.KeepItem()))

    assert new_changes(harness, transact) == []


def test_a_transaction_deletes_a_group_as_it_was_before() -> None:
    """A group that changes and goes in one transaction is told once, and so are its members."""
    harness = two_groups()
    harness.is_checking = False

    def transact() -> None:
        apply(harness, pb.Item(savepoint=pb.SavepointItem()))
        harness.join(3)
        harness.revision -= 1
        delete(harness)
        apply(harness, pb.Item(keep=pb.KeepItem()))

    before = harness.group().group_epoch
    changes = new_changes(harness, transact)
    # The group was touched first, and its members after it.
    assert [tell(c) for c in changes] == [("deleted", 1, 0), ("deleted", 1, 1), ("deleted", 1, 2)]
    assert views.ConsumerGroup.FromString(changes[0].entity).group_epoch == before


def apply(harness: GroupsHarness, item: pb.Item) -> None:
    """Apply an item of a transaction."""
    sequence, level = harness.machine.sequence + 1, limits.FEATURE_LEVEL_MAX
    harness.machine.apply(pb.Batch(sequence=sequence, feature_level=level, items=[item]))


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_group_is_described_as_callers_see_it(is_deleted: bool) -> None:
    """The entity is what GetConsumerGroup answers, but for what members decide."""
    harness = two_groups()
    seen = harness.describe()
    if is_deleted:
        *_, change = new_changes(harness, lambda: delete(harness))
    else:
        *_, change = new_changes(harness, lambda: harness.leave(2))
        seen = harness.describe()
    for field in ("state", "members_count", "members"):
        seen.ClearField(field)
    assert views.ConsumerGroup.FromString(change.entity) == seen


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_member_is_described_as_callers_see_it(is_deleted: bool) -> None:
    """The entity is what GetConsumerGroup answers of a member, with partitions."""
    harness = two_groups()
    seen = harness.describe().members[0]
    if is_deleted:
        change, *_ = new_changes(harness, lambda: delete(harness))
    else:
        harness.join(3)
        change, *_ = new_changes(harness, harness.propose_next)
        seen = harness.describe().members[0]
    assert views.Member.FromString(change.entity) == seen
    assert len(seen.owned_partitions) == (6 if is_deleted else 4)
    assert len(seen.revoking_partitions) == (0 if is_deleted else 2)


def test_partitions_weigh_where_they_are_replaced() -> None:
    """A member with many partitions may reach new epochs often, in little room."""
    harness = settled([1, 2], partitions_count=300)
    limit(harness.machine, 8_000)
    first = harness.revision + 1
    back_and_forth(harness)
    harness.truthful(2)
    assert page_of(harness.machine).oldest_revision == first
    harness.leave(2)
    assert page_of(harness.machine).oldest_revision == harness.revision + 1
