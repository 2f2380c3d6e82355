"""Changes: the last entries of epochs, and what they may say of the next one."""

from __future__ import annotations

from coordinator.vsr.effects import NOT_ADMITTED, RefusalReason
from coordinator.vsr.errors import InvariantViolation, demand
from coordinator.vsr.events import ClientBatch
from coordinator.vsr.membership import Membership
from coordinator.vsr.state import ReplicaState


def refusal_of_change(state: ReplicaState, batch: ClientBatch) -> RefusalReason | None:
    """Return why this change cannot end the epoch; None if it can."""
    membership = read(state, batch.body)
    if membership.epoch != state.membership.epoch + 1:
        return RefusalReason.OTHER_EPOCH
    demand_step(state.membership, membership)
    return None


def demand_step(earlier: Membership, later: Membership) -> None:
    """Hold the driver to one change at a time, in which all say what they know of disks."""
    before, after = set(earlier.voters), set(later.voters)
    demand(len(before ^ after) <= 1, "one replica gets or loses its vote at a time", sorted(after))
    demoted = before & set(later.standbys)
    demand(not demoted, "a voter is removed, and never becomes a standby", sorted(demoted))
    unnamed = after - before - {replica for replica, _ in later.disks}
    demand(not unnamed, "a change names the disk of each replica that gets a vote", sorted(unnamed))
    kept = {each for each in earlier.disks if each[0] in after}
    demand(kept <= set(later.disks), "disks that have votes are named as before", later.disks)


def read(state: ReplicaState, body: bytes) -> Membership:
    """Return what the body of an epoch's last entry says."""
    if state.read_membership is None:
        raise InvariantViolation("a core that reads no changes has no entry that ends an epoch")
    return state.read_membership(body)


def gives_vote(state: ReplicaState, membership: Membership) -> bool:
    """Return whether a later epoch gives a vote to this disk, which never had one.

    A disk that is in an earlier epoch has not vouched for anything in this one, even if that
    was not the epoch in which it got its vote: a snapshot may have brought it here.
    """
    has_none = state.voting_view == NOT_ADMITTED
    return has_none and membership.names(state.replica, state.disk_id)
