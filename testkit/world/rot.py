"""Damage to one entry of a replica's journal."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from coordinator.replica.journal_opening import JOURNAL_DIRECTORY
from testkit.checkers.history import held_ops
from testkit.world.replica import DIRECTORY

if TYPE_CHECKING:
    from testkit.world.replica import WorldReplica

JOURNAL: Final = f"{DIRECTORY}/{JOURNAL_DIRECTORY}"


def rot_last(replica: WorldReplica, random: Random) -> bool:
    """Damage the last entry that a replica holds; return whether there was one."""
    held = [] if replica.files is None else held_ops(replica.files.journal)
    return bool(held) and rot_op(replica, held[-1], random)


def rot_op(replica: WorldReplica, op: int, random: Random) -> bool:
    """Damage the entry of an op; return whether it was there."""
    extent = _extent_of(replica, op)
    if extent is not None:
        replica.damaged_ops.add(op)
        replica.machine.disk.rot(*extent, random)
    return extent is not None


def make_op_unreadable(replica: WorldReplica, op: int) -> bool:
    """Have the first sector of an op's record fail each read; return whether it was there."""
    extent = _extent_of(replica, op)
    if extent is not None:
        replica.damaged_ops.add(op)
        path, offset, _ = extent
        replica.machine.disk.make_unreadable(path, offset, 1)
    return extent is not None


def _extent_of(replica: WorldReplica, op: int) -> tuple[str, int, int] | None:
    """Return the file, offset and size of an op's record, None if the journal lacks it."""
    journal = None if replica.files is None else replica.files.journal
    if journal is None or op not in held_ops(journal):
        return None
    place = journal.index.get(op)
    assert place is not None, "the journal holds it"
    return journal.kept_records.path(place.segment), place.offset, place.extent_bytes
