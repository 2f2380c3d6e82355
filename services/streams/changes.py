"""What watchers see of streams and topics, and when what a user may do changes."""

from __future__ import annotations

from operator import itemgetter
from typing import Final

from services.runtime.domain import WatchedKind
from services.runtime.offset_rows import first_partition
from services.runtime.section import id_key
from services.streams.access import Access
from services.streams.broker_queries import broker_message
from services.streams.brokers import Broker
from services.streams.model import Stream, StreamsState, Topic
from services.streams.placement import PlacementRow
from services.streams.queries import topic_message
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import Change

# Memory of a run of partitions, and of a grant with what holds it.
_RUN_BYTES: Final = 100
_GRANT_BYTES: Final = 200
# Memory of a placement that no other partition shares.
_PLACEMENT_BYTES: Final = 300
# The topics of a StreamAccess.
_TOPICS: Final = itemgetter(1)


def _describe_stream(change: Change, stream: Stream, _: object) -> None:
    """Without the count of topics, which changes with these."""
    change.stream_id, change.key = stream.id, id_key(stream.id)
    change.entity = streams_pb2.Stream(**stream._asdict()).SerializeToString(deterministic=True)


def _describe_topic(change: Change, topic: Topic, _: object) -> None:
    change.stream_id, change.topic_id = topic.stream_id, topic.id
    change.key = id_key(topic.stream_id, topic.id)
    change.entity = topic_message(topic).SerializeToString(deterministic=True)


def _describe_access(change: Change, access: Access, _: object) -> None:
    change.user_id = access.user_id


def _topic_bytes(old: Topic, new: Topic | None) -> int:
    is_shared = new is not None and new.runs is old.runs
    return 0 if is_shared else _RUN_BYTES * len(old.runs)


def _access_bytes(old: Access, new: Access | None) -> int:
    if new is not None and new.streams is old.streams:
        return 0  # users with many grants log out, too
    return _GRANT_BYTES * (len(old.streams) + sum(map(len, map(_TOPICS, old.streams.values()))))


def _describe_broker(change: Change, broker: Broker, _: object) -> None:
    """Without the count of its replicas, which changes with these."""
    change.key = id_key(broker.id)
    change.entity = broker_message(broker).SerializeToString(deterministic=True)


def _describe_placements(change: Change, row: PlacementRow, _: object) -> None:
    """Without leaders, which follow from this and from the brokers."""
    first = first_partition(row.number)
    change.stream_id, change.topic_id = row.stream_id, row.topic_id
    change.key = id_key(row.topic_id, first)
    change.entity = brokers_pb2.Placements(
        stream_id=row.stream_id,
        topic_id=row.topic_id,
        placements=[
            brokers_pb2.Placement(partition=number, **placement._asdict())
            for number, placement in enumerate(row.partitions, first)
            if placement.replicas
        ],
    ).SerializeToString(deterministic=True)


def _placements_bytes(old: PlacementRow, new: PlacementRow | None) -> int:
    return _PLACEMENT_BYTES * len(old.partitions)


WATCHED: Final[tuple[WatchedKind[StreamsState], ...]] = (
    WatchedKind(
        entity_type=streams_pb2.Stream.DESCRIPTOR.full_name,
        table=lambda state: state.streams,
        describe=_describe_stream,
        stream_id=lambda stream, _: stream.id,
    ),
    WatchedKind(
        entity_type=streams_pb2.Topic.DESCRIPTOR.full_name,
        table=lambda state: state.topics,
        describe=_describe_topic,
        weigh=_topic_bytes,
        stream_id=lambda topic, _: topic.stream_id,
    ),
    WatchedKind(
        entity_type=brokers_pb2.Broker.DESCRIPTOR.full_name,
        table=lambda state: state.brokers,
        describe=_describe_broker,
    ),
    WatchedKind(
        entity_type=brokers_pb2.Placements.DESCRIPTOR.full_name,
        table=lambda state: state.placements,
        describe=_describe_placements,
        weigh=_placements_bytes,
        stream_id=lambda row, _: row.stream_id,
    ),
    WatchedKind(
        entity_type="",
        table=lambda state: state.access,
        describe=_describe_access,
        weigh=_access_bytes,
        is_access=True,
    ),
)
