"""Which heartbeats release partitions: those of a member that knows what it has to give up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from services.consumer_groups.assignment import assignment_number
from services.consumer_groups.model import Member
from tests.services.consumer_groups.harness import LEVEL_BEFORE, GroupsHarness, settled
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api

MEMBER = Member(1, 11, 3, "", "", 1, 1, (0, 1), (2,), (0, 1), 5, 102)
NUMBER_BEFORE = 0x6E9BC1B0EAA48332
NUMBER_AT_130 = 0xB9BFE82B13D6E796
LEVEL = limits.FEATURE_LEVEL_MEMBERS


def revoking(level: int = limits.FEATURE_LEVEL_MAX) -> GroupsHarness:
    """Return a harness in which 11 has to give up 2 and 3, for which 12 waits."""
    harness = settled([11], partitions_count=4, level=level)
    harness.join(12)
    harness.propose_all()
    return harness


def numbers_of(harness: GroupsHarness) -> list[int]:
    """Return what 11 is told as it has all partitions, half of them, and all of them again."""
    numbers = [harness.assignment(11)]
    harness.join(12)
    harness.propose_all()
    numbers.append(harness.assignment(11))
    harness.leave(12)
    harness.propose_all()
    assert harness.member(11).owned == (0, 1, 2, 3)
    return [*numbers, harness.assignment(11)]


@pytest.mark.parametrize("level", range(1, LEVEL + 1))
def test_heartbeats_of_who_names_no_assignment(level: int) -> None:
    """Without a known assignment a heartbeat releases what it leaves out, but below level 4 alone.

    There it means that a member names all that it holds.
    """
    harness = revoking(level)
    harness.heartbeat(11, harness.member(11).member_epoch, [0, 1], known=0)
    left = () if level <= LEVEL_BEFORE else (2, 3)
    assert (harness.member(11).revoking, harness.member(12).owned) == (left, (2, 3)[len(left) :])


@pytest.mark.parametrize("level", [limits.FEATURE_LEVEL_BOUNDED, LEVEL_BEFORE, LEVEL])
def test_heartbeats_of_who_knows_something_else(level: int) -> None:
    """A member that knows an earlier assignment releases nothing; it is told the present one."""
    harness = settled([11], partitions_count=4, level=level)
    before, epoch = harness.assignment(11), harness.member(11).member_epoch
    harness.join(12)
    harness.propose_all()
    answer = harness.heartbeat(11, epoch, [0, 1], known=before)
    assert harness.member(11).revoking == (2, 3)
    assert list(answer.revoking_partitions) == [2, 3]
    assert answer.assignment == harness.assignment(11) != before
    again = harness.heartbeat(11, epoch, [0, 1], known=answer.assignment)
    assert (harness.member(11).revoking, harness.member(12).owned) == ((), (2, 3))
    assert again.assignment not in (before, answer.assignment)


@pytest.mark.parametrize(("level", "is_new"), [(LEVEL_BEFORE, False), (LEVEL, True)])
def test_no_number_comes_back(level: int, is_new: bool) -> None:
    """From level 4 on partitions that come back have a new number; they had the old one before."""
    first, other, again = numbers_of(settled([11], partitions_count=4, level=level))
    assert first != other != again
    assert (first != again) is is_new


def test_a_number_stays_as_long_as_the_partitions() -> None:
    """A new epoch, or a new target that brings nothing to a member, leaves its number."""
    harness = settled([11, 12], partitions_count=4)
    number, owned = harness.assignment(11), harness.member(11).owned
    harness.join(13)
    harness.leave(13)
    harness.settle()
    assert (harness.assignment(11), harness.member(11).owned) == (number, owned)


def _assign(harness: GroupsHarness) -> int:
    harness.join(13)
    harness.join(14)
    harness.propose_all()
    return 11


def _give_up(harness: GroupsHarness) -> int:
    harness.truthful(11)
    return 11


def _get(harness: GroupsHarness) -> int:
    harness.truthful(11)
    return 12


def _shrink(harness: GroupsHarness) -> int:
    harness.change_partitions(1)
    return 11


def _join(harness: GroupsHarness) -> int:
    harness.join(13)
    return 13


@pytest.mark.parametrize("change", [_assign, _give_up, _get, _shrink, _join])
@pytest.mark.parametrize("level", [LEVEL_BEFORE, LEVEL])
def test_every_change_of_partitions_has_a_revision(
    level: int, change: Callable[[GroupsHarness], int]
) -> None:
    """Whatever changes a member's partitions, its number is of that revision, from level 4 on."""
    harness = revoking(level)
    session = change(harness)
    expected = harness.revision if level == LEVEL else 0
    assert harness.member(session).assignment_revision == expected


def test_numbers_before_are_pinned() -> None:
    """Replies depend on the numbers: below level 4 they stand for partitions alone."""
    assert assignment_number(MEMBER, MEMBER.owned, MEMBER.revoking) == NUMBER_BEFORE
    later = MEMBER._replace(assignment_revision=130)
    assert assignment_number(later, MEMBER.owned, MEMBER.revoking) == NUMBER_AT_130


def test_a_member_of_before_has_a_revision_from_its_next_change_on() -> None:
    """At level 4 a member that joined before keeps its number until its partitions change."""
    harness = settled([11], partitions_count=4, level=LEVEL_BEFORE)
    number = harness.assignment(11)
    harness.level = LEVEL
    harness.truthful(11)
    assert (harness.member(11).assignment_revision, harness.assignment(11)) == (0, number)
    harness.join(12)
    harness.propose_all()
    assert harness.member(11).assignment_revision == harness.revision
    assert harness.member(12).assignment_revision == harness.revision - 1  # of its join
    harness.leave(12)
    harness.propose_all()
    assert harness.member(11).owned == (0, 1, 2, 3)
    assert harness.assignment(11) != number


@pytest.mark.parametrize(("level", "is_released"), [(LEVEL_BEFORE, True), (LEVEL, False)])
def test_a_late_heartbeat_releases_nothing_that_is_read(level: int, is_released: bool) -> None:
    """A heartbeat about what was given up once says nothing of what must be given up again.

    Before level 4 it did: so old logs say.
    """
    harness = revoking(level)
    epoch, number = harness.member(11).member_epoch, harness.assignment(11)
    # It hears that 2 and 3 must go, and says that it keeps 0 and 1: this heartbeat arrives late.
    harness.leave(12)
    harness.propose_all()
    sync = api.SyncConsumerGroupRequest()
    sync.group.id = 1
    answer = harness.query("SyncConsumerGroup", sync, session=11)
    # It reads 2 and 3 again, and has not heard yet that they must go once more.
    assert (list(answer.owned_partitions), answer.member_epoch) == ([0, 1, 2, 3], epoch)
    harness.join(12)
    harness.propose_all()
    assert harness.member(11).revoking == (2, 3)
    harness.heartbeat(11, epoch, [0, 1], known=number)
    expected = ((), (2, 3)) if is_released else ((2, 3), ())
    assert (harness.member(11).revoking, harness.member(12).owned) == expected
