"""Which stored data may be damaged where, so that every cluster can recover: stuck means a bug.

A committed entry lies on a replication quorum of disks. As long as fewer copies than that are
damaged, an intact one is left, whichever replicas were the quorum.
"""

from __future__ import annotations

from random import Random

from tests.simulation.options import FaultKind, Options


class Atlas:
    """Says who may lose what, for one run."""

    def __init__(self, options: Options, random: Random) -> None:
        self._count = options.replica_count
        self._spared = options.damaged_copies_max
        kinds = {FaultKind.MISDIRECTED, FaultKind.LOST_DISK}
        # What goes astray hits other entries than it is about, so the victims stay the same.
        is_fixed = bool(kinds & options.faults) or random.random() < 0.5
        first = random.randrange(self._count)
        self.victims = frozenset((first + n) % self._count for n in range(self._spared))
        """The replicas whose whole disk may be damaged; empty if damage goes round by op."""
        if not is_fixed:
            self.victims = frozenset()
        self._is_fixed = is_fixed

    def may_damage(self, replica: int, op: int) -> bool:
        """Whether this replica's copy of this entry may be damaged."""
        if self._is_fixed:
            return replica in self.victims
        return (replica - op) % self._count < self._spared
