"""The log as a journal holds it, read back entry by entry."""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.journal.interface import ReplicaJournal
from viewstamp.format.prepare import NO_PARENT, SealedPrepare


def entries(
    journal: ReplicaJournal, from_op: int, to_op: int | None = None
) -> Iterator[SealedPrepare]:
    """Yield the prepares from `from_op` on, up to `to_op` or the first op that is not held.

    Raises CorruptRecord, and AssertionError where a prepare is not the child of the one before.
    """
    parent = NO_PARENT if from_op == 1 else None
    op = from_op
    while (to_op is None or op <= to_op) and (prepare := journal.read(op)) is not None:
        assert parent in (None, prepare.parent), f"op {op} is not the child of the op before"
        yield prepare
        parent = prepare.checksum
        op += 1
