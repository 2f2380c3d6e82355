"""How long the offsets of a group are kept that nobody uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from services.consumer_groups.retention import EXPIRE_OFFSETS_CODE
from services.consumer_groups.section import SECTION
from services.runtime.section import SectionError
from tests.services.consumer_groups.harness import GROUP_NAME, GroupsHarness, refused
from tests.services.consumer_groups.offset_requests import (
    commit,
    commit_as,
    committed,
    reset,
)
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as views
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1 import domain_service_pb2 as pb

RETENTION_MS: Final = 600_000
STEP_US: Final = limits.OFFSETS_IDLE_STEP_US
# How long offsets are kept after the last use that was noted.
KEPT_US: Final = RETENTION_MS * 1_000 + STEP_US
OFFSETS: Final = {0: 5, 3: 7}
Use = Callable[[GroupsHarness], object]


def retaining(retention_ms: int = RETENTION_MS, level: int = 0) -> GroupsHarness:
    """Return a harness with a group whose offsets are kept so long without members."""
    harness = GroupsHarness(partitions_count=6, level=level or limits.FEATURE_LEVEL_MAX)
    request = api.CreateConsumerGroupRequest(name=GROUP_NAME, offsets_retention_ms=retention_ms)
    harness.command("CreateConsumerGroup", request)
    return harness


def used_once() -> GroupsHarness:
    """Return a harness with a group whose offsets were committed now, and end some time."""
    harness = retaining()
    commit(harness, OFFSETS)
    return harness


def expiries(harness: GroupsHarness) -> list[pb.Proposal]:
    """Return what a primary holds of ExpireOffsets."""
    return [each for each in harness.pending if each.code == EXPIRE_OFFSETS_CODE]


def wait(harness: GroupsHarness, us: int) -> None:
    """Let time pass, and sequence what falls due meanwhile."""
    end = harness.now + us
    while harness.pending and (due := min(each.due for each in harness.pending)) <= end:
        harness.now = max(harness.now, due)
        harness.propose_next()
    harness.now = max(harness.now, end)


def member_leaves(harness: GroupsHarness) -> None:
    """Have a member that joins, and leaves again."""
    harness.join(11)
    harness.leave(11)


def test_offsets_of_an_unused_group_end() -> None:
    """They are kept for the retention and the step of its clock, and are gone behind it."""
    harness = used_once()
    begun = harness.now
    (proposal,) = expiries(harness)
    assert proposal.due == begun + KEPT_US
    harness.now = proposal.due - 2
    harness.sequence(proposal)
    assert committed(harness) == OFFSETS
    wait(harness, 2)
    assert committed(harness) == {}
    assert (harness.group().idle_since, harness.group().expiry_due) == (0, 0)
    assert expiries(harness) == harness.all_proposals() == []


@pytest.mark.parametrize("retention_ms", [0, RETENTION_MS])
def test_what_nobody_limits_is_kept_for_ever(retention_ms: int) -> None:
    """Without a retention no end is proposed, and none below the level, whatever was asked for."""
    level = limits.FEATURE_LEVEL_RETENTION - 1 if retention_ms else limits.FEATURE_LEVEL_MAX
    harness = retaining(retention_ms, level)
    commit(harness, OFFSETS)
    member_leaves(harness)
    wait(harness, 10 * KEPT_US)
    assert committed(harness) == OFFSETS
    assert (harness.group().offsets_retention_ms, harness.group().expiry_due) == (0, 0)


USES: Final[dict[str, Use]] = {
    "a commit": lambda harness: commit(harness, {0: 6, 3: 7}),
    "a reset": lambda harness: reset(harness, {0: 6, 3: 7}),
    "a reset of all": lambda harness: reset(harness, to=api.OFFSET_RESET_EARLIEST),
    "a member": member_leaves,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_each_use_begins_the_retention_anew(use: Use) -> None:
    """The one command that is under way comes in vain, and comes again at the new end."""
    harness = used_once()
    wait(harness, KEPT_US // 2)
    use(harness)
    (proposal,) = expiries(harness)
    used_at = harness.group().idle_since
    wait(harness, proposal.due - harness.now)
    (again,) = expiries(harness)
    assert again.due == used_at + KEPT_US == harness.group().expiry_due
    before = committed(harness)
    assert before
    wait(harness, again.due - harness.now - 2)
    assert committed(harness) == before
    wait(harness, 2)
    assert committed(harness) == {}


def test_commits_change_the_group_once_in_a_step() -> None:
    """Many commits without members are no changes for whoever watches the group."""
    harness = used_once()
    begun = harness.group().idle_since
    harness.now = begun + STEP_US - 2
    commit(harness, {0: 6})
    assert harness.group().idle_since == begun
    commit(harness, {0: 7})
    assert harness.group().idle_since == begun + STEP_US
    assert len(expiries(harness)) == 1


def test_members_keep_offsets() -> None:
    """While there are members nothing ends, though they never commit."""
    harness = retaining()
    harness.join(11)
    harness.settle()
    commit_as(harness, 11, OFFSETS)
    wait(harness, 10 * KEPT_US)
    assert committed(harness) == OFFSETS
    assert harness.group().idle_since == 0


def test_many_comings_and_goings_leave_one_command_under_way() -> None:
    """A member that joins and leaves for ever leaves no pile of commands behind."""
    harness = used_once()
    for _ in range(20):
        wait(harness, STEP_US)
        member_leaves(harness)
        assert len(expiries(harness)) == 1
    assert len([each for each in harness.all_proposals() if each.code == EXPIRE_OFFSETS_CODE]) == 1


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "kept_us"),
    [
        (0, 60_000, 60_000_000 + STEP_US),  # from the update on
        (RETENTION_MS, 60_000, 60_000_000 + STEP_US - STEP_US // 2),  # from the commit on
        (60_000, RETENTION_MS, KEPT_US - STEP_US // 2),
    ],
)
def test_another_retention(before_ms: int, after_ms: int, kept_us: int) -> None:
    """A shorter or a longer retention counts from the last use, a first one from now."""
    harness = retaining(before_ms)
    commit(harness, OFFSETS)
    harness.now += STEP_US // 2 - 1
    harness.update(offsets_retention_ms=after_ms)
    wait(harness, kept_us - 1)
    assert committed(harness) == OFFSETS
    wait(harness, 1)
    assert committed(harness) == {}


def test_a_retention_that_is_taken_away() -> None:
    """Offsets are kept for ever again, and the command that was under way ends."""
    harness = used_once()
    harness.update(offsets_retention_ms=0)
    wait(harness, 10 * KEPT_US)
    assert committed(harness) == OFFSETS
    assert (expiries(harness), harness.group().expiry_due) == ([], 0)


@pytest.mark.parametrize("retention_ms", [1, 59_999, 315_360_000_001, 1 << 63])
def test_impossible_retentions(retention_ms: int) -> None:
    """A minute to ten years, or for ever."""
    assert refused(lambda: retaining(retention_ms)) == "INVALID_OPTION"
    harness = used_once()
    update = lambda: harness.update(offsets_retention_ms=retention_ms)  # noqa: E731
    assert refused(update) == "INVALID_OPTION"


def test_an_end_of_another_time_means_nothing() -> None:
    """A command that was under way when a shorter retention came does nothing, and is the last."""
    harness = used_once()
    (outdated,) = expiries(harness)
    harness.update(offsets_retention_ms=60_000)
    _, other = expiries(harness)
    harness.pending.remove(outdated)
    wait(harness, STEP_US)
    commit(harness, {0: 6})  # the group is in use, so the other one asks for its next turn
    before = harness.digest()
    harness.now = outdated.due
    harness.sequence(outdated)
    assert (harness.digest(), expiries(harness)) == (before, [other])


@pytest.mark.parametrize("change", ["partitions", "assignor"])
def test_changes_of_an_unused_group_are_no_use(change: str) -> None:
    """Administrators who change a group do not keep its offsets."""
    harness = used_once()
    idle_since = harness.group().idle_since
    wait(harness, 2 * STEP_US)
    if change == "partitions":
        harness.change_partitions(9)
    else:
        harness.update(assignor=views.ASSIGNOR_RANGE)
    assert harness.group().idle_since == idle_since


def test_an_end_without_room_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets whose end its prepare cannot afford are kept, and end in the next one."""
    harness = used_once()
    request = api.CreateConsumerGroupRequest(name="others", offsets_retention_ms=RETENTION_MS)
    harness.command("CreateConsumerGroup", request)
    commit(harness, OFFSETS, name="others")
    monkeypatch.setattr(limits, "COMMAND_FREE_ROWS", 0)
    monkeypatch.setattr(limits, "PREPARE_CHORE_ROWS_MAX", 1)
    harness.is_checking = False  # a rehearsal would use up the rows
    harness.now += KEPT_US
    harness.op += 1
    first, second = expiries(harness)
    harness.pending.clear()
    harness.sequence(first)  # the first one always fits
    harness.sequence(second)
    assert (committed(harness), committed(harness, "others")) == ({}, OFFSETS)
    (again,) = expiries(harness)
    assert again.request != second.request
    harness.op += 1
    harness.sequence(again)
    assert committed(harness, "others") == {}


def test_a_long_retention_is_looked_at_in_between() -> None:
    """A primary holds no command for years, whatever becomes of the group meanwhile."""
    day_us = 24 * 3_600_000_000
    harness = retaining(2 * day_us // 1_000)
    commit(harness, OFFSETS)
    begun = harness.now
    for _ in range(3):
        (proposal,) = expiries(harness)
        assert proposal.due == harness.now + limits.OFFSETS_LOOK_US_MAX
        harness.update(offsets_retention_ms=harness.group().offsets_retention_ms - 1)
        assert expiries(harness) == [proposal]
        wait(harness, proposal.due - harness.now)
    wait(harness, begun + 2 * day_us - harness.now)
    assert committed(harness) == OFFSETS
    wait(harness, STEP_US)
    assert committed(harness) == {}


def test_a_new_primary_is_told() -> None:
    """What was under way at the old primary follows from the state."""
    harness = used_once()
    expected = expiries(harness)
    assert harness.all_proposals() == expected != []


def test_callers_see_it() -> None:
    """A group tells its retention, and since when nobody has used it."""
    harness = used_once()
    view = harness.describe()
    assert (view.offsets_retention_ms, view.idle_since) == (RETENTION_MS, harness.now)
    harness.join(11)
    assert harness.describe().idle_since == 0


BROKEN: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "idle without a retention": ({"offsets_retention_ms": 0}, "not to end"),
    "idle, and nothing comes": ({"expiry_due": 0}, "not to end"),
    "offsets, and not idle": ({"idle_since": 0}, "nothing ends them"),
}


@pytest.mark.parametrize(("fields", "said"), BROKEN.values(), ids=BROKEN)
def test_sections_that_no_machine_wrote(fields: dict[str, Any], said: str) -> None:
    """A restore refuses a group whose offsets would never end, or end without reason."""
    harness = used_once()
    group = harness.group()._replace(**fields)
    harness.state.groups.put(group.id, group)
    with pytest.raises(SectionError, match=said):
        list(SECTION.check(harness.state))
