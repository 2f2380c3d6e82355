"""For any legal batch the reply fits, and the charge stays within a prepare's budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from services.users.domain import build_domain
from tests.services.cost.machines import ROOT, Fed, granted, groups, streams
from tests.services.cost.test_cascades import create, join
from tests.services.cost.test_heartbeats import heartbeat
from tests.services.cost.test_rows_and_answers import topics
from viewstamp import limits
from viewstamp.api.common.v1.common_pb2 import PartitionOffset
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_api
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.api.users.v1 import users_service_pb2 as users_api

LONG = "n" * 3_000
EXAMPLES = 5
LEVELS = [
    limits.FEATURE_LEVEL_BOUNDED,
    limits.FEATURE_LEVEL_MEMBERS,
    limits.FEATURE_LEVEL_OFFSETS,
]
# Items with the name of their command, and how often it stands in each.
Spans = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 1_500)), min_size=1, max_size=5)


def check(fed: Fed, kinds: list[tuple[str, Message]], drawn: list[tuple[int, int]]) -> None:
    """Apply spans as one prepare, each of one command many times, in one or in two batches."""
    left = limits.PREPARE_COMMANDS_MAX
    items = []
    for index, count in drawn:
        name, request = kinds[index % len(kinds)]
        count = min(count, left, limits.PREPARE_BODY_BYTES_MAX // (request.ByteSize() + 4))
        left -= count
        if count:
            items.append(fed.span(name, [request] * count))
    fed.prepare(*items[:2])
    replies = [fed.reply, fed.batch(*items[2:])]
    answered = sum(_answers_bytes(outcome) for reply in replies for outcome in reply.outcomes)
    commands = limits.PREPARE_COMMANDS_MAX - left
    around = commands * 16
    free = commands * limits.ANSWER_FREE_BYTES
    assert answered <= free + around + limits.PREPARE_ANSWERS_BYTES_MAX
    assert sum(reply.ByteSize() for reply in replies) < limits.APPLY_MESSAGE_BYTES_MAX
    assert fed.machine.budget.rows_left >= 0


def _answers_bytes(outcome: pb.Outcome) -> int:
    return len(outcome.command.results) + sum(e.ByteSize() for e in outcome.command.errors)


def of_streams(fill: Callable[[Fed], None], level: int) -> Fed:
    """Return streams with two streams of topics."""
    fed = streams()
    fed.level = level
    fed.commands("CreateStream", [api.CreateStreamRequest(name=name) for name in ("a", "b")])
    for stream_id in (1, 2):
        fed.commands("CreateTopic", topics(stream_id, 50))
    fill(fed)
    return fed


@settings(max_examples=EXAMPLES, deadline=None)
@given(Spans, st.sampled_from([limits.FEATURE_LEVEL_BOUNDED, limits.FEATURE_LEVEL_OFFSETS]))
def test_of_streams(drawn: list[tuple[int, int]], level: int) -> None:
    """Deletions, partitions, reports of their data, refusals with long names."""

    def grant(fed: Fed) -> None:
        for user_id in range(1, 4):
            changed = effects_pb2.GrantsChanged(
                user_id=user_id, permissions=granted((1, range(1, 40)), (2, ()))
            )
            fed.prepare(fed.effect(grants_changed=changed))

    fewer, more = api.DeletePartitionsRequest(), api.CreatePartitionsRequest()
    for request in (fewer, more):
        request.stream.id, request.topic.id, request.partitions_count = 1, 1, 1
    stream, topic, unknown = api.DeleteStreamRequest(), api.DeleteTopicRequest(), None
    stream.stream.id = 2
    topic.stream.id, topic.topic.id = 1, 2
    unknown = api.DeleteStreamRequest()
    unknown.stream.name = LONG
    kinds: list[tuple[str, Any]] = [
        ("DeletePartitions", fewer), ("CreatePartitions", more), ("DeleteStream", stream),
        ("DeleteTopic", topic), ("DeleteStream", unknown),
    ]  # fmt: skip
    if level >= limits.FEATURE_LEVEL_OFFSETS:
        kinds += list(reports_of_data())
    check(of_streams(grant, level), kinds, drawn)


def reports_of_data() -> Iterator[tuple[str, Any]]:
    """Yield reports: of one partition very often, of one that is not there, of nothing."""
    often = [PartitionOffset(offset=1)] * limits.OFFSETS_PER_REQUEST_MAX
    for end_offsets in (often, [PartitionOffset(partition=9)], []):
        request: Any = api.ReportPartitionEndsRequest(end_offsets=end_offsets)
        request.stream.id, request.topic.id = 1, 1
        yield "ReportPartitionEnds", request
    dropped: Any = api.TruncatePartitionsRequest(start_offsets=often)
    dropped.stream.id, dropped.topic.id = 1, 3
    yield "TruncatePartitions", dropped


@settings(max_examples=EXAMPLES, deadline=None)
@given(Spans, st.sampled_from(LEVELS))
def test_of_consumer_groups(drawn: list[tuple[int, int]], level: int) -> None:
    """Heartbeats that are answered at length, joins under long names, kept places, deletions.

    And offsets, of a group with members and of one without.
    """
    fed = groups(3_000, level)
    create(fed, 3)
    join(fed, [1, 2], instance="i")
    change = groups_api.UpdateConsumerGroupRequest(member_timeout_ms=6_000)
    away = groups_api.LeaveConsumerGroupRequest(keep_place=True)
    leave, unknown = groups_api.LeaveConsumerGroupRequest(), groups_api.JoinConsumerGroupRequest()
    again = groups_api.JoinConsumerGroupRequest(instance_id="i")
    gone = groups_api.DeleteConsumerGroupRequest()
    leave.group.id = again.group.id = away.group.id = change.group.id = 1
    gone.group.id = 2
    unknown.group.name = LONG
    epoch = fed.machine.state.members.rows[1, 7].member_epoch
    kinds: list[tuple[str, Any]] = [
        ("HeartbeatConsumerGroup", heartbeat(member_epoch=epoch)), ("LeaveConsumerGroup", leave),
        ("JoinConsumerGroup", again), ("DeleteConsumerGroup", gone), ("JoinConsumerGroup", unknown),
        ("LeaveConsumerGroup", away), ("UpdateConsumerGroup", change),
    ]  # fmt: skip
    if level >= limits.FEATURE_LEVEL_OFFSETS:
        kinds += list(changes_of_offsets(epoch))
    check(fed, kinds, drawn)


def changes_of_offsets(epoch: int) -> Iterator[tuple[str, Any]]:
    """Yield changes of the offsets of group 1, which has a member, and of group 3, which has not.

    Some are refused: group 3 has no partition of the highest number that there may be.
    """
    every = [PartitionOffset(partition=partition, offset=1) for partition in range(3_000)]
    far = [PartitionOffset(partition=limits.PARTITIONS_PER_TOPIC_MAX)]
    earliest = groups_api.OFFSET_RESET_EARLIEST
    for number, request in (
        (1, groups_api.CommitOffsetsRequest(offsets=every, member_epoch=epoch)),
        (3, groups_api.CommitOffsetsRequest(offsets=every[::2])),
        (3, groups_api.CommitOffsetsRequest(offsets=far)),
        (3, groups_api.ResetOffsetsRequest(to=earliest)),
        (3, groups_api.DeleteOffsetsRequest()),
        (1, groups_api.DeleteOffsetsRequest(partitions=range(3_000))),
    ):
        request.group.id = number
        yield type(request).__name__.removesuffix("Request"), request


@settings(max_examples=EXAMPLES, deadline=None)
@given(Spans)
def test_of_users(drawn: list[tuple[int, int]]) -> None:
    """Permissions of thousands of grants, renamings, refusals with long names."""
    fed = Fed(build_domain(bytes(limits.CLUSTER_KEY_BYTES), lambda: 0))
    fed.commands("Found", [users_api.FoundRequest(root_password_hash="x")])
    many = granted(*((stream_id, range(1, 10)) for stream_id in range(1, 50)))
    found = effects_pb2.GrantsContext()
    for entry in many.streams:
        stream = found.streams.add(stream_id=entry.stream.id)
        for topic in entry.topics:
            stream.topics.add(topic_id=topic.topic.id)
    create_user = users_api.CreateUserRequest(username="somebody", password_hash="x")
    assert fed.commands("CreateUser", [create_user], user=ROOT) == [""]
    change = users_api.UpdatePermissionsRequest(permissions=many)
    change.user.name = "somebody"
    rename, unknown = users_api.UpdateUserRequest(username="x" * 300), users_api.DeleteUserRequest()
    rename.user.name = "somebody"
    unknown.user.name = LONG
    nobody = users_api.UpdatePermissionsRequest(permissions=many)
    nobody.user.name = LONG
    fed.context = found.SerializeToString()
    kinds: list[tuple[str, Any]] = [
        ("UpdatePermissions", change), ("UpdateUser", rename), ("DeleteUser", unknown),
        ("UpdatePermissions", nobody), ("UpdatePermissions", change),
    ]  # fmt: skip
    check(fed, kinds, drawn)
