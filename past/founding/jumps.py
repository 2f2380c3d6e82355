"""Numbers of the new cluster that the lost one cannot have given. Pure.

What happened behind the snapshot or the log that is left is not known. Whoever was told of it may
still hold its revisions and ids. So revisions and the counters of ids go on 2**32 further, and none
of them ever names something else. Personal access tokens end, because one that was deleted in what
is lost would otherwise be valid again. Of the snapshots only the new one is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message

from coordinator.mux.stage import Stage
from viewstamp.api.brokers.v1.brokers_pb2 import BrokerEntity
from viewstamp.api.consumer_groups.v1.consumer_groups_pb2 import (
    ConsumerGroupEntity,
    ConsumerGroupsCountersEntity,
)
from viewstamp.api.snapshots.v1.snapshots_service_pb2 import SnapshotEntity
from viewstamp.api.streams.v1.streams_pb2 import StreamsCountersEntity
from viewstamp.api.users.v1.users_pb2 import UsersCountersEntity
from viewstamp.limits import FEATURE_LEVEL_BROKERS
from viewstamp.machine.freezing import Entity

JUMP: Final = 1 << 32
FIRST_ID: Final = 1
WHOLE_TABLE_KEY: Final = b""


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a section: their kind, and which fields count ids from 1 on.

    A section without them has given no id yet, but the lost cluster may have.
    """

    kind: int
    message: type[Message]
    fields: tuple[str, ...]
    # The fields that must stay 0 below FEATURE_LEVEL_BROKERS.
    of_brokers: frozenset[str] = frozenset()


COUNTERS: Final[Mapping[Stage, Counters]] = {
    Stage.USERS: Counters(3, UsersCountersEntity, ("next_user_id",)),
    Stage.STREAMS: Counters(
        4,
        StreamsCountersEntity,
        ("next_stream_id", "next_topic_id", "next_broker_id"),
        frozenset({"next_broker_id"}),
    ),
    Stage.CONSUMER_GROUPS: Counters(3, ConsumerGroupsCountersEntity, ("next_group_id",)),
}
BROKERS: Final = (Stage.STREAMS, 6)
# Numbers of entities that consumers compare: they only grow. `purge_generation` is not among them:
# a higher one is an order to purge.
GROUPS: Final = (Stage.CONSUMER_GROUPS, 1)
# Kinds that end.
DROPPED: Final = frozenset({(Stage.USERS, 2)})
_SNAPSHOTS: Final = 1


@dataclass(frozen=True, slots=True)
class JumpedCut:
    """The cut of the new cluster: `revision` is the one that it has there."""

    generation: int
    revision: int
    feature_level: int


def jumped(stage: Stage, entities: Iterable[Entity], cut: JumpedCut) -> Iterator[Entity]:
    """Return the entities of a section as the new cluster has them, in their order."""
    if stage is Stage.CATALOG:
        return _catalog(entities, cut.generation)
    counters = COUNTERS.get(stage)
    kept = (_apart(stage, each, cut) for each in entities if (stage, each[0]) not in DROPPED)
    return kept if counters is None else _counted(kept, counters, cut.feature_level)


def _apart(stage: Stage, entity: Entity, cut: JumpedCut) -> Entity:
    """Return an entity whose own numbers the lost cluster cannot have given.

    A broker is fenced until it registers anew: behind the source another one may have led, and the
    epochs of leaders follow the revision at which a broker was fenced.
    """
    kind, key, canonical = entity
    if (stage, kind) == BROKERS:
        broker = BrokerEntity.FromString(canonical)
        broker.fenced, broker.modified_revision = True, cut.revision
        return kind, key, broker.SerializeToString(deterministic=True)
    if (stage, kind) == GROUPS:
        group = ConsumerGroupEntity.FromString(canonical)
        group.group_epoch += JUMP
        group.assignment_epoch += JUMP
        return kind, key, group.SerializeToString(deterministic=True)
    return entity


def _counted(
    entities: Iterable[Entity], counters: Counters, feature_level: int
) -> Iterator[Entity]:
    is_told = False
    for kind, key, canonical in entities:
        if not is_told and kind >= counters.kind:
            is_told = True
            if kind == counters.kind:
                yield kind, key, _further(counters, canonical, feature_level)
                continue
            yield counters.kind, WHOLE_TABLE_KEY, _further(counters, b"", feature_level)
        yield kind, key, canonical
    if not is_told:
        yield counters.kind, WHOLE_TABLE_KEY, _further(counters, b"", feature_level)


def _further(counters: Counters, canonical: bytes, feature_level: int) -> bytes:
    message: Any = counters.message.FromString(canonical)
    for name in counters.fields:
        if name not in counters.of_brokers or feature_level >= FEATURE_LEVEL_BROKERS:
            setattr(message, name, max(getattr(message, name), FIRST_ID) + JUMP)
    return bytes(message.SerializeToString(deterministic=True))


def _catalog(entities: Iterable[Entity], generation: int) -> Iterator[Entity]:
    for kind, key, canonical in entities:
        if kind != _SNAPSHOTS:
            yield kind, key, canonical
            continue
        if SnapshotEntity.FromString(canonical).snapshot.generation == generation:
            yield kind, key, canonical
