"""What administrators do to the offsets of groups without members: they set and forget them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.services.consumer_groups.harness import GroupsHarness, settled, settled_instances
from tests.services.consumer_groups.offset_requests import (
    EARLIEST,
    LATEST,
    Offsets,
    commit,
    committed,
    empty_group,
    forget,
    kept_offsets,
    refusal_of,
    report,
    reset,
)
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.limits import OFFSET_MAX, OFFSETS_PER_REQUEST_MAX

OWNER: Final = 11


def idle() -> GroupsHarness:
    """Return a group that has committed 7, 8 and 9, on a topic that was reported of in part.

    Partition 0 holds 4 to 10, partition 1 has an end of 20, partition 2 none.
    """
    harness = empty_group(partitions_count=4)
    harness.create("second")
    for name in ("readers", "second"):
        commit(harness, {0: 7, 1: 8, 2: 9}, name=name)
    report(harness, {0: 10, 1: 20})
    report(harness, {0: 4}, are_starts=True)
    return harness


def wide() -> GroupsHarness:
    """Return a group without offsets, on a topic of 300 partitions, all of which were reported."""
    harness = empty_group(partitions_count=300)
    report(harness, {partition: 1_000 + partition for partition in range(300)})
    report(harness, {partition: partition for partition in range(1, 300)}, are_starts=True)
    return harness


# --- Resets ---

# Offsets, what else is sent, and the offsets afterwards.
RESETS: Final[dict[str, tuple[Offsets, dict[str, Any], dict[int, int]]]] = {
    "an offset back": ({0: 4}, {}, {0: 4, 1: 8, 2: 9}),
    "an offset ahead": ({0: 10}, {}, {0: 10, 1: 8, 2: 9}),
    "a partition without an offset": ({3: 0}, {}, {0: 7, 1: 8, 2: 9, 3: 0}),
    "several": ({2: OFFSET_MAX, 0: 5}, {}, {0: 5, 1: 8, 2: OFFSET_MAX}),
    "out of range": ({0: 3, 1: 21}, {"allow_out_of_range": True}, {0: 3, 1: 21, 2: 9}),
    "all to the earliest": ({}, {"to": EARLIEST}, {0: 4, 1: 0, 2: 0, 3: 0}),
    "some to the earliest": ({}, {"to": EARLIEST, "partitions": [3, 0]}, {0: 4, 1: 8, 2: 9, 3: 0}),
    "some to the latest": ({}, {"to": LATEST, "partitions": [1, 0]}, {0: 10, 1: 20, 2: 9}),
}


@pytest.mark.parametrize("case", RESETS)
def test_offsets_are_reset(case: str) -> None:
    """The partitions that are meant get their offsets; others keep theirs, as do other groups."""
    offsets, fields, expected = RESETS[case]
    harness = idle()
    reset(harness, offsets, **fields)
    assert committed(harness) == expected
    assert committed(harness, "second") == {0: 7, 1: 8, 2: 9}


# Offsets, what else is sent, the reason of the refusal, its case, and some of its details.
Refused = tuple[Offsets, dict[str, Any], str, str, dict[str, str]]
REFUSALS: Final[dict[str, Refused]] = {
    "nothing": ({}, {}, "MALFORMED_REQUEST", "offsets_count", {"offsets_count": "0"}),
    "too many": (
        [(0, 5)] * (OFFSETS_PER_REQUEST_MAX + 1),
        {},
        "MALFORMED_REQUEST",
        "offsets_count",
        {"offsets_count": "16385"},
    ),
    "too many partitions": (
        {},
        {"to": EARLIEST, "partitions": [0] * (OFFSETS_PER_REQUEST_MAX + 1)},
        "MALFORMED_REQUEST",
        "offsets_count",
        {"offsets_count": "16385"},
    ),
    "before the first": (
        {1: 5, 0: 3},
        {},
        "OFFSET_OUT_OF_RANGE",
        "reported",
        {"partition": "0", "offset": "3", "start_offset": "4", "end_offset": "10"},
    ),
    "behind the last": (
        {0: 5, 1: 21},
        {},
        "OFFSET_OUT_OF_RANGE",
        "reported",
        {"partition": "1", "end_offset": "20"},
    ),
    "an impossible offset": (
        {0: OFFSET_MAX + 1},
        {"allow_out_of_range": True},
        "OFFSET_OUT_OF_RANGE",
        "impossible",
        {},
    ),
    "a partition that is not there": (
        {0: 5, 4: 5},
        {},
        "PARTITION_NOT_FOUND",
        "beyond",
        {"partition": "4", "existing": "4"},
    ),
    "one partition twice": ([(0, 5), (0, 6)], {}, "MALFORMED_REQUEST", "partition_twice", {}),
    "the latest of what was not reported": (
        {},
        {"to": LATEST, "partitions": [1, 2, 3]},
        "OFFSET_OUT_OF_RANGE",
        "not_reported",
        {"partition": "2"},
    ),
    "partitions beside offsets": (
        {0: 5},
        {"partitions": [1]},
        "INVALID_OPTION",
        "reset_to",
        {"to": "0"},
    ),
    "the earliest out of range": (
        {},
        {"to": EARLIEST, "allow_out_of_range": True},
        "INVALID_OPTION",
        "reset_to",
        {"to": str(EARLIEST)},
    ),
    "the latest of all": (
        {},
        {"to": LATEST},
        "OFFSET_OUT_OF_RANGE",
        "not_reported",
        {"partition": "2"},
    ),
    "the earliest of a partition that is not there": (
        {},
        {"to": EARLIEST, "partitions": [4]},
        "PARTITION_NOT_FOUND",
        "beyond",
        {"partition": "4"},
    ),
    "the earliest of one partition twice": (
        {},
        {"to": EARLIEST, "partitions": [0, 1, 0]},
        "MALFORMED_REQUEST",
        "partition_twice",
        {},
    ),
    "the earliest and offsets": (
        {0: 5},
        {"to": EARLIEST},
        "INVALID_OPTION",
        "reset_to",
        {"to": "1"},
    ),
    "the latest and offsets": ({0: 5}, {"to": LATEST}, "INVALID_OPTION", "reset_to", {"to": "2"}),
    "to nobody knows where": ({}, {"to": 3}, "INVALID_OPTION", "reset_to", {"to": "3"}),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refused_reset_changes_nothing(case: str) -> None:
    """No offset is set, and the refusal says what was wrong."""
    offsets, fields, reason, why, details = REFUSALS[case]
    harness = idle()
    refusal = refusal_of(harness, lambda: reset(harness, offsets, **fields))
    assert (refusal.name, refusal.case) == (reason, why)
    assert details.items() <= refusal.details.items()


@pytest.mark.parametrize(("to", "base"), [(EARLIEST, 0), (LATEST, 1_000)])
@pytest.mark.parametrize("count", [1, 127, 128, 129, 300])
def test_all_partitions_of_a_wide_topic_are_reset(to: int, base: int, count: int) -> None:
    """Each partition gets its own offset, up to the last one of a row that is not full."""
    harness = wide()
    harness.change_partitions(count)
    reset(harness, to=to)
    assert committed(harness) == {partition: base + partition for partition in range(count)}


def test_the_first_partition_without_an_end_is_named() -> None:
    """One that was not reported stands in the way of all, in any row."""
    harness = wide()
    harness.change_partitions(200)
    harness.change_partitions(300)
    report(harness, {partition: 1 for partition in range(200, 300) if partition != 258})
    refusal = refusal_of(harness, lambda: reset(harness, to=LATEST))
    assert (refusal.case, refusal.details["partition"]) == ("not_reported", "258")


@pytest.mark.parametrize("to", [EARLIEST, LATEST])
def test_a_topic_without_partitions_has_nothing_to_reset(to: int) -> None:
    """Setting the offsets of no partition is no error."""
    harness = empty_group(partitions_count=0)
    reset(harness, to=to)
    assert committed(harness) == {}


def test_only_known_partitions_are_reset(put_off: None) -> None:
    """Partitions that were deleted and created again get no offset before the group has heard."""
    harness = wide()
    harness.change_partitions(130)
    harness.change_partitions(300)
    reset(harness, to=EARLIEST)
    assert sorted(committed(harness)) == list(range(130))
    assert len(kept_offsets(harness)) == 130


# --- Deletions ---


@pytest.mark.parametrize(
    ("partitions", "left"),
    [
        ([], {}),
        ([1], {0: 7, 2: 9}),
        ([2, 0], {1: 8}),
        ([0, 1, 2], {}),
        ([3], {0: 7, 1: 8, 2: 9}),
        ([1, 3], {0: 7, 2: 9}),
    ],
)
def test_offsets_are_forgotten(partitions: list[int], left: dict[int, int]) -> None:
    """Those of the partitions that are named go, all if none is; other groups keep theirs.

    A partition without an offset may be named, too.
    """
    harness = idle()
    forget(harness, partitions)
    assert committed(harness) == left
    assert committed(harness, "second") == {0: 7, 1: 8, 2: 9}
    forget(harness, name="second")
    assert kept_offsets(harness) == {(1, partition): offset for partition, offset in left.items()}


@pytest.mark.parametrize("partitions", [[], [0, 127, 128, 256, 299], [299, 128]])
def test_offsets_of_a_wide_topic_are_forgotten(partitions: list[int]) -> None:
    """Partitions of several rows may be named, and of rows without any offset."""
    harness = wide()
    commit(harness, {0: 1, 127: 127, 299: 300}, allow_out_of_range=True)
    forget(harness, partitions)
    left = {0: 1, 127: 127} if partitions == [299, 128] else {}
    assert committed(harness) == left
    assert len(harness.state.offsets) == bool(left)


@pytest.mark.parametrize(
    ("partitions", "reason", "details"),
    [
        ([0, 4], "PARTITION_NOT_FOUND", {"partition": "4", "existing": "4"}),
        ([0, 1, 0], "MALFORMED_REQUEST", {}),
        (
            [0] * (OFFSETS_PER_REQUEST_MAX + 1),
            "MALFORMED_REQUEST",
            {"offsets_count": "16385", "limit": "16384"},
        ),
    ],
)
def test_a_refused_deletion_changes_nothing(
    partitions: list[int], reason: str, details: dict[str, str]
) -> None:
    """No offset is forgotten, and the refusal says what was wrong."""
    harness = idle()
    refusal = refusal_of(harness, lambda: forget(harness, partitions))
    assert refusal.name == reason
    assert details.items() <= refusal.details.items()


# --- Both ---

Act = Callable[..., None]
ACTS: Final[dict[str, Act]] = {
    "offsets": lambda harness, **fields: reset(harness, {0: 5}, **fields),
    "the earliest": lambda harness, **fields: reset(harness, to=EARLIEST, **fields),
    "some of the latest": lambda harness, **fields: reset(
        harness, to=LATEST, partitions=[0], **fields
    ),
    "forget all": forget,
    "forget some": lambda harness, **fields: forget(harness, [0], **fields),
}


@pytest.mark.parametrize("act", ACTS)
def test_members_stand_in_the_way(act: str) -> None:
    """Members know what they have read: their offsets change by their commits alone."""
    harness = settled([OWNER, 12], partitions_count=4)
    report(harness, {0: 10})
    refusal = refusal_of(harness, lambda: ACTS[act](harness))
    assert (refusal.name, refusal.details["members_count"]) == ("GROUP_NOT_EMPTY", "2")
    harness.effect(session_ended=effects_pb2.SessionEnded(session_id=OWNER))
    harness.leave(12)
    ACTS[act](harness)


@pytest.mark.parametrize("act", ACTS)
def test_a_member_that_is_away_stands_in_the_way(act: str) -> None:
    """It comes back to where it was."""
    harness = settled_instances({OWNER: "static"}, partitions_count=4)
    harness.leave(OWNER, keep_place=True)
    refusal = refusal_of(harness, lambda: ACTS[act](harness))
    assert (refusal.name, refusal.details["members_count"]) == ("GROUP_NOT_EMPTY", "1")


@pytest.mark.parametrize("act", ACTS)
def test_what_is_only_validated_changes_nothing(act: str) -> None:
    """It answers as if it had taken effect, and does change something otherwise."""
    harness = idle()
    before = harness.digest()
    ACTS[act](harness, validate_only=True)
    assert harness.digest() == before
    ACTS[act](harness)
    assert harness.digest() != before


@pytest.mark.parametrize("to", [EARLIEST, LATEST])
def test_partitions_that_a_group_has_not_heard_of_are_not_reset(to: int, put_off: None) -> None:
    """What was reported of a new partition is no offset of a group that does not know it yet."""
    harness = empty_group()
    harness.change_partitions(8)
    report(harness, dict.fromkeys(range(8), 5))
    report(harness, dict.fromkeys(range(8), 3), are_starts=True)
    reset(harness, to=to)
    assert committed(harness) == dict.fromkeys(range(6), 3 if to == EARLIEST else 5)
    harness.propose_all()
    assert harness.group().partitions_count == 8
    assert committed(harness).keys() == set(range(6))
