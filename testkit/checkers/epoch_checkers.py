"""Promises about who belongs to the cluster, while its members change."""

from __future__ import annotations

from coordinator import vsr
from coordinator.replica.data_directory import ReplicaFiles
from testkit.checkers.checker import CheckedMachine, Checker
from testkit.checkers.history import History


class EpochsAgree(Checker):
    """An epoch has the same members, and begins behind the same entry, for every replica."""

    def stepped(self, replica: int, core: vsr.Replica) -> None:
        own = core.membership
        if own.epoch == 0:
            return  # the flags say who founds the cluster
        known = self.history.epochs[own.epoch]
        if _told_by(own) != _told_by(known):
            raise self.broken(f"replica {replica} is in an epoch of {own}, and another of {known}")


def _told_by(membership: vsr.Membership) -> tuple[object, ...]:
    """Return what every replica knows of an epoch, wherever it has it from."""
    return membership.first_view, membership.voters, membership.standbys, membership.began_op


class EpochsOnlyGrow(Checker):
    """A process never goes back to an epoch that was over for it."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._epochs: dict[int, int] = {}

    def started(self, replica: int, files: ReplicaFiles, machine: CheckedMachine) -> None:
        self._epochs[replica] = 0

    def stepped(self, replica: int, core: vsr.Replica) -> None:
        epoch, before = core.membership.epoch, self._epochs.get(replica, 0)
        if epoch < before:
            raise self.broken(f"replica {replica} goes from epoch {before} back to {epoch}")
        self._epochs[replica] = epoch


class LedByOne(Checker):
    """A view has one primary."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._leaders: dict[int, int] = {}

    def stepped(self, replica: int, core: vsr.Replica) -> None:
        if core.status is not vsr.ReplicaStatus.NORMAL or core.primary != replica:
            return
        leader = self._leaders.setdefault(core.view, replica)
        if leader != replica:
            raise self.broken(f"replicas {leader} and {replica} lead view {core.view}")
