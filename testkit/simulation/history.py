"""What the whole cluster knows, seen from outside: the facts that the checkers share."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.journal import Journal
from coordinator.vsr import Prepare
from coordinator.vsr.quorum import QUORUMS
from testkit.simulation.application import ApplicationModel

Checksum = bytes


@dataclass(slots=True)
class History:
    """The one log that all replicas must agree on, and the durable copies of its entries.

    `held` is by replica and op, `lost` what was held on disks that are gone.
    """

    replica_count: int
    model: ApplicationModel
    entries: list[Prepare] = field(default_factory=list)
    held: dict[int, dict[int, Checksum]] = field(default_factory=dict)
    lost: set[tuple[int, int, Checksum]] = field(default_factory=set)
    discarding: dict[int, list[int]] = field(default_factory=dict)
    """By replica: discards that it asked its disk for and that are not done, oldest first."""
    acknowledged_op: int = 0
    """The highest op of which a client has the reply."""

    @property
    def replication(self) -> int:
        """How many durable copies a committed entry has."""
        return QUORUMS[self.replica_count].replication

    def copies(self, op: int, checksum: Checksum) -> int:
        """How many replicas hold an entry durably, or did when their disk was lost."""
        return sum(
            self.held.get(replica, {}).get(op) == checksum or (replica, op, checksum) in self.lost
            for replica in range(self.replica_count)
        )

    def checksum(self, op: int) -> Checksum | None:
        """The entry that was committed as `op`, if anyone executed it yet."""
        return self.entries[op - 1].checksum if 0 < op <= len(self.entries) else None

    def became_durable(self, replica: int, prepare: Prepare) -> None:
        """A replica was told by its disk that it holds an entry, unless that is going already."""
        if prepare.op > min(self.discarding.get(replica, ()), default=prepare.op):
            return
        self.held.setdefault(replica, {})[prepare.op] = prepare.checksum

    def is_off(self, replica: int, op: int, cut_op: int) -> bool:
        """Whether an entry continued another one than a snapshot's last: it was not committed."""
        at_cut = self.held.get(replica, {}).get(cut_op)
        return op >= cut_op > 0 and at_cut not in (None, self.checksum(cut_op))

    def started(self, replica: int, journal: Journal, cut_op: int) -> None:
        """A restarted replica holds what its journal found, reported earlier or not."""
        self.discarding.pop(replica, None)
        held = self.held.setdefault(replica, {})
        gone = [each for each in held if self.is_off(replica, each, cut_op)]
        for op in gone:
            del held[op]
        for op in held_ops(journal):
            header = journal.header(op)
            assert header is not None
            held[op] = header.checksum

    def discards(self, replica: int, op: int) -> None:
        """A replica asked its disk to take everything above `op` out of its log."""
        self.discarding.setdefault(replica, []).append(op)
        held = self.held.get(replica, {})
        for later in [each for each in held if each > op]:
            del held[later]

    def discarded(self, replica: int) -> None:
        """The oldest discard is done."""
        self.discarding[replica].pop(0)

    def disk_lost(self, replica: int) -> None:
        """A replica's disk is gone."""
        held = self.held.pop(replica, {})
        self.lost.update((replica, op, checksum) for op, checksum in held.items())


def held_ops(journal: Journal) -> list[int]:
    """The ops that a journal holds, ascending."""
    head_op = 0 if journal.head is None else journal.head.op
    return [op for op in range(journal.first_op, head_op + 1) if journal.header(op) is not None]
