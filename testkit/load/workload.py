"""What a session sends next: drawn from a seed, over names that all sessions share.

Shared names make commands fail now and then, as they should: which one fails follows from the
order of revisions, and the oracle knows it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from testkit.load.commands import Command, CommandKind

STREAMS: Final = 8
TOPICS_PER_STREAM: Final = 4
GROUPS_PER_TOPIC: Final = 2
USERS: Final = 6
TOKENS: Final = 16
# Long names make long commands, so that a short load fills journal segments.
NAME_BYTES: Final = 200
COMMANDS_PER_REQUEST_MAX: Final = 3
# How often a group is one that existed before the load, out of 10.
EXISTING_OF_10: Final = 8
# How often a session leaves a group it believes to be in, out of 10.
LEAVES_JOINED_OF_10: Final = 8
# How many memberships a session remembers.
JOINED_MAX: Final = 32

# How often each kind is drawn. Hashing a password takes tens of milliseconds: users are rare.
WEIGHTS: Final[Mapping[CommandKind, int]] = {
    CommandKind.JOIN: 320,
    CommandKind.LEAVE: 240,
    CommandKind.CREATE_TOPIC: 90,
    CommandKind.DELETE_TOPIC: 50,
    CommandKind.CREATE_GROUP: 100,
    CommandKind.DELETE_GROUP: 40,
    CommandKind.CREATE_STREAM: 30,
    CommandKind.DELETE_STREAM: 8,
    CommandKind.GRANT: 40,
    CommandKind.CREATE_TOKEN: 20,
    CommandKind.DELETE_TOKEN: 18,
    CommandKind.CREATE_USER: 2,
    CommandKind.DELETE_USER: 1,
}


@dataclass(frozen=True, slots=True)
class GroupName:
    """A group that exists before the load and that sessions join and leave."""

    stream: str
    topic: str
    group: str


class LoadWorkload:
    """An endless supply of requests for one session."""

    def __init__(self, seed: str, groups: Sequence[GroupName], partitions_max: int) -> None:
        self._random = random.Random(seed)
        self._groups = groups
        self._partitions_max = partitions_max
        self._joined: list[Command] = []
        self._kinds = tuple(WEIGHTS)
        self._weights = tuple(WEIGHTS.values())
        self._draw: Mapping[CommandKind, Callable[[CommandKind], Command]] = {
            CommandKind.JOIN: self._join,
            CommandKind.LEAVE: self._leave,
            CommandKind.CREATE_STREAM: self._on_stream,
            CommandKind.DELETE_STREAM: self._on_stream,
            CommandKind.CREATE_TOPIC: self._on_topic,
            CommandKind.DELETE_TOPIC: self._on_topic,
            CommandKind.CREATE_GROUP: self._on_group,
            CommandKind.DELETE_GROUP: self._on_group,
            CommandKind.CREATE_USER: self._on_user,
            CommandKind.DELETE_USER: self._on_user,
            CommandKind.GRANT: self._on_user,
            CommandKind.CREATE_TOKEN: self._on_token,
            CommandKind.DELETE_TOKEN: self._on_token,
        }

    def next_request(self) -> tuple[Command, ...]:
        """Return the commands of the session's next request."""
        count = self._random.randint(1, COMMANDS_PER_REQUEST_MAX)
        kinds = self._random.choices(self._kinds, self._weights, k=count)
        return tuple(self._draw[kind](kind) for kind in kinds)

    def chance(self, percent: int) -> bool:
        """Return True in so many cases of a hundred."""
        return self._random.randrange(100) < percent

    def _join(self, kind: CommandKind) -> Command:
        command = self._some_group(kind)
        self._joined.append(command)
        del self._joined[:-JOINED_MAX]
        return command

    def _leave(self, kind: CommandKind) -> Command:
        if not self._joined or self._random.randrange(10) >= LEAVES_JOINED_OF_10:
            return self._some_group(kind)
        joined = self._joined.pop(self._random.randrange(len(self._joined)))
        return Command(kind, joined.stream, joined.topic, joined.group)

    def _some_group(self, kind: CommandKind) -> Command:
        if self._groups and self._random.randrange(10) < EXISTING_OF_10:
            group = self._random.choice(self._groups)
            return Command(kind, group.stream, group.topic, group.group)
        return self._on_group(kind)

    def _on_stream(self, kind: CommandKind) -> Command:
        return Command(kind, stream=self._stream())

    def _on_topic(self, kind: CommandKind) -> Command:
        partitions = self._random.randint(1, self._partitions_max)
        created = partitions if kind is CommandKind.CREATE_TOPIC else 0
        return Command(kind, self._stream(), self._topic(), partitions=created)

    def _on_group(self, kind: CommandKind) -> Command:
        group = _long(f"load-group-{self._random.randrange(GROUPS_PER_TOPIC)}")
        return Command(kind, self._stream(), self._topic(), group)

    def _on_user(self, kind: CommandKind) -> Command:
        stream = self._stream() if kind is CommandKind.GRANT else ""
        return Command(kind, stream, name=f"load-user-{self._random.randrange(USERS)}")

    def _on_token(self, kind: CommandKind) -> Command:
        return Command(kind, name=f"load-token-{self._random.randrange(TOKENS)}")

    def _stream(self) -> str:
        return _long(f"load-stream-{self._random.randrange(STREAMS)}")

    def _topic(self) -> str:
        return _long(f"load-topic-{self._random.randrange(TOPICS_PER_STREAM)}")


def _long(name: str) -> str:
    return name.ljust(NAME_BYTES, "-")
