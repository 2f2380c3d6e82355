"""ListPartitions in pages."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.services.streams.streams_workbench import Workbench, by, refusal_of
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.limits import FEATURE_LEVEL_GUARDS, FEATURE_LEVEL_MAX, OFFSETS_PAGE_MAX

Range = tuple[int, int, int]
GROWS: Final = 12


def bench_of(*counts: int, level: int = FEATURE_LEVEL_MAX) -> Workbench:
    """Return a bench with a topic whose partitions were created by so many commands."""
    bench = Workbench(level)
    bench.create_stream("orders")
    bench.create_topic("orders", "paid", counts[0])
    for count in counts[1:]:
        change(bench, count)
    return bench


def change(bench: Workbench, count: int) -> None:
    """Add partitions, or remove so many if the count is negative."""
    name = "CreatePartitions" if count > 0 else "DeletePartitions"
    kind: Any = getattr(api, f"{name}Request")
    request = kind(stream=by("orders"), topic=by("paid"), partitions_count=abs(count))
    bench.command(name, request)


def page(bench: Workbench, size: int = 0, token: str = "") -> tuple[list[Range], str]:
    """Return the ranges of a page, and the token of the next one."""
    request = api.ListPartitionsRequest(
        stream=by("orders"), topic=by("paid"), page_size=size, page_token=token
    )
    answer = bench.query("ListPartitions", request)
    ranges = [(each.first, each.count, each.created_revision) for each in answer.partitions]
    return ranges, answer.next_page_token


def all_pages(bench: Workbench, size: int) -> list[list[Range]]:
    """Return the ranges on each page."""
    found: list[list[Range]] = []
    token = ""
    while not found or token:
        ranges, token = page(bench, size, token)
        found.append(ranges)
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_pages_together_are_the_whole_list(size: int) -> None:
    """Every range is on one page, and no page is longer than asked for; the last has no token."""
    bench = bench_of(3, 2, 1, 4)
    whole, token = page(bench)
    assert ([count for _, count, _ in whole], token) == ([3, 2, 1, 4], "")
    pages = all_pages(bench, size)
    assert [each for ranges in pages for each in ranges] == whole
    assert all(0 < len(ranges) <= size for ranges in pages)


@example(counts=[3, 2, 1], changes=[[-2, 6]], size=2)
@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    changes=st.lists(st.lists(st.integers(-5, 6).filter(bool), max_size=3), max_size=3),
    size=st.integers(1, 3),
)
def test_no_partition_comes_twice(counts: list[int], changes: list[list[int]], size: int) -> None:
    """Partitions may change between pages: those that stay come once, and none comes twice."""
    bench = bench_of(*counts)
    told: list[int] = []
    lowest, present = sum(counts), sum(counts)
    token, left = "", list(changes)
    while not told or token:
        ranges, token = page(bench, size, token)
        told += [number for first, count, _ in ranges for number in range(first, first + count)]
        for count in left.pop(0) if left else ():
            if present + count > 0:
                present += count
                change(bench, count)
                lowest = min(lowest, present)
        if not ranges:
            break
    assert len(set(told)) == len(told)
    assert set(range(lowest)) <= set(told)


def test_a_page_begins_within_a_range_that_replaced_others() -> None:
    """Of a range that begins before the page only the rest is told."""
    bench = bench_of(3, 2, 1)
    first, token = page(bench, 2)
    assert [each[:2] for each in first] == [(0, 3), (3, 2)]
    change(bench, -2)
    change(bench, GROWS)
    rest, token = page(bench, 2, token)
    assert [each[:2] for each in rest] == [(5, 4 + GROWS - 5)]
    assert token == ""


def test_pages_have_limits_and_tokens_a_topic() -> None:
    """A page that is too large, and a token of another topic, are refused."""
    bench = bench_of(3, 2)
    bench.create_topic("orders", "open", 1)
    _, token = page(bench, 1)
    for size, sent, case in (
        (OFFSETS_PAGE_MAX + 1, "", "page_size"),
        (0, token, "page_token_of_another_list"),
        (0, "x", "page_token"),
    ):
        request = api.ListPartitionsRequest(
            stream=by("orders"), topic=by("open"), page_size=size, page_token=sent
        )
        refusal = refusal_of(bench, "ListPartitions", request)
        assert (refusal.name, refusal.case) == ("MALFORMED_REQUEST", case)


def test_everything_is_on_one_page_below_the_level() -> None:
    """Another replica may be of a build that knows no pages: none must be told of a next one."""
    bench = bench_of(3, 2, 1, level=FEATURE_LEVEL_GUARDS - 1)
    ranges, token = page(bench, 1, "of no list")
    assert ([each[1] for each in ranges], token) == ([3, 2, 1], "")
