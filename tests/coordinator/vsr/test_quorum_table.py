"""The quorum sizes, literally, and the property that makes a table of them safe."""

from __future__ import annotations

import pytest

from coordinator.vsr.errors import InvariantViolation
from coordinator.vsr.quorum import QUORUMS, Quorums, check_quorums
from viewstamp.limits import REPLICAS_MAX

LITERAL = [
    # replicas, replication, view change
    (1, 1, 1),
    (2, 2, 2),
    (3, 2, 2),
    (4, 2, 3),
    (5, 3, 3),
    (6, 3, 4),
    (7, 4, 4),
]


def test_the_table_is_the_documented_one() -> None:
    """The sizes are those of the design, for every number of voters."""
    assert [(count, q.replication, q.view_change) for count, q in QUORUMS.items()] == LITERAL
    assert set(range(1, REPLICAS_MAX + 1)) <= set(QUORUMS)


@pytest.mark.parametrize(
    ("replica_count", "quorums"),
    [
        (2, Quorums(replication=1, view_change=1)),
        (3, Quorums(replication=2, view_change=1)),
        (4, Quorums(replication=2, view_change=2)),
        (1, Quorums(replication=2, view_change=1)),
        (3, Quorums(replication=0, view_change=4)),
    ],
)
def test_an_unsafe_table_does_not_load(replica_count: int, quorums: Quorums) -> None:
    """Quorums that need not meet, or cannot be reached, are refused when the module is imported."""
    with pytest.raises(InvariantViolation, match="quorum"):
        check_quorums({replica_count: quorums})
