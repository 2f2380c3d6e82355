"""Both kinds of journals, made and opened alike, for tests of what both promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coordinator.journal import Recovery
from coordinator.journal.interface import ReplicaJournal
from testkit import journal_builders, ring_builders
from testkit.memory_storage import MemoryStorage

Opened = tuple[ReplicaJournal, Recovery]


@dataclass(frozen=True, slots=True)
class JournalKind:
    """How journals of one kind are made and opened, with the arguments of `journal_builders`."""

    name: str
    create: Callable[..., ReplicaJournal]
    reopen: Callable[..., Opened]

    def reopen_member(self, storage: MemoryStorage) -> Opened:
        """Open as a member of a cluster."""
        return self.reopen(storage, replica_count=3)


KINDS: Final = (
    JournalKind("segments", journal_builders.create, journal_builders.reopen),
    JournalKind("ring", ring_builders.create_ring, ring_builders.reopen_ring),
)


def place_of(journal: ReplicaJournal, op: int) -> tuple[str, int, int]:
    """Return path, offset and size of the record of an op that is held."""
    location = journal.index.get(op)
    assert location is not None, f"op {op} is not held"
    return journal.kept_records.path(location.segment), location.offset, location.extent_bytes
