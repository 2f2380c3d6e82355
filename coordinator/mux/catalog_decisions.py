"""The outcome of a command about a snapshot, decided by the standing of its generation.

`DECISIONS` is the whole rule, except for commands that are malformed in any state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias

from coordinator.mux.catalog_types import (
    BeginSnapshot,
    CatalogCommand,
    CompleteSnapshot,
    CreateSnapshot,
    DeleteSnapshot,
    FailSnapshot,
    PruneSnapshots,
    Requested,
    SetRetention,
)
from coordinator.mux.stage import cut_stages
from viewstamp.limits import (
    FEATURE_LEVEL_GUARDS,
    FEATURE_LEVEL_KEPT_SNAPSHOTS,
    SNAPSHOT_KEPT_FOR_MAX_US,
)

ROOT_BYTES: Final = 32
_KEPT_MS_MAX: Final = SNAPSHOT_KEPT_FOR_MAX_US // 1_000

# Commands about one generation.
Decided: TypeAlias = (
    CreateSnapshot | DeleteSnapshot | SetRetention | BeginSnapshot | CompleteSnapshot | FailSnapshot
)


class GenerationStanding(Enum):
    """Where the generation that a command names stands."""

    # The first number never used, while no snapshot is under way.
    NEXT = "next"
    # The first number never used, while one is.
    BLOCKED = "blocked"
    # Does not exist: deleted, never used, or 0.
    UNKNOWN = "unknown"
    RESERVED = "reserved"
    CUT = "cut"
    COMPLETED = "completed"
    # The last completed one.
    LATEST = "latest"
    FAILED = "failed"


class CatalogVerdict(Enum):
    """The outcome of a command."""

    APPLY = "apply"
    # The result is there already: somebody was faster, and nothing happens.
    NOTHING = "nothing"
    IN_PROGRESS = "SNAPSHOT_IN_PROGRESS"
    NOT_FOUND = "SNAPSHOT_NOT_FOUND"
    IN_USE = "SNAPSHOT_IN_USE"


_VERDICTS: Final = {
    "apply": CatalogVerdict.APPLY,
    "-": CatalogVerdict.NOTHING,
    "progress": CatalogVerdict.IN_PROGRESS,
    "absent": CatalogVerdict.NOT_FOUND,
    "use": CatalogVerdict.IN_USE,
}


def _row(words: str) -> Mapping[GenerationStanding, CatalogVerdict]:
    """Return a row of the table below."""
    verdicts = [_VERDICTS[word] for word in words.split()]
    return MappingProxyType(dict(zip(GenerationStanding, verdicts, strict=False)))


Table = Mapping[type[Decided], Mapping[GenerationStanding, CatalogVerdict]]

# CreateSnapshot names the first number never used, so only the first columns apply.
# fmt: off
DECISIONS: Final[Table] = MappingProxyType({
    #                       next    blocked  unknown reserved cut   completed latest failed
    CreateSnapshot:   _row("apply   progress"),
    BeginSnapshot:    _row("apply   -        -       apply    -     -         -      -"),
    CompleteSnapshot: _row("-       -        -       -        apply -         -      -"),
    FailSnapshot:     _row("-       -        -       apply    apply -         -      -"),
    DeleteSnapshot:   _row("absent  absent   absent  use      use   apply     use    apply"),
    SetRetention:     _row("absent  absent   absent  apply    apply apply     apply  apply"),
})
# fmt: on


@dataclass(frozen=True, slots=True)
class Malformed:
    """What is wrong with a command: a case of MALFORMED_REQUEST, and what it names."""

    case: str
    details: Mapping[str, str] = field(default_factory=dict)


def at_level(command: CatalogCommand, feature_level: int) -> CatalogCommand:
    """Return a command as builds of a lower feature level read it, which lack the new fields."""
    if not isinstance(command, Requested):
        return command
    if feature_level < FEATURE_LEVEL_GUARDS:
        command = replace(command, validate_only=False)
        if not isinstance(command, CreateSnapshot):
            command = replace(command, expected_revision=None)
    is_older = feature_level < FEATURE_LEVEL_KEPT_SNAPSHOTS
    if is_older and not isinstance(command, DeleteSnapshot):
        command = replace(command, keep_for_ms=0)
    return command


def malformed(command: CatalogCommand, feature_level: int) -> Malformed | None:
    """Return what is wrong with a command in any state at a feature level; None if nothing."""
    match command:
        case BeginSnapshot() | PruneSnapshots() if command.keep_last < 1:
            return Malformed("keep_last")
        case CreateSnapshot() | SetRetention() if command.keep_for_ms > _KEPT_MS_MAX:
            details = {"requested": str(command.keep_for_ms), "limit": str(_KEPT_MS_MAX)}
            return Malformed("keep_for_ms", details)
        case CompleteSnapshot() if len(command.root) != ROOT_BYTES:
            details = {"bytes": str(len(command.root)), "bytes_due": str(ROOT_BYTES)}
            return Malformed("root_length", details)
        case CompleteSnapshot() if not _is_whole(command, feature_level):
            return Malformed("snapshot_tasks")
    return None


def _is_whole(command: CompleteSnapshot, feature_level: int) -> bool:
    """Return whether the tasks are those of a cut at this level, or below it.

    The level may have been raised since the cut, whose level the catalog does not keep.
    """
    stages = tuple(task.stage for task in command.tasks)
    return any(stages == cut_stages(level) for level in range(1, max(feature_level, 1) + 1))
