"""By when data was written, as streams tells consumer groups of it."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.services.streams.streams_workbench import (
    CLOCK,
    Workbench,
    orders_bench,
    topic_request,
)
from viewstamp.api.common.v1.common_pb2 import PartitionOffset
from viewstamp.api.domain.v1.effects_pb2 import OffsetsReported
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.limits import FEATURE_LEVEL_TIMES, REPORT_AHEAD_US_MAX

BELOW: Final = FEATURE_LEVEL_TIMES - 1


def told_of(bench: Workbench, ends: dict[int, int], **fields: Any) -> OffsetsReported | None:
    """Report ends, and return what consumer groups hear of it."""
    offsets = [PartitionOffset(partition=each, offset=end) for each, end in ends.items()]
    request = topic_request(api.ReportPartitionEndsRequest, end_offsets=offsets, **fields)
    bench.command("ReportPartitionEnds", request)
    told = [payload.offsets_reported for _, payload in bench.effects]
    return told[0] if told else None


def test_without_a_time_of_the_reporter_log_time_counts() -> None:
    """It is the time of the command."""
    bench = orders_bench()
    told = told_of(bench, {0: 10})
    assert told is not None and told.written_by == CLOCK + bench.revision


@pytest.mark.parametrize(
    ("ahead_us", "counts_us"),
    [
        (-CLOCK, 0),
        (-1, 0),
        (0, 0),
        (1, 1),
        (REPORT_AHEAD_US_MAX, REPORT_AHEAD_US_MAX),
        (REPORT_AHEAD_US_MAX + 1, None),
        ((1 << 63) - CLOCK, None),
    ],
)
def test_the_later_of_both_times_counts(ahead_us: int, counts_us: int | None) -> None:
    """A reporter whose clock is far ahead says nothing of the time, and its ends count."""
    bench = orders_bench()
    log_time = CLOCK + bench.revision + 1
    told = told_of(bench, {0: 10}, reported_at_us=log_time + ahead_us)
    assert told is not None
    assert told.written_by == (0 if counts_us is None else log_time + counts_us)
    assert [each.offset for each in told.offsets] == [10]


@pytest.mark.parametrize("far_us", [0, 2 * REPORT_AHEAD_US_MAX])
def test_lower_ends_are_told(far_us: int) -> None:
    """Data was lost, which consumer groups have to hear; nothing is told of the same ends."""
    bench = orders_bench()
    told_of(bench, {0: 10, 1: 10})
    assert told_of(bench, {0: 10, 1: 10}) is None
    told = told_of(bench, {0: 10, 1: 9}, reported_at_us=CLOCK + far_us)
    assert told is not None
    assert [(each.partition, each.offset) for each in told.offsets] == [(0, 10), (1, 9)]
    assert bool(told.written_by) == (not far_us)


def test_starts_have_no_time() -> None:
    """What was dropped is read by nobody."""
    bench = orders_bench()
    starts = [PartitionOffset(partition=0, offset=4)]
    bench.command(
        "TruncatePartitions", topic_request(api.TruncatePartitionsRequest, start_offsets=starts)
    )
    ((_, payload),) = bench.effects
    assert payload.offsets_reported.are_starts and not payload.offsets_reported.written_by


def test_below_the_level_effects_are_those_of_before() -> None:
    """No time is told, and nothing of lower ends: the bytes are in logs of that level."""
    bench = orders_bench(BELOW)
    told = told_of(bench, {0: 10}, reported_at_us=CLOCK)
    assert told is not None
    assert told.SerializeToString().hex() == "080110011a02100a"
    assert told_of(bench, {0: 9}) is None
