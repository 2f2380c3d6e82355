"""Whom this replica serves now, and where everybody else is sent."""

from __future__ import annotations

from typing import Protocol

from coordinator import vsr
from coordinator.replica.peers import PeerPorts
from coordinator.replica.ports import Progress
from coordinator.replica.refusals import not_read_here, not_serving
from viewstamp.errors import Refusal


class ServedCore(Protocol):
    """The core as seen from here."""

    def batch_refusal(self) -> vsr.RefusalReason | None:
        """Return why a batch would be refused now; None if it would be admitted."""
        ...


class Serving:
    """Follows `progress`; the primary serves commands, every replica serves reads."""

    def __init__(self, core: ServedCore, progress: Progress, peers: PeerPorts) -> None:
        self._core = core
        self._progress = progress
        self._peers = peers

    @property
    def is_primary(self) -> bool:
        """Whether this replica is the primary, in status normal."""
        is_primary = self._progress.primary == self._peers.replica_id
        return is_primary and self._progress.status is vsr.ReplicaStatus.NORMAL

    def check(self) -> None:
        """Raise Refusal unless this replica is the primary, in status normal."""
        if self.is_primary:
            refusal = self._core.batch_refusal()
            if refusal is vsr.RefusalReason.ABDICATING:
                raise self.refusal_of(refusal)
        else:
            is_normal = self._progress.status is vsr.ReplicaStatus.NORMAL
            reason = vsr.RefusalReason.NOT_PRIMARY if is_normal else vsr.RefusalReason.VIEW_CHANGE
            raise self.refusal_of(reason)

    def check_reading(self) -> None:
        """Raise Refusal unless this replica answers reads; backups do so, too."""
        if self._progress.status is not vsr.ReplicaStatus.NORMAL:
            raise self.refusal_of(vsr.RefusalReason.VIEW_CHANGE)

    def late_read(self, deadline_ms: int) -> Refusal | None:
        """Return where to send a linearizable read without an answer here; None if nowhere else."""
        primary = self._progress.primary
        if primary == self._peers.replica_id:
            return None  # nobody else can answer, whether it serves by now or not
        return not_read_here(primary, self._peers.address(primary), deadline_ms)

    def refusal_of(self, reason: vsr.RefusalReason) -> Refusal:
        """Return the refusal for the core's reason.

        One that was removed knows who was to lead then, and sends everybody there: to try again
        would be of no use.
        """
        if self._progress.status is vsr.ReplicaStatus.REMOVED:
            reason = vsr.RefusalReason.NOT_PRIMARY
        return not_serving(reason, self._progress.primary, self._peers.address)
