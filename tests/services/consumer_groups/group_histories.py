"""What happens in groups before, and while, watchers are told of it."""

from __future__ import annotations

from tests.services.consumer_groups.harness import GROUP_NAME, GroupsHarness
from tests.services.consumer_groups.offset_requests import commit
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api


def delete(harness: GroupsHarness, name: str = GROUP_NAME) -> None:
    """Delete a group."""
    request = api.DeleteConsumerGroupRequest()
    request.group.name = name
    harness.command("DeleteConsumerGroup", request)


def assigning(harness: GroupsHarness) -> None:
    """Let session 3 join, and its target be computed: the others give up partitions."""
    harness.join(3)
    harness.propose_next()


def sweep_of_nothing(harness: GroupsHarness) -> None:
    """Work off no chores."""
    harness.command("Sweep", api.SweepRequest(), user=limits.SYSTEM_USER_ID)


def complete(harness: GroupsHarness) -> None:
    """Complete the revocation of session 1."""
    harness.complete_revocation(1, harness.member(1).revocation_deadline)


def late(harness: GroupsHarness) -> None:
    """Let session 1 have partitions that it does not give up in time."""
    assigning(harness)
    harness.now = harness.member(1).revocation_deadline


def leave_place(harness: GroupsHarness) -> None:
    """Let session 1 leave its place in group 2 for a while."""
    harness.leave(1, name="others", keep_place=True)


def overdue(harness: GroupsHarness) -> None:
    """Let session 1 be away from its place in group 2 for too long."""
    leave_place(harness)
    harness.now = harness.member(1, "others").absence_deadline


def back_and_forth(harness: GroupsHarness) -> None:
    """Let session 3 join and leave, so that the others have what they had, in a new epoch."""
    harness.join(3)
    harness.leave(3)
    harness.propose_all()


def nothing(harness: GroupsHarness) -> None:
    """Do nothing."""


def empty_group(harness: GroupsHarness) -> None:
    """Have a group without members that has committed offsets."""
    harness.create("new")
    commit(harness, {0: 5, 1: 6}, name="new")


def unused_group(harness: GroupsHarness) -> None:
    """Have a group without members whose offsets are to end, and let their time come."""
    empty_group(harness)
    harness.update_named("new", offsets_retention_ms=60_000)
    harness.now = harness.group("new").expiry_due


def used_group(harness: GroupsHarness) -> None:
    """Have a commit a minute before the time of offsets comes."""
    unused_group(harness)
    harness.now -= 60_000_000
    commit(harness, {0: 6}, name="new")
    harness.now += 60_000_000
