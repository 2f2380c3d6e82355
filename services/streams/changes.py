"""What watchers see of streams and topics, and when what a user may do changes."""

from __future__ import annotations

from operator import itemgetter
from typing import Final

from services.runtime.domain import WatchedKind
from services.runtime.section import id_key
from services.streams.access import Access
from services.streams.model import Stream, StreamsState, Topic
from services.streams.queries import topic_message
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import Change

# Memory of a run of partitions, and of a grant with what holds it.
_RUN_BYTES: Final = 100
_GRANT_BYTES: Final = 200
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


WATCHED: Final[tuple[WatchedKind[StreamsState], ...]] = (
    WatchedKind(
        entity_type=streams_pb2.Stream.DESCRIPTOR.full_name,
        table=lambda state: state.streams,
        describe=_describe_stream,
    ),
    WatchedKind(
        entity_type=streams_pb2.Topic.DESCRIPTOR.full_name,
        table=lambda state: state.topics,
        describe=_describe_topic,
        weigh=_topic_bytes,
    ),
    WatchedKind(
        entity_type="",
        table=lambda state: state.access,
        describe=_describe_access,
        weigh=_access_bytes,
        is_access=True,
    ),
)
