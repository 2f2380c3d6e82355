"""A topology and what was found of it, as two texts of the same form, and how they differ. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from difflib import unified_diff
from typing import Any, TypeVar

from viewstamp.topology.changes import ChangeVerb, PlanRules
from viewstamp.topology.compare import DEFAULT_RULES, compare
from viewstamp.topology.documents import dumped
from viewstamp.topology.found import (
    FoundGroup,
    FoundStream,
    FoundTopology,
    as_stream,
    as_topic,
)
from viewstamp.topology.model import (
    DeclaredGroup,
    DeclaredStream,
    DeclaredTopic,
    DeclaredUser,
    Topology,
    nested,
)

T = TypeVar("T", DeclaredTopic, DeclaredGroup, DeclaredUser)


def difference(
    topology: Topology, found: FoundTopology, rules: PlanRules = DEFAULT_RULES
) -> list[str]:
    """Return the lines of a unified difference, from the cluster to the topology; none if equal.

    Only what the topology declares is in it; with `rules.prune` also what would be deleted.
    """
    plan = compare(topology, found, rules)
    deleted = {each.path for each in plan.changes if each.verb is ChangeVerb.DELETE}
    before = dumped(_Projection(topology, found, deleted).topology_found())
    after = dumped(replace(topology, users=tuple(map(_ordered, topology.users))))
    names = f"cluster at revision {found.revision}", "declared"
    return [*unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="")]


@dataclass(frozen=True, slots=True)
class _Projection:
    """The part of what was found that a topology declares or deletes."""

    topology: Topology
    found: FoundTopology
    deleted: set[tuple[str, ...]]

    def topology_found(self) -> Topology:
        """Return what was found in the form of the topology."""
        declared = {stream.name for stream in self.topology.streams}
        streams = (
            *self._streams(),
            *(
                as_stream(name, stream)
                for name, stream in self.found.streams.items()
                if name not in declared and (name,) in self.deleted
            ),
        )
        return replace(self.topology, streams=streams, users=tuple(self._users()))

    def _streams(self) -> Iterator[DeclaredStream]:
        for declared in self.topology.streams:
            found = self.found.streams.get(declared.name)
            if found is not None:
                yield replace(declared, topics=tuple(self._topics(declared, found)))

    def _topics(self, stream: DeclaredStream, found: FoundStream) -> Iterator[DeclaredTopic]:
        for declared in stream.topics:
            topic = found.topics.get(declared.name)
            if topic is not None:
                path = (stream.name, declared.name)
                groups = tuple(self._groups(path, declared, topic.groups))
                as_found = _restricted(declared, topic.topic)
                yield replace(as_found, prune=declared.prune, groups=groups)
        for name, topic in found.topics.items():
            if (stream.name, name) in self.deleted:
                yield as_topic(topic)

    def _groups(
        self, path: tuple[str, ...], topic: DeclaredTopic, found: Mapping[str, FoundGroup]
    ) -> Iterator[DeclaredGroup]:
        for declared in topic.groups:
            group = found.get(declared.name)
            if group is not None:
                yield _restricted(declared, group.group)
        for name, group in found.items():
            if (*path, name) in self.deleted:
                yield group.group

    def _users(self) -> Iterator[DeclaredUser]:
        declared = {user.username: user for user in self.topology.users}
        for name, user in declared.items():
            found = self.found.users.get(name)
            if found is not None:
                yield _ordered(_restricted(user, found.user))
        for name, found in self.found.users.items():
            if name not in declared and (name,) in self.deleted:
                yield found.user


def _restricted(declared: T, found: T) -> T:
    """Return what was found, as far as something is declared."""
    names = [field.name for field in fields(declared)]
    left_out: dict[str, Any] = {name: None for name in names if getattr(declared, name) is None}
    return replace(found, **left_out)


def _ordered(user: DeclaredUser) -> DeclaredUser:
    """Return a user with the permissions in the order of names."""
    if user.permissions is None:
        return user
    return replace(user, permissions=nested(user.permissions.flat()))
