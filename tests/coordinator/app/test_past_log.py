"""Which entries of the journal a read of the past may take."""

from __future__ import annotations

import pytest

from coordinator.app.past import read_durable
from coordinator.replica.writer import HeldEntries, Reading

JOURNALED = ("op 1 of view 1", "op 2 of view 1", "op 3 of view 1")


async def journal(first_op: int, last_op: int) -> Reading:
    """Read what the journal has, whatever waits to be discarded and written."""
    return HeldEntries(JOURNALED[first_op - 1 : last_op])


@pytest.mark.parametrize(
    ("first_op", "durable_op", "held"),
    [(1, 3, JOURNALED), (1, 1, JOURNALED[:1]), (2, 1, ()), (2, 2, JOURNALED[1:2])],
)
async def test_what_waits_to_be_discarded_is_not_read(
    first_op: int, durable_op: int, held: tuple[str, ...]
) -> None:
    """A read ends at what the disk holds of the core's log, whatever the journal has behind it."""
    read = read_durable(journal, lambda: durable_op)
    assert await read(first_op, 3) == HeldEntries(held)
