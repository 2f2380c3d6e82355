"""Where the data of partitions begins and ends: reports, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.services.streams.streams_workbench import (
    Workbench,
    by,
    orders_bench,
    refusal_of,
    topic_request,
)
from viewstamp.api.common.v1.common_pb2 import PartitionOffset
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.limits import OFFSET_MAX, OFFSETS_PAGE_MAX, OFFSETS_PER_REQUEST_MAX

FIELDS = {"TruncatePartitions": "start_offsets", "ReportPartitionEnds": "end_offsets"}
KINDS: dict[str, Any] = {
    "TruncatePartitions": api.TruncatePartitionsRequest,
    "ReportPartitionEnds": api.ReportPartitionEndsRequest,
}
REPORTS = sorted(FIELDS)
TRUNCATE, REPORT = "TruncatePartitions", "ReportPartitionEnds"


def report(name: str, offsets: dict[int, int] | list[tuple[int, int]], **fields: Any) -> Any:
    """Return a report about partitions of topic `paid`."""
    pairs = offsets.items() if isinstance(offsets, dict) else offsets
    told = [PartitionOffset(partition=number, offset=offset) for number, offset in pairs]
    named: dict[str, Any] = {FIELDS[name]: told}
    return topic_request(KINDS[name], **named, **fields)


def known(bench: Workbench, topic: str = "paid", **fields: Any) -> list[tuple[int, int, int]]:
    """Return what is known of a topic's partitions: number, start, end."""
    answer = bench.query(
        "ListWatermarks", topic_request(api.ListWatermarksRequest, topic, **fields)
    )
    return [(each.partition, each.start_offset, each.end_offset) for each in answer.watermarks]


def test_an_end_never_moves_back() -> None:
    """A lower end changes nothing, not even the digest; a higher one counts, and so does a 0."""
    bench = orders_bench()
    assert known(bench) == []
    bench.command(REPORT, report(REPORT, {0: 10, 2: 7}))
    before = bench.digest()
    bench.command(REPORT, report(REPORT, {0: 9, 2: 7}))
    assert bench.digest() == before
    bench.command(REPORT, report(REPORT, {0: 11, 1: 0}))
    assert known(bench) == [(0, 0, 11), (1, 0, 0), (2, 0, 7)]


def test_a_start_never_moves_back_and_moves_the_end() -> None:
    """Dropped data had been written, so the end lies at the start at least."""
    bench = orders_bench()
    bench.command(REPORT, report(REPORT, {0: 10}))
    bench.command(TRUNCATE, report(TRUNCATE, {0: 4, 1: 5}))
    bench.command(TRUNCATE, report(TRUNCATE, {0: 3, 2: 0}))
    assert known(bench) == [(0, 4, 10), (1, 5, 5)]
    bench.command(TRUNCATE, report(TRUNCATE, {0: 12}))
    assert known(bench) == [(0, 12, 12), (1, 5, 5)]


@pytest.mark.parametrize("name", REPORTS)
def test_of_several_offsets_for_one_partition_the_highest_counts(name: str) -> None:
    """Their order in the report does not matter."""
    bench = orders_bench()
    bench.command(name, report(name, [(1, 3), (1, 8), (1, 5)]))
    assert [end for _, _, end in known(bench)] == [8]


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_modifies_no_topic(name: str) -> None:
    """Who changes the topic by its revision does not compete with brokers."""
    bench = orders_bench()
    get = topic_request(api.GetTopicRequest)
    before = bench.query("GetTopic", get).topic
    bench.command(name, report(name, {0: 5}))
    assert bench.query("GetTopic", get).topic == before
    bench.command("PurgeTopic", topic_request(api.PurgeTopicRequest))
    assert [end for _, _, end in known(bench)] == [5]


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_that_is_only_validated_changes_nothing(name: str) -> None:
    """It answers as if it had taken effect."""
    bench = orders_bench()
    bench.command(name, report(name, {0: 5}, validate_only=True))
    assert known(bench) == []


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize(
    ("offsets", "reason", "details"),
    [
        ({}, "MALFORMED_REQUEST", {"offsets_count": "0", "limit": "16384"}),
        (
            [(0, 1)] * (OFFSETS_PER_REQUEST_MAX + 1),
            "MALFORMED_REQUEST",
            {"offsets_count": "16385", "limit": "16384"},
        ),
        ({0: 1, 3: 1}, "PARTITION_NOT_FOUND", {"partition": "3", "existing": "3"}),
        ({0: 1, 1: OFFSET_MAX + 1}, "OFFSET_OUT_OF_RANGE", {"offset": str(OFFSET_MAX + 1)}),
    ],
)
def test_impossible_reports_are_refused(
    name: str, offsets: Any, reason: str, details: dict[str, str]
) -> None:
    """Nothing of such a report counts, and the refusal says what was wrong."""
    refusal = refusal_of(orders_bench(), name, report(name, offsets))
    assert refusal.name == reason
    assert details.items() <= refusal.details.items()


@pytest.mark.parametrize("name", REPORTS)
def test_the_highest_offset_is_taken(name: str) -> None:
    """The limit itself is an offset."""
    bench = orders_bench()
    bench.command(name, report(name, {2: OFFSET_MAX}))
    assert [end for _, _, end in known(bench)] == [OFFSET_MAX]


def wide_bench() -> Workbench:
    """Return a bench whose topic `paid` has 1,000 partitions, with ends at and around rows."""
    bench = Workbench()
    bench.create_stream("orders")
    bench.create_topic("orders", "paid", 1_000)
    bench.command(REPORT, report(REPORT, {0: 1, 127: 2, 128: 3, 700: 4, 999: 5}))
    bench.command(TRUNCATE, report(TRUNCATE, {127: 1, 999: 5}))
    return bench


ALL = [(0, 0, 1), (127, 1, 2), (128, 0, 3), (700, 0, 4), (999, 5, 5)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, OFFSETS_PAGE_MAX])
def test_pages_are_the_whole_list(size: int) -> None:
    """Pages of any size, joined, are all watermarks, each once."""
    bench, found, token = wide_bench(), list[tuple[int, int, int]](), ""
    for page in range(len(ALL)):
        request = topic_request(api.ListWatermarksRequest, page_size=size, page_token=token)
        answer = bench.query("ListWatermarks", request)
        assert len(answer.watermarks) <= size
        found += [
            (each.partition, each.start_offset, each.end_offset) for each in answer.watermarks
        ]
        token = answer.next_page_token
        if not token:
            assert page == (len(ALL) - 1) // size
            break
    assert found == ALL


def test_a_page_that_is_too_large_is_refused() -> None:
    """The refusal says how large a page may be."""
    request = topic_request(api.ListWatermarksRequest, page_size=OFFSETS_PAGE_MAX + 1)
    bench = wide_bench()
    bench.effects = []
    refusal = refusal_of(bench, "ListWatermarks", request)
    assert (refusal.name, refusal.details["limit"]) == ("MALFORMED_REQUEST", "16384")


def test_a_token_of_another_list_is_refused() -> None:
    """A page of one topic's watermarks says nothing about another's."""
    bench = wide_bench()
    first = topic_request(api.ListWatermarksRequest, page_size=1)
    token = bench.query("ListWatermarks", first).next_page_token
    bench.create_topic("orders", "other", 1_000)
    other = topic_request(api.ListWatermarksRequest, "other", page_token=token)
    assert refusal_of(bench, "ListWatermarks", other).name == "MALFORMED_REQUEST"


@pytest.mark.parametrize(
    ("removed", "kept"), [(1, 4), (299, 4), (300, 3), (871, 3), (872, 2), (873, 1), (1_000, 0)]
)
def test_deleted_partitions_lose_their_watermarks(removed: int, kept: int) -> None:
    """Those behind the last partition are gone, and do not come back with new partitions."""
    bench = wide_bench()
    count = topic_request(api.DeletePartitionsRequest, partitions_count=removed)
    bench.command("DeletePartitions", count)
    bench.command(
        "CreatePartitions", topic_request(api.CreatePartitionsRequest, partitions_count=removed)
    )
    assert known(bench) == ALL[:kept]
    rows = bench.state.watermarks.rows
    assert all(row.ends for row in rows.values())


@pytest.mark.parametrize("name", ["DeleteTopic", "DeleteStream"])
def test_a_deleted_topic_leaves_no_watermarks(name: str) -> None:
    """Neither a topic nor its stream leaves rows behind, and others keep theirs."""
    bench = wide_bench()
    bench.create_stream("bills")
    bench.create_topic("bills", "kept", 200)
    kept = api.ReportPartitionEndsRequest(
        stream=by("bills"),
        topic=by("kept"),
        end_offsets=[PartitionOffset(partition=150, offset=9)],
    )
    bench.command(REPORT, kept)
    requests = {
        "DeleteTopic": topic_request(api.DeleteTopicRequest),
        "DeleteStream": api.DeleteStreamRequest(stream=by("orders")),
    }
    bench.command(name, requests[name])
    assert [(row.topic_id, row.number) for row in bench.state.watermarks.rows.values()] == [(2, 1)]
