"""Changes of members: what the log holds, and what the core is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.mux.catalog_types import BeginEpoch, ClusterMembers, EpochMember
from coordinator.mux.types import BEGIN_EPOCH_CODE
from coordinator.replica.batcher import LooseCommand, pack_loose
from coordinator.replica.epoch_changes import (
    ChangeReader,
    MalformedChangeError,
    change_of,
    membership_of,
)
from coordinator.stages.catalog_codec import begin_epoch_request
from coordinator.vsr import Membership, view_in
from viewstamp.framing import frame
from viewstamp.limits import SYSTEM_USER_ID

DISK = b"d" * 16
CHANGE = BeginEpoch(
    view_in(2, 1),
    (EpochMember(4, "four:1"), EpochMember(0, "zero:1", DISK)),
    (EpochMember(7, "seven:1"),),
    8,
)


def body(change: BeginEpoch, *more: int) -> bytes:
    """Return the body of an entry that says this, and has commands of other codes beside it."""
    items = [(BEGIN_EPOCH_CODE, begin_epoch_request(change)), *((code, b"") for code in more)]
    nobody: Any = None
    commands = [LooseCommand(code, item, SYSTEM_USER_ID, 0, "", nobody) for code, item in items]
    return frame(pack_loose(commands).SerializeToString())


def test_a_change_comes_back_from_the_log_as_it_was() -> None:
    """The core reads who has a vote, in their order, and the disks that got one."""
    assert change_of(body(CHANGE)) == CHANGE
    assert membership_of(CHANGE) == Membership(view_in(2, 1), (4, 0), (7,), ((0, DISK),))


def test_members_of_a_snapshot_name_the_entry_that_said_them() -> None:
    """A replica that starts from the snapshot knows where its epoch began."""
    known = ClusterMembers(90, CHANGE.first_view, CHANGE.voters, CHANGE.standbys, 8)
    assert membership_of(known).began_op == 90


@pytest.mark.parametrize(
    "wrong", [body(CHANGE, 210), b"", frame(pack_loose([]).SerializeToString())]
)
def test_an_entry_that_says_something_else_ends_no_epoch(wrong: bytes) -> None:
    """The primary alone makes such entries, so another one is a defect that must be seen."""
    with pytest.raises(MalformedChangeError):
        change_of(wrong)


def test_an_epoch_that_begins_says_where_replicas_listen() -> None:
    """The core reads a change again when it enters the epoch: one that was discarded, of the same
    id at another address or without this replica, says nothing."""
    reader = ChangeReader()
    reader.note(CHANGE)
    moved = BeginEpoch(view_in(3, 0), CHANGE.voters, (EpochMember(7, "elsewhere:1"),), 8)
    reader.read(body(moved))
    reader.entered(membership_of(CHANGE))
    assert reader.read(body(CHANGE)) == membership_of(CHANGE)
    reader.entered(membership_of(CHANGE))
    assert reader.addresses == {4: "four:1", 0: "zero:1", 7: "seven:1"}


def test_addresses_are_those_of_the_present_members() -> None:
    """Who is no member any more is forgotten; who made the change may not know every address."""
    reader = ChangeReader()
    reader.note(CHANGE)
    unknown = (EpochMember(4, ""), EpochMember(9, ""), EpochMember(0, "moved:1"))
    reader.note(BeginEpoch(view_in(3, 0), unknown, (), 10))
    assert reader.addresses == {4: "four:1", 9: "", 0: "moved:1"}
