"""Who belongs to the next epoch, and what the primary refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.mux.catalog_types import BeginEpoch, ClusterMembers, EpochMember
from coordinator.replica.epoch_changes import membership_of
from coordinator.replica.epoch_planning import (
    PROMOTION_LAG_OPS_MAX,
    VOTERS_MAX,
    EpochView,
    SeenReplica,
    addition,
    check_peer_address,
    promotion,
    removal,
)
from coordinator.vsr import view_in
from coordinator.vsr.membership import EPOCH_MAX
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import PEER_ADDRESS_BYTES_MAX, STANDBYS_MAX

COMMIT = 5_000
DISK = b"d" * 16


def members(*ids: int) -> tuple[EpochMember, ...]:
    """Return members at addresses of their own."""
    return tuple(EpochMember(each, f"host-{each}:7410") for each in ids)


def view(
    voters: tuple[int, ...],
    standbys: tuple[int, ...] = (),
    away: tuple[int, ...] = (),
    primary: int = 0,
    lag: int = 0,
    disk: bytes = DISK,
) -> EpochView:
    """Return what a primary sees: all but those who are away take part, `lag` entries behind."""
    others = [each for each in voters + standbys if each not in (primary, *away)]
    seen = {each: SeenReplica(True, COMMIT - lag, disk) for each in others}
    known = ClusterMembers(90, view_in(4, 0), members(*voters), members(*standbys), 20)
    return EpochView(known, primary, COMMIT, seen)


def ids(change: BeginEpoch | None) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return voters, standbys, and the primary of the first view."""
    assert change is not None
    membership = membership_of(change)
    assert membership.epoch == 5
    return membership.voters, membership.standbys, membership.primary_of(membership.first_view)


def test_a_new_replica_is_a_standby_with_an_id_that_nobody_had() -> None:
    """Ids go up for good, so that a removed replica never comes back as another one."""
    replica, change = addition(view((0, 3, 7), (9,)), "new:7410")
    assert replica == 20
    assert ids(change) == ((0, 3, 7), (9, 20), 0)
    assert change is not None
    assert change.next_replica_id == 21
    assert change.standbys[-1] == EpochMember(20, "new:7410")


def test_an_address_is_added_once() -> None:
    """Whoever repeats a call whose answer was lost gets the id that the first one gave."""
    assert addition(view((0, 3), (9,)), "host-9:7410") == (9, None)
    assert addition(view((0, 3), (9,)), "host-3:7410") == (3, None)


@pytest.mark.parametrize(
    ("seen", "replica", "expected"),
    [
        (view((0,), (1,)), 1, ((0, 1), (), 0)),
        (view((0, 1, 2), (3, 4)), 4, ((0, 1, 2, 4), (3,), 0)),
        # Two of three are dead; with the promoted one three of four would still lack one.
        (view((0, 1, 2, 3), (4,), away=(1,)), 4, ((0, 1, 2, 3, 4), (), 0)),
        (view((5, 6, 0), (7,), primary=0), 7, ((5, 6, 0, 7), (), 0)),
        (view((0, 1, 2), (3,), lag=PROMOTION_LAG_OPS_MAX), 3, ((0, 1, 2, 3), (), 0)),
    ],
)
def test_a_standby_that_is_up_to_date_gets_a_vote(
    seen: EpochView, replica: int, expected: tuple[tuple[int, ...], tuple[int, ...], int]
) -> None:
    """It votes last in turn, the primary stays, and its disk is named."""
    change = promotion(seen, replica)
    assert ids(change) == expected
    assert change is not None
    assert change.voters[-1].disk_id == DISK


@pytest.mark.parametrize(
    ("seen", "replica", "expected"),
    [
        (view((0, 1, 2)), 1, ((0, 2), (), 0)),
        (view((0, 1, 2), away=(1,)), 1, ((0, 2), (), 0)),
        (view((0, 1, 2, 3), (8,)), 8, ((0, 1, 2, 3), (), 0)),
        (view((0, 1, 2), primary=2), 0, ((1, 2), (), 2)),
        # The primary removes itself, and the one of the others that is furthest takes over.
        (view((0, 1, 2)), 0, ((1, 2), (), 1)),
        (view((2, 1), primary=2), 2, ((1,), (), 1)),
    ],
)
def test_any_replica_can_be_removed(
    seen: EpochView, replica: int, expected: tuple[tuple[int, ...], tuple[int, ...], int]
) -> None:
    """Dead ones, standbys and the primary: somebody who is there leads the first view."""
    assert ids(removal(seen, replica)) == expected


def test_who_is_furthest_leads_after_the_primary() -> None:
    """A first view whose primary is away or behind would begin with an election."""
    seen = view((0, 1, 2, 3))
    ahead = {
        1: SeenReplica(True, COMMIT - 2, DISK),
        2: SeenReplica(True, COMMIT, DISK),
        3: SeenReplica(True, COMMIT - 1, DISK),
    }
    change = removal(EpochView(seen.members, 0, COMMIT, ahead), 0)
    assert ids(change) == ((1, 2, 3), (), 2)


def test_a_voter_that_lost_its_disk_is_no_part_of_a_quorum_yet() -> None:
    """It takes part and asks for its vote, for which a quorum is needed without it: after the
    change there would be none, for good."""
    seen = view((0, 1, 2))
    wiped = {**seen.seen, 2: SeenReplica(True, COMMIT, DISK, lacks_vote=True)}
    with pytest.raises(Refusal, match="start these replicas first, or remove them: 2"):
        removal(EpochView(seen.members, 0, COMMIT, wiped), 1)
    assert ids(removal(EpochView(seen.members, 0, COMMIT, wiped), 2)) == ((0, 1), (), 0)
    # Nor does it lead a first view: four of five are there with their votes.
    five = view((0, 1, 2, 3, 4))
    ahead = {**five.seen, 1: SeenReplica(True, COMMIT + 9, DISK, lacks_vote=True)}
    assert ids(removal(EpochView(five.members, 0, COMMIT, ahead), 0)) == ((1, 2, 3, 4), (), 2)


def test_there_is_a_last_epoch() -> None:
    """The number behind it stands for a missing vote: the change is refused, not made."""
    seen = view((0, 1))
    last = replace(seen.members, first_view=view_in(EPOCH_MAX, 0))
    with pytest.raises(Refusal, match=f"{EPOCH_MAX} changes of members"):
        removal(replace(seen, members=last), 1)


@pytest.mark.parametrize(
    "plan",
    [
        lambda: promotion(view((0, 1, 2)), 1),
        lambda: removal(view((0, 12)), 19),
    ],
)
def test_what_is_so_already_is_no_change(plan: Callable[[], BeginEpoch | None]) -> None:
    """A voter keeps its vote, and who was removed stays removed: calls can be repeated."""
    assert plan() is None


@pytest.mark.parametrize(
    ("plan", "reason", "says"),
    [
        (lambda: promotion(view((0,), (1,)), 2), "REPLICA_NOT_FOUND", "no replica 2"),
        (lambda: removal(view((0, 1)), 20), "REPLICA_NOT_FOUND", "no replica 20"),
        (lambda: promotion(view((0,), (1,), away=(1,)), 1), "REPLICA_NOT_READY", "is not heard"),
        (
            lambda: promotion(view((0,), (1,), lag=PROMOTION_LAG_OPS_MAX + 1), 1),
            "REPLICA_NOT_READY",
            f"is {PROMOTION_LAG_OPS_MAX + 1} entries behind",
        ),
        (lambda: promotion(view((0,), (1,), disk=b""), 1), "REPLICA_NOT_READY", "newer build"),
        (
            lambda: promotion(view(tuple(range(VOTERS_MAX)), (9,)), 9),
            "REPLICA_LIMIT",
            f"{VOTERS_MAX} voters",
        ),
        (
            lambda: addition(view((0,), tuple(range(1, STANDBYS_MAX + 1))), "new:1"),
            "REPLICA_LIMIT",
            f"{STANDBYS_MAX} standbys",
        ),
        # Of four voters three must be there to elect a primary.
        (lambda: promotion(view((0, 1, 2), (3,), away=(1, 2)), 3), "QUORUM_AT_RISK", "1, 2"),
        (lambda: removal(view((0, 1, 2), away=(2,)), 1), "QUORUM_AT_RISK", "2"),
        (lambda: removal(view((0, 1), away=(1,)), 0), "QUORUM_AT_RISK", "1"),
        (lambda: removal(view((0,), (1,)), 0), "NO_OTHER_REPLICA", "promote another one"),
    ],
)
def test_what_would_stop_the_cluster_is_refused(
    plan: Callable[[], object], reason: str, says: str
) -> None:
    """The refusal names what is missing, and nothing is logged."""
    with pytest.raises(Refusal, match=says) as refused:
        plan()
    assert Reason.Name(refused.value.reason) == f"REASON_{reason}"


@pytest.mark.parametrize(
    "address",
    [
        *("", "host", "host:", ":7410", "host:x", "host:0", "host:65536", "unix:/x", "a\nb:1"),
        *("0.0.0.0:7410", "[::]:7410", "a b:80", "h:\uff11\uff12"),
        "h" * PEER_ADDRESS_BYTES_MAX + ":1",
    ],
)
def test_an_address_that_nobody_can_reach_is_refused(address: str) -> None:
    """It would be in the log, and in every replica's links."""
    with pytest.raises(Refusal, match="peer_address is"):
        check_peer_address(address)


@pytest.mark.parametrize("address", ["10.0.0.1:7410", "[fd00::1]:7410", "replica-3.example.com:1"])
def test_addresses_are_hosts_and_ports(address: str) -> None:
    """Names, addresses of both versions, and a port."""
    check_peer_address(address)
