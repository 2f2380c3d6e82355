"""Damage to one entry of a replica's journal."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from coordinator.journal.segment import segment_path
from coordinator.replica.data_directory import JOURNAL_DIRECTORY
from testkit.checkers.history import held_ops
from testkit.world.replica import DIRECTORY

if TYPE_CHECKING:
    from testkit.world.replica import WorldReplica


def rot_last(replica: WorldReplica, random: Random) -> bool:
    """Damage the last entry that a replica holds; return whether there was one."""
    held = [] if replica.files is None else held_ops(replica.files.journal)
    return bool(held) and rot_op(replica, held[-1], random)


def rot_op(replica: WorldReplica, op: int, random: Random) -> bool:
    """Damage the entry of an op; return whether it was there."""
    journal = None if replica.files is None else replica.files.journal
    if journal is None or op not in held_ops(journal):
        return False
    place = journal.index.get(op)
    assert place is not None, "the journal holds it"
    path = segment_path(f"{DIRECTORY}/{JOURNAL_DIRECTORY}", place.segment)
    replica.damaged_ops.add(op)
    replica.machine.disk.rot(path, place.offset, place.extent_bytes, random)
    return True
