"""By when data was written, of a million partitions: paid for, possible, and gone at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest

from services.consumer_groups.marks import TimeMarks
from services.consumer_groups.model import GroupsState
from services.runtime import offset_rows
from services.runtime.watermarks import ROWS_PER_REPLACED, Watermarks
from tests.services.cost.machines import STREAM, TOPIC, Fed, groups
from tests.services.cost.test_cascades import create
from tests.services.cost.test_offsets_cost import (
    FAR_APART,
    MANY,
    ONE_OF_EACH,
    ROWS,
    ROWS_TOGETHER,
    TOGETHER,
    charged,
    check_paid,
    name_of,
    of_group,
    of_topic,
    offsets,
    topics,
)
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as entities
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_api
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api

LEVEL: Final = limits.FEATURE_LEVEL_TIMES
PARTITIONS: Final = limits.PARTITIONS_PER_TOPIC_MAX
TIME: Final = groups_api.OFFSET_RESET_TIME
# A row of work stands for so much at most: marks of a row, or lower ends in a row full of marks.
MARKED_ROWS_MAX: Final = 1
LOWER_ENDS_MAX: Final = 1
# Of a full row of marks, the ends of partition p at mark m are p + m * GAP.
GAP: Final = 200
STEP: Final = 20_000_000
HIGH: Final = 1_000
LAST: Final = limits.MARKS_PER_ROW_MAX - 1


@pytest.fixture(scope="module")
def topic() -> Fed:
    """Return streams with a topic of a million partitions, of which much was reported."""
    with pytest.MonkeyPatch.context() as patched:
        fed = topics(patched, 1, LEVEL)
    for partitions in (ONE_OF_EACH, FAR_APART, TOGETHER):
        report = of_topic(api.ReportPartitionEndsRequest(end_offsets=offsets(partitions, HIGH)))
        assert fed.commands("ReportPartitionEnds", [report]) == [""]
    return fed


def told(fed: Fed) -> effects_pb2.OffsetsReported:
    """Return what consumer groups hear of the last command."""
    (effect,) = fed.reply.outcomes[0].command.effects
    return effects_pb2.EffectPayload.FromString(effect.payload).offsets_reported


@pytest.mark.parametrize("offset", [HIGH - 1, limits.OFFSET_MAX])
@pytest.mark.parametrize(("partitions", "rows"), [(FAR_APART, ROWS), (TOGETHER, ROWS_TOGETHER)])
def test_a_report_pays_for_what_is_remembered(
    topic: Fed, partitions: list[int], rows: int, offset: int
) -> None:
    """The one that names most partitions fits, also if each end is lower than the one before."""
    ends = offsets(partitions, offset)
    request = of_topic(api.ReportPartitionEndsRequest(end_offsets=ends, validate_only=True))
    assert topic.commands("ReportPartitionEnds", [request]) == [""]
    lower = MANY if offset < HIGH else 0
    assert rows // MARKED_ROWS_MAX + lower // LOWER_ENDS_MAX <= charged(topic)
    # There is room for a look at who leads each partition, which a broker pays for.
    assert charged(topic) + MANY <= limits.COMMAND_ROWS_MAX
    request.validate_only = False
    check_paid(topic, request, rows, MANY)
    assert told(topic).written_by == topic.begun + topic.revision - 1


def full_of_marks() -> Fed:
    """Return consumer groups with a full row of marks for each of a million partitions."""
    fed = groups(PARTITIONS, LEVEL)
    size, count = limits.PARTITIONS_PER_OFFSETS_ROW, limits.MARKS_PER_ROW_MAX
    ends = tuple(
        offset_rows.pack([1 + index + mark * GAP for index in range(size)]) for mark in range(count)
    )
    times = tuple(range(STEP, (count + 1) * STEP, STEP))
    state: GroupsState = fed.machine.state
    for number in range(ROWS):
        key = (TOPIC, number)
        state.marks.put(key, TimeMarks(STREAM, TOPIC, number, times, ends))
        state.watermarks.put(key, Watermarks(STREAM, TOPIC, number, b"", ends[-1]))
    fed.prepare()
    return fed


@pytest.mark.parametrize("offset", [0, LAST // 2 * GAP, (LAST - limits.LOWERED_MARKS_MAX) * GAP])
@pytest.mark.parametrize("partitions", [ONE_OF_EACH, TOGETHER])
def test_lost_data_costs_what_is_copied_for_it(
    topic: Fed, partitions: Sequence[int], offset: int
) -> None:
    """Each copy of a mark is paid for like one of watermarks, however many marks a row has."""
    lower = of_topic(api.ReportPartitionEndsRequest(end_offsets=offsets(partitions, HIGH - 1)))
    lower.validate_only = True
    assert topic.commands("ReportPartitionEnds", [lower]) == [""]
    fed = full_of_marks()
    marks = fed.machine.state.marks.rows
    known = {id(ends) for ends in marks[TOPIC, 0].ends}  # of all rows
    effect = effects_pb2.OffsetsReported(
        stream_id=STREAM,
        topic_id=TOPIC,
        offsets=offsets(partitions, offset),
        written_by=(LAST + 2) * STEP,
    )
    fed.prepare(fed.effect(offsets_reported=effect))
    reached = {partition // limits.PARTITIONS_PER_OFFSETS_ROW for partition in partitions}
    copies = sum(id(ends) not in known for number in reached for ends in marks[TOPIC, number].ends)
    assert copies > len(reached)
    watermarks_cost = 2 * ROWS_PER_REPLACED * len(reached)
    assert copies * ROWS_PER_REPLACED <= charged(topic) - watermarks_cost


def test_a_deletion_pays_for_what_is_remembered(topic: Fed) -> None:
    """Consumer groups forget two rows for each of streams, with all that these hold."""
    deletion = of_topic(api.DeleteTopicRequest(validate_only=True))
    check_paid(topic, deletion, 4 * ROWS, 0)


@pytest.fixture(scope="module")
def marked() -> Fed:
    """Return a group on a topic of a million partitions, each row of which has marks."""
    fed = groups(PARTITIONS, LEVEL)
    create(fed, 1)
    for step in (1, 2, 3):
        effect = effects_pb2.OffsetsReported(
            stream_id=STREAM,
            topic_id=TOPIC,
            offsets=offsets(ONE_OF_EACH, step),
            written_by=step * STEP,
        )
        fed.prepare(fed.effect(offsets_reported=effect))
    state: GroupsState = fed.machine.state
    assert len(state.marks) == ROWS
    return fed


@pytest.mark.parametrize(
    ("partitions", "rows", "named"),
    [([], 10 * ROWS, 0), (FAR_APART, ROWS, MANY), (TOGETHER, ROWS_TOGETHER, MANY)],
)
def test_a_reset_to_a_time_pays_for_its_rows(
    marked: Fed, partitions: list[int], rows: int, named: int
) -> None:
    """One command sets a million partitions to a time, or those that are furthest apart."""
    reset = groups_api.ResetOffsetsRequest(to=TIME, time_us=2 * STEP + 1, partitions=partitions)
    check_paid(marked, of_group(reset), rows, named)
    request: Any = groups_api.FetchOffsetsRequest(partitions=[0])
    page = groups_api.FetchOffsetsResponse.FromString(
        marked.query("FetchOffsets", of_group(request))
    )
    assert [each.offset for each in page.offsets] == [2]


def test_an_entity_of_all_marks_is_small_enough() -> None:
    """Ends of a row that are as high as they can be fit into a block of a layer."""
    mark = entities.Mark(
        written_by=(1 << 64) - 1,
        end_offsets_plus_one=[limits.OFFSET_MAX + 1] * limits.PARTITIONS_PER_OFFSETS_ROW,
    )
    entity = entities.MarksEntity(
        stream_id=1 << 63, topic_id=1 << 63, marks=[mark] * limits.MARKS_PER_ROW_MAX
    )
    assert entity.ByteSize() < limits.LAYER_BLOCK_BYTES_MAX


def test_below_the_level_reports_cost_what_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report, a lower one and a deletion are charged as by builds before the level."""
    costs = []
    for level in (limits.FEATURE_LEVEL_OFFSETS, LEVEL - 1):
        fed = topics(monkeypatch, 1, level)
        for offset in (5, 4):
            report = api.ReportPartitionEndsRequest(end_offsets=offsets(FAR_APART, offset))
            assert fed.commands(name_of(report), [of_topic(report)]) == [""]
            costs.append(charged(fed))
        assert fed.commands("DeleteTopic", [of_topic(api.DeleteTopicRequest())]) == [""]
        costs.append(charged(fed))
    assert costs[:3] == costs[3:]
