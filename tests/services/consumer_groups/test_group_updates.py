"""What can be changed of a group, and how long its members may be silent."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.services.consumer_groups.harness import GroupsHarness, refused, settled
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as views
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.limits import MEMBER_TIMEOUT_MAX_US, MEMBER_TIMEOUT_MIN_US

MIN_MS, MAX_MS = MEMBER_TIMEOUT_MIN_US // 1_000, MEMBER_TIMEOUT_MAX_US // 1_000
UNIFORM, RANGE = views.ASSIGNOR_UNIFORM, views.ASSIGNOR_RANGE
# What is asked for, stored and shown, milliseconds.
TIMEOUTS = [
    (0, 0, 45_000),
    (MIN_MS, 6_000, 6_000),
    (45_000, 45_000, 45_000),
    (MAX_MS, 3_600_000, 3_600_000),
]
OUT_OF_RANGE = [1, MIN_MS - 1, MAX_MS + 1, 2**32 - 1]


@pytest.mark.parametrize(("asked_ms", "stored_ms", "shown_ms"), TIMEOUTS)
def test_a_timeout_is_chosen(asked_ms: int, stored_ms: int, shown_ms: int) -> None:
    """A group has the timeout that it was created with, or the default."""
    harness = GroupsHarness()
    harness.create(timeout_ms=asked_ms)
    assert harness.group().member_timeout_ms == stored_ms
    assert harness.describe().member_timeout_ms == shown_ms


@pytest.mark.parametrize(("asked_ms", "stored_ms", "shown_ms"), TIMEOUTS)
def test_a_timeout_is_changed(asked_ms: int, stored_ms: int, shown_ms: int) -> None:
    """An update replaces the timeout, and 0 brings the default back; no target follows."""
    harness = GroupsHarness()
    harness.create(timeout_ms=7_000)
    harness.join(11)
    harness.settle()
    before = harness.group()
    harness.update(member_timeout_ms=asked_ms)
    assert harness.group() == before._replace(
        member_timeout_ms=stored_ms, modified_revision=harness.revision
    )
    assert harness.describe().member_timeout_ms == shown_ms
    assert harness.pending == []


@pytest.mark.parametrize("timeout_ms", OUT_OF_RANGE)
def test_timeouts_out_of_range(timeout_ms: int) -> None:
    """A timeout that is too short or too long is refused, and not bent."""
    harness = settled([11])
    digest = harness.digest()
    assert refused(lambda: harness.create("a", timeout_ms=timeout_ms)) == "INVALID_OPTION"
    refusal = refused(lambda: harness.update(member_timeout_ms=timeout_ms, assignor=RANGE))
    assert (refusal, harness.digest()) == ("INVALID_OPTION", digest)


def test_a_new_timeout_is_that_of_who_joins_after_it() -> None:
    """A member keeps the timeout that it has heard of, until it joins anew."""
    harness = GroupsHarness()
    harness.create()
    for session, instance in ((11, "one"), (12, "two")):
        harness.join(session, instance)
    harness.settle()
    harness.leave(11, keep_place=True)
    deadline = harness.member(11).absence_deadline
    harness.update(member_timeout_ms=6_000)
    assert harness.member(11).absence_deadline == deadline
    harness.leave(12, keep_place=True)
    assert harness.member(12).absence_deadline == harness.now + 45_000_000
    for session, instance in ((21, "one"), (13, "three")):
        harness.join(session, instance)
        harness.leave(session, keep_place=True)
        assert harness.member(session).absence_deadline == harness.now + 6_000_000


def test_another_assignor_leads_to_a_new_target() -> None:
    """Partitions move to where the new assignor wants them, by one Assign."""
    harness = settled([12, 11], partitions_count=5)
    harness.leave(12)
    harness.join(12)
    harness.settle()
    assert harness.member(11).owned != (0, 1, 2)
    before = harness.group()
    harness.update(assignor=RANGE)
    assert harness.group() == before._replace(
        assignor=RANGE, group_epoch=before.group_epoch + 1, modified_revision=harness.revision
    )
    (proposal,) = harness.pending
    request = api.AssignRequest.FromString(proposal.request)
    assert request == api.AssignRequest(group_id=1, group_epoch=before.group_epoch + 1)
    harness.settle()
    assert (harness.member(11).owned, harness.member(12).owned) == ((0, 1, 2), (3, 4))


def test_an_assignor_changes_while_a_target_is_pending() -> None:
    """A change before the Assign of another one asks for no second Assign."""
    harness = settled([11], partitions_count=5)
    harness.join(10)
    harness.update(assignor=RANGE)
    assert len(harness.pending) == 1
    harness.settle()
    assert (harness.member(11).owned, harness.member(10).owned) == ((0, 1, 2), (3, 4))


def test_the_assignor_of_an_empty_group_needs_no_target() -> None:
    """A group without members has the new assignor at once, and its epoch still grows."""
    harness = GroupsHarness()
    harness.create()
    harness.update(assignor=RANGE)
    group = harness.group()
    assert (group.assignor, group.group_epoch, group.assignment_epoch) == (RANGE, 2, 2)
    assert harness.pending == []


UNCHANGED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "the present assignor": {"assignor": UNIFORM},
    "the present timeout": {"member_timeout_ms": 0},
    "both": {"assignor": UNIFORM, "member_timeout_ms": 0},
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_what_is_as_it_was_is_no_change(name: str) -> None:
    """An update that sets nothing, or what is so already, leaves the revision as well."""
    harness = settled([11])
    digest = harness.digest()
    harness.update(**UNCHANGED[name])
    assert (harness.digest(), harness.pending) == (digest, [])


def test_what_is_not_set_stays() -> None:
    """Each of the two can be changed alone."""
    harness = settled([11])
    harness.update(member_timeout_ms=6_000)
    assert (harness.group().assignor, harness.group().member_timeout_ms) == (UNIFORM, 6_000)
    harness.update(assignor=RANGE)
    assert (harness.group().assignor, harness.group().member_timeout_ms) == (RANGE, 6_000)


def test_an_unknown_assignor_is_refused() -> None:
    """An assignor that this build does not know changes nothing, the timeout neither."""
    harness = settled([11])
    digest = harness.digest()
    request = api.UpdateConsumerGroupRequest(member_timeout_ms=6_000)
    request.group.id = 1
    request.assignor = 9  # type: ignore[assignment]
    refusal = refused(lambda: harness.command("UpdateConsumerGroup", request))
    assert (refusal, harness.digest()) == ("INVALID_OPTION", digest)


@pytest.mark.parametrize("offset", [-1, 1])
def test_an_update_of_another_revision_is_refused(offset: int) -> None:
    """An update that was decided upon another revision changes nothing, be it no change either."""
    harness = settled([11])
    digest, wrong = harness.digest(), harness.group().modified_revision + offset
    for fields in ({}, {"assignor": RANGE}):
        update = partial(harness.update, expected_revision=wrong, **fields)
        assert refused(update) == "REVISION_MISMATCH"
    assert harness.digest() == digest


def test_an_update_compares_revisions() -> None:
    """An update may demand the revision that it decided upon; joins do not change the group."""
    harness = settled([11])
    revision = harness.group().modified_revision
    harness.join(12)
    harness.update(assignor=RANGE, expected_revision=revision)
    assert harness.group().assignor == RANGE
    stale = refused(lambda: harness.update(expected_revision=revision))
    assert stale == "REVISION_MISMATCH"


def test_an_update_can_be_tried() -> None:
    """An update that is only validated is refused for the same reasons, and changes nothing."""
    harness = settled([11])
    digest = harness.digest()
    harness.update(assignor=RANGE, member_timeout_ms=6_000, validate_only=True)
    assert (harness.digest(), harness.pending) == (digest, [])
    refusal = refused(lambda: harness.update(member_timeout_ms=1, validate_only=True))
    assert refusal == "INVALID_OPTION"
