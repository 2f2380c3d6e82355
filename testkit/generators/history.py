"""A made-up platform that lives for some generations, for tests and load tests.

Streams, topics, groups, users and tokens come, change and go; some of it is left behind, so that
there is garbage to be found. Everything follows from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from google.protobuf.message import Message

from analytics.snapshots.copies import COPY_NAMES
from testkit.generators.generations import SnapshotWriter, changes_of
from viewstamp.api.consumer_groups.v1.consumer_groups_pb2 import (
    ConsumerGroupEntity,
    ConsumerGroupsCountersEntity,
    MemberEntity,
)
from viewstamp.api.sessions.v1.sessions_pb2 import SessionEntity
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.api.streams.v1.streams_pb2 import (
    StreamEntity,
    StreamsCountersEntity,
    TopicEntity,
)
from viewstamp.api.users.v1 import users_pb2

START_US: Final = 1_790_000_000_000_000
HOUR_US: Final = 3_600_000_000
PASSWORD_HASH: Final = "$argon2id$v=19$m=19456,t=2,p=1$" + "c2FsdA" * 4 + "$" + "aGFzaA" * 7

MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True, slots=True)
class StateLife:
    """How large the platform is at first, and what happens from one generation to the next."""

    generations: int = 6
    streams: int = 10
    topics_per_stream: int = 8
    groups_per_stream: int = 3
    users: int = 12
    # Of a hundred entities of a kind, so many come, change and go in each generation.
    come_percent: int = 10
    change_percent: int = 5
    go_percent: int = 3
    interval_us: int = HOUR_US


def write_history(
    data_directory: Path, life: StateLife, *, seed: int, copies: Sequence[str] = COPY_NAMES
) -> SnapshotWriter:
    """Write a life's generations below a data directory; return what wrote them."""
    writer = SnapshotWriter(data_directory, copies)
    platform = _Platform(life, random.Random(seed))
    for generation in range(1, life.generations + 1):
        now_us = START_US + (generation - 1) * life.interval_us
        changed, gone = platform.live(generation, now_us)
        writer.snapshot(changes_of(changed, gone), timestamp_us=now_us)
        writer.compact()
    return writer


@dataclass(slots=True)
class _Platform:
    """The entities that are there, and those that were touched since the last generation."""

    life: StateLife
    random: random.Random
    streams: list[StreamEntity] = field(default_factory=list)
    topics: list[TopicEntity] = field(default_factory=list)
    groups: list[ConsumerGroupEntity] = field(default_factory=list)
    members: list[MemberEntity] = field(default_factory=list)
    users: list[users_pb2.UserEntity] = field(default_factory=list)
    tokens: list[users_pb2.PersonalAccessTokenEntity] = field(default_factory=list)
    sessions: list[SessionEntity] = field(default_factory=list)
    next_id: int = 1
    changed: list[Message] = field(default_factory=list)
    gone: list[Message] = field(default_factory=list)

    def live(self, generation: int, now_us: int) -> tuple[list[Message], list[Message]]:
        """Let one interval pass; return what is new or changed, and what went."""
        self.changed, self.gone = [], []
        life = self.life
        if generation == 1:
            self._come(life.streams, life.users, now_us)
        else:
            self._go()
            self._change()
            streams = self._portion(len(self.streams), life.come_percent)
            self._come(streams, self._portion(len(self.users), life.come_percent), now_us)
        self._count(generation, now_us)
        return self.changed, self.gone

    def _come(self, streams: int, users: int, now_us: int) -> None:
        for _ in range(users):
            self._add_user(now_us)
        for _ in range(streams):
            self._add_stream(now_us)
        for user in self.random.sample(self.users, users):
            self._grant(user)

    def _add_user(self, now_us: int) -> None:
        id_ = self._id()
        user = users_pb2.UserEntity(
            id=id_,
            username=f"user-{id_}",
            status=users_pb2.USER_STATUS_ACTIVE,
            password_hash=PASSWORD_HASH,
            created_at=now_us,
            created_revision=id_,
        )
        self._put(self.users, user)
        for number in range(self.random.randrange(3)):
            expires_at = now_us + self.random.randrange(1, 8) * self.life.interval_us
            token = users_pb2.PersonalAccessTokenEntity(
                user_id=id_,
                name=f"token-{number}",
                token_hash=self.random.randbytes(32),
                expires_at=self.random.choice([0, expires_at]),
                created_at=now_us,
            )
            self._put(self.tokens, token)
        if self.random.random() < 0.5:
            nonce = self.random.randbytes(16)
            self._put(self.sessions, SessionEntity(session_id=self._id(), user_id=id_, nonce=nonce))

    def _grant(self, user: users_pb2.UserEntity) -> None:
        """Let a user read a stream and write to one of its topics."""
        topic = self.random.choice(self.topics)
        stream = user.permissions.streams.add(read_stream=True)
        stream.stream.id = topic.stream_id
        stream.topics.add(send_messages=True).topic.id = topic.id
        self.changed.append(user)

    def _add_stream(self, now_us: int) -> None:
        stream = StreamEntity(id=self._id(), created_at=now_us)
        stream.name = f"stream-{stream.id}"
        self._put(self.streams, stream)
        for _ in range(self.random.randint(1, 2 * self.life.topics_per_stream - 1)):
            topic = TopicEntity(id=self._id(), stream_id=stream.id, created_at=now_us)
            topic.name = f"topic-{topic.id}"
            topic.partitions.add(count=self.random.randint(1, 64), created_revision=topic.id)
            self._put(self.topics, topic)
        for _ in range(self.life.groups_per_stream):
            self._add_group(self.topics[-1])

    def _add_group(self, topic: TopicEntity) -> None:
        group = ConsumerGroupEntity(
            id=self._id(), stream_id=topic.stream_id, topic_id=topic.id, partitions_count=1
        )
        group.name = f"group-{group.id}"
        self._put(self.groups, group)
        for _ in range(self.random.randrange(3)):
            member = MemberEntity(
                group_id=group.id, session_id=self._id(), owned_partitions=[0, 1, 2]
            )
            self._put(self.members, member)

    def _change(self) -> None:
        for topic in self._some(self.topics, self.life.change_percent):
            topic.partitions.add(first=1000, count=1, created_revision=self._id())
            self.changed.append(topic)
        for group in self._some(self.groups, self.life.change_percent):
            group.group_epoch += 1
            self.changed.append(group)

    def _go(self) -> None:
        """Let streams go with all that is in them, and members alone."""
        ids = {stream.id for stream in self._some(self.streams, self.life.go_percent)}
        self._remove(self.streams, lambda stream: stream.id in ids)
        self._remove(self.topics, lambda topic: topic.stream_id in ids)
        groups = {group.id for group in self.groups if group.stream_id in ids}
        self._remove(self.groups, lambda group: group.id in groups)
        left = {member.session_id for member in self._some(self.members, self.life.go_percent)}
        self._remove(
            self.members, lambda member: member.group_id in groups or member.session_id in left
        )

    def _count(self, generation: int, now_us: int) -> None:
        """Write down the counters and the generation, as every real cut does."""
        snapshot = snapshots_pb2.Snapshot(
            generation=generation,
            state=snapshots_pb2.SNAPSHOT_STATE_CREATED,
            created_at=now_us,
        )
        self.changed += [
            users_pb2.UsersCountersEntity(next_user_id=self.next_id),
            StreamsCountersEntity(next_stream_id=self.next_id, next_topic_id=self.next_id),
            ConsumerGroupsCountersEntity(next_group_id=self.next_id),
            snapshots_pb2.CatalogCountersEntity(last_generation=generation),
            snapshots_pb2.SnapshotEntity(snapshot=snapshot),
        ]

    def _id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def _put(self, table: list[MessageT], entity: MessageT) -> None:
        table.append(entity)
        self.changed.append(entity)

    def _remove(self, table: list[MessageT], goes: Callable[[MessageT], bool]) -> None:
        self.gone += [entity for entity in table if goes(entity)]
        table[:] = [entity for entity in table if not goes(entity)]

    def _some(self, table: Sequence[MessageT], percent: int) -> list[MessageT]:
        return self.random.sample(table, self._portion(len(table), percent))

    def _portion(self, count: int, percent: int) -> int:
        """Return so many of a hundred, rounded by chance."""
        return min(count, int(count * percent / 100 + self.random.random()))
