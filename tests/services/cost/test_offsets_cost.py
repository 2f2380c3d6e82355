"""Offsets and watermarks of a million partitions: paid for, possible, and gone in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pytest
from google.protobuf.message import Message

from services.runtime import offset_rows
from tests.services.cost.machines import STREAM, TOPIC, Fed, groups, reasons, streams
from tests.services.cost.test_cascades import create, join
from tests.services.cost.test_restored import restored
from viewstamp import limits
from viewstamp.api.common.v1.common_pb2 import PartitionOffset
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_api
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api

LEVEL: Final = limits.FEATURE_LEVEL_OFFSETS
PARTITIONS: Final = limits.PARTITIONS_PER_TOPIC_MAX
ROWS: Final = offset_rows.row_count(PARTITIONS)
MANY: Final = limits.OFFSETS_PER_REQUEST_MAX
# One partition of each row; and so many partitions that they are in as many rows as possible.
ONE_OF_EACH: Final = range(0, PARTITIONS, limits.PARTITIONS_PER_OFFSETS_ROW)
FAR_APART: Final = [partition * (PARTITIONS // MANY) for partition in range(MANY)]
TOGETHER: Final = range(MANY)
ROWS_TOGETHER: Final = offset_rows.row_count(MANY)
# A row of work stands for so many offsets of a request at most.
OFFSETS_PER_ROW_MAX: Final = 16
# The first groups have an offset in each row.
FULL_GROUPS: Final = 12
GROUPS: Final = 40
STEPS_MAX: Final = 100


def offsets(partitions: Iterable[int], offset: int = 1) -> list[PartitionOffset]:
    """Return an offset of each partition, all of which are equal."""
    return [PartitionOffset(partition=partition, offset=offset) for partition in partitions]


def of_topic(request: Any, topic: int = TOPIC) -> Any:
    """Return a request about a topic."""
    request.stream.id, request.topic.id = STREAM, topic
    return request


def of_group(request: Any, group: int = 1) -> Any:
    """Return a request about a group."""
    request.group.id = group
    return request


def topics(monkeypatch: pytest.MonkeyPatch, count: int, level: int = LEVEL) -> Fed:
    """Return streams with so many topics of a million partitions."""
    fed = streams()
    fed.level = level
    fed.commands("CreateStream", [api.CreateStreamRequest(name="s")])
    with monkeypatch.context() as patched:
        patched.setattr(limits, "PARTITIONS_PER_REQUEST_MAX", PARTITIONS)
        requests = []
        for number in range(count):
            requests.append(api.CreateTopicRequest(name=f"{number}", partitions_count=PARTITIONS))
            requests[-1].stream.id = STREAM
        assert set(fed.commands("CreateTopic", requests)) == {""}
    return fed


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Fed:
    """Return streams with a topic that has watermarks in each row."""
    fed = topics(monkeypatch, 1)
    report = of_topic(api.ReportPartitionEndsRequest(end_offsets=offsets(ONE_OF_EACH)))
    assert fed.commands("ReportPartitionEnds", [report]) == [""]
    assert len(fed.machine.state.watermarks) == ROWS
    return fed


def commit(partitions: Iterable[int], **fields: Any) -> groups_api.CommitOffsetsRequest:
    """Return a request that commits an offset of each partition."""
    return groups_api.CommitOffsetsRequest(offsets=offsets(partitions), **fields)


def filled(count: int, full: int) -> Fed:
    """Return so many groups, the first of which have offsets in each row."""
    fed = groups(PARTITIONS, LEVEL)
    create(fed, count)
    for group in range(1, full + 1):
        request = of_group(commit(ONE_OF_EACH), group)
        assert fed.commands("CommitOffsets", [request]) == [""]
    return fed


@pytest.fixture
def full_group() -> Fed:
    """Return a group that has offsets in each row."""
    return filled(1, 1)


@pytest.fixture
def full_groups() -> Fed:
    """Return many groups, some of which have offsets in each row."""
    return filled(GROUPS, FULL_GROUPS)


def charged(fed: Fed) -> int:
    """Return what the only command of the last prepare has cost beyond the free rows."""
    return limits.PREPARE_ROWS_MAX - fed.machine.budget.rows_left


def name_of(request: Message) -> str:
    """Return the command that a request is of."""
    return type(request).__name__.removesuffix("Request")


def check_paid(fed: Fed, request: Any, rows: int, named: int) -> None:
    """Check that a command succeeds within its limit, and has paid for what it did.

    It replaces so many rows, and names so many partitions.
    """
    assert fed.commands(name_of(request), [request]) == [""]
    least = rows + named // OFFSETS_PER_ROW_MAX - limits.COMMAND_FREE_ROWS
    assert least <= charged(fed) <= limits.COMMAND_ROWS_MAX


def reports() -> Iterator[tuple[Any, int]]:
    """Yield the most expensive reports, each with how many rows it reaches."""
    for partitions, rows in ((FAR_APART, ROWS), (TOGETHER, ROWS_TOGETHER)):
        told = offsets(partitions, limits.OFFSET_MAX)
        yield of_topic(api.ReportPartitionEndsRequest(end_offsets=told)), rows
        yield of_topic(api.TruncatePartitionsRequest(start_offsets=told)), rows


@pytest.mark.parametrize(("report", "rows"), list(reports()))
def test_a_report_of_many_partitions_is_paid_for_at_both_stages(
    topic: Fed, report: Any, rows: int
) -> None:
    """The report that names most partitions pays for their rows here and in the groups.

    Again, it moves nothing, and pays for what is done here alone.
    """
    check_paid(topic, report, rows, MANY)
    at_both = charged(topic)
    (effect,) = topic.reply.outcomes[0].command.effects
    told = effects_pb2.EffectPayload.FromString(effect.payload).offsets_reported
    assert len(told.offsets) == MANY
    check_paid(topic, report, rows, MANY)
    assert not topic.reply.outcomes[0].command.effects
    assert at_both - charged(topic) >= rows + MANY // OFFSETS_PER_ROW_MAX


@pytest.mark.parametrize("name", ["DeleteTopic", "DeleteStream"])
def test_a_topic_of_a_million_watermarks_can_be_deleted(topic: Fed, name: str) -> None:
    """Its deletion pays for the watermarks at both stages, and leaves none."""
    request: Any = getattr(api, f"{name}Request")()
    request.stream.id = STREAM
    check_paid(topic, of_topic(request) if name == "DeleteTopic" else request, 2 * ROWS, 0)
    assert not topic.machine.state.watermarks


def changes_of_groups() -> Iterator[tuple[Any, int, int]]:
    """Yield expensive changes of a group, each with rows reached and partitions named.

    A row of which all offsets are set counts as several.
    """
    earliest = groups_api.OFFSET_RESET_EARLIEST
    for partitions, rows in ((FAR_APART, ROWS), (TOGETHER, ROWS_TOGETHER)):
        told = offsets(partitions, limits.OFFSET_MAX)
        named: dict[str, Any] = {"offsets": told, "allow_out_of_range": True}
        yield groups_api.CommitOffsetsRequest(**named), rows, MANY
        yield groups_api.ResetOffsetsRequest(**named), rows, MANY
        yield groups_api.ResetOffsetsRequest(to=earliest, partitions=partitions), rows, MANY
        yield groups_api.DeleteOffsetsRequest(partitions=partitions), rows, MANY
    yield groups_api.ResetOffsetsRequest(to=earliest), 4 * ROWS, 0
    yield groups_api.DeleteOffsetsRequest(), ROWS, 0
    yield groups_api.DeleteConsumerGroupRequest(), ROWS, 0


@pytest.mark.parametrize(("change", "rows", "named"), list(changes_of_groups()))
def test_changes_of_many_offsets_are_paid_for(
    full_group: Fed, change: Any, rows: int, named: int
) -> None:
    """The change that reaches most of a group succeeds, and pays for it."""
    check_paid(full_group, of_group(change), rows, named)


def test_the_latest_offsets_of_a_million_partitions_can_be_set(full_group: Fed) -> None:
    """A group can be set to the ends of all partitions by one command."""
    for first in range(0, PARTITIONS, MANY):
        told = offsets(range(first, min(PARTITIONS, first + MANY)), 5)
        effect = effects_pb2.OffsetsReported(stream_id=STREAM, topic_id=TOPIC, offsets=told)
        full_group.prepare(full_group.effect(offsets_reported=effect))
    latest = groups_api.ResetOffsetsRequest(to=groups_api.OFFSET_RESET_LATEST)
    check_paid(full_group, of_group(latest), 4 * ROWS, 0)
    row = full_group.machine.state.offsets.rows[1, ROWS - 1]
    assert set(offset_rows.unpack(row.offsets)) == {6}  # each plus one


def test_a_member_that_owns_a_million_partitions_pays_for_its_commit() -> None:
    """A commit of partitions that are far apart succeeds, and costs no more than it may."""
    fed = groups(PARTITIONS, LEVEL)
    create(fed, 1)
    join(fed, [1])
    check_paid(fed, of_group(commit(FAR_APART, member_epoch=1)), ROWS, MANY)


def refused(fed: Fed, requests: list[Any]) -> list[str]:
    """Apply commands as one prepare; return the reasons, of which the first is none."""
    found = fed.commands(name_of(requests[0]), requests)
    assert found[0] == ""
    return found


def far_away_commits() -> list[Any]:
    """Return commits of which one prepare has room for some."""
    return [of_group(commit(ONE_OF_EACH, validate_only=True)) for _ in range(12)]


def deletions_of_all() -> list[Any]:
    """Return deletions of all offsets, of which one prepare has room for some."""
    request = groups_api.DeleteOffsetsRequest(validate_only=True)
    return [of_group(request) for _ in range(300)]


def resets_of_all() -> list[Any]:
    """Return resets of all offsets, of which one prepare has room for some."""
    request = groups_api.ResetOffsetsRequest(
        to=groups_api.OFFSET_RESET_EARLIEST, validate_only=True
    )
    return [of_group(request) for _ in range(300)]


@pytest.mark.parametrize("requests", [far_away_commits, deletions_of_all, resets_of_all])
def test_what_one_prepare_has_no_room_for_the_next_one_takes(
    full_group: Fed, requests: Callable[[], list[Any]]
) -> None:
    """Of many expensive commands some succeed; the others are told to come again, and may."""
    made = requests()
    assert refused(full_group, made)[-1] == "COST_EXCEEDED"
    error = full_group.reply.outcomes[0].command.errors[0].error
    assert {detail.key: detail.value for detail in error.details}["scope"] == "prepare"
    assert full_group.commands(name_of(made[-1]), made[-1:]) == [""]


def test_a_stream_of_many_large_topics_goes_after_some_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watermarks of one stream's topics may be more than one command may delete."""
    count = limits.COMMAND_ROWS_MAX // (2 * ROWS) + 1
    fed = topics(monkeypatch, count)
    request: Any = api.DeleteStreamRequest()
    request.stream.id = STREAM
    assert fed.commands("DeleteStream", [request]) == ["COST_EXCEEDED"]
    assert fed.commands("DeleteTopic", [of_topic(api.DeleteTopicRequest())]) == [""]
    assert fed.commands("DeleteStream", [request]) == [""]


def test_a_refused_deletion_of_a_stream_looks_at_few_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once its prepare has no room left, a deletion is refused before its topics are looked at."""
    fed = topics(monkeypatch, limits.TOPICS_PER_STREAM_MAX)
    looks = 0
    row_count = offset_rows.row_count

    def counted(partitions_count: int) -> int:
        nonlocal looks
        looks += 1
        return row_count(partitions_count)

    monkeypatch.setattr(offset_rows, "row_count", counted)
    request: Any = api.DeleteStreamRequest()
    request.stream.id = STREAM
    assert set(fed.commands("DeleteStream", [request] * 100)) == {"COST_EXCEEDED"}
    assert looks < limits.PREPARE_ROWS_MAX


# --- Below the level ---


def test_below_the_level_topics_go_at_the_price_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """One prepare deletes more large topics than at the level, and their effects name no rows."""
    deletions = [of_topic(api.DeleteTopicRequest(), number + 1) for number in range(20)]
    at_level, below = topics(monkeypatch, 20), topics(monkeypatch, 20, LEVEL - 1)
    assert refused(at_level, deletions)[-1] == "COST_EXCEEDED"
    assert set(refused(below, deletions)) == {""}
    assert charged(below) == 0
    effects = [each.payload for each in below.reply.outcomes[0].command.effects]
    told = [effects_pb2.TopicDeleted(stream_id=STREAM, topic_id=id_) for id_ in range(1, 21)]
    assert effects == [
        effects_pb2.EffectPayload(topic_deleted=each).SerializeToString() for each in told
    ]


def test_below_the_level_streams_go_at_the_price_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream of large topics costs what its topics cost, and its effect names no rows."""
    fed = topics(monkeypatch, 20, LEVEL - 1)
    request: Any = api.DeleteStreamRequest()
    request.stream.id = STREAM
    assert fed.commands("DeleteStream", [request]) == [""]
    assert charged(fed) < 20 * limits.COMMAND_FREE_ROWS
    (effect,) = fed.reply.outcomes[0].command.effects
    told = effects_pb2.StreamDeleted(stream_id=STREAM, topic_ids=range(1, 21))
    assert effect.payload == effects_pb2.EffectPayload(stream_deleted=told).SerializeToString()


def test_below_the_level_groups_go_at_the_price_of_before() -> None:
    """One prepare deletes more groups of a large topic than at the level, by name or with it."""
    deletions = [of_group(groups_api.DeleteConsumerGroupRequest(), n + 1) for n in range(GROUPS)]
    left = []
    for level in (LEVEL - 1, LEVEL):
        fed = groups(PARTITIONS, level)
        create(fed, GROUPS)
        last = refused(fed, deletions)[-1]
        assert last == ("" if level < LEVEL else "COST_EXCEEDED")
        other = groups(PARTITIONS, level)
        create(other, GROUPS)
        deleted = effects_pb2.TopicDeleted(stream_id=STREAM, topic_id=TOPIC)
        other.prepare(other.effect(topic_deleted=deleted))
        left.append(len(other.machine.state.groups))
    assert left[0] == 0 < left[1]


# --- In steps ---


def sweep(fed: Fed) -> int:
    """Work off all chores, step by step; return the most rows of offsets that one step deleted."""
    most, rows = 0, fed.machine.state.offsets
    fed.context = b""
    for _ in range(STEPS_MAX):
        if not fed.machine.state.chores:
            return most
        before = len(rows)
        requests = [groups_api.SweepRequest()]
        fed.commands("Sweep", requests, session=0, user=limits.SYSTEM_USER_ID)
        most = max(most, before - len(rows))
    raise AssertionError(
        f"chores are left after {STEPS_MAX} steps: {fed.machine.state.chores.rows}"
    )


DELETED: Final = effects_pb2.TopicDeleted(stream_id=STREAM, topic_id=TOPIC, watermark_rows=ROWS)


def test_offsets_of_many_groups_go_with_their_topic_in_steps(full_groups: Fed) -> None:
    """No step deletes more rows than it may, and one group's; nothing is left in the end."""
    state = full_groups.machine.state
    before = len(state.offsets)
    assert before == FULL_GROUPS * ROWS
    full_groups.prepare(full_groups.effect(topic_deleted=DELETED))
    assert before - len(state.offsets) <= limits.PREPARE_CASCADE_ROWS_MAX + ROWS
    assert state.chores and state.groups
    assert sweep(full_groups) <= limits.SWEEP_ROWS_MAX + ROWS
    assert not state.groups and not state.offsets and not state.names


@pytest.mark.parametrize("room", [1, ROWS])
def test_offsets_of_deleted_partitions_go_in_steps(
    monkeypatch: pytest.MonkeyPatch, full_groups: Fed, room: int
) -> None:
    """Groups lose offsets of deleted partitions, however little of it is done at once."""
    monkeypatch.setattr(limits, "PREPARE_CASCADE_ROWS_MAX", room)
    monkeypatch.setattr(limits, "SWEEP_ROWS_MAX", room)
    left = 3 * limits.PARTITIONS_PER_OFFSETS_ROW + 1
    changed = effects_pb2.PartitionsChanged(stream_id=STREAM, topic_id=TOPIC, partitions_count=left)
    full_groups.prepare(full_groups.effect(partitions_changed=changed))
    state = full_groups.machine.state
    assert state.chores
    assert sweep(full_groups) <= room + ROWS
    assert set(state.offsets.rows) == {(g, n) for g in range(1, FULL_GROUPS + 1) for n in range(4)}


@pytest.mark.parametrize("room", [limits.SWEEP_ROWS_MAX, ROWS // 2])
def test_a_crowd_with_offsets_goes_while_other_work_waits(
    monkeypatch: pytest.MonkeyPatch, full_groups: Fed, room: int
) -> None:
    """A group with offsets, and more members than a step removes, goes though others wait, too."""
    for session in range(100, 3_100):
        joined = of_group(groups_api.JoinConsumerGroupRequest())
        assert full_groups.commands("JoinConsumerGroup", [joined], session=session) == [""]
    monkeypatch.setattr(limits, "PREPARE_CASCADE_ROWS_MAX", 1)
    monkeypatch.setattr(limits, "SWEEP_ROWS_MAX", room)
    ended = [
        full_groups.effect(session_ended=effects_pb2.SessionEnded(session_id=session))
        for session in range(100, 120)
    ]
    full_groups.prepare(*ended, full_groups.effect(topic_deleted=DELETED))
    state = full_groups.machine.state
    assert len(state.chores) > 2
    sweep(full_groups)
    assert not state.groups and not state.members and not state.offsets


def test_a_restored_replica_charges_the_same(full_groups: Fed) -> None:
    """Of groups with offsets, and without, a restored machine deletes as many as the others."""
    other = restored(full_groups.machine)
    deletions = [of_group(groups_api.DeleteConsumerGroupRequest(), n + 1) for n in range(GROUPS)]
    item = full_groups.span("DeleteConsumerGroup", deletions)
    reply = full_groups.prepare(item)
    batch = pb.Batch(
        sequence=other.sequence + 1, op=full_groups.op, feature_level=LEVEL, items=[item]
    )
    assert other.apply(batch).reply == reply
    assert "COST_EXCEEDED" in reasons(reply.outcomes[0], GROUPS)
