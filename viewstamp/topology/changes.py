"""What has to change so that a cluster is as a topology declares. Values, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from viewstamp.topology.found import FoundGroup, FoundStream, FoundTopic, FoundUser
from viewstamp.topology.model import DeclaredGroup, DeclaredStream, DeclaredTopic, DeclaredUser

Declared: TypeAlias = DeclaredStream | DeclaredTopic | DeclaredGroup | DeclaredUser
Found: TypeAlias = FoundStream | FoundTopic | FoundGroup | FoundUser


class ChangeVerb(Enum):
    """What becomes of an entity."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class DeclaredKind(Enum):
    """The kind of an entity."""

    STREAM = "stream"
    TOPIC = "topic"
    GROUP = "group"
    USER = "user"


@dataclass(frozen=True, slots=True)
class PlanRules:
    """What the caller allows beyond what a topology declares.

    `prune` deletes what the topology may prune and does not list. `allow_partition_deletion`
    removes partitions of a topic that has more than are declared.
    """

    prune: bool = False
    allow_partition_deletion: bool = False


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field before and after, as documents have it; None where there is none."""

    name: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """One entity that changes; `path` has its name behind those of what it is in.

    `losses` say what goes with it. `declared` is absent for a deletion, `found` for a creation.
    """

    verb: ChangeVerb
    kind: DeclaredKind
    path: tuple[str, ...]
    fields: tuple[FieldChange, ...] = ()
    losses: tuple[str, ...] = ()
    declared: Declared | None = None
    found: Found | None = None

    @property
    def name(self) -> str:
        """The name for people."""
        return "/".join(self.path)

    @property
    def what_is_lost(self) -> tuple[Any, ...]:
        """What a caller has to approve; empty if nothing is lost."""
        is_lost = self.verb is ChangeVerb.DELETE or self.losses
        return (self.kind, self.path, self.losses) if is_lost else ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes in the order in which they are made, from what was found at `revision`.

    A plan with problems cannot be applied; each says what is wrong and what would be right.
    """

    revision: int
    changes: tuple[PlannedChange, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def losses(self) -> frozenset[tuple[Any, ...]]:
        """What is lost, for a comparison with what was approved."""
        return frozenset(each.what_is_lost for each in self.changes if each.what_is_lost)

    def count(self, verb: ChangeVerb) -> int:
        """Return how many entities are created, updated or deleted."""
        return sum(change.verb is verb for change in self.changes)

    def new_users(self) -> list[str]:
        """Return the users that need a password."""
        return [
            change.path[0]
            for change in self.changes
            if change.kind is DeclaredKind.USER and change.verb is ChangeVerb.CREATE
        ]
