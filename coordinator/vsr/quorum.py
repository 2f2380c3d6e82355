"""How many replicas must agree. Flexible quorums: commits are frequent, view changes are rare.

A commit needs `replication` durable copies; a view change needs `view_change` votes. Because every
replication quorum meets every view-change quorum, a new primary hears of every commit.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.vsr.errors import check


@dataclass(frozen=True, slots=True)
class Quorums:
    """Sizes, in replicas, each counting the replica itself."""

    replication: int
    view_change: int


QUORUMS = {
    1: Quorums(replication=1, view_change=1),
    2: Quorums(replication=2, view_change=2),
    3: Quorums(replication=2, view_change=2),
    4: Quorums(replication=2, view_change=3),
    5: Quorums(replication=3, view_change=3),
    6: Quorums(replication=3, view_change=4),
    7: Quorums(replication=4, view_change=4),
}


def check_quorums(table: dict[int, Quorums]) -> None:
    """Raise InvariantViolation unless the table, by replica count, is safe for the protocol."""
    for replica_count, quorums in sorted(table.items()):
        sizes = (quorums.replication, quorums.view_change)
        check(
            all(1 <= size <= replica_count for size in sizes),
            "a quorum has at least one replica and at most all",
            (replica_count, quorums),
        )
        check(
            sum(sizes) > replica_count,
            "every replication quorum meets every view-change quorum",
            (replica_count, quorums),
        )


check_quorums(QUORUMS)
