"""Partitions: no entities of their own, but ranges in topics, and rows of 128 beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from viewstamp.api.brokers.v1.brokers_pb2 import PlacementsEntity
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.streams.v1.streams_pb2 import PartitionRange, TopicEntity, WatermarksEntity
from viewstamp.format.columns import Row
from viewstamp.format.kinds import KEY_INTEGER_BYTES
from viewstamp.limits import PARTITIONS_PER_OFFSETS_ROW
from viewstamp.snapshots.explore.open_generation import OpenGeneration

TOPICS: Final = (routing_pb2.STAGE_STREAMS, 2)
WATERMARKS: Final = (routing_pb2.STAGE_STREAMS, 5)
PLACEMENTS: Final = (routing_pb2.STAGE_STREAMS, 7)


def partitions_count(topic: TopicEntity) -> int:
    """Return how many partitions a topic has."""
    return sum(one.count for one in topic.partitions)


def partition_rows(topic: TopicEntity, first: int = 0) -> Iterator[Row]:
    """Yield the partitions of a topic from a number on, with what the topic says about them."""
    for one in topic.partitions:
        for number in range(max(first, one.first), one.first + one.count):
            yield _row(topic, one, number)


def partition_row(topic: TopicEntity, number: int) -> Row | None:
    """Return one partition of a topic; None if the topic has no such partition."""
    for one in topic.partitions:
        if one.first <= number < one.first + one.count:
            return _row(topic, one, number)
    return None


def partition_details(generation: OpenGeneration, topic: TopicEntity, number: int) -> Row:
    """Return where a partition's data begin and end, and where they lie; None if unknown."""
    first, place = number - number % PARTITIONS_PER_OFFSETS_ROW, number % PARTITIONS_PER_OFFSETS_ROW
    key = b"".join(one.to_bytes(KEY_INTEGER_BYTES, "big") for one in (topic.id, first))
    ends, placed = (_found(generation, kind, key) for kind in (WATERMARKS, PLACEMENTS))
    assert ends is None or isinstance(ends, WatermarksEntity)
    assert placed is None or isinstance(placed, PlacementsEntity)
    end = _at(ends.end_offsets_plus_one, place, 0) if ends else 0
    replicas = _at(placed.partitions, place, None) if placed else None
    return {
        "start_offset": _at(ends.start_offsets, place, 0) if ends and end else None,
        "end_offset": end - 1 if end else None,
        "replicas": list(replicas.replicas) if replicas else None,
        "in_sync": list(replicas.in_sync) if replicas else None,
    }


def _row(topic: TopicEntity, one: PartitionRange, number: int) -> Row:
    return {
        "stream_id": topic.stream_id,
        "topic_id": topic.id,
        "topic": topic.name,
        "id": number,
        "created_revision": one.created_revision,
    }


def _found(generation: OpenGeneration, place: tuple[int, int], key: bytes) -> Any:
    return next((one.message for one in generation.selected(*place, key)), None)


def _at(values: Any, place: int, otherwise: Any) -> Any:
    """Return a value of a list whose empty end may be left out."""
    return values[place] if place < len(values) else otherwise
