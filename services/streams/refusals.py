"""Refusals of the streams domain; `viewstamp.texts.table` has their texts.

Entities are named as the caller named them, so that a refusal tells nothing the caller did not
know.
"""

from __future__ import annotations

from typing import Final

from services.streams.access import Gate
from services.streams.brokers import Broker
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


def broker_not_found(broker: int | str) -> Refusal:
    """Return the refusal where no such broker is registered."""
    return Refusal.of(Reason.REASON_BROKER_NOT_FOUND, broker=broker)


def broker_revision_mismatch(broker: Broker, expected: int) -> Refusal:
    """Return the refusal of a compare-and-set on a broker that lost."""
    return Refusal.of(
        Reason.REASON_REVISION_MISMATCH,
        "broker",
        broker=broker.name,
        modified_revision=broker.modified_revision,
        expected_revision=expected,
    )


def placements_revision_mismatch(topic: str, expected: int, newest: int) -> Refusal:
    """Return the refusal of a compare-and-set on placements of a topic that lost."""
    return Refusal.of(
        Reason.REASON_REVISION_MISMATCH,
        "placements",
        topic=topic,
        modified_revision=newest,
        expected_revision=expected,
    )


def broker_in_use(name: str, replicas_count: int) -> Refusal:
    """Return the refusal to forget a broker that has replicas."""
    return Refusal.of(Reason.REASON_BROKER_IN_USE, broker=name, replicas_count=replicas_count)


def broker_limit() -> Refusal:
    """Return the refusal of one broker too many."""
    return Refusal.of(Reason.REASON_BROKER_LIMIT, limit=limits.BROKERS_MAX)


def fenced_broker_epoch(broker: Broker, epoch: int) -> Refusal:
    """Return the refusal of a broker whose epoch is over, or not this one."""
    case = "fenced" if broker.fenced and broker.broker_epoch == epoch else ""
    return Refusal.of(
        Reason.REASON_FENCED_BROKER_EPOCH,
        case,
        broker_id=broker.id,
        epoch=epoch,
        broker_epoch=broker.broker_epoch,
    )


def invalid_broker_timeout(timeout_ms: int, lowest: int, highest: int) -> Refusal:
    """Return the refusal of a silence that no broker may keep."""
    return Refusal.of(
        Reason.REASON_INVALID_BROKER,
        "timeout_ms",
        requested=timeout_ms,
        low=lowest,
        high=highest,
    )


def invalid_endpoints_count(count: int) -> Refusal:
    """Return the refusal of a broker that serves nowhere, or at too many places."""
    return Refusal.of(
        Reason.REASON_INVALID_BROKER,
        "endpoints_count",
        endpoints_count=count,
        limit=limits.BROKER_ENDPOINTS_MAX,
    )


def invalid_port(listener: str, port: int, highest: int) -> Refusal:
    """Return the refusal of a port that does not exist."""
    return Refusal.of(
        Reason.REASON_INVALID_BROKER, "port", listener=listener, port=port, highest=highest
    )


def not_leader(partition: int, broker_id: int, leader: int, leader_epoch: int) -> Refusal:
    """Return the refusal of a broker that does not lead, or has not seen that it does.

    Nobody reports without a broker's stamp: its broker is 0.
    """
    case = ("unseen" if leader == broker_id else "") if broker_id else "unstamped"
    return Refusal.of(
        Reason.REASON_NOT_LEADER,
        case,
        partition=partition,
        broker_id=broker_id,
        leader=leader,
        leader_epoch=leader_epoch,
    )


def not_enough_brokers(available: int, replication_factor: int) -> Refusal:
    """Return the refusal to place more replicas than there are brokers for them."""
    return Refusal.of(
        Reason.REASON_NOT_ENOUGH_BROKERS,
        available=available,
        replication_factor=replication_factor,
    )


def replicas_not_in_sync(partition: int) -> Refusal:
    """Return the refusal to give a partition to brokers that lack what was acknowledged."""
    return Refusal.of(Reason.REASON_REPLICAS_NOT_IN_SYNC, partition=partition)
