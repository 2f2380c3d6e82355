"""Which partitions and offsets groups commit: those they know, within what was reported."""

from __future__ import annotations

from typing import Final

import pytest

from tests.services.consumer_groups.harness import GroupsHarness
from tests.services.consumer_groups.offset_requests import (
    commit,
    committed,
    empty_group,
    refusal_of,
    report,
)
from viewstamp.limits import OFFSET_MAX, OFFSETS_PER_REQUEST_MAX

# --- Which partitions ---


def test_as_many_partitions_as_allowed_are_committed_at_once() -> None:
    """The limit itself is allowed, and each partition gets its own offset."""
    harness = empty_group(OFFSETS_PER_REQUEST_MAX)
    offsets = {partition: 3 * partition for partition in range(OFFSETS_PER_REQUEST_MAX)}
    commit(harness, offsets)
    assert committed(harness) == offsets


def test_a_group_knows_new_partitions_once_it_has_heard(put_off: None) -> None:
    """A partition that the topic has, and the group does not know yet, is none of the group."""
    harness = empty_group()
    harness.change_partitions(8)
    assert (harness.group().partitions_count, len(harness.state.chores)) == (6, 1)
    refusal = refusal_of(harness, lambda: commit(harness, {6: 1}))
    assert (refusal.name, refusal.details["partition"]) == ("OVERLOADED", "6")
    commit(harness, {5: 1})
    harness.propose_all()
    commit(harness, {7: 2})
    assert committed(harness) == {5: 1, 7: 2}


def test_deleted_partitions_are_committed_to_no_more(put_off: None) -> None:
    """A partition that was deleted has no offset, even if its number is there again.

    The group has not heard of either yet.
    """
    harness = empty_group()
    for count in (4, 6):
        harness.change_partitions(count)
    assert (harness.group().partitions_count, len(harness.state.chores)) == (6, 1)
    refusal = refusal_of(harness, lambda: commit(harness, {4: 1}))
    assert (refusal.name, refusal.details["partition"]) == ("OVERLOADED", "4")
    commit(harness, {3: 1})
    harness.propose_all()
    commit(harness, {4: 2})
    assert committed(harness) == {3: 1, 4: 2}


# --- Which offsets ---

# Partition 0 holds 4 to 10, partition 1 nothing from 5 on; nothing was reported of 2.
RANGES: Final = [
    (0, 0, False), (0, 3, False), (0, 4, True), (0, 7, True), (0, 10, True), (0, 11, False),
    (0, OFFSET_MAX, False), (1, 4, False), (1, 5, True), (1, 6, False), (2, 0, True),
    (2, OFFSET_MAX, True), (129, 1, True), (129, 2, False), (130, 9, True),
]  # fmt: skip


def reported_topic() -> GroupsHarness:
    """Return a group without members on a topic of which something was reported."""
    harness = empty_group(partitions_count=200)
    report(harness, {0: 10, 129: 1})
    report(harness, {0: 4, 1: 5}, are_starts=True)
    return harness


@pytest.mark.parametrize(("partition", "offset", "is_inside"), RANGES)
def test_an_offset_is_within_what_was_reported(
    partition: int, offset: int, is_inside: bool
) -> None:
    """The first offset that remains and the next to be written are in range, and those between.

    Any offset is, of a partition of which nothing was reported.
    """
    harness = reported_topic()
    if is_inside:
        commit(harness, {partition: offset})
        assert committed(harness) == {partition: offset}
    else:
        refusal = refusal_of(harness, lambda: commit(harness, {2: 1, partition: offset}))
        assert refusal.name == "OFFSET_OUT_OF_RANGE"
        told = (refusal.details["partition"], refusal.details["offset"])
        assert told == (str(partition), str(offset))


def test_a_refusal_says_what_the_partition_holds() -> None:
    """The reader of it learns where offsets may lie."""
    harness = reported_topic()
    refusal = refusal_of(harness, lambda: commit(harness, {0: 11}))
    assert (refusal.details["start_offset"], refusal.details["end_offset"]) == ("4", "10")


@pytest.mark.parametrize(("partition", "offset"), [row[:2] for row in RANGES])
def test_an_offset_out_of_range_is_stored_if_allowed(partition: int, offset: int) -> None:
    """It is stored as it is: the cluster corrects nothing."""
    harness = reported_topic()
    commit(harness, {partition: offset}, allow_out_of_range=True)
    assert committed(harness) == {partition: offset}


def test_a_commit_that_is_only_validated_is_judged() -> None:
    """It is refused as the real one would be."""
    harness = reported_topic()
    refusal = refusal_of(harness, lambda: commit(harness, {0: 11}, validate_only=True))
    assert refusal.name == "OFFSET_OUT_OF_RANGE"
