"""Rows of entities: decoded without secrets, or as the few facts that most analyses need."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message
from pyspark.sql.types import (
    StructField,
    StructType,
    TimestampType,
)

from analytics.snapshots.columns import UINT64, struct, struct_of
from analytics.snapshots.errors import NewerSnapshotError, SnapshotError
from analytics.snapshots.selection import SECTION_NAMES, kind_name, kind_named
from viewstamp.api.sessions.v1.sessions_pb2 import SessionEntity
from viewstamp.api.streams.v1.streams_pb2 import StreamEntity
from viewstamp.api.users.v1.users_pb2 import PersonalAccessTokenEntity, UserEntity
from viewstamp.format import FormatError
from viewstamp.format.block import ENTRY_HEADER_BYTES
from viewstamp.format.columns import row_of
from viewstamp.format.kinds import KEY_INTEGER_BYTES, KINDS, decode_entity, redacted
from viewstamp.format.section import SectionEntry

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
BIGINT_MAX: Final = (1 << 63) - 1


class GenerationCut(NamedTuple):
    """What all rows of a generation share; the time comes from the log, since 1970."""

    generation: int
    cut_revision: int
    timestamp_us: int


Row = tuple[Any, ...]
Maker = Callable[[GenerationCut, int, SectionEntry], Iterable[Row]]

# --- Entities of all kinds ---

ENTITIES_STRUCT: Final = struct(
    "generation BIGINT, cut_revision BIGINT, timestamp_us BIGINT, section STRING, kind STRING,"
    " key BINARY, bytes BIGINT, entity STRING"
)


def entity_row(cut: GenerationCut, stage: int, entry: SectionEntry) -> Iterator[Row]:
    """Yield the row of an entity, its fields as JSON. Raises NewerSnapshotError, SnapshotError."""
    fields = json.dumps(row_of(_message(stage, entry)), default=_as_text, ensure_ascii=False)
    section, kind = SECTION_NAMES[stage], kind_name(stage, entry.kind)
    yield *cut, section, kind, entry.key, size_bytes(entry), fields


def size_bytes(entry: SectionEntry) -> int:
    """Return the bytes of an entry before compression, its header among them."""
    return ENTRY_HEADER_BYTES + len(entry.key) + len(entry.canonical or b"")


# --- Entities of one kind, as an export has them ---


def kind_struct(kind: str) -> StructType:
    """Return the columns of a kind's table in an export. Raises SnapshotError."""
    info = kind_named(kind)[2]
    descriptor: Any = info.message.DESCRIPTOR
    cut = [
        StructField("generation", UINT64),
        StructField("cut_revision", UINT64),
        StructField("timestamp", TimestampType()),
    ]
    return StructType(cut + struct_of(descriptor).fields)


def kind_row(cut: GenerationCut, stage: int, entry: SectionEntry) -> Iterator[Row]:
    """Yield the row of an entity. Raises NewerSnapshotError, SnapshotError."""
    timestamp = EPOCH + timedelta(microseconds=cut.timestamp_us)
    fields = row_of(_message(stage, entry)).values()
    yield cut.generation, cut.cut_revision, timestamp, *fields


# --- Facts ---

_IDS: Final = ("stream_id", "topic_id", "group_id", "user_id", "session_id")
FACTS_STRUCT: Final = struct(
    "generation BIGINT, timestamp_us BIGINT, section STRING, kind STRING, stream_id BIGINT,"
    " topic_id BIGINT, group_id BIGINT, user_id BIGINT, session_id BIGINT, name STRING,"
    " expires_at_us BIGINT, is_grant BOOLEAN, bytes BIGINT"
)

# The names of the integers at the beginning of a key.
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "sessions": ("session_id",),
    "credential_minimums": ("user_id",),
    "reply_windows": ("session_id",),
    "replies": ("session_id",),
    "users": ("user_id",),
    "personal_access_tokens": ("user_id",),
    "streams": ("stream_id",),
    "topics": ("stream_id", "topic_id"),
    "access": ("user_id",),
    "consumer_groups": ("stream_id", "topic_id", "group_id"),
    "consumer_group_members": ("group_id", "session_id"),
}
# Kinds whose facts need more than the key.
_DECODED: Final = frozenset({"sessions", "users", "personal_access_tokens", "streams"})

Ids = dict[str, int]


def facts(cut: GenerationCut, stage: int, entry: SectionEntry) -> Iterator[Row]:
    """Yield the facts of an entity, then its grants, each with the entity that it names.

    An unknown kind yields only its size.
    """
    kind = kind_name(stage, entry.kind)
    ids = {
        name: int.from_bytes(entry.key[offset : offset + KEY_INTEGER_BYTES], "big")
        for name, offset in zip(
            _KEYS.get(kind, ()), range(0, len(entry.key), KEY_INTEGER_BYTES), strict=False
        )
    }
    about = (cut.generation, cut.timestamp_us, SECTION_NAMES[stage], kind)
    if kind not in _DECODED:
        yield _fact(about, ids, None, None, False, size_bytes(entry))
        return
    message = _message(stage, entry)
    ids |= {"user_id": message.user_id} if isinstance(message, SessionEntity) else {}
    expires_at_us = _expiry(message)
    yield _fact(about, ids, _name(message), expires_at_us, False, size_bytes(entry))
    if isinstance(message, UserEntity):
        for granted, grant_bytes in _grants(message):
            yield _fact(about, ids | granted, None, None, True, grant_bytes)


def _fact(
    about: tuple[int, int, str, str],
    ids: Ids,
    name: str | None,
    expires_at_us: int | None,
    is_grant: bool,
    counted_bytes: int,
) -> Row:
    if any(id_ > BIGINT_MAX for id_ in ids.values()):
        raise SnapshotError(
            f"generation {about[0]}: an entity of {about[3]} has the ids {ids}; ids are handed out"
            f" from 1 on and do not reach {BIGINT_MAX}"
        )
    return (*about, *map(ids.get, _IDS), name, expires_at_us, is_grant, counted_bytes)


def _name(message: Message) -> str | None:
    if isinstance(message, UserEntity):
        return message.username
    return message.name if isinstance(message, StreamEntity) else None


def _expiry(message: Message) -> int | None:
    """Return when a token expires; null if it never does."""
    if not isinstance(message, PersonalAccessTokenEntity) or not message.expires_at:
        return None
    return min(message.expires_at, BIGINT_MAX)


def _grants(user: UserEntity) -> Iterator[tuple[Ids, int]]:
    """Yield the target of each grant of a user, and its bytes without those of grants inside it."""
    for stream in user.permissions.streams:
        inner_bytes = sum(topic.ByteSize() for topic in stream.topics)
        named = {"stream_id": stream.stream.id}
        if any(field.name not in ("stream", "topics") for field, _ in stream.ListFields()):
            yield named, stream.ByteSize() - inner_bytes
        for topic in stream.topics:
            yield named | {"topic_id": topic.topic.id}, topic.ByteSize()


def _message(stage: int, entry: SectionEntry) -> Message:
    """Return the entity without secrets. Raises NewerSnapshotError, SnapshotError."""
    assert entry.canonical is not None, "merged entities have no tombstones"
    section = SECTION_NAMES[stage]
    if (stage, entry.kind) not in KINDS:
        raise NewerSnapshotError(
            f"section {section} has entities of kind {entry.kind}, which a newer version wrote:"
            " upgrade this program"
        )
    try:
        return redacted(decode_entity(stage, entry.kind, entry.canonical))
    except FormatError as error:
        raise SnapshotError(
            f"section {section}, key {entry.key.hex()}: {error}. Verify the snapshot with"
            " `viewstamp snapshot verify`"
        ) from error


def _as_text(value: object) -> str:
    """Return bytes as hexadecimal text; no other type needs a conversion to JSON."""
    assert isinstance(value, bytes), f"{type(value).__name__} has no form in JSON"
    return value.hex()
