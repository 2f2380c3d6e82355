"""A small snapshot with real entities, and tools to tamper with layers and seal them again."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final

import zstandard
from google.protobuf.message import Message

from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.domain.v1.domain_service_pb2 import KindCount
from viewstamp.api.sessions.v1 import sessions_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.api.users.v1 import users_pb2
from viewstamp.format.kinds import KINDS, key_of
from viewstamp.format.layer import LayerHeader, LayerWriter, compress, raw_blocks
from viewstamp.format.manifest import (
    encode_manifest,
    layer_name,
    manifest_name,
    root_of,
    section_of,
)
from viewstamp.format.prepare import checksum_of
from viewstamp.format.section import SectionEntry, SectionTally

CLUSTER_ID: Final = bytes(range(16))
SESSIONS, USERS, STREAMS, CONSUMER_GROUPS, CATALOG = 1, 2, 3, 4, 5
GENERATION: Final = 3
KINDS_BY_MESSAGE: Final = {info.message: kind for (_, kind), info in KINDS.items()}
Chain = list[tuple[int, list[SectionEntry]]]


def entry(stage: int, message: Message) -> SectionEntry:
    """The entry of an entity."""
    kind = KINDS_BY_MESSAGE[type(message)]
    canonical = message.SerializeToString(deterministic=True)
    return SectionEntry(kind, key_of(KINDS[stage, kind], message), canonical)


def gone(entity: SectionEntry) -> SectionEntry:
    """The tombstone of an entity."""
    return entity._replace(canonical=None)


def layer_of(
    entries: Iterable[SectionEntry],
    *,
    stage: int = USERS,
    generation: int = GENERATION,
    base: int = 0,
) -> bytes:
    """A whole layer file."""
    writer = LayerWriter(LayerHeader(CLUSTER_ID, stage, 1, generation, base, 1))
    parts = [writer.begin()]
    parts += [writer.add(compress(raw)) for raw in raw_blocks(entries)]
    return b"".join([*parts, writer.finish()])


def user(user_id: int, name: str) -> SectionEntry:
    """A user with a secret."""
    return entry(
        USERS,
        users_pb2.UserEntity(
            id=user_id,
            username=name,
            status=users_pb2.USER_STATUS_ACTIVE,
            password_hash=f"$argon2id${name}",
            created_at=1_700_000_000_000_000,
            created_revision=1 + user_id,
        ),
    )


def chains() -> Mapping[int, Chain]:
    """Return by stage the layers of a small snapshot, as generation and entries. Streams are
    empty."""
    span = sessions_pb2.ReplySpan(results=b"\x0a\x00")
    sessions = [
        entry(SESSIONS, sessions_pb2.SessionEntity(session_id=7, user_id=0, nonce=bytes(16))),
        entry(SESSIONS, sessions_pb2.MinimumEntity(user_id=1, minimum=9)),
        entry(SESSIONS, sessions_pb2.WindowEntity(session_id=7, acked=3, last_applied=4)),
        entry(SESSIONS, sessions_pb2.ReplyEntity(session_id=7, number=4, view=2, spans=[span])),
    ]
    users = [user(number, f"user-{number}") for number in range(4)]
    token = users_pb2.PersonalAccessTokenEntity(user_id=2, name="ci", token_hash=b"\x07" * 32)
    counters = [
        entry(USERS, users_pb2.UsersCountersEntity(next_user_id=next_id)) for next_id in (4, 5)
    ]
    group = consumer_groups_pb2.ConsumerGroupEntity(id=1, stream_id=1, topic_id=2, name="readers")
    member = consumer_groups_pb2.MemberEntity(
        group_id=1, session_id=7, owned_partitions=[0, 1, 300]
    )
    groups = [
        entry(CONSUMER_GROUPS, group),
        entry(CONSUMER_GROUPS, member),
        entry(CONSUMER_GROUPS, consumer_groups_pb2.ConsumerGroupsCountersEntity(next_group_id=2)),
    ]
    created = snapshots_service_pb2.Snapshot(
        generation=GENERATION, state=snapshots_service_pb2.SNAPSHOT_STATE_CREATED, cut_op=90
    )
    catalog = [
        entry(CATALOG, snapshots_service_pb2.SnapshotEntity(snapshot=created)),
        entry(CATALOG, snapshots_service_pb2.CatalogCountersEntity(last_generation=GENERATION)),
    ]
    return {
        SESSIONS: [(GENERATION, sessions)],
        USERS: [
            (1, [*users, entry(USERS, token), counters[0]]),
            (2, [user(1, "renamed"), gone(users[3]), counters[1]]),
            (GENERATION, [user(4, "user-4"), gone(entry(USERS, token))]),
        ],
        STREAMS: [],
        CONSUMER_GROUPS: [(2, groups)],
        CATALOG: [(GENERATION, catalog)],
    }


def state_of(chain: Chain) -> dict[tuple[int, bytes], bytes]:
    """Return the content of a chain, by the simplest possible model."""
    state: dict[tuple[int, bytes], bytes] = {}
    for _, entries in chain:
        for kind, key, canonical in entries:
            state.pop((kind, key), None)
            if canonical is not None:
                state[kind, key] = canonical
    return dict(sorted(state.items()))


def small_snapshot() -> tuple[SnapshotManifest, dict[str, bytes]]:
    """A manifest, and the layer files that it names."""
    manifest = SnapshotManifest(
        format_version=1,
        cluster_id=CLUSTER_ID,
        generation=GENERATION,
        cut_op=90,
        cut_revision=1000,
        view=4,
        timestamp=1_700_000_000_000_000,
        cut_checksum=bytes(range(16, 32)),
        feature_level=1,
        parent_generation=2,
        parent_root=b"\x05" * 32,
    )
    files: dict[str, bytes] = {}
    for stage, chain in chains().items():
        _add_section(manifest, files, stage, chain)
    manifest.root = root_of(manifest)
    return manifest, files


def snapshot_files() -> dict[str, bytes]:
    """Every file of the small snapshot, by its name below a copy directory."""
    manifest, layers = small_snapshot()
    files = {f"layers/{name}": data for name, data in layers.items()}
    return {**files, f"manifests/{manifest_name(GENERATION)}": encode_manifest(manifest)}


def _add_section(
    manifest: SnapshotManifest, files: dict[str, bytes], stage: int, chain: Chain
) -> None:
    section = section_of(manifest, stage)
    section.version = 1
    section.applied_revision = 1000
    tally = SectionTally()
    for (kind, key), canonical in state_of(chain).items():
        tally.add((kind, key, None, canonical))
    section.state_digest = tally.digest.to_bytes()
    section.kinds.extend(
        KindCount(kind=kind, entities=count) for kind, count in tally.kinds.items()
    )
    base = 0
    for generation, entries in chain:
        section.layers.append(_add_layer(files, stage, generation, base, entries))
        base = generation


def _add_layer(
    files: dict[str, bytes], stage: int, generation: int, base: int, entries: list[SectionEntry]
) -> LayerReference:
    writer = LayerWriter(LayerHeader(CLUSTER_ID, stage, 1, generation, base, 1))
    parts = [writer.begin()]
    parts += [writer.add(compress(raw)) for raw in raw_blocks(entries)]
    parts.append(writer.finish())
    files[layer_name(writer.digest)] = b"".join(parts)
    return LayerReference(
        digest=writer.digest,
        size_bytes=writer.size_bytes,
        generation=generation,
        base_generation=base,
        entries=writer.entries,
        tombstones=writer.tombstones,
        raw_bytes=writer.raw_bytes,
    )


def sealed(part: bytes) -> bytes:
    """Return the part with its first 16 bytes set to the checksum of the rest."""
    return checksum_of(part[16:]) + part[16:]


def block_of(raw: bytes, entries: int, tombstones: int = 0, frame: bytes | None = None) -> bytes:
    """A sealed block of any raw bytes, or of any frame."""
    frame = zstandard.ZstdCompressor(level=1).compress(raw) if frame is None else frame
    numbers = (len(frame), len(raw), entries, tombstones)
    return sealed(struct.pack("<16s4sHHIIII", b"", b"VSLB", 1, 0, *numbers) + frame)


def raw_entry(kind: int, key: bytes, canonical: bytes = b"", flags: int = 0) -> bytes:
    """The raw bytes of an entry."""
    return struct.pack("<IIHH", kind, len(canonical), len(key), flags) + key + canonical


Patches = Mapping[str, Iterable[tuple[int, bytes]]]


def tampered(layer: bytes, patches: Patches) -> bytes:
    """A layer with bytes replaced in its parts, and every checksum made to fit again.

    Parts are "header", "block" (all of them), "index" and "trailer"; a patch is an offset in the
    part, from its end if negative, and the new bytes. Checksums that a patch sets stay as it says.
    """
    index_offset, index_bytes = struct.unpack_from("<QQ", layer, len(layer) - 104 + 24)
    index = bytearray(layer[index_offset : index_offset + index_bytes])
    blocks = []
    place = 32
    while place < len(index):
        offset, size_bytes = struct.unpack_from("<QI", index, place)
        first_bytes, last_bytes = struct.unpack_from("<HH", index, place + 48)
        block = sealed(_patched(layer[offset : offset + size_bytes], patches.get("block", ())))
        index[place + 24 : place + 40] = block[:16]
        blocks.append(block)
        place += 56 + first_bytes + last_bytes
    header = sealed(_patched(layer[:80], patches.get("header", ())))
    new_index = sealed(_patched(bytes(index), patches.get("index", ())))
    trailer = layer[-104:-32] + header[:16] + new_index[:16]
    new_trailer = sealed(_patched(trailer, patches.get("trailer", ())))
    return header + b"".join(blocks) + new_index + new_trailer


def _patched(part: bytes, patches: Iterable[tuple[int, bytes]]) -> bytes:
    changed = bytearray(part)
    for offset, data in patches:
        offset %= len(changed)
        changed[offset : offset + len(data)] = data
    return bytes(changed[: len(part)])
