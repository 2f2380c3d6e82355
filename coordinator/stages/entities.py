"""The entities of sessions and catalog to and from protobuf.

The bytes are canonical: one encoding for each value, pinned by tests. Nothing here has state, so
frozen sections may be encoded in any thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from coordinator.mux import catalog_types as catalog
from coordinator.mux import entities as mux_entities
from coordinator.mux import types as mux
from coordinator.mux.entities import CatalogValue, SessionsValue
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.sessions.v1 import sessions_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2

Value = TypeVar("Value")


class EntityCodec:
    """The part of `mux.codec.Codec` that is about entities."""

    def encode_entity(self, value: SessionsValue | CatalogValue) -> bytes:
        """Return the canonical bytes of an entity."""
        return _ENCODERS[type(value)](value).SerializeToString(deterministic=True)

    def decode_sessions_entity(self, kind: int, canonical: bytes) -> SessionsValue:
        """Return an entity of the sessions section. Raises ValueError if it is none."""
        return _decoded(_SESSIONS, kind, canonical)

    def decode_catalog_entity(self, kind: int, canonical: bytes) -> CatalogValue:
        """Return an entity of the catalog section. Raises ValueError if it is none."""
        return _decoded(_CATALOG, kind, canonical)


def snapshot_message(snapshot: catalog.Snapshot) -> snapshots_pb2.Snapshot:
    """Return a snapshot as entities and answers carry it."""
    return snapshots_pb2.Snapshot(
        generation=snapshot.generation,
        state=snapshots_pb2.SnapshotState.Name(snapshot.state),  # type: ignore[arg-type]
        cut_op=snapshot.cut_op,
        cut_revision=snapshot.cut_revision,
        root=snapshot.root,
        tasks=[task_message(task) for task in snapshot.tasks],
        created_at=snapshot.created_at,
        retention=snapshots_pb2.RetentionClass.Name(snapshot.retention),  # type: ignore[arg-type]
        failure=snapshot.failure,
        decided_at=snapshot.decided_at,
        keep_last=snapshot.keep_last,
        keep_daily=snapshot.keep_daily,
        kept_until=snapshot.kept_until,
        modified_revision=snapshot.modified_revision,
    )


def task_message(task: catalog.TaskSnapshot) -> snapshots_pb2.SnapshotTask:
    """Return one section of a snapshot as commands, entities and answers carry it."""
    return snapshots_pb2.SnapshotTask(
        stage=routing_pb2.Stage.ValueType(task.stage),
        applied_revision=task.applied_revision,
        state_digest=task.state_digest,
        entities=task.entities,
        size_bytes=task.size_bytes,
    )


def begin_epoch_message(
    members: catalog.BeginEpoch | catalog.ClusterMembers,
) -> cluster_pb2.BeginEpochRequest:
    """Return who belongs to an epoch as commands and entities carry it."""
    return cluster_pb2.BeginEpochRequest(
        first_view=members.first_view,
        voters=map(_member_message, members.voters),
        standbys=map(_member_message, members.standbys),
        next_replica_id=members.next_replica_id,
    )


def _member_message(member: catalog.EpochMember) -> cluster_pb2.EpochMember:
    return cluster_pb2.EpochMember(
        replica_id=member.replica_id,
        peer_address=member.peer_address,
        disk_id=member.disk_id,
    )


def epoch_members_of(
    messages: Iterable[cluster_pb2.EpochMember],
) -> tuple[catalog.EpochMember, ...]:
    """Return members in the mux's form."""
    return tuple(
        catalog.EpochMember(each.replica_id, each.peer_address, each.disk_id) for each in messages
    )


def tasks_of(
    messages: Iterable[snapshots_pb2.SnapshotTask],
) -> tuple[catalog.TaskSnapshot, ...]:
    """Return sections of a snapshot in the mux's form. Raises ValueError for an unknown stage."""
    return tuple(
        catalog.TaskSnapshot(
            mux.Stage(task.stage),
            task.applied_revision,
            task.state_digest,
            task.entities,
            task.size_bytes,
        )
        for task in messages
    )


# --- To bytes ------------------------------------------------------------------------------------


def _writer(value: type[Any], entity: type[Message]) -> Callable[[Any], Message]:
    """Return what makes the entity of a value whose fields have the same names."""
    names = [field.name for field in dataclasses.fields(value)]
    return lambda written: entity(**{name: getattr(written, name) for name in names})


def _reply(value: mux.RequestReply) -> Message:
    assert value.error is None, f"reply {value.number} of session {value.session_id} is an error"
    return sessions_pb2.ReplyEntity(
        session_id=value.session_id,
        number=value.number,
        view=value.view,
        op=value.op,
        first_revision=value.first_revision,
        spans=[_reply_span(span) for span in value.spans],
        fingerprint=value.fingerprint,
    )


def _reply_span(span: mux.SpanReply) -> sessions_pb2.ReplySpan:
    errors = [
        errors_pb2.IndexedError(index=error.index, error=errors_pb2.Error.FromString(error.error))
        for error in span.errors
    ]
    return sessions_pb2.ReplySpan(results=span.results, errors=errors)


def _snapshot(value: catalog.Snapshot) -> Message:
    return snapshots_pb2.SnapshotEntity(snapshot=snapshot_message(value))


def _feature_level(value: catalog.FeatureLevel) -> Message:
    return cluster_pb2.FeatureLevelEntity(feature_level=value.level)


def _members(members: catalog.ClusterMembers) -> cluster_pb2.MembersEntity:
    return cluster_pb2.MembersEntity(
        began_op=members.began_op, members=begin_epoch_message(members)
    )


def _description(value: catalog.Description) -> Message:
    return cluster_pb2.DescriptionEntity(
        description=value.text, modified_revision=value.modified_revision
    )


_ENCODERS: Final[Mapping[type[Any], Callable[[Any], Message]]] = MappingProxyType(
    {
        mux_entities.Session: _writer(mux_entities.Session, sessions_pb2.SessionEntity),
        mux_entities.Minimum: _writer(mux_entities.Minimum, sessions_pb2.MinimumEntity),
        mux_entities.WindowRow: _writer(mux_entities.WindowRow, sessions_pb2.WindowEntity),
        mux.RequestReply: _reply,
        catalog.Snapshot: _snapshot,
        catalog.CatalogCounters: _writer(
            catalog.CatalogCounters, snapshots_pb2.CatalogCountersEntity
        ),
        catalog.FeatureLevel: _feature_level,
        catalog.Description: _description,
        catalog.ClusterMembers: _members,
    }
)


# --- From bytes ----------------------------------------------------------------------------------


def _decoded(kinds: Mapping[int, Callable[[bytes], Value]], kind: int, canonical: bytes) -> Value:
    """Return the entity of a kind."""
    if kind not in kinds:
        raise ValueError(f"there is no kind {kind}; the section has {list(kinds)}")
    try:
        return kinds[kind](canonical)
    except DecodeError as error:
        raise ValueError(f"{canonical[:32].hex()}... is no entity of kind {kind}") from error


def _reader(value: type[Value], entity: type[Message]) -> Callable[[bytes], Value]:
    """Return what makes a value of its entity, whose fields have the same names."""
    names = [field.name for field in dataclasses.fields(value)]  # type: ignore[arg-type]

    def read(canonical: bytes) -> Value:
        found = entity.FromString(canonical)
        return value(*[getattr(found, name) for name in names])

    return read


def _reply_of(canonical: bytes) -> mux.RequestReply:
    entity = sessions_pb2.ReplyEntity.FromString(canonical)
    return mux.RequestReply(
        session_id=entity.session_id,
        number=entity.number,
        view=entity.view,
        op=entity.op,
        first_revision=entity.first_revision,
        spans=tuple(_span_of(span) for span in entity.spans),
        fingerprint=entity.fingerprint,
    )


def _span_of(span: sessions_pb2.ReplySpan) -> mux.SpanReply:
    errors = tuple(
        mux.IndexedError(e.index, e.error.SerializeToString(deterministic=True))
        for e in span.errors
    )
    return mux.SpanReply(span.results, errors)


def _snapshot_entity_of(canonical: bytes) -> catalog.Snapshot:
    return snapshot_of(snapshots_pb2.SnapshotEntity.FromString(canonical).snapshot)


def snapshot_of(snapshot: snapshots_pb2.Snapshot) -> catalog.Snapshot:
    """Return a snapshot's message as a value; raises ValueError for a state unknown here."""
    return catalog.Snapshot(
        generation=snapshot.generation,
        state=catalog.SnapshotState(snapshot.state),
        cut_op=snapshot.cut_op,
        cut_revision=snapshot.cut_revision,
        root=snapshot.root,
        tasks=tasks_of(snapshot.tasks),
        created_at=snapshot.created_at,
        # Unset means the same; in a section it is not canonical, and is refused as such.
        retention=catalog.RetentionClass(snapshot.retention or catalog.RetentionClass.LAST),
        failure=snapshot.failure,
        decided_at=snapshot.decided_at,
        keep_last=snapshot.keep_last,
        keep_daily=snapshot.keep_daily,
        kept_until=snapshot.kept_until,
        modified_revision=snapshot.modified_revision,
    )


def _feature_level_of(canonical: bytes) -> catalog.FeatureLevel:
    entity = cluster_pb2.FeatureLevelEntity.FromString(canonical)
    return catalog.FeatureLevel(entity.feature_level)


def _description_of(canonical: bytes) -> catalog.Description:
    entity = cluster_pb2.DescriptionEntity.FromString(canonical)
    return catalog.Description(entity.description, entity.modified_revision)


def _members_of(canonical: bytes) -> catalog.ClusterMembers:
    entity = cluster_pb2.MembersEntity.FromString(canonical)
    named = entity.members
    return catalog.ClusterMembers(
        entity.began_op,
        named.first_view,
        epoch_members_of(named.voters),
        epoch_members_of(named.standbys),
        named.next_replica_id,
    )


_SESSIONS: Final[Mapping[int, Callable[[bytes], SessionsValue]]] = MappingProxyType(
    {
        mux_entities.SESSION_KIND: _reader(mux_entities.Session, sessions_pb2.SessionEntity),
        mux_entities.MINIMUM_KIND: _reader(mux_entities.Minimum, sessions_pb2.MinimumEntity),
        mux_entities.WINDOW_KIND: _reader(mux_entities.WindowRow, sessions_pb2.WindowEntity),
        mux_entities.REPLY_KIND: _reply_of,
    }
)
_CATALOG: Final[Mapping[int, Callable[[bytes], CatalogValue]]] = MappingProxyType(
    {
        mux_entities.SNAPSHOT_KIND: _snapshot_entity_of,
        mux_entities.COUNTERS_KIND: _reader(
            catalog.CatalogCounters, snapshots_pb2.CatalogCountersEntity
        ),
        mux_entities.FEATURE_LEVEL_KIND: _feature_level_of,
        mux_entities.DESCRIPTION_KIND: _description_of,
        mux_entities.MEMBERS_KIND: _members_of,
    }
)
