"""Refusals of the streams domain: what was wrong, and what would be right.

Entities are named as the caller named them, so that a refusal tells nothing the caller did not
know.
"""

from __future__ import annotations

from typing import Final

from services.streams.access import Gate
from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

# Iggy has a number of its own for this case of the reason.
IGGY_MORE_THAN_EXIST: Final = 2019


def unauthenticated() -> Refusal:
    """Return the refusal of a caller that is unknown, inactive, or has outdated credentials."""
    return Refusal(
        Reason.REASON_UNAUTHENTICATED,
        "The caller is unknown or inactive, or its credentials have changed; log in again.",
    )


def malformed(message: str, **details: object) -> Refusal:
    """Return the refusal of a request that is not well formed."""
    return Refusal(Reason.REASON_MALFORMED_REQUEST, message, **details)


def permission_denied(user_id: int, gate: Gate) -> Refusal:
    """Return the refusal of a user who may see, but not do."""
    return Refusal(
        Reason.REASON_PERMISSION_DENIED,
        f"User {user_id} lacks the permission {gate.permission} here.",
        user_id=user_id,
        permission=gate.permission,
    )


def stream_not_found(stream: int | str) -> Refusal:
    """Return the refusal where no such stream exists, or the caller may not see it."""
    return Refusal(
        Reason.REASON_STREAM_NOT_FOUND,
        f"There is no stream {stream!r}, or you may not see it.",
        stream=stream,
    )


def topic_not_found(stream: int | str, topic: int | str) -> Refusal:
    """Return the refusal where the stream has no such topic."""
    return Refusal(
        Reason.REASON_TOPIC_NOT_FOUND,
        f"There is no topic {topic!r} in stream {stream!r}, or you may not see it.",
        stream=stream,
        topic=topic,
    )


def stream_exists(name: str) -> Refusal:
    """Return the refusal of a stream name that is taken."""
    return Refusal(
        Reason.REASON_STREAM_EXISTS,
        f"There is a stream {name!r} already; choose another name.",
        stream=name,
    )


def topic_exists(stream: str, name: str) -> Refusal:
    """Return the refusal of a topic name that is taken in its stream."""
    return Refusal(
        Reason.REASON_TOPIC_EXISTS,
        f"There is a topic {name!r} in stream {stream!r} already; choose another name.",
        stream=stream,
        topic=name,
    )


def revision_mismatch(what: str, name: str, expected: int, actual: int) -> Refusal:
    """Return the refusal of a compare-and-set that lost; `what` is stream or topic."""
    return Refusal(
        Reason.REASON_REVISION_MISMATCH,
        f"The {what} {name!r} was modified at revision {actual}, not {expected}; read it again.",
        **{what: name},
        modified_revision=actual,
        expected_revision=expected,
    )


def stream_limit() -> Refusal:
    """Return the refusal of one stream too many."""
    return Refusal(
        Reason.REASON_STREAM_LIMIT,
        f"There are {limits.STREAMS_MAX} streams, as many as there may be; delete one first.",
        limit=limits.STREAMS_MAX,
    )


def topic_limit(stream: str) -> Refusal:
    """Return the refusal of one topic too many in a stream."""
    return Refusal(
        Reason.REASON_TOPIC_LIMIT,
        f"Stream {stream!r} holds {limits.TOPICS_PER_STREAM_MAX} topics, as many as it may; "
        "delete one first.",
        stream=stream,
        limit=limits.TOPICS_PER_STREAM_MAX,
    )


def partition_limit(topic: str, existing: int, count: int) -> Refusal:
    """Return the refusal of too many partitions in a topic."""
    return Refusal(
        Reason.REASON_PARTITION_LIMIT,
        f"Topic {topic!r} has {existing} partitions and cannot get {count} more; it may hold "
        f"{limits.PARTITIONS_PER_TOPIC_MAX}.",
        topic=topic,
        existing=existing,
        partitions_count=count,
        limit=limits.PARTITIONS_PER_TOPIC_MAX,
    )


def invalid_partitions_count(count: int, lowest: int, highest: int) -> Refusal:
    """Return the refusal of a number of partitions outside what one request may say."""
    return Refusal(
        Reason.REASON_INVALID_PARTITIONS_COUNT,
        f"The request asks for {count} partitions; {lowest} to {highest} are allowed.",
        partitions_count=count,
        lowest=lowest,
        highest=highest,
    )


def more_than_exist(topic: str, count: int, existing: int) -> Refusal:
    """Return the refusal to delete more partitions than there are."""
    return Refusal(
        Reason.REASON_INVALID_PARTITIONS_COUNT,
        f"The request deletes {count} partitions of topic {topic!r}, which has {existing}.",
        partitions_count=count,
        topic=topic,
        existing=existing,
        iggy_code=IGGY_MORE_THAN_EXIST,
    )
