"""Small generations on disk, as a replica writes them: three copies, a base and a delta."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from google.protobuf.message import Message

from coordinator.mux.stage import cut_stages
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.sessions.v1 import sessions_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.api.streams.v1 import streams_pb2
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
from viewstamp.format.section import Change, SectionEntry, SectionTally

CLUSTER_ID: Final = bytes(range(16))
FEATURE_LEVEL: Final = 1
COPIES: Final = ("copy-0", "copy-1", "copy-2")
PASSWORD_HASH: Final = "$argon2id$v=19$m=19456,t=2,p=1$c2VjcmV0c2FsdA$THEPASSWORDHASH"
TOKEN_HASH: Final = b"THE-TOKEN-HASH-OF-THIRTY-TWO-BYT"
REPLY: Final = b"THE-RAW-TOKEN-IN-A-CACHED-REPLY"
SECRETS: Final = (PASSWORD_HASH.encode(), TOKEN_HASH, REPLY)
U64_MAX: Final = 2**64 - 1
NOON_US: Final = 1_700_000_000_000_000

# Every entity of a stage by (kind, key).
Entities = Mapping[tuple[int, bytes], bytes]

_KINDS: Final = {info.message: (stage, kind) for (stage, kind), info in KINDS.items()}


def _first() -> list[Message]:
    permissions = users_pb2.Permissions()
    getattr(permissions, "global").manage_servers = True
    permissions.streams.add().topics.add(poll_messages=True).topic.id = 7
    return [
        sessions_pb2.SessionEntity(session_id=5, user_id=1, nonce=bytes(16), last_number=2),
        sessions_pb2.ReplyEntity(
            session_id=5, number=2, spans=[sessions_pb2.ReplySpan(results=REPLY)]
        ),
        users_pb2.UserEntity(id=0, username="root", password_hash=PASSWORD_HASH),
        users_pb2.UserEntity(
            id=1,
            username="ann",
            status=users_pb2.USER_STATUS_ACTIVE,
            password_hash=PASSWORD_HASH,
            permissions=permissions,
            created_revision=U64_MAX,
        ),
        users_pb2.PersonalAccessTokenEntity(user_id=1, name="ci/cd", token_hash=TOKEN_HASH),
        users_pb2.PersonalAccessTokenEntity(user_id=1, name="ci", token_hash=TOKEN_HASH),
        users_pb2.UsersCountersEntity(next_user_id=2),
        *(streams_pb2.StreamEntity(id=id_, name=f"stream-{id_}") for id_ in (1, 2)),
        *(
            streams_pb2.TopicEntity(id=id_, stream_id=1 + id_ % 2, name=f"topic-{id_}")
            for id_ in range(1, 9)
        ),
        streams_pb2.AccessEntity(user_id=0, permissions=b"\x00\xff", active=True),
        streams_pb2.StreamsCountersEntity(next_stream_id=3, next_topic_id=9),
        snapshots_pb2.SnapshotEntity(
            snapshot=snapshots_pb2.Snapshot(
                generation=1, state=snapshots_pb2.SNAPSHOT_STATE_CREATED, root=bytes(32)
            )
        ),
        snapshots_pb2.CatalogCountersEntity(last_generation=1),
    ]


def _second() -> list[Message]:
    """Return the later state: stream 2 is gone, ann has a new name, there is a group."""
    gone = {("StreamEntity", "stream-2")}
    kept = [one for one in _first() if (type(one).__name__, getattr(one, "name", "")) not in gone]
    for one in kept:
        if isinstance(one, users_pb2.UserEntity) and one.id == 1:
            one.username = "anna"
    group = consumer_groups_pb2.ConsumerGroupEntity(id=1, stream_id=1, topic_id=2, name="group")
    return [*kept, group]


def by_stage(messages: Iterable[Message]) -> dict[int, Entities]:
    """Return entities by stage, then by kind and key, ascending."""
    found: dict[int, dict[tuple[int, bytes], bytes]] = {
        int(stage): {} for stage in cut_stages(FEATURE_LEVEL)
    }
    for message in messages:
        stage, kind = _KINDS[type(message)]
        key = key_of(KINDS[stage, kind], message)
        found[stage][kind, key] = message.SerializeToString(deterministic=True)
    return {stage: dict(sorted(entities.items())) for stage, entities in found.items()}


def changes(old: Entities, new: Entities) -> list[Change]:
    """Return the changes from one state of a section to another."""
    positions = sorted({*old, *new})
    found = ((*position, old.get(position), new.get(position)) for position in positions)
    return [change for change in found if change[2] != change[3]]


class SnapshotDirectory:
    """A data directory and the generations in it."""

    def __init__(self, data_directory: Path) -> None:
        self.path = data_directory
        self.copies = [data_directory / "snapshots" / name for name in COPIES]
        for copy in self.copies:
            (copy / "layers").mkdir(parents=True, exist_ok=True)
            (copy / "manifests").mkdir(exist_ok=True)
        self._state = by_stage([])
        self._tallies = {stage: SectionTally() for stage in self._state}
        self._chains: dict[int, list[LayerReference]] = {stage: [] for stage in self._state}
        self.generation = 0

    @classmethod
    def at(cls, data_directory: Path) -> SnapshotDirectory:
        """Return a replica whose generations exist; no more can be written."""
        replica = cls(data_directory)
        replica.generation = len(list((replica.copies[0] / "manifests").iterdir()))
        return replica

    def snapshot(self, messages: Iterable[Message]) -> SnapshotManifest:
        """Write the next generation."""
        self.generation += 1
        manifest = SnapshotManifest(
            format_version=1,
            cluster_id=CLUSTER_ID,
            generation=self.generation,
            cut_op=10 * self.generation,
            cut_revision=100 * self.generation,
            timestamp=NOON_US + self.generation,
            cut_checksum=bytes(16),
            feature_level=FEATURE_LEVEL,
        )
        after = by_stage(messages)
        for stage, entities in after.items():
            self._write_layer(stage, changes(self._state[stage], entities))
            self._describe(manifest, stage)
        self._state = after
        manifest.root = root_of(manifest)
        self.write(f"manifests/{manifest_name(self.generation)}", encode_manifest(manifest))
        return manifest

    def write(self, name: str, data: bytes) -> None:
        """Write every copy of a file."""
        for copy in self.copies:
            (copy / name).write_bytes(data)

    def files(self, copy: int = 0) -> dict[str, bytes]:
        """Return every file of a copy directory, manifests last, by name below it."""
        paths = sorted(path for path in self.copies[copy].rglob("*") if path.is_file())
        return {str(path.relative_to(self.copies[copy])): path.read_bytes() for path in paths}

    def _write_layer(self, stage: int, changed: list[Change]) -> None:
        chain = self._chains[stage]
        entries = list(filter(None, map(self._tallies[stage].add, changed)))
        if not entries:
            return
        base_generation = chain[-1].generation if chain else 0
        writer = LayerWriter(LayerHeader(CLUSTER_ID, stage, 1, self.generation, base_generation, 1))
        data = layer_bytes(writer, entries)
        self.write(f"layers/{layer_name(writer.digest)}", data)
        chain.append(
            LayerReference(
                digest=writer.digest,
                size_bytes=len(data),
                generation=self.generation,
                base_generation=base_generation,
                entries=writer.entries,
                tombstones=writer.tombstones,
                raw_bytes=writer.raw_bytes,
            )
        )

    def _describe(self, manifest: SnapshotManifest, stage: int) -> None:
        section, tally = section_of(manifest, stage), self._tallies[stage]
        section.version = 1
        section.applied_revision = manifest.cut_revision
        section.state_digest = tally.digest.to_bytes()
        for kind, entities in tally.kinds.items():
            section.kinds.add(kind=kind, entities=entities)
        section.layers.extend(self._chains[stage])


def layer_bytes(writer: LayerWriter, entries: Iterable[SectionEntry]) -> bytes:
    """Return the bytes of a layer file."""
    blocks = [writer.begin(), *(writer.add(compress(raw)) for raw in raw_blocks(entries))]
    return b"".join([*blocks, writer.finish()])


def two_generations(data_directory: Path) -> SnapshotDirectory:
    """Write generations 1 and 2 of a small cluster below a data directory."""
    replica = SnapshotDirectory(data_directory)
    replica.snapshot(_first())
    replica.snapshot(_second())
    return replica


def flip(path: Path, offset: int = 100) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
