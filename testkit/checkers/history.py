"""What the whole cluster knows, seen from outside: the facts that the checkers share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.journal import Recovery
from coordinator.journal.interface import ReplicaJournal
from coordinator.vsr import Prepare
from coordinator.vsr.membership import Membership, founding

Checksum = bytes


@dataclass(slots=True)
class History:
    """The one log that all replicas must agree on, and the durable copies of its entries.

    `replica_count` voters found the cluster. `held` is by replica and op. `lost` is what was held
    on disks that are gone, with the view that the replica had reached by then. `decided_before` is
    the highest feature level that entries before an op have decided, as far as anybody has executed
    them.
    """

    replica_count: int
    decided_before: Callable[[int], int]
    entries: list[Prepare] = field(default_factory=list)
    held: dict[int, dict[int, Checksum]] = field(default_factory=dict)
    lost: dict[tuple[int, int, Checksum], int] = field(default_factory=dict)
    views: dict[int, int] = field(default_factory=dict)
    """The view of each replica."""
    discarding: dict[int, list[int]] = field(default_factory=dict)
    """By replica: discards that it asked its disk for and that are not done, oldest first."""
    acknowledged_op: int = 0
    """The highest op of which a client has the reply."""
    epochs: dict[int, Membership] = field(default_factory=dict)
    """Who belongs to the cluster, by epoch, as the first replica to enter it told."""

    def __post_init__(self) -> None:
        self.epochs[0] = founding(self.replica_count)

    def entered(self, membership: Membership) -> None:
        """A replica is in an epoch."""
        self.epochs.setdefault(membership.epoch, membership)

    def epoch_with(self, op: int) -> Membership:
        """Return the epoch whose voters commit an entry."""
        begun = [each for each in self.epochs.values() if each.began_op < op]
        return max(begun, key=lambda each: each.epoch, default=self.epochs[0])

    def replication(self, op: int) -> int:
        """Return how many durable copies a committed entry has."""
        return self.epoch_with(op).quorums.replication

    def copies(self, op: int, checksum: Checksum, view: int = 0) -> int:
        """How many voters hold an entry durably, or did so when their disk was lost.

        A lost copy counts in the views that its replica reached: only there can somebody have its
        acknowledgement.
        """
        return sum(
            self.held.get(replica, {}).get(op) == checksum
            or self.lost.get((replica, op, checksum), -1) >= view
            for replica in self.epoch_with(op).voters
        )

    def checksum(self, op: int) -> Checksum | None:
        """The entry that was committed as `op`, if anyone executed it yet."""
        return self.entries[op - 1].checksum if 0 < op <= len(self.entries) else None

    def op_of_revision(self, revision: int) -> int | None:
        """The entry with the command of a revision, if anyone executed it yet."""
        at = bisect_left(self.entries, revision, key=lambda entry: entry.last_revision)
        return at + 1 if at < len(self.entries) else None

    def became_durable(self, replica: int, prepare: Prepare) -> None:
        """A replica was told by its disk that it holds an entry, unless that is going already."""
        if prepare.op > min(self.discarding.get(replica, ()), default=prepare.op):
            return
        self.held.setdefault(replica, {})[prepare.op] = prepare.checksum

    def is_off(self, replica: int, op: int, cut_op: int) -> bool:
        """Whether an entry continued another one than a snapshot's last: it was not committed."""
        at_cut = self.held.get(replica, {}).get(cut_op)
        return op >= cut_op > 0 and at_cut not in (None, self.checksum(cut_op))

    def started(self, replica: int, journal: ReplicaJournal, cut_op: int) -> None:
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
        held, view = self.held.pop(replica, {}), self.views.get(replica, 0)
        for op, checksum in held.items():
            key = replica, op, checksum
            self.lost[key] = max(view, self.lost.get(key, 0))


def held_ops(journal: ReplicaJournal) -> list[int]:
    """The ops that a journal holds, ascending."""
    head_op = 0 if journal.head is None else journal.head.op
    return [op for op in range(journal.first_op, head_op + 1) if journal.header(op) is not None]


def is_known_lost(recovery: Recovery, op: int) -> bool:
    """Whether a start knows that it cannot say what it once had at `op`: it never denies it."""
    head_op = 0 if recovery.head is None else recovery.head.op
    highest = max((head_op, *recovery.holes))
    return op in recovery.holes or (recovery.head_uncertain and op > highest)
