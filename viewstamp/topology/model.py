"""What a topology declares. Values, no I/O.

None means that the topology leaves something to the cluster: what is created takes the default, and
what exists stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

# The version of the format of documents.
VERSION: Final = 1


class Grant(NamedTuple):
    """One permission: everywhere if `stream` is empty, in all of a stream if `topic` is."""

    stream: str
    topic: str
    permission: str


@dataclass(frozen=True, slots=True)
class TopicGrants:
    """Permissions in one topic."""

    topic: str
    permissions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamGrants:
    """Permissions in one stream, and in single topics of it."""

    stream: str
    permissions: tuple[str, ...] = ()
    topics: tuple[TopicGrants, ...] = ()


@dataclass(frozen=True, slots=True)
class UserGrants:
    """Everything that a user may do, by names."""

    everywhere: tuple[str, ...] = ()
    streams: tuple[StreamGrants, ...] = ()

    def flat(self) -> frozenset[Grant]:
        """Return every single grant."""
        return frozenset(self._each())

    def _each(self) -> Iterator[Grant]:
        for permission in self.everywhere:
            yield Grant("", "", permission)
        for stream in self.streams:
            for permission in stream.permissions:
                yield Grant(stream.stream, "", permission)
            for topic in stream.topics:
                for permission in topic.permissions:
                    yield Grant(stream.stream, topic.topic, permission)


@dataclass(frozen=True, slots=True)
class DeclaredUser:
    """A user. Permissions that are given are all that the user has."""

    username: str
    status: str | None = None
    permissions: UserGrants | None = None


@dataclass(frozen=True, slots=True)
class DeclaredGroup:
    """A consumer group; 0 keeps its offsets for ever."""

    name: str
    assignor: str | None = None
    member_timeout_ms: int | None = None
    offsets_retention_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DeclaredTopic:
    """A topic; 0 keeps messages for ever, and is no limit of its size.

    With `prune` its groups that are not declared may be deleted.
    """

    name: str
    partitions: int | None = None
    message_expiry_us: int | None = None
    max_topic_size_bytes: int | None = None
    compression_algorithm: str | None = None
    replication_factor: int | None = None
    segment_size_bytes: int | None = None
    prune: bool | None = None
    groups: tuple[DeclaredGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class DeclaredStream:
    """A stream. With `prune` its topics and their groups that are not declared may be deleted."""

    name: str
    prune: bool | None = None
    topics: tuple[DeclaredTopic, ...] = ()


@dataclass(frozen=True, slots=True)
class PruneScope:
    """Patterns of names: streams and users that match and are not declared may be deleted."""

    streams: tuple[str, ...] = ()
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """Streams and users as somebody wants them, from one or several documents."""

    streams: tuple[DeclaredStream, ...] = ()
    users: tuple[DeclaredUser, ...] = ()
    prune: PruneScope | None = None
    version: int = VERSION

    @property
    def may_prune(self) -> bool:
        """Whether anything in it says what may be deleted."""
        return self.prune is not None or any(
            stream.prune or any(topic.prune for topic in stream.topics) for stream in self.streams
        )


def nested(grants: Iterable[Grant]) -> UserGrants:
    """Return grants by stream and topic, in the order of names."""
    everywhere: list[str] = []
    streams: dict[str, list[str]] = {}
    topics: dict[str, dict[str, list[str]]] = {}
    for stream, topic, permission in sorted(grants):
        if not stream:
            everywhere.append(permission)
            continue
        granted = streams.setdefault(stream, [])
        if topic:
            topics.setdefault(stream, {}).setdefault(topic, []).append(permission)
        else:
            granted.append(permission)
    return UserGrants(
        tuple(everywhere),
        tuple(
            StreamGrants(
                stream,
                tuple(granted),
                tuple(
                    TopicGrants(topic, tuple(words))
                    for topic, words in topics.get(stream, {}).items()
                ),
            )
            for stream, granted in streams.items()
        ),
    )
