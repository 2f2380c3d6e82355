"""What exists, in the terms of the oracle: filled by the model, or by reads of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Grant(NamedTuple):
    """A scoped grant by ids; topic id 0 stands for the whole stream."""

    stream_id: int
    topic_id: int


@dataclass(slots=True)
class LoadGroup:
    """A consumer group and the sessions that are its members."""

    id: int
    revision: int
    members: set[int] = field(default_factory=set)


@dataclass(slots=True)
class LoadTopic:
    """A topic and its groups by name."""

    id: int
    revision: int
    partitions: int
    groups: dict[str, LoadGroup] = field(default_factory=dict)


@dataclass(slots=True)
class LoadStream:
    """A stream and its topics by name."""

    id: int
    revision: int
    topics: dict[str, LoadTopic] = field(default_factory=dict)


@dataclass(slots=True)
class LoadUser:
    """A user and their scoped grants."""

    id: int
    revision: int
    grants: set[Grant] = field(default_factory=set)


@dataclass(slots=True)
class LoadState:
    """The whole state by name. `revision` of an entity is that of the command that created it."""

    streams: dict[str, LoadStream] = field(default_factory=dict)
    users: dict[str, LoadUser] = field(default_factory=dict)
    # Root's personal access tokens: name and revision.
    tokens: dict[str, int] = field(default_factory=dict)

    def flat(self) -> dict[str, str]:
        """Return one line per entity and per membership: comparable, and fit to be shown."""
        lines = {f"token {name}": f"revision {made}" for name, made in self.tokens.items()}
        for name, user in self.users.items():
            grants = sorted(map(tuple, user.grants))
            lines[f"user {name}"] = f"id {user.id}, revision {user.revision}, grants {grants}"
        for name, stream in self.streams.items():
            lines[f"stream {name}"] = f"id {stream.id}, revision {stream.revision}"
            for topic_name, topic in stream.topics.items():
                lines.update(_flat_topic(f"{name}/{topic_name}", topic))
        return lines

    def counts(self) -> dict[str, int]:
        """Return how many entities of each kind there are."""
        topics = [topic for stream in self.streams.values() for topic in stream.topics.values()]
        groups = [group for topic in topics for group in topic.groups.values()]
        return {
            "streams": len(self.streams),
            "topics": len(topics),
            "consumer groups": len(groups),
            "memberships": sum(len(group.members) for group in groups),
            "users": len(self.users),
            "tokens": len(self.tokens),
        }


def _flat_topic(path: str, topic: LoadTopic) -> dict[str, str]:
    lines = {
        f"topic {path}": (
            f"id {topic.id}, revision {topic.revision}, {topic.partitions} partitions"
        )
    }
    for name, group in topic.groups.items():
        lines[f"group {path}/{name}"] = f"id {group.id}, revision {group.revision}"
        for session in group.members:
            lines[f"member {session} of {path}/{name}"] = "present"
    return lines
