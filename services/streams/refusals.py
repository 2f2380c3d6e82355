"""Refusals of the streams domain; `viewstamp.texts.table` has their texts.

Entities are named as the caller named them, so that a refusal tells nothing the caller did not
know.
"""

from __future__ import annotations

from typing import Final

from services.streams.access import Gate
from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

# Iggy has its own number for this case of the reason.
IGGY_MORE_THAN_EXIST: Final = 2019


def unauthenticated() -> Refusal:
    """Return the refusal of a caller that is unknown, inactive, or has outdated credentials."""
    return Refusal.of(Reason.REASON_UNAUTHENTICATED)


def malformed(case: str, /, **details: object) -> Refusal:
    """Return the refusal of a request that is not well formed."""
    return Refusal.of(Reason.REASON_MALFORMED_REQUEST, case, **details)


def permission_denied(user_id: int, gate: Gate) -> Refusal:
    """Return the refusal of a user who may see, but not do."""
    return Refusal.of(
        Reason.REASON_PERMISSION_DENIED, "here", user_id=user_id, permission=gate.permission
    )


def stream_not_found(stream: int | str) -> Refusal:
    """Return the refusal where no such stream exists, or the caller may not see it."""
    return Refusal.of(Reason.REASON_STREAM_NOT_FOUND, stream=stream)


def topic_not_found(stream: int | str, topic: int | str) -> Refusal:
    """Return the refusal where the stream has no such topic."""
    return Refusal.of(Reason.REASON_TOPIC_NOT_FOUND, stream=stream, topic=topic)


def stream_exists(name: str) -> Refusal:
    """Return the refusal of a stream name that is taken."""
    return Refusal.of(Reason.REASON_STREAM_EXISTS, stream=name)


def topic_exists(stream: str, name: str) -> Refusal:
    """Return the refusal of a topic name that is taken in its stream."""
    return Refusal.of(Reason.REASON_TOPIC_EXISTS, stream=stream, topic=name)


def stream_revision_mismatch(name: str, expected: int, actual: int) -> Refusal:
    """Return the refusal of a compare-and-set on a stream that lost."""
    return Refusal.of(
        Reason.REASON_REVISION_MISMATCH,
        "stream",
        stream=name,
        modified_revision=actual,
        expected_revision=expected,
    )


def topic_revision_mismatch(name: str, expected: int, actual: int) -> Refusal:
    """Return the refusal of a compare-and-set on a topic that lost."""
    return Refusal.of(
        Reason.REASON_REVISION_MISMATCH,
        "topic",
        topic=name,
        modified_revision=actual,
        expected_revision=expected,
    )


def stream_limit() -> Refusal:
    """Return the refusal of one stream too many."""
    return Refusal.of(Reason.REASON_STREAM_LIMIT, limit=limits.STREAMS_MAX)


def topic_limit(stream: str) -> Refusal:
    """Return the refusal of one topic too many in a stream."""
    return Refusal.of(Reason.REASON_TOPIC_LIMIT, stream=stream, limit=limits.TOPICS_PER_STREAM_MAX)


def partition_limit(topic: str, existing: int, count: int) -> Refusal:
    """Return the refusal of too many partitions in a topic."""
    return Refusal.of(
        Reason.REASON_PARTITION_LIMIT,
        topic=topic,
        existing=existing,
        partitions_count=count,
        limit=limits.PARTITIONS_PER_TOPIC_MAX,
    )


def invalid_partitions_count(count: int, lowest: int, highest: int) -> Refusal:
    """Return the refusal of a number of partitions outside the limits of one request."""
    return Refusal.of(
        Reason.REASON_INVALID_PARTITIONS_COUNT,
        partitions_count=count,
        lowest=lowest,
        highest=highest,
    )


def more_than_exist(topic: str, count: int, existing: int) -> Refusal:
    """Return the refusal to delete more partitions than exist."""
    return Refusal.of(
        Reason.REASON_INVALID_PARTITIONS_COUNT,
        "more_than_exist",
        partitions_count=count,
        topic=topic,
        existing=existing,
        iggy_code=IGGY_MORE_THAN_EXIST,
    )


def partition_not_found(topic: str, partition: int, existing: int) -> Refusal:
    """Return the refusal of a partition that the topic does not have."""
    return Refusal.of(
        Reason.REASON_PARTITION_NOT_FOUND, "beyond", topic=topic, partition=partition,
        existing=existing,
    )  # fmt: skip


def partition_run_limit(topic: str) -> Refusal:
    """Return the refusal of partitions for a topic that got its own in too many steps."""
    return Refusal.of(
        Reason.REASON_PARTITION_LIMIT,
        "runs",
        topic=topic,
        limit=limits.PARTITION_RUNS_PER_TOPIC_MAX,
    )
