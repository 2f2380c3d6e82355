"""Changes of offsets that name the revision at which offsets changed last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tests.services.consumer_groups.harness import GroupsHarness, settled
from tests.services.consumer_groups.offset_requests import (
    EARLIEST,
    commit,
    commit_as,
    committed,
    empty_group,
    fetch,
    forget,
    refusal_of,
    report,
    reset,
)
from viewstamp.limits import FEATURE_LEVEL_GUARDS

MEMBER: Final = 11
# What changes the offsets of a group that has those of partitions 0 and 5.
CHANGES: Final[dict[str, Callable[[GroupsHarness], None]]] = {
    "a commit": lambda harness: commit(harness, {0: 6}),
    "a commit elsewhere": lambda harness: commit(harness, {3: 1}),
    "a reset": lambda harness: reset(harness, {0: 1}),
    "a reset to the earliest": lambda harness: reset(harness, to=EARLIEST, partitions=[0]),
    "a reset of all": lambda harness: reset(harness, to=EARLIEST),
    "a deletion": lambda harness: forget(harness, [5]),
    "a deletion of all": forget,
    "partitions that are gone": lambda harness: harness.change_partitions(5),
}
# What leaves the offsets of that group as they are.
OTHERS: Final[dict[str, Callable[[GroupsHarness], None]]] = {
    "the same commit": lambda harness: commit(harness, {0: 5}),
    "the same reset": lambda harness: reset(harness, {5: 9}),
    "a deletion of nothing": lambda harness: forget(harness, [3]),
    "a commit that only validates": lambda harness: commit(harness, {0: 6}, validate_only=True),
    "a report": lambda harness: report(harness, {0: 60}),
    "more partitions": lambda harness: harness.change_partitions(7),
    "fewer partitions, all without offsets": lambda harness: change_twice(harness, 9, 6),
    "a change of the group": lambda harness: harness.update(member_timeout_ms=6_000),
}
# Commands that may name a revision.
GUARDED: Final[dict[str, Callable[[GroupsHarness, int], None]]] = {
    "CommitOffsets": lambda harness, revision: commit(harness, {0: 7}, expected_revision=revision),
    "ResetOffsets": lambda harness, revision: reset(harness, {0: 7}, expected_revision=revision),
    "DeleteOffsets": lambda harness, revision: forget(harness, [0], expected_revision=revision),
}


def change_twice(harness: GroupsHarness, *counts: int) -> None:
    """Give the topic other numbers of partitions, one after the other."""
    for count in counts:
        harness.change_partitions(count)


def with_offsets() -> GroupsHarness:
    """Return a group without members that has committed offsets of partitions 0 and 5."""
    harness = empty_group()
    assert fetch(harness).offsets_revision == 0
    commit(harness, {0: 5, 5: 9})
    assert fetch(harness).offsets_revision == harness.revision
    return harness


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_noted(change: str) -> None:
    """Whatever changes an offset, the group tells at which revision that was."""
    harness = with_offsets()
    before = committed(harness)
    CHANGES[change](harness)
    assert committed(harness) != before
    assert fetch(harness).offsets_revision == harness.revision
    assert harness.describe().offsets_revision == harness.revision


@pytest.mark.parametrize("other", OTHERS)
def test_nothing_else_is_noted(other: str) -> None:
    """A command that leaves the offsets as they are does not disturb who expects a revision."""
    harness = with_offsets()
    before = fetch(harness).offsets_revision
    OTHERS[other](harness)
    assert fetch(harness).offsets_revision == before


@pytest.mark.parametrize("name", GUARDED)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_between_is_found(name: str, change: str) -> None:
    """A command that expects the offsets as it has read them is refused after any change."""
    harness = with_offsets()
    read = fetch(harness).offsets_revision
    CHANGES[change](harness)
    refusal = refusal_of(harness, lambda: GUARDED[name](harness, read))
    assert (refusal.name, refusal.case) == ("REVISION_MISMATCH", "offsets")
    assert refusal.details["expected_revision"] == str(read)
    before = committed(harness)
    GUARDED[name](harness, fetch(harness).offsets_revision)
    assert committed(harness) != before or change == "a deletion of all"


def test_a_group_that_never_had_offsets_has_revision_0() -> None:
    """Whoever expects 0 is the first: the second one is refused."""
    harness = empty_group()
    commit(harness, {0: 1}, expected_revision=0)
    refusal = refusal_of(harness, lambda: commit(harness, {0: 2}, expected_revision=0))
    assert refusal.name == "REVISION_MISMATCH"


def test_members_may_expect_a_revision() -> None:
    """A commit of a member is compared as well, before its epoch and its partitions."""
    harness = settled([MEMBER])
    commit_as(harness, MEMBER, {0: 1}, expected_revision=0)
    strange = refusal_of(
        harness, lambda: commit(harness, {0: 2}, session=MEMBER, epoch=99, expected_revision=0)
    )
    assert strange.name == "REVISION_MISMATCH"
    commit_as(harness, MEMBER, {0: 2}, expected_revision=fetch(harness).offsets_revision)
    assert committed(harness) == {0: 2}


def test_the_end_of_a_retention_is_a_change() -> None:
    """Offsets that ended were forgotten at the revision of their end."""
    harness = empty_group()
    harness.update(offsets_retention_ms=60_000)
    commit(harness, {0: 1})
    harness.now = min(each.due for each in harness.pending)
    harness.propose_next()
    assert committed(harness) == {}
    assert fetch(harness).offsets_revision == harness.revision


def test_builds_before_keep_and_compare_nothing() -> None:
    """Below the level no revision is kept, and none is compared: the gateway refuses it."""
    harness = empty_group()
    harness.level = FEATURE_LEVEL_GUARDS - 1
    commit(harness, {0: 1})
    for guarded in GUARDED.values():
        guarded(harness, 99)
    assert (committed(harness), fetch(harness).offsets_revision) == ({}, 0)
    harness.level = FEATURE_LEVEL_GUARDS
    commit(harness, {0: 3}, expected_revision=0)
    assert fetch(harness).offsets_revision == harness.revision
