"""Offsets for a time: what brokers have reported by then, and resets to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import pytest

from tests.services.consumer_groups.harness import STREAM, TOPIC, GroupsHarness
from tests.services.consumer_groups.offset_requests import (
    EARLIEST,
    LATEST,
    TIME,
    Offsets,
    committed,
    empty_group,
    find,
    found,
    refusal_of,
    report,
    reported,
    reset,
)
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.limits import (
    FEATURE_LEVEL_TIMES,
    MARKS_PER_ROW_MAX,
    OFFSETS_PAGE_MAX,
    OFFSETS_PER_REQUEST_MAX,
)

SECOND: Final = 1_000_000
# So far apart that each report is remembered.
STEP: Final = 20 * SECOND
NEVER: Final = 0
WIDE: Final = 300


def reported_of() -> GroupsHarness:
    """Return a group on a topic of four partitions: each step reports of some of the first three.

    Nothing was reported of the last. Partition 1 begins at 4.
    """
    harness = empty_group(partitions_count=4)
    report(harness, {0: 10, 1: 2}, written_by=STEP)
    report(harness, {0: 25, 2: 0}, written_by=2 * STEP)
    report(harness, {0: 25, 1: 9}, written_by=3 * STEP)
    report(harness, {1: 4}, are_starts=True)
    return harness


# A time, and for each partition the offset and by when all before it was written.
TIMES: Final[dict[int, dict[int, tuple[int, int]]]] = {
    0: {0: (0, NEVER), 1: (4, NEVER), 2: (0, NEVER)},
    STEP: {0: (0, NEVER), 1: (4, NEVER), 2: (0, NEVER)},
    STEP + 1: {0: (10, STEP), 1: (4, NEVER), 2: (0, NEVER)},
    2 * STEP: {0: (10, STEP), 1: (4, NEVER), 2: (0, NEVER)},
    2 * STEP + 1: {0: (25, 2 * STEP), 1: (4, NEVER), 2: (0, NEVER)},
    3 * STEP + 1: {0: (25, 3 * STEP), 1: (9, 3 * STEP), 2: (0, NEVER)},
    1 << 63: {0: (25, 3 * STEP), 1: (9, 3 * STEP), 2: (0, NEVER)},
}


@pytest.mark.parametrize("time_us", TIMES)
def test_the_newest_report_before_the_time_counts(time_us: int) -> None:
    """All before an offset was written before the time; at the first offset nobody knows."""
    harness = reported_of()
    assert found(harness, time_us) == TIMES[time_us]
    bounds = {
        each.partition: (each.start_offset, each.end_offset) for each in find(harness, 1).offsets
    }
    assert bounds == reported(harness)


@pytest.mark.parametrize("time_us", [each for each in TIMES if each])
@pytest.mark.parametrize("partitions", [[], [3, 0, 1]])
def test_a_reset_sets_what_is_found(time_us: int, partitions: list[int]) -> None:
    """Partitions that are meant get the offset for the time; 0 where nothing was reported."""
    harness = reported_of()
    reset(harness, to=TIME, time_us=time_us, partitions=partitions)
    offsets = {each: offset for each, (offset, _) in TIMES[time_us].items()} | {3: 0}
    assert committed(harness) == {each: offsets[each] for each in partitions or range(4)}


def test_rows_are_told_apart() -> None:
    """Each row of partitions has its own times, and a reset of all sets each of them."""
    harness = empty_group(partitions_count=WIDE)
    report(harness, {127: 5, 128: 6, 299: 7}, written_by=STEP)
    report(harness, {128: 60}, written_by=2 * STEP)
    offsets = {127: (5, STEP), 128: (60, 2 * STEP), 299: (7, STEP)}
    assert found(harness, 3 * STEP) == offsets
    reset(harness, to=TIME, time_us=3 * STEP)
    assert committed(harness) == {each: offsets.get(each, (0, 0))[0] for each in range(WIDE)}


def test_the_same_end_again_says_nothing_new() -> None:
    """The time at which an end was first reported stays."""
    harness = empty_group()
    report(harness, {0: 10}, written_by=STEP)
    report(harness, {0: 10}, written_by=5 * STEP)
    assert found(harness, 2 * STEP) == found(harness, 9 * STEP) == {0: (10, STEP)}


def test_a_lower_end_takes_back_what_was_said() -> None:
    """Data was lost: what is written there from now on is newer, whatever was reported before."""
    harness = empty_group()
    report(harness, {0: 60, 1: 6}, written_by=STEP)
    report(harness, {0: 100, 1: 7}, written_by=2 * STEP)
    report(harness, {0: 80}, written_by=3 * STEP)
    assert found(harness, 2 * STEP) == {0: (60, STEP), 1: (6, STEP)}
    assert found(harness, 3 * STEP) == {0: (80, 2 * STEP), 1: (7, 2 * STEP)}
    report(harness, {0: 90}, written_by=4 * STEP)
    assert found(harness, 4 * STEP)[0] == (80, 3 * STEP)
    assert found(harness, 5 * STEP)[0] == (90, 4 * STEP)
    assert reported(harness)[0] == (0, 100)


@pytest.mark.parametrize(
    ("lost", "left"),
    [
        (10, range(1, 11)),
        (9, range(1, 12)),
        (6, range(1, 12)),
        (5, (1, 2, 3, 4, 5, 6, 7, 8, 10, 11)),
        (0, (1, 4, 7, 10, 11)),
    ],
)
def test_a_lower_end_leaves_some_of_the_times_since(lost: int, left: Iterable[int]) -> None:
    """Of ten reports those stay that tell of no more; of the others four, the first and the last.

    Another partition has times of theirs, which are coarser, and never too late.
    """
    harness = empty_group()
    for number in range(1, 11):
        report(harness, {0: number, 1: 100 * number}, written_by=number * STEP)
    report(harness, {0: lost}, written_by=11 * STEP)
    kept = [each for each in left if each < 11]
    for number in range(1, 11):
        newest = max(each for each in kept if each <= number)
        of_time = found(harness, number * STEP + 1)
        told = min(newest, lost)
        assert of_time[0] == (told, newest * STEP if told else NEVER)
        assert of_time[1] == (100 * newest, newest * STEP)
    (row,) = harness.state.marks.rows.values()
    assert [time // STEP for time in row.written_by] == list(left)


def test_a_lower_end_that_is_replaced_at_once_still_counts() -> None:
    """Reports come faster than they are remembered, and the lowest end is never forgotten."""
    harness = empty_group()
    report(harness, {0: 100}, written_by=STEP)
    report(harness, {0: 80}, written_by=2 * STEP)
    report(harness, {0: 120}, written_by=2 * STEP + SECOND)
    assert found(harness, 2 * STEP) == {0: (80, STEP)}


def test_a_report_without_a_time_leaves_none() -> None:
    """Its end counts, and a lower one takes back what was said."""
    harness = empty_group()
    report(harness, {0: 100, 1: 5}, written_by=STEP)
    report(harness, {0: 80, 1: 9})
    assert found(harness, 9 * STEP) == {0: (80, STEP), 1: (5, STEP)}
    assert reported(harness) == {0: (0, 100), 1: (0, 9)}


def test_a_time_that_goes_back_counts_as_the_last() -> None:
    """A reporter's clock was ahead: what is reported now was written by the later time, too."""
    harness = empty_group()
    report(harness, {0: 10}, written_by=3 * STEP)
    report(harness, {1: 20}, written_by=2 * STEP)
    assert found(harness, 3 * STEP) == {0: (0, NEVER), 1: (0, NEVER)}
    assert found(harness, 3 * STEP + 1) == {0: (10, 3 * STEP), 1: (20, 3 * STEP)}


def test_so_many_times_are_remembered() -> None:
    """Of more reports than are remembered the oldest and the newest stay."""
    harness = empty_group()
    count = 3 * MARKS_PER_ROW_MAX
    for number in range(1, count + 1):
        report(harness, {0: number}, written_by=number * STEP)
    (row,) = harness.state.marks.rows.values()
    assert len(row.written_by) == len(row.ends) == MARKS_PER_ROW_MAX
    assert (row.written_by[0], row.written_by[-1]) == (STEP, count * STEP)


def test_reports_in_quick_succession_are_one() -> None:
    """Two of one second each are one mark, the newer one; the first of all stays."""
    harness = empty_group()
    for number in range(1, 12):
        report(harness, {0: number}, written_by=number * SECOND)
    (row,) = harness.state.marks.rows.values()
    assert row.written_by == (SECOND, 10 * SECOND, 11 * SECOND)


# --- Deletion ---


@pytest.mark.parametrize(("count", "left"), [(0, []), (1, [0]), (128, [0]), (129, [0, 1])])
def test_deleted_partitions_are_forgotten(count: int, left: list[int]) -> None:
    """New partitions with their numbers have no time of theirs, and no empty row is left."""
    harness = empty_group(partitions_count=WIDE)
    report(harness, {0: 5, 127: 4}, written_by=STEP)
    report(harness, dict.fromkeys(range(WIDE), 6), written_by=2 * STEP)
    harness.change_partitions(count)
    assert [number for _, number in harness.state.marks.rows] == left
    harness.change_partitions(WIDE)
    report(harness, dict.fromkeys(range(WIDE), 9), written_by=3 * STEP)
    old = dict.fromkeys(range(count), 6)
    assert found(harness, 3 * STEP) == {
        each: (old.get(each, 0), 2 * STEP if each in old else NEVER) for each in range(WIDE)
    }


def test_a_mark_of_deleted_partitions_alone_goes() -> None:
    """A row keeps the marks that say something of the partitions that are left."""
    harness = empty_group(partitions_count=4)
    report(harness, {3: 5}, written_by=STEP)
    report(harness, {0: 6}, written_by=2 * STEP)
    harness.change_partitions(1)
    (row,) = harness.state.marks.rows.values()
    assert row.written_by == (2 * STEP,)


def test_deleted_topics_are_forgotten() -> None:
    """Nothing is left of a topic, be it deleted alone or with its stream."""
    topic = effects_pb2.TopicDeleted(stream_id=STREAM, topic_id=TOPIC, watermark_rows=3)
    stream = effects_pb2.StreamDeleted(stream_id=STREAM, topic_ids=[TOPIC], watermark_rows=[3])
    for effect in ({"topic_deleted": topic}, {"stream_deleted": stream}):
        harness = empty_group(partitions_count=WIDE)
        report(harness, dict.fromkeys(range(WIDE), 6), written_by=STEP)
        report(harness, {0: 1}, written_by=STEP, topic=TOPIC + 1)
        harness.effect(**effect)
        assert list(harness.state.marks.rows) == [(TOPIC + 1, 0)]


# --- Pages ---


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("partitions", [[], [299, 0, 126, 127, 3]])
def test_pages_join_to_what_one_page_says(size: int, partitions: list[int]) -> None:
    """Whatever their size, each partition of which something was reported is there once."""
    harness = empty_group(partitions_count=WIDE)
    report(harness, {0: 5, 3: 1, 127: 2, 128: 3, 299: 4}, written_by=STEP)
    whole = list(find(harness, 2 * STEP, partitions=partitions).offsets)
    assert len(whole) == (4 if partitions else 5)
    token, joined = "", list[Any]()
    for _ in whole:
        page = find(harness, 2 * STEP, partitions=partitions, page_size=size, page_token=token)
        assert len(page.offsets) <= size
        joined += page.offsets
        token = page.next_page_token
        if not token:
            break
    assert not token
    assert joined == whole


BAD_FINDS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "no such partition": ({"partitions": [0, 6]}, "PARTITION_NOT_FOUND"),
    "twice": ({"partitions": [1, 1]}, "MALFORMED_REQUEST"),
    "too many": ({"partitions": [0] * (OFFSETS_PER_REQUEST_MAX + 1)}, "MALFORMED_REQUEST"),
    "a long page": ({"page_size": OFFSETS_PAGE_MAX + 1}, "MALFORMED_REQUEST"),
    "a bad token": ({"page_token": "x"}, "MALFORMED_REQUEST"),
}


@pytest.mark.parametrize("case", BAD_FINDS)
def test_bad_reads_are_refused(case: str) -> None:
    """What a read names has to be there, each once, and not too much."""
    fields, reason = BAD_FINDS[case]
    harness = empty_group()
    assert refusal_of(harness, lambda: find(harness, 1, **fields)).name == reason


# --- Bad resets, and lower levels ---

BAD_RESETS: Final[dict[str, tuple[Offsets, dict[str, Any]]]] = {
    "no time": ({}, {"to": TIME}),
    "a time alone": ({}, {"time_us": STEP}),
    "a time beside offsets": ({0: 1}, {"time_us": STEP}),
    "a time beside the earliest": ({}, {"to": EARLIEST, "time_us": STEP}),
    "a time beside the latest": ({}, {"to": LATEST, "time_us": STEP}),
    "offsets beside a time": ({0: 1}, {"to": TIME, "time_us": STEP}),
    "out of range beside a time": ({}, {"to": TIME, "time_us": STEP, "allow_out_of_range": True}),
    "no such target": ({}, {"to": 4, "time_us": STEP}),
}


@pytest.mark.parametrize("case", BAD_RESETS)
def test_bad_resets_are_refused(case: str) -> None:
    """A time belongs to a reset to a time, and to no other."""
    offsets, fields = BAD_RESETS[case]
    harness = reported_of()
    refusal = refusal_of(harness, lambda: reset(harness, offsets, **fields))
    assert (refusal.name, refusal.case) == ("INVALID_OPTION", "reset_to")


def below_the_level() -> GroupsHarness:
    """Return a group of the level before."""
    harness = empty_group()
    harness.level = FEATURE_LEVEL_TIMES - 1
    return harness


def test_below_the_level_nothing_is_remembered() -> None:
    """Even a report that has a time leaves none, so digests are those of the builds before."""
    harness = below_the_level()
    report(harness, {0: 10}, written_by=STEP)
    assert not harness.state.marks
    assert reported(harness) == {0: (0, 10)}


def test_below_the_level_a_reset_to_a_time_is_refused() -> None:
    """The number is unknown there; and a time beside other targets is, and is ignored."""
    harness = below_the_level()
    report(harness, dict.fromkeys(range(6), 10))
    refusal = refusal_of(harness, lambda: reset(harness, to=TIME, time_us=STEP))
    assert (refusal.name, refusal.case) == ("INVALID_OPTION", "reset_to")
    done: list[tuple[Callable[[], None], int]] = [
        (lambda: reset(harness, to=LATEST, time_us=STEP), 10),
        (lambda: reset(harness, to=EARLIEST, time_us=STEP), 0),
        (lambda: reset(harness, {0: 4}, time_us=STEP), 4),
    ]
    for step, offset in done:
        step()
        assert committed(harness)[0] == offset


def test_what_was_reported_below_the_level_has_no_time() -> None:
    """Once the level is raised a report of a row remembers what it names, and nothing of others."""
    harness = below_the_level()
    report(harness, {0: 10, 1: 10})
    harness.level = FEATURE_LEVEL_TIMES
    assert found(harness, 9 * STEP) == {0: (0, NEVER), 1: (0, NEVER)}
    report(harness, {0: 11}, written_by=STEP)
    assert found(harness, 9 * STEP) == {0: (11, STEP), 1: (0, NEVER)}
