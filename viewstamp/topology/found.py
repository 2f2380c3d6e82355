"""The part of a cluster that a topology is about, at one revision. Values, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from viewstamp import limits
from viewstamp.topology.model import (
    DeclaredGroup,
    DeclaredStream,
    DeclaredTopic,
    DeclaredUser,
    Topology,
)


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """A consumer group. `revision` is that of its last change, here and below."""

    revision: int
    group: DeclaredGroup


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic; its groups by name, if they were asked for."""

    id: int
    revision: int
    topic: DeclaredTopic
    groups: Mapping[str, FoundGroup]


@dataclass(frozen=True, slots=True)
class FoundStream:
    """A stream with all of its topics by name."""

    id: int
    revision: int
    topics: Mapping[str, FoundTopic]


@dataclass(frozen=True, slots=True)
class FoundUser:
    """A user with status and permissions."""

    revision: int
    user: DeclaredUser


@dataclass(frozen=True, slots=True)
class FoundTopology:
    """What was found, by name. `revision` is one at which all of it was so.

    `elsewhere` names streams (with an empty topic) and topics that exist beside those in `streams`,
    as far as permissions name them.
    """

    streams: Mapping[str, FoundStream] = field(default_factory=dict)
    users: Mapping[str, FoundUser] = field(default_factory=dict)
    elsewhere: frozenset[tuple[str, str]] = frozenset()
    revision: int = field(default=0, compare=False)

    def has(self, stream: str, topic: str) -> bool:
        """Whether a stream exists; or, if a topic is named, whether it does."""
        found = self.streams.get(stream)
        if found is None:
            return (stream, topic) in self.elsewhere
        return not topic or topic in found.topics


@dataclass(frozen=True, slots=True)
class ReadScope:
    """What to look for: names, and patterns in which `*` stands for any characters.

    The groups are read of the topics that `streams` has for a name; of all topics if it has None,
    and of streams that match a pattern.
    """

    streams: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    users: frozenset[str] = frozenset()
    stream_patterns: tuple[str, ...] = ()
    user_patterns: tuple[str, ...] = ()
    # Streams and topics that permissions are to name.
    granted: frozenset[tuple[str, str]] = frozenset()


ALL: Final = ReadScope(stream_patterns=("*",), user_patterns=("*",))


def scope_of(topology: Topology, *, prune: bool) -> ReadScope:
    """Return what has to be known to compare a topology with a cluster."""
    scope = topology.prune if prune else None
    grants = [each.permissions.flat() for each in topology.users if each.permissions is not None]
    return ReadScope(
        {each.name: _topics_with_groups(each, prune=prune) for each in topology.streams},
        frozenset(user.username for user in topology.users),
        () if scope is None else scope.streams,
        () if scope is None else scope.users,
        frozenset((one.stream, one.topic) for each in grants for one in each if one.stream),
    )


def as_topology(found: FoundTopology) -> Topology:
    """Return a topology that declares everything that was found, but root."""
    users = [each.user for each in found.users.values()]
    return Topology(
        tuple(as_stream(name, stream) for name, stream in found.streams.items()),
        tuple(user for user in users if user.username != limits.ROOT_USERNAME),
    )


def as_stream(name: str, found: FoundStream) -> DeclaredStream:
    """Return a stream that declares everything that was found in it."""
    return DeclaredStream(name, topics=tuple(map(as_topic, found.topics.values())))


def as_topic(found: FoundTopic) -> DeclaredTopic:
    """Return a topic that declares everything that was found of it."""
    return replace(found.topic, groups=tuple(each.group for each in found.groups.values()))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches one of the patterns, in which `*` stands for any characters."""
    return any(_matches(name, pattern) for pattern in patterns)


def _matches(name: str, pattern: str) -> bool:
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, last = rest
    if not name.startswith(first):
        return False
    place = len(first)
    for part in middle:
        # The first occurrence leaves the most for the parts behind it.
        place = name.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return name.endswith(last) and place + len(last) <= len(name)


def _topics_with_groups(stream: DeclaredStream, *, prune: bool) -> frozenset[str] | None:
    if prune and stream.prune:
        return None
    return frozenset(topic.name for topic in stream.topics)
