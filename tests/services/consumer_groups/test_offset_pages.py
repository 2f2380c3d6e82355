"""How far groups have read, as callers see it: pages of offsets with watermarks and lags."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.services.consumer_groups.harness import GroupsHarness, settled
from tests.services.consumer_groups.offset_requests import (
    commit,
    commit_as,
    committed,
    empty_group,
    fetch,
    progress,
    refusal_of,
    report,
)
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as views
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.limits import OFFSET_MAX, OFFSETS_PAGE_MAX, OFFSETS_PER_REQUEST_MAX

# Offsets at and around the rows in which they are kept, of a topic of 1,000 partitions.
ALL: Final = {0: 1, 127: 2, 128: 3, 700: 0, 999: 5}


def wide() -> GroupsHarness:
    """Return two groups on a topic of 1,000 partitions; one has committed some offsets."""
    harness = empty_group(partitions_count=1_000)
    harness.create("second")
    commit(harness, ALL)
    commit(harness, {0: 9, 500: 9}, name="second")
    return harness


@pytest.mark.parametrize(
    ("partitions", "found"),
    [
        ([], [0, 127, 128, 700, 999]),
        ([128], [128]),
        ([999, 0, 500, 128, 1], [0, 128, 999]),
        ([1, 500], []),
        (list(range(1_000)), [0, 127, 128, 700, 999]),
    ],
)
def test_offsets_are_fetched_by_ascending_partition(
    partitions: list[int], found: list[int]
) -> None:
    """Some partitions, or all; those without an offset are left out, as are other groups'."""
    page = fetch(wide(), partitions=partitions)
    assert [(each.partition, each.offset) for each in page.offsets] == [
        (partition, ALL[partition]) for partition in found
    ]
    assert page.next_page_token == ""


def pages_of(harness: GroupsHarness, **fields: Any) -> list[list[views.CommittedOffset]]:
    """Return all pages, each from where the one before it ended."""
    pages, token = [], ""
    for _ in range(20):
        page = fetch(harness, page_token=token, **fields)
        pages.append(list(page.offsets))
        token = page.next_page_token
        if not token:
            return pages
    raise AssertionError("there are more pages than offsets")


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, OFFSETS_PAGE_MAX])
@pytest.mark.parametrize("partitions", [[], [999, 128, 0, 3, 700]])
def test_pages_are_the_whole_list(partitions: list[int], size: int) -> None:
    """Pages of any size, joined, are all offsets, each once, and only the last is short."""
    harness = wide()
    report(harness, {0: 10, 128: 10, 999: 10})
    whole = list(fetch(harness, partitions=partitions).offsets)
    assert len(whole) == (4 if partitions else 5)
    pages = pages_of(harness, partitions=partitions, page_size=size)
    assert [each for page in pages for each in page] == whole
    assert [len(page) for page in pages[:-1]] == [size] * ((len(whole) - 1) // size)


@pytest.mark.parametrize("size", [0, 3])
def test_a_page_has_a_limit(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Whoever asks for that, or says nothing, gets as many as a page may have."""
    monkeypatch.setattr(limits, "OFFSETS_PAGE_MAX", 3)
    assert [len(page) for page in pages_of(wide(), page_size=size)] == [3, 2]


@pytest.mark.parametrize("size", [OFFSETS_PAGE_MAX + 1, 2**32 - 1])
def test_a_page_that_is_too_large_is_refused(size: int) -> None:
    """The refusal says how large a page may be."""
    harness = wide()
    refusal = refusal_of(harness, lambda: fetch(harness, page_size=size))
    assert (refusal.name, refusal.details["limit"]) == ("MALFORMED_REQUEST", "16384")


def test_a_page_begins_where_its_token_says() -> None:
    """What was committed meanwhile before that place is not told, and what is behind it is."""
    harness = wide()
    first = fetch(harness, page_size=2)
    commit(harness, {1: 1, 127: 1, 129: 1})
    rest = fetch(harness, page_token=first.next_page_token)
    assert [each.partition for each in rest.offsets] == [128, 129, 700, 999]


def test_a_page_may_begin_behind_the_last_partition() -> None:
    """The partitions may go between two pages; then there is nothing more."""
    harness = wide()
    token = fetch(harness, page_size=4).next_page_token
    harness.change_partitions(500)
    changed = api.FetchOffsetsResponse(offsets_revision=harness.revision)
    assert fetch(harness, page_token=token) == changed


def test_a_token_of_another_list_is_refused() -> None:
    """A place in one group's offsets, or in another list, says nothing about another's."""
    harness = wide()
    token = fetch(harness, page_size=1).next_page_token
    refusal = refusal_of(harness, lambda: fetch(harness, name="second", page_token=token))
    assert (refusal.name, refusal.case) == ("MALFORMED_REQUEST", "page_token_of_another_list")
    refusal = refusal_of(harness, lambda: fetch(harness, page_token="x"))
    assert (refusal.name, refusal.case) == ("MALFORMED_REQUEST", "page_token")


@pytest.mark.parametrize(
    ("partitions", "reason", "details"),
    [
        ([0, 1_000], "PARTITION_NOT_FOUND", {"partition": "1000", "existing": "1000"}),
        ([3, 4, 3], "MALFORMED_REQUEST", {}),
        (
            [0] * (OFFSETS_PER_REQUEST_MAX + 1),
            "MALFORMED_REQUEST",
            {"offsets_count": "16385", "limit": "16384"},
        ),
    ],
)
def test_impossible_partitions_are_refused(
    partitions: list[int], reason: str, details: dict[str, str]
) -> None:
    """The refusal says what was wrong."""
    harness = wide()
    refusal = refusal_of(harness, lambda: fetch(harness, partitions=partitions))
    assert refusal.name == reason
    assert details.items() <= refusal.details.items()


# Start and end as reported (None: not), the committed offset, and its lag.
LAGS: Final = [
    (None, None, 5, None),
    (None, None, OFFSET_MAX, None),
    (None, 10, 4, 6),
    (None, 10, 10, 0),
    (None, 10, 12, 0),
    (None, OFFSET_MAX, 0, OFFSET_MAX),
    (4, 10, 4, 6),
    (4, 10, 7, 3),
    (4, 10, 2, 6),
    (10, 10, 2, 0),
    (5, None, 5, 0),
]


@pytest.mark.parametrize(("start", "end", "offset", "lag"), LAGS)
@pytest.mark.parametrize("partition", [0, 129])
def test_a_lag_is_what_is_left_to_read(
    partition: int, start: int | None, end: int | None, offset: int, lag: int | None
) -> None:
    """It is the number of offsets that remain from the committed one to the end; never negative.

    Where nothing was reported, neither a watermark nor a lag is told.
    """
    harness = empty_group(partitions_count=200)
    commit(harness, {partition: offset})
    if end is not None:
        report(harness, {partition: end})
    if start is not None:
        report(harness, {partition: start}, are_starts=True)
    (found,) = fetch(harness).offsets
    known = None if lag is None else start or 0
    assert progress(found) == (offset, known, start if end is None else end, lag)


def test_watermarks_of_one_row_are_told_apart() -> None:
    """Of neighbours, some were reported and some were not."""
    harness = empty_group(partitions_count=4)
    commit(harness, dict.fromkeys(range(4), 3))
    report(harness, {1: 8, 3: 5})
    report(harness, {1: 4}, are_starts=True)
    assert [progress(each) for each in fetch(harness).offsets] == [
        (3, None, None, None),
        (3, 4, 8, 4),
        (3, None, None, None),
        (3, 0, 5, 2),
    ]


def test_a_group_with_members_is_read_alike() -> None:
    """Whoever may poll sees what members commit."""
    harness = settled([11])
    commit_as(harness, 11, {3: 4})
    assert committed(harness) == {3: 4}


def test_deleted_partitions_are_not_told_before_their_group_has_heard(put_off: None) -> None:
    """They are gone as far as callers see, by name, too, even if their numbers are there again."""
    harness = wide()
    harness.change_partitions(128)
    assert committed(harness) == {0: 1, 127: 2}
    harness.change_partitions(1_000)
    assert harness.state.chores
    assert committed(harness) == {0: 1, 127: 2}
    refusal = refusal_of(harness, lambda: fetch(harness, partitions=[127, 128]))
    assert (refusal.name, refusal.details["partition"]) == ("OVERLOADED", "128")
