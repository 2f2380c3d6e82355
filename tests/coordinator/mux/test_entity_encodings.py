"""The encodings of the mux's own entities, which snapshots contain and digests cover."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.mux.catalog_types import (
    CatalogCounters,
    ClusterMembers,
    Description,
    EpochMember,
    FeatureLevel,
    RetentionClass,
    Snapshot,
    SnapshotState,
    TaskSnapshot,
)
from coordinator.mux.entities import (
    CatalogValue,
    Minimum,
    Session,
    SessionsValue,
    WindowRow,
    kind_and_key,
)
from coordinator.mux.types import IndexedError, RequestReply, SpanReply, Stage
from coordinator.stages.codec import ProtobufCodec
from viewstamp.api.errors.v1 import errors_pb2

CODEC = ProtobufCodec()
ERROR = errors_pb2.Error(
    reason=errors_pb2.REASON_STREAM_EXISTS,
    message="taken",
    details=[errors_pb2.ErrorDetail(key="name", value="a")],
)
SPAN = SpanReply(
    b"\x0a\x00\x0a\x01x", (IndexedError(0, ERROR.SerializeToString(deterministic=True)),)
)
TASKS = tuple(
    TaskSnapshot(stage, 4000, bytes([stage]) * 32, stage * 10, stage * 100)
    for stage in (Stage.SESSIONS, Stage.USERS)
)
COMPLETED = Snapshot(
    generation=8,
    state=SnapshotState.COMPLETED,
    cut_op=300,
    cut_revision=4000,
    root=b"\x01" * 32,
    tasks=TASKS,
    created_at=1_700_000_000_000_000,
    retention=RetentionClass.DAILY,
    decided_at=1_700_000_000_000_009,
    keep_last=5,
    keep_daily=7,
    kept_until=1_700_000_000_000_010,
    modified_revision=300,
)
FAILED = Snapshot(
    7, SnapshotState.FAILED, 2, 3, created_at=4, failure="too late", decided_at=5, keep_last=1
)
REPLY = RequestReply(5, 2, 6, 300, 4000, (SPAN, SpanReply(b"")))

# The kind, the value, its key, its bytes.
GOLDEN: list[tuple[str, SessionsValue | CatalogValue, str, str]] = [
    (
        "session",
        Session(5, 7, bytes(range(16)), 3),
        "0000000000000005",
        "0805 1007 1a10 000102030405060708090a0b0c0d0e0f 2003",
    ),
    (
        "session without requests",
        Session(5, 7, bytes(16)),
        "0000000000000005",
        f"0805 1007 1a10 {'00' * 16}",
    ),
    ("minimum", Minimum(7, 4), "0000000000000007", "0807 1004"),
    ("window", WindowRow(5, 1, 3), "0000000000000005", "0805 1001 1803"),
    ("new window", WindowRow(5, 0, 0), "0000000000000005", "0805"),
    (
        "reply",
        REPLY,
        "00000000000000050000000000000002",
        "0805 1002 1806 20ac02 28a01f 321f 0a05 0a000a0178 1216 1214 0815 1205 74616b656e"
        "1a09 0a046e616d65 120161 3200",
    ),
    (
        "reserved",
        Snapshot(9, SnapshotState.CREATED, retention=RetentionClass.PINNED),
        "0000000000000009",
        "0a06 0809 1001 4003",
    ),
    (
        "completed",
        COMPLETED,
        "0000000000000008",
        f"0aab01 0808 1002 18ac02 20a01f 2a20{'01' * 32} 322b 0801 10a01f 1a20{'01' * 32} 200a 2864"
        f"322c 0802 10a01f 1a20{'02' * 32} 2014 28c801 388080f9c0c1c48203 4002 508980f9c0c1c48203"
        "5805 6007 688a80f9c0c1c48203 70ac02",
    ),
    (
        "failed",
        FAILED,
        "0000000000000007",
        "0a1a 0807 1003 1802 2003 3804 4001 4a08 746f6f206c617465 5005 5801",
    ),
    ("counters", CatalogCounters(9), "", "0809"),
    ("feature level", FeatureLevel(3), "", "0803"),
    ("description", Description("staging", 300), "", "0a07 73746167696e67 10ac02"),
    (
        "members",
        ClusterMembers(
            300,
            2**48 + 1,
            (EpochMember(0, "a:1"), EpochMember(4, "b:2", b"d" * 16)),
            (EpochMember(5, "c:3"),),
            6,
        ),
        "",
        "08ac02 1235 0881808080808040 1205 1203613a31"
        f"1219 0804 1203 623a32 1a10 {'64' * 16} 1a07 0805 1203 633a33 2006",
    ),
]

NO_ENTITY: list[tuple[str, Callable[[int, bytes], object], int, bytes, str]] = [
    ("a kind of another section", CODEC.decode_catalog_entity, 6, b"", "there is no kind 6"),
    ("no message", CODEC.decode_sessions_entity, 1, b"\xff", "is no entity of kind 1"),
    ("no state", CODEC.decode_catalog_entity, 1, b"\x0a\x02\x08\x09", "not a valid SnapshotState"),
]


@pytest.mark.parametrize(
    ("value", "key", "encoded"), [r[1:] for r in GOLDEN], ids=[r[0] for r in GOLDEN]
)
def test_canonical_bytes(value: SessionsValue | CatalogValue, key: str, encoded: str) -> None:
    """The encoding is pinned, so that digests stay the same between builds."""
    canonical = CODEC.encode_entity(value)
    kind, found = kind_and_key(value)
    assert (found.hex(), canonical.hex()) == (key, encoded.replace(" ", ""))
    decode = (
        CODEC.decode_catalog_entity
        if isinstance(value, CatalogValue)
        else CODEC.decode_sessions_entity
    )
    assert decode(kind, canonical) == value


@pytest.mark.parametrize(
    ("decode", "kind", "canonical", "message"),
    [row[1:] for row in NO_ENTITY],
    ids=[row[0] for row in NO_ENTITY],
)
def test_no_entity(
    decode: Callable[[int, bytes], object], kind: int, canonical: bytes, message: str
) -> None:
    """Bytes that are not an entity are named, whoever wrote them."""
    with pytest.raises(ValueError, match=message):
        decode(kind, canonical)
