"""What the page gets, as JSON: counts and times as numbers, names and words as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.format.superblock import place_of
from viewstamp.metering import GroupLag

Document = dict[str, Any]


class _Enum(Protocol):
    def Name(self, number: Any) -> str: ...  # noqa: N802 - generated code has it


_STATUS: Final = "REPLICA_STATUS_"
_ROLE: Final = "REPLICA_ROLE_"


def word(enum: _Enum, number: Any, prefix: str) -> str:
    """Return an enum value in lower case without its prefix; its number if a newer build has it."""
    try:
        return enum.Name(number).removeprefix(prefix).lower().replace("_", " ")
    except ValueError:
        return str(number)


def status_document(
    status: cluster_pb2.GetStatusResponse,
    rates: Mapping[str, float | None],
    here: Mapping[str, Any],
) -> Document:
    """Return the state of the cluster; `here` is what the answering replica says of itself."""
    return {
        "cluster": status.cluster,
        "description": status.description,
        "primary": status.primary,
        "view": place_of(status.header.view),
        "revision": status.header.revision,
        "op": status.header.op,
        "feature_level": status.feature_level,
        "epoch": status.epoch,
        "sessions": status.sessions,
        "rates": dict(rates),
        "here": dict(here),
        "replicas": [_replica(each) for each in status.replicas],
        "services": [_service(each) for each in status.services],
        "alarms": [_alarm(each) for each in status.alarms],
    }


def _replica(replica: cluster_pb2.Replica) -> Document:
    return {
        "id": replica.replica_id,
        "role": word(cluster_pb2.ReplicaRole, replica.role, _ROLE),
        "status": word(cluster_pb2.ReplicaStatus, replica.status, _STATUS),
        "view": place_of(replica.view),
        "commit": replica.commit,
        "lag": replica.lag,
        "link": replica.link,
        "heard_ms": replica.heard_ms,
        "address": replica.address,
        "generation": replica.generation,
        "unfit": replica.unfit,
        "level_max": replica.feature_level_max,
    }


def _service(service: cluster_pb2.ServiceStatus) -> Document:
    return {
        "name": word(routing_pb2.Stage, service.stage, "STAGE_"),
        "connected": service.connected,
        "revision": service.settled_revision,
        "restarts": service.restarts,
    }


def _alarm(alarm: cluster_pb2.Alarm) -> Document:
    kind = word(cluster_pb2.AlarmKind, alarm.kind, "ALARM_KIND_")
    return {"kind": kind, "message": alarm.message, "since_us": alarm.since}


def snapshot_document(snapshot: snapshots_pb2.Snapshot) -> Document:
    """Return one generation, with the size of all of its sections."""
    return {
        "generation": snapshot.generation,
        "state": word(snapshots_pb2.SnapshotState, snapshot.state, "SNAPSHOT_STATE_"),
        "revision": snapshot.cut_revision,
        "entities": sum(task.entities for task in snapshot.tasks),
        "size_bytes": sum(task.size_bytes for task in snapshot.tasks),
        "created_us": snapshot.created_at,
        "retention": word(snapshots_pb2.RetentionClass, snapshot.retention, "RETENTION_CLASS_"),
        "failure": snapshot.failure,
    }


def broker_document(broker: brokers_pb2.Broker) -> Document:
    """Return one broker."""
    return {
        "id": broker.id,
        "name": broker.name,
        "rack": broker.rack,
        "state": _broker_state(broker),
        "epoch": broker.broker_epoch,
        "replicas": broker.replicas_count,
        "endpoints": _endpoints(broker.endpoints),
    }


def _broker_state(broker: brokers_pb2.Broker) -> str:
    if broker.fenced:
        return "fenced"
    return "draining" if broker.draining else "live"


def _endpoints(endpoints: Iterable[brokers_pb2.BrokerEndpoint]) -> str:
    return ", ".join(f"{each.listener}://{each.host}:{each.port}" for each in endpoints)


def stream_document(stream: streams_pb2.Stream) -> Document:
    """Return one stream."""
    return {
        "id": stream.id,
        "name": stream.name,
        "topics": stream.topics_count,
        "created_us": stream.created_at,
    }


def topic_document(topic: streams_pb2.Topic) -> Document:
    """Return one topic."""
    return {
        "id": topic.id,
        "name": topic.name,
        "partitions": topic.partitions_count,
        "created_us": topic.created_at,
    }


def lag_document(found: GroupLag) -> Document:
    """Return the lag of one group."""
    place = found.place
    return {
        "stream": place.stream.name,
        "topic": place.topic.name,
        "group": place.group.name,
        "ids": [place.stream.id, place.topic.id, place.group.id],
        "lag": found.lag,
        "is_whole": found.is_whole,
    }
