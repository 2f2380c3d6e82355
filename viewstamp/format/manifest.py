"""Manifest files: the sections and layers of one generation, framed and checked.

A manifest file is a frame of 48 bytes followed at once by an encoded SnapshotManifest
(`protos/viewstamp/api/snapshots/v1/manifest.proto`) and nothing else. Integers are unsigned and
little-endian.

====== ==== ================================================================================
offset size frame
====== ==== ================================================================================
0      32   checksum: BLAKE3 (32 bytes) of all other bytes of the file, 32 to its end
32     4    magic, the ASCII letters "VSMF"
36     2    format version, 1
38     2    reserved, zero
40     4    length of the message in bytes (M), at most 1 MiB
44     4    reserved, zero
48     M    the message: fields ascending, no default values, no unknown fields
====== ==== ================================================================================

The root is BLAKE3 (32 bytes) of these bytes:

====== ==== ================================================================================
offset size root preimage
====== ==== ================================================================================
0      4    magic, the ASCII letters "VSRT"
4      2    format version, 1
6      2    sections (N)
8      8    generation
16     8    op of the cut
24     8    revision of the cut
32     8    log time of the cut, microseconds since 1970
40     4    feature level
44     4    reserved, zero
48     40 N per section, stages ascending, 40 bytes each:
+0     4    stage, the number of routing.v1.Stage
+4     4    section version
+8     32   state digest
====== ==== ================================================================================

The root identifies the state and its cut. It does not include layers, views and parents, because
replicas that agree may have different layers. The feature level determines the sections: five at
levels 1 to 3.

A reader verifies in this order: length, magic, checksum, version, reserved bytes, the message's own
format version, unknown fields, canonical encoding, and then the rules for any manifest
(`docs/snapshot-files.md`, "Manifest").
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final

from blake3 import blake3
from google.protobuf.message import DecodeError, Message

from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.snapshots.v1.manifest_pb2 import (
    LayerReference,
    SectionManifest,
    SnapshotManifest,
)
from viewstamp.format import CHECKSUM_BYTES, FormatError, FormatVersionError
from viewstamp.format.digest import DIGEST_BYTES
from viewstamp.format.layer import LayerReader
from viewstamp.limits import MIB, SECTION_SINCE_LEVEL

MANIFEST_MAGIC: Final = b"VSMF"
MANIFEST_VERSION: Final = 1
FRAME_BYTES: Final = 48
MANIFEST_BYTES_MAX: Final = 1 * MIB
ROOT_MAGIC: Final = b"VSRT"
ROOT_VERSION: Final = 1
LAYER_SUFFIX: Final = ".layer"
MANIFEST_SUFFIX: Final = ".manifest"

_NO_DIGEST: Final = bytes(DIGEST_BYTES)
_FRAME = struct.Struct("<32s4sHHII")
_ROOT = struct.Struct("<4sHHQQQQII")
_ROOT_SECTION = struct.Struct("<II32s")
assert _FRAME.size == FRAME_BYTES

_LAYER_NAME = re.compile(rf"([0-9a-f]{{64}}){re.escape(LAYER_SUFFIX)}")
_MANIFEST_NAME = re.compile(rf"([0-9]{{20}}){re.escape(MANIFEST_SUFFIX)}")

# Stage number and field of each section, found by the type of the field. In the message as in the
# pipeline, sections have the order of their stages.
_SECTION_FIELDS: Final[tuple[tuple[int, str], ...]] = tuple(
    zip(
        sorted(stage for stage in routing_pb2.Stage.values() if stage),
        (
            field.name
            for field in sorted(SnapshotManifest.DESCRIPTOR.fields, key=lambda field: field.number)
            if field.message_type is SectionManifest.DESCRIPTOR
        ),
        strict=True,
    )
)


def layer_name(digest: bytes) -> str:
    """Return the file name of a layer: the 64 hexadecimal digits of its digest, ".layer"."""
    if len(digest) != DIGEST_BYTES:
        raise ValueError(f"a layer's digest is {DIGEST_BYTES} bytes, not {len(digest)}")
    return digest.hex() + LAYER_SUFFIX


def digest_of(name: str) -> bytes:
    """Return the digest in the file name of a layer; raises FormatError for any other name."""
    match = _LAYER_NAME.fullmatch(name)
    if match is None:
        raise FormatError(f"{name!r} is no layer: 64 hexadecimal digits and {LAYER_SUFFIX}")
    return bytes.fromhex(match[1])


def manifest_name(generation: int) -> str:
    """Return the file name of a manifest: the generation in 20 digits, ".manifest"."""
    if not 1 <= generation < 1 << 64:
        raise ValueError(f"a generation lies in 1..2**64-1, not {generation}")
    return f"{generation:020d}{MANIFEST_SUFFIX}"


def generation_of(name: str) -> int:
    """Return the generation in the file name of a manifest; FormatError for any other name."""
    match = _MANIFEST_NAME.fullmatch(name)
    if match is None or not 1 <= int(match[1]) < 1 << 64:
        raise FormatError(f"{name!r} is no manifest: a generation in 20 digits, {MANIFEST_SUFFIX}")
    return int(match[1])


def sections(manifest: SnapshotManifest) -> Iterator[tuple[int, SectionManifest]]:
    """Yield the stage number and manifest of each section that is there, in stage order."""
    for stage, name in _SECTION_FIELDS:
        if _has(manifest, name):
            yield stage, getattr(manifest, name)


def section_of(manifest: SnapshotManifest, stage: int) -> SectionManifest:
    """Return the section of a stage, to read it or, in an unfinished manifest, to fill it in.

    Raises KeyError for a stage that has none.
    """
    section: SectionManifest = getattr(manifest, dict(_SECTION_FIELDS)[stage])
    return section


def root_of(manifest: SnapshotManifest) -> bytes:
    """Return the root of a manifest, 32 bytes, without regard to its field `root`.

    Raises FormatError for a section without a digest of 32 bytes, or one that is missing.
    """
    parts = [
        _ROOT.pack(
            ROOT_MAGIC,
            ROOT_VERSION,
            len(_due(manifest.feature_level)),
            manifest.generation,
            manifest.cut_op,
            manifest.cut_revision,
            manifest.timestamp,
            manifest.feature_level,
            0,
        )
    ]
    _check_presence(manifest)
    for stage, section in sections(manifest):
        _check_length(f"state digest of stage {stage}", section.state_digest, DIGEST_BYTES)
        parts.append(_ROOT_SECTION.pack(stage, section.version, section.state_digest))
    return blake3(b"".join(parts)).digest()


def encode_manifest(manifest: SnapshotManifest) -> bytes:
    """Return the bytes of a manifest file; `manifest.root` must equal the result of `root_of`.

    Raises FormatError for a manifest that `decode_manifest` would refuse.
    """
    _check(manifest)
    message = manifest.SerializeToString(deterministic=True)
    if len(message) > MANIFEST_BYTES_MAX:
        raise FormatError(f"manifest is {len(message)} bytes, at most {MANIFEST_BYTES_MAX} allowed")
    packed = _FRAME.pack(b"", MANIFEST_MAGIC, MANIFEST_VERSION, 0, len(message), 0)
    checked = packed[DIGEST_BYTES:] + message
    return blake3(checked).digest() + checked


def decode_manifest(data: bytes) -> SnapshotManifest:
    """Read and verify a whole manifest file; raises FormatError saying what is wrong."""
    message = _unframe(data)
    try:
        manifest = SnapshotManifest.FromString(message)
    except DecodeError as error:
        raise FormatError(f"manifest does not decode: {error}") from error
    _check(manifest)
    if manifest.SerializeToString(deterministic=True) != message:
        raise FormatError("manifest is not in canonical encoding")
    return manifest


def check_layer_belongs(
    manifest: SnapshotManifest, stage: int, reference: LayerReference, layer: LayerReader
) -> None:
    """Raise FormatError unless a layer file agrees with the reference in a stage's section."""
    section = section_of(manifest, stage)
    header = layer.header
    for name, found, expected in (
        ("cluster id", header.cluster_id.hex(), manifest.cluster_id.hex()),
        ("stage", header.stage, stage),
        ("section version", header.section_version, section.version),
        ("generation", header.generation, reference.generation),
        ("base generation", header.base_generation, reference.base_generation),
        ("file size", layer.size_bytes, reference.size_bytes),
        ("number of entries", layer.entry_count, reference.entries),
        ("number of tombstones", layer.tombstone_count, reference.tombstones),
        ("number of raw bytes", layer.raw_bytes, reference.raw_bytes),
    ):
        if found != expected:
            raise FormatError(
                f"layer {reference.digest.hex()} has {name} {found}, the manifest of generation "
                f"{manifest.generation} says {expected}"
            )


def _unframe(data: bytes) -> bytes:
    """Verify the frame; return the encoded message."""
    if not FRAME_BYTES <= len(data) <= FRAME_BYTES + MANIFEST_BYTES_MAX:
        raise FormatError(
            f"manifest is {len(data)} bytes, must be {FRAME_BYTES} to "
            f"{FRAME_BYTES + MANIFEST_BYTES_MAX}"
        )
    checksum, magic, version, reserved_start, length, reserved_end = _FRAME.unpack_from(data)
    if magic != MANIFEST_MAGIC:
        raise FormatError(f"manifest magic is {magic!r}, must be {MANIFEST_MAGIC!r}")
    if checksum != blake3(data[DIGEST_BYTES:]).digest():
        raise FormatError(f"manifest checksum {checksum.hex()} does not match its bytes")
    if version != MANIFEST_VERSION:
        raise FormatVersionError(
            f"manifest file version {version} is unknown, this build reads {MANIFEST_VERSION}"
        )
    if reserved_start or reserved_end:
        raise FormatError("reserved bytes of the manifest are not zero")
    if FRAME_BYTES + length != len(data):
        raise FormatError(f"manifest of {len(data)} bytes states a message of {length}")
    return data[FRAME_BYTES:]


def _check(manifest: SnapshotManifest) -> None:
    """Raise FormatError unless the manifest satisfies the rules for any manifest."""
    if manifest.format_version != MANIFEST_VERSION:
        raise FormatVersionError(
            f"manifest format version {manifest.format_version} is unknown, this build reads "
            f"{MANIFEST_VERSION}"
        )
    _check_known(manifest)
    _check_length("cluster id", manifest.cluster_id, CHECKSUM_BYTES)
    _check_length("checksum of the cut", manifest.cut_checksum, CHECKSUM_BYTES)
    for name in ("generation", "cut_op", "cut_revision"):
        if not getattr(manifest, name):
            raise FormatError(f"{name} is 0, the first one is 1")
    _check_parent(manifest)
    _check_presence(manifest)
    for stage, section in sections(manifest):
        try:
            _check_section(manifest, section)
        except FormatError as error:
            raise FormatError(f"section of stage {stage}: {error}") from error
    root = root_of(manifest)
    if manifest.root != root:
        raise FormatError(f"root is {manifest.root.hex()}, the sections give {root.hex()}")


def _check_known(manifest: SnapshotManifest) -> None:
    known = SnapshotManifest()
    known.CopyFrom(manifest)
    known.DiscardUnknownFields()
    if known.ByteSize() != manifest.ByteSize():
        raise FormatError("manifest has fields that this build does not know")


def _check_parent(manifest: SnapshotManifest) -> None:
    if manifest.parent_generation >= manifest.generation:
        raise FormatError(
            f"parent generation {manifest.parent_generation} does not come before generation "
            f"{manifest.generation}"
        )
    _check_length(
        "parent root", manifest.parent_root, DIGEST_BYTES * bool(manifest.parent_generation)
    )


def _check_presence(manifest: SnapshotManifest) -> None:
    level = manifest.feature_level
    due = _due(level)
    found = frozenset(stage for stage, _ in sections(manifest))
    missing = [name for stage, name in _SECTION_FIELDS if stage in due - found]
    if missing:
        raise FormatError(f"manifest lacks the sections {', '.join(missing)}")
    early = [name for stage, name in _SECTION_FIELDS if stage in found - due]
    if early:
        raise FormatError(
            f"manifest has sections of a later feature level than {level}: {', '.join(early)}"
        )


def _due(feature_level: int) -> frozenset[int]:
    return frozenset(
        stage
        for stage, _ in _SECTION_FIELDS
        if SECTION_SINCE_LEVEL.get(stage, 1) <= max(feature_level, 1)
    )


def _has(message: Message, name: str) -> bool:
    return message.HasField(name)


def _check_section(manifest: SnapshotManifest, section: SectionManifest) -> None:
    if not section.version:
        raise FormatError("version is 0, the first one is 1")
    if section.applied_revision > manifest.cut_revision:
        raise FormatError(
            f"applied revision {section.applied_revision} lies behind the cut at "
            f"{manifest.cut_revision}"
        )
    _check_length("state digest", section.state_digest, DIGEST_BYTES)
    kinds = [count.kind for count in section.kinds]
    if kinds != sorted(set(kinds)) or not all(count.entities for count in section.kinds):
        raise FormatError(f"kinds {kinds} are not ascending, or one of them has no entities")
    for reference in section.layers:
        _check_layer(reference)
    _check_chain(manifest, section)


def _check_layer(reference: LayerReference) -> None:
    _check_length("digest of a layer", reference.digest, DIGEST_BYTES)
    if reference.base_generation >= reference.generation:
        raise FormatError(
            f"layer of generation {reference.generation} does not come after its base generation "
            f"{reference.base_generation}"
        )
    if reference.tombstones > (reference.entries if reference.base_generation else 0):
        raise FormatError(
            f"layer of generation {reference.generation} has {reference.tombstones} tombstones; a "
            "base has none, and a delta one per entry at most"
        )


def _check_chain(manifest: SnapshotManifest, section: SectionManifest) -> None:
    """Raise FormatError unless the layers are a chain from a base up to this generation."""
    reached = 0
    for reference in section.layers:
        if reference.base_generation != reached:
            raise FormatError(
                f"layer of generation {reference.generation} is against generation "
                f"{reference.base_generation}, the chain before it reaches {reached}"
            )
        reached = reference.generation
    if reached > manifest.generation:
        raise FormatError(f"chain reaches generation {reached}, behind {manifest.generation}")
    entities = sum(count.entities for count in section.kinds)
    if len(section.layers) < 2 and entities != sum(layer.entries for layer in section.layers):
        raise FormatError(f"{entities} entities are not those of {len(section.layers)} layers")
    if (section.state_digest == _NO_DIGEST) != (entities == 0):
        raise FormatError(f"state digest {section.state_digest.hex()} of {entities} entities")


def _check_length(name: str, value: bytes, expected: int) -> None:
    if len(value) != expected:
        raise FormatError(f"{name} is {len(value)} bytes, must be {expected}")
