"""Manifests: framed, canonical, and refused unless everything in them fits together."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from tests.viewstamp.format.snapshot_builders import CATALOG, STREAMS, USERS, small_snapshot
from viewstamp.api.domain.v1.domain_service_pb2 import KindCount
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.snapshots.v1.manifest_pb2 import SectionManifest, SnapshotManifest
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format import manifest as manifests
from viewstamp.format.layer import reader_of
from viewstamp.format.manifest import (
    MANIFEST_BYTES_MAX,
    check_layer_belongs,
    decode_manifest,
    digest_of,
    encode_manifest,
    generation_of,
    layer_name,
    manifest_name,
    root_of,
    section_of,
    sections,
)
from viewstamp.limits import SECTION_SINCE_LEVEL

MANIFEST, LAYERS = small_snapshot()
FILE = encode_manifest(MANIFEST)
MESSAGE = FILE[48:]
STAGES = sorted(stage for stage in routing_pb2.Stage.values() if stage)


def framed(message: bytes, **fields: int) -> bytes:
    """A message in a sealed frame, with freely chosen numbers."""
    numbers = {"version": 1, "start": 0, "length": len(message), "end": 0} | fields
    checked = struct.pack("<4sHHII", b"VSMF", *numbers.values()) + message
    return blake3(checked).digest() + checked


def changed(change: Callable[[SnapshotManifest], object], *, root: bool = True) -> SnapshotManifest:
    """The manifest after a change, with the root that it then has."""
    manifest = SnapshotManifest()
    manifest.CopyFrom(MANIFEST)
    change(manifest)
    if root:
        with contextlib.suppress(FormatError):
            manifest.root = root_of(manifest)
    return manifest


def test_a_manifest_comes_back() -> None:
    """An encoded message decodes to itself."""
    assert decode_manifest(FILE) == MANIFEST
    assert framed(MANIFEST.SerializeToString(deterministic=True)) == FILE


def test_sections_are_the_stages() -> None:
    """Each stage but the unspecified one has a section field of its name, in stage order."""
    manifest = SnapshotManifest()
    for stage in STAGES:
        section = getattr(manifest, routing_pb2.Stage.Name(stage).removeprefix("STAGE_").lower())
        section.version = stage
        assert section_of(manifest, stage) is section
    assert [(stage, section.version) for stage, section in sections(manifest)] == [
        (stage, stage) for stage in STAGES
    ]
    with pytest.raises(KeyError):
        section_of(manifest, max(STAGES) + 1)


def test_a_later_stage_has_a_section_from_its_level_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that came at level 2 is missing at level 1, and due at level 2; the root counts."""
    monkeypatch.setattr(manifests, "SECTION_SINCE_LEVEL", {**SECTION_SINCE_LEVEL, CATALOG: 2})
    first = changed(lambda manifest: manifest.ClearField("catalog"))
    assert decode_manifest(encode_manifest(first)) == first
    assert CATALOG not in dict(sections(first))
    assert section_of(first, CATALOG) == SectionManifest()
    second = changed(set_top(feature_level=2))
    assert decode_manifest(encode_manifest(second)) == second
    first.feature_level = 2
    with pytest.raises(FormatError, match="manifest lacks the sections catalog"):
        root_of(first)
    second.feature_level = 1
    with pytest.raises(FormatError, match="sections of a later feature level than 1: catalog"):
        root_of(second)


def test_a_section_under_way_is_filled_in() -> None:
    """A manifest being made has only the sections that were touched."""
    manifest = SnapshotManifest()
    section_of(manifest, CATALOG).version = 3
    assert list(sections(manifest)) == [(CATALOG, SectionManifest(version=3))]


def test_root_is_as_documented() -> None:
    """The root is BLAKE3 over the bytes that the specification names."""
    preimage = struct.pack("<4sHHQQQQII", b"VSRT", 1, 5, 3, 90, 1000, 1_700_000_000_000_000, 1, 0)
    for stage, section in sections(MANIFEST):
        preimage += struct.pack("<II", stage, section.version) + section.state_digest
    assert root_of(MANIFEST) == blake3(preimage).digest() == MANIFEST.root


def set_users(**values: int | bytes) -> Callable[[SnapshotManifest], None]:
    """A change of fields of the users section."""

    def change(manifest: SnapshotManifest) -> None:
        for name, value in values.items():
            setattr(manifest.users, name, value)

    return change


def set_layer(index: int, **values: int | bytes) -> Callable[[SnapshotManifest], None]:
    """A change of fields of a layer of the users section, which has three."""

    def change(manifest: SnapshotManifest) -> None:
        for name, value in values.items():
            setattr(manifest.users.layers[index], name, value)

    return change


def set_top(**values: int | bytes) -> Callable[[SnapshotManifest], None]:
    """A change of fields of the manifest itself."""

    def change(manifest: SnapshotManifest) -> None:
        for name, value in values.items():
            setattr(manifest, name, value)

    return change


CHANGES_OF_ROOT: dict[str, Callable[[SnapshotManifest], object]] = {
    "generation": set_top(generation=4),
    "cut op": set_top(cut_op=91),
    "cut revision": set_top(cut_revision=1001),
    "timestamp": set_top(timestamp=1),
    "feature level": set_top(feature_level=2),
    "version": set_users(version=2),
    "digest": set_users(state_digest=bytes(31) + b"\1"),
}


@pytest.mark.parametrize("name", CHANGES_OF_ROOT)
def test_root_covers(name: str) -> None:
    """A change of anything that replicas must agree on changes the root."""
    manifest = changed(CHANGES_OF_ROOT[name], root=False)
    assert root_of(manifest) != MANIFEST.root
    with pytest.raises(FormatError, match="the sections give"):
        encode_manifest(manifest)


def test_root_does_not_cover_layers() -> None:
    """Replicas that layered their sections differently have the same root."""
    manifest = changed(
        lambda manifest: (set_layer(0, digest=bytes(32))(manifest), set_top(view=9)(manifest))
    )
    assert manifest.root == MANIFEST.root
    assert decode_manifest(encode_manifest(manifest)) == manifest


def add_kind(manifest: SnapshotManifest, kind: int, entities: int) -> None:
    """One more count in the users section."""
    manifest.users.kinds.append(KindCount(kind=kind, entities=entities))


def clear_two(manifest: SnapshotManifest) -> None:
    """Take two sections away."""
    manifest.ClearField("users")
    manifest.ClearField("catalog")


REFUSED: dict[str, tuple[Callable[[SnapshotManifest], object], str]] = {
    "cluster id": (set_top(cluster_id=b"short"), "cluster id is 5 bytes, must be 16"),
    "cut checksum": (set_top(cut_checksum=b""), "checksum of the cut is 0 bytes, must be 16"),
    "generation": (set_top(generation=0), "generation is 0"),
    "cut op": (set_top(cut_op=0), "cut_op is 0"),
    "cut revision": (set_top(cut_revision=0), "cut_revision is 0"),
    "parent": (set_top(parent_generation=3), "parent generation 3 does not come before"),
    "no parent root": (set_top(parent_root=b""), "parent root is 0 bytes, must be 32"),
    "root of no parent": (set_top(parent_generation=0), "parent root is 32 bytes, must be 0"),
    "missing": (clear_two, "users, catalog"),
    "version": (set_users(version=0), "section of stage 2: version is 0"),
    "applied": (set_users(applied_revision=1001), "1001 lies behind the cut at 1000"),
    "digest": (set_users(state_digest=b"x"), "state digest is 1 bytes, must be 32"),
    "kinds": (lambda m: add_kind(m, 1, 1), "kinds .* are not ascending"),
    "empty kind": (lambda m: add_kind(m, 9, 0), "one of them has no entities"),
    "layer digest": (set_layer(0, digest=b""), "digest of a layer is 0 bytes"),
    "layer order": (set_layer(2, generation=2), "does not come after its base generation 2"),
    "base tombstones": (set_layer(0, tombstones=1), "a base has none"),
    "delta tombstones": (set_layer(1, tombstones=4), "one per entry at most"),
    "no base": (lambda m: m.users.layers.pop(0), "the chain before it reaches 0"),
    "a hole": (lambda m: m.users.layers.pop(1), "the chain before it reaches 1"),
    "two bases": (set_layer(1, base_generation=0, tombstones=0), "the chain before it reaches 1"),
    "future": (set_layer(2, generation=4), "chain reaches generation 4, behind 3"),
    "no layers": (lambda m: m.users.ClearField("layers"), "are not those of 0 layers"),
    "entities": (lambda m: m.streams.kinds.add(kind=1, entities=1), "1 entities are not those"),
    "a lone base": (
        lambda m: setattr(m.catalog.layers[0], "entries", 3),
        "section of stage 5: 2 entities are not those of 1 layers",
    ),
    "digest of nothing": (
        lambda m: setattr(m.streams, "state_digest", b"\1" * 32),
        "section of stage 3: state digest 01.* of 0 entities",
    ),
    "no digest": (set_users(state_digest=bytes(32)), "state digest 00.* of 5 entities"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_manifests_are_refused(name: str) -> None:
    """A contradictory manifest is neither written nor read, and the message says why."""
    change, message = REFUSED[name]
    manifest = changed(change)
    with pytest.raises(FormatError, match=message):
        encode_manifest(manifest)
    with pytest.raises(FormatError, match=message):
        decode_manifest(framed(manifest.SerializeToString(deterministic=True)))


DAMAGED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "manifest is 0 bytes, must be 48 to"),
    "too long": (FILE.ljust(49 + MANIFEST_BYTES_MAX), "manifest is 1048625 bytes"),
    "magic": (FILE[:32] + b"VSMX" + FILE[36:], "manifest magic is b'VSMX'"),
    "checksum": (bytes(32) + FILE[32:], "manifest checksum 0+ does not match"),
    "start": (framed(MESSAGE, start=1), "reserved bytes of the manifest"),
    "end": (framed(MESSAGE, end=1), "reserved bytes of the manifest"),
    "length": (framed(MESSAGE, length=7), "states a message of 7"),
    "message": (framed(b"\xff"), "manifest does not decode"),
    "unknown": (framed(MESSAGE + b"\xf8\x07\x01"), "fields that this build does not know"),
    "nested unknown": (
        framed(MESSAGE + b"\x72\x03\xf8\x07\x01"),
        "fields that this build does not know",
    ),
    "default": (framed(MESSAGE + b"\x18\x03"), "not in canonical encoding"),
    "order": (framed(MESSAGE[2:] + MESSAGE[:2]), "not in canonical encoding"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_refused(name: str) -> None:
    """A file that is not exactly a framed canonical message is refused."""
    data, message = DAMAGED[name]
    with pytest.raises(FormatError, match=message):
        decode_manifest(data)


def test_later_versions_are_not_called_damage() -> None:
    """An intact file or message of a later version is not called damaged, whatever its fields."""
    later = changed(set_top(format_version=2)).SerializeToString() + b"\xf8\x07\x01"
    for data in (framed(MESSAGE, version=2), framed(later)):
        with pytest.raises(FormatVersionError, match="version 2 is unknown"):
            decode_manifest(data)


def test_endless_manifests_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest beyond its limit is refused by the writer too."""
    monkeypatch.setattr(manifests, "MANIFEST_BYTES_MAX", 100)
    with pytest.raises(FormatError, match="at most 100 allowed"):
        encode_manifest(MANIFEST)


@given(st.binary(max_size=200), st.integers(0, len(MESSAGE)))
def test_any_bytes_give_format_errors_only(data: bytes, offset: int) -> None:
    """Any bytes, as a file or as a message, raise only FormatError."""
    for file in (
        data,
        framed(data),
        framed(MESSAGE[:offset] + data),
        framed(MESSAGE[:offset] + data + MESSAGE[offset:]),
    ):
        with contextlib.suppress(FormatError):
            decode_manifest(file)


def test_layers_belong_to_their_references() -> None:
    """A layer matches its reference, and none of another section or generation does."""
    for stage, section in sections(MANIFEST):
        for reference in section.layers:
            layer = reader_of(LAYERS[layer_name(reference.digest)])
            check_layer_belongs(MANIFEST, stage, reference, layer)
    with pytest.raises(FormatError, match="has stage 5, the manifest of generation 3 says 2"):
        check_layer_belongs(MANIFEST, USERS, reference, layer)
    first, second = (
        reader_of(LAYERS[layer_name(reference.digest)]) for reference in MANIFEST.users.layers[:2]
    )
    with pytest.raises(FormatError, match="has generation 1, the manifest of generation 3 says 2"):
        check_layer_belongs(MANIFEST, USERS, MANIFEST.users.layers[1], first)
    other = changed(set_layer(1, entries=4))
    with pytest.raises(FormatError, match=r"has number of entries 3, the manifest .* says 4"):
        check_layer_belongs(other, USERS, other.users.layers[1], second)


def test_names_come_back() -> None:
    """File names give back the digest and the generation that they were made of."""
    digest = bytes(range(32))
    assert layer_name(digest) == digest.hex() + ".layer"
    assert digest_of(layer_name(digest)) == digest
    assert manifest_name(7) == "00000000000000000007.manifest"
    for generation in (1, (1 << 64) - 1):
        assert generation_of(manifest_name(generation)) == generation


@pytest.mark.parametrize(
    "name",
    [
        "7.manifest",
        "00000000000000000000.manifest",
        "99999999999999999999.manifest",
        "00000000000000000007.manifest.tmp",
        "\u0660" * 20 + ".manifest",
        "ab.layer",
        "AB" * 32 + ".layer",
        "ab" * 32 + ".layer\n",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    """No other file passes for a manifest or a layer."""
    with pytest.raises(FormatError, match="is no manifest"):
        generation_of(name)
    with pytest.raises(FormatError, match="is no layer"):
        digest_of(name)


def test_impossible_names_are_not_made() -> None:
    """Generation 0, and a digest of another length, have no name."""
    for generation in (0, 1 << 64):
        with pytest.raises(ValueError, match="a generation lies in"):
            manifest_name(generation)
    with pytest.raises(ValueError, match="a layer's digest is 32 bytes"):
        layer_name(b"")


def test_empty_sections_need_no_layer() -> None:
    """The streams section of the small snapshot has neither entities nor layers, and is intact."""
    section = section_of(decode_manifest(FILE), STREAMS)
    assert (list(section.layers), section.state_digest) == ([], bytes(32))
