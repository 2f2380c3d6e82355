"""What a coordinator and its process of the past say to each other, one message at a time.

Both are of one build and one is the other's child, so the messages are pickled objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coordinator.mux.types import Read, ReadAnswered
from viewstamp.api.history.v1.history_service_pb2 import EntityChange
from viewstamp.format.prepare import SealedPrepare


@dataclass(frozen=True, slots=True)
class BeginState:
    """Forget the present state, and begin anew: with a snapshot, or before the first entry.

    `manifest` is an encoded SnapshotManifest, whose blocks follow; None without a snapshot.
    """

    manifest: bytes | None


@dataclass(frozen=True, slots=True)
class AddBlocks:
    """Blocks of a section, as stored: the number of their layer, base first, and their bytes."""

    stage: int
    blocks: Sequence[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class LoadState:
    """The snapshot is whole: load it."""


@dataclass(frozen=True, slots=True)
class ApplyEntries:
    """The next committed entries; the last one up to `last_revision`."""

    entries: Sequence[SealedPrepare]
    last_revision: int


@dataclass(frozen=True, slots=True)
class AskState:
    """A read of the state."""

    read: Read


@dataclass(frozen=True, slots=True)
class SoughtEntity:
    """The entity whose changes are sought: by the ids that it has or had, or by its name.

    `entity_type` is the full name of its message; parents are ids, 0 without one. With a
    `part_type` the changes of what belongs to it are sought instead, and with a `partition` only
    those of placements that differ for that one.
    """

    stage: int
    entity_type: str
    ids: frozenset[int]
    name: str = ""
    stream_id: int = 0
    topic_id: int = 0
    part_type: str = ""
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class WalkEntries:
    """The next committed entries, as far as there is room for the changes that they make.

    Changes before `from_revision` are not told. `room` is how many, roughly.
    """

    entries: Sequence[SealedPrepare]
    sought: SoughtEntity
    from_revision: int
    room: int


PastMessage: TypeAlias = BeginState | AddBlocks | LoadState | ApplyEntries | AskState | WalkEntries


@dataclass(frozen=True, slots=True)
class StatePlace:
    """How far the state is. One that `is_partial` ends in the midst of an entry.

    `digest` is that of what the log led to, as replicas compare it; empty in the midst of an entry.
    """

    op: int = 0
    revision: int = 0
    is_partial: bool = False
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class StateFailed:
    """The state cannot be built: what is wrong. The process must not be asked again."""

    problem: str


@dataclass(frozen=True, slots=True)
class FoundChange:
    """A change of the sought entity, and the command of that revision."""

    change: EntityChange
    code: int


@dataclass(frozen=True, slots=True)
class WalkedEntries:
    """How far the state is, and what was found. `ids` are those of the entity by now.

    `next_revision` is that of the first change for which there was no room; 0 if there was none.
    """

    place: StatePlace
    found: Sequence[FoundChange]
    ids: frozenset[int]
    next_revision: int = 0


PastAnswer: TypeAlias = StatePlace | ReadAnswered | WalkedEntries | StateFailed
