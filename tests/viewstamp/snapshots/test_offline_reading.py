"""Copy directories are read from good copies, and bad ones are reported."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from tests.viewstamp.snapshots.generations import SnapshotDirectory, flip
from viewstamp.format.manifest import FRAME_BYTES, encode_manifest, manifest_name, root_of
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.entities import SECTION_NAMES, select, selection
from viewstamp.snapshots.errors import (
    AllCopiesBad,
    BadSection,
    NewerFormat,
    NoSuchDirectory,
    NoSuchEntity,
    NoSuchGeneration,
)
from viewstamp.snapshots.generation import Generation
from viewstamp.snapshots.verify import FileVerdict, GenerationVerdict, verify

MANIFEST_2 = f"manifests/{manifest_name(2)}"


def copies_of(replica: SnapshotDirectory) -> Copies:
    """Return the copies of a data directory."""
    return Copies(copy_directories(replica.path))


def verdict_on(copies: Copies, generation: int = 2) -> tuple[list[FileVerdict], GenerationVerdict]:
    """Return the verdicts of a verification: of each file, and of the whole."""
    *files, whole = verify(copies, generation)
    assert isinstance(whole, GenerationVerdict)
    return [file for file in files if isinstance(file, FileVerdict)], whole


def layer_paths(replica: SnapshotDirectory, copy: int = 0) -> list[Path]:
    """Return the layers in a copy directory."""
    return sorted((replica.copies[copy] / "layers").iterdir())


def test_good_generations_are_intact(replica: SnapshotDirectory) -> None:
    """A good generation verifies: the manifest, every layer of the chains, digests and root."""
    files, whole = verdict_on(copies_of(replica))
    assert whole == GenerationVerdict(True, ())
    assert [file.files_left for file in files] == list(range(7, -1, -1))
    assert {text for file in files for text in file.copies} == {"intact"}
    assert verdict_on(copies_of(replica), 1)[1] == GenerationVerdict(True, ())


def test_chains_are_merged(replica: SnapshotDirectory) -> None:
    """A generation's entities are those of base and deltas together, at each generation."""

    def names(number: int, section: str, kind: str) -> list[str]:
        found = select(Generation(copies_of(replica), number), selection(section, kind))
        return [getattr(entity.message, "username", "") or entity.message.name for entity in found]  # type: ignore[attr-defined]

    assert names(1, "users", "user") == ["root", "ann"]
    assert names(2, "users", "user") == ["root", "anna"]
    assert names(1, "streams", "streams") == ["stream-1", "stream-2"]
    assert names(2, "streams", "streams") == ["stream-1"]
    assert names(0, "consumer_groups", "consumer_group") == ["group"]
    assert names(1, "consumer_groups", "consumer_group") == []


def test_every_flipped_bit_is_found(replica: SnapshotDirectory) -> None:
    """One flipped bit at any sixteenth byte of any file is found in its copy, and nowhere else."""
    names = [name for name in replica.files() if "manifests" not in name or name == MANIFEST_2]
    for name in names:
        path = replica.copies[1] / name
        good = path.read_bytes()
        for offset in range(0, len(good), 16):
            flip(path, offset)
            files, whole = verdict_on(copies_of(replica))
            found = {file.file: file.copies for file in files}[name]
            assert found[0] == found[2] == "intact", (name, offset)
            assert found[1] != "intact", (name, offset)
            assert whole.is_intact
            assert len(whole.problems) == 1
            path.write_bytes(good)


def test_reading_prefers_good_copies(replica: SnapshotDirectory) -> None:
    """Bad copies are skipped and reported; the entities are those of the good copy."""
    for path in [*layer_paths(replica), replica.copies[0] / MANIFEST_2]:
        flip(path)
    for path in layer_paths(replica, 1):
        path.unlink()
    copies = copies_of(replica)
    generation = Generation(copies, 2)
    users = list(select(generation, selection("users", "users")))
    assert [user.message.username for user in users] == ["root", "anna"]  # type: ignore[attr-defined]
    assert sorted(path.parent.parent.name for path in copies.bad) == [
        *["copy-0"] * 3,
        *["copy-1"] * 2,
    ]
    assert "bytes of it were changed" in str(copies.bad.values())
    assert "No such file" in str(copies.bad.values())


def test_all_copies_bad(replica: SnapshotDirectory) -> None:
    """A layer without a good copy is named with each copy's error; other sections are read."""
    generation = Generation(copies_of(replica), 2)
    digest = generation.manifest.users.layers[0].digest.hex()
    for copy in replica.copies:
        flip(copy / "layers" / f"{digest}.layer")
    with pytest.raises(AllCopiesBad, match=f"no good copy of layers/{digest}.layer.*copy-2"):
        list(select(generation, selection("users")))
    assert len(list(select(generation, selection("streams")))) == 11
    _, whole = verdict_on(copies_of(replica))
    assert not whole.is_intact
    assert len(whole.problems) == 4  # three copies, and the section
    assert sum("section users: no good copy" in problem for problem in whole.problems) == 1


def test_manifest_without_good_copy(replica: SnapshotDirectory) -> None:
    """Without a manifest verification ends with its error; the other generation is read."""
    for copy in replica.copies:
        flip(copy / MANIFEST_2)
    files, whole = verdict_on(copies_of(replica))
    assert [file.file for file in files] == [MANIFEST_2]
    assert not whole.is_intact
    with pytest.raises(AllCopiesBad, match="no good copy of manifests"):
        Generation(copies_of(replica), 2)
    assert Generation(copies_of(replica), 1).entities == 21


def test_missing_copy_directory(replica: SnapshotDirectory) -> None:
    """An absent copy directory is a problem for each of its files; without any there is an
    error."""
    shutil.rmtree(replica.copies[2])
    files, whole = verdict_on(copies_of(replica))
    assert whole.is_intact
    assert len(whole.problems) == len(files) == 8
    assert all("copy-2" in problem for problem in whole.problems)
    shutil.rmtree(replica.path / "snapshots")
    with pytest.raises(NoSuchDirectory, match=r"no copy directory is there: .*copy-0"):
        copies_of(replica)


def test_unreadable_directory_is_told(replica: SnapshotDirectory) -> None:
    """A copy whose manifests cannot be listed is skipped and reported."""
    shutil.rmtree(replica.copies[0] / "manifests")
    (replica.copies[0] / "manifests").write_bytes(b"no directory")
    copies = copies_of(replica)
    assert copies.generations() == [1, 2]
    assert Generation(copies, 2).number == 2
    assert {path.parent.name for path in copies.bad} >= {"copy-0"}


def test_no_such_generation(replica: SnapshotDirectory) -> None:
    """A generation that is not there is refused with those that are."""
    with pytest.raises(NoSuchGeneration, match=r"no manifest of generation 3 .*there: 1, 2"):
        Generation(copies_of(replica), 3)
    for copy in replica.copies:
        shutil.rmtree(copy / "manifests")
    with pytest.raises(NoSuchGeneration, match=r"any generation .*there: none"):
        Generation(copies_of(replica), 0)


def newer_manifest(replica: SnapshotDirectory) -> None:
    """Give every manifest the next format version, with a checksum that fits."""
    data = bytearray((replica.copies[0] / MANIFEST_2).read_bytes())
    data[36] = 2
    replica.write(MANIFEST_2, blake3(data[32:]).digest() + bytes(data[32:]))


def foreign_manifest(replica: SnapshotDirectory) -> None:
    """Put the manifest of generation 1 in the place of generation 2's."""
    replica.write(MANIFEST_2, (replica.copies[0] / f"manifests/{manifest_name(1)}").read_bytes())


def large_manifest(replica: SnapshotDirectory) -> None:
    """Put more bytes there than a manifest may have."""
    replica.write(MANIFEST_2, bytes(FRAME_BYTES + 2**20 + 1))


@pytest.mark.parametrize(
    ("damage", "error", "text"),
    [
        (newer_manifest, NewerFormat, "manifest file version 2 is unknown"),
        (foreign_manifest, AllCopiesBad, "it is the manifest of generation 1"),
        (large_manifest, AllCopiesBad, "it is larger than"),
    ],
)
def test_manifests_that_cannot_be_used(
    replica: SnapshotDirectory,
    damage: Callable[[SnapshotDirectory], None],
    error: type[Exception],
    text: str,
) -> None:
    """A newer format is not called damage, and a manifest under another's name is."""
    damage(replica)
    with pytest.raises(error, match=text):
        Generation(copies_of(replica), 2)
    assert not verdict_on(copies_of(replica))[1].is_intact


def test_wrong_state_digest_is_found(replica: SnapshotDirectory) -> None:
    """Intact files do not pass if the manifest has a wrong digest and count."""
    manifest = Generation(copies_of(replica), 2).manifest
    manifest.streams.state_digest = bytes([1]) * 32
    manifest.streams.kinds[0].entities += 1
    manifest.root = root_of(manifest)
    replica.write(MANIFEST_2, encode_manifest(manifest))
    _, whole = verdict_on(copies_of(replica))
    assert not whole.is_intact
    assert len(whole.problems) == 3
    assert f"not {'01' * 32}" in whole.problems[0]
    assert "entities by kind" in whole.problems[1]
    assert whole.problems[2].startswith("the root is ")


def test_manifests_that_disagree_are_found(replica: SnapshotDirectory) -> None:
    """Two intact manifests of one generation that say different things are a problem."""
    manifest = Generation(copies_of(replica), 2).manifest
    manifest.view += 1
    (replica.copies[1] / MANIFEST_2).write_bytes(encode_manifest(manifest))
    _, whole = verdict_on(copies_of(replica))
    assert len(whole.problems) == 1
    assert "copy-1" in whole.problems[0]
    assert "not the manifest that the copy before it holds" in whole.problems[0]


def test_verification_writes_nothing(replica: SnapshotDirectory) -> None:
    """Verification changes neither names nor bytes nor times of any file."""
    flip(layer_paths(replica)[0])

    def state() -> list[tuple[str, int, bytes]]:
        paths = sorted(replica.path.rglob("*"))
        return [
            (str(p), p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in paths
        ]

    before = state()
    verdict_on(copies_of(replica))
    assert state() == before


@pytest.mark.parametrize(
    ("section", "kind", "key", "count"),
    [
        ("streams", None, None, 11),
        ("streams", "topics", None, 8),
        ("streams", "topic", "1", 4),
        ("streams", "topic", "1/4", 1),
        ("streams", "topic", "1/3", 0),
        ("streams", "topic", "0x00000000000000", 8),
        ("users", "personal_access_token", "1", 2),
        ("users", "personal_access_token", "1/ci", 1),
        ("users", "personal_access_token", "1/ci/cd", 1),
        ("users", "users_counters", None, 1),
        ("catalog", "snapshot", "1", 1),
    ],
)
def test_selection(
    replica: SnapshotDirectory, section: str, kind: str | None, key: str | None, count: int
) -> None:
    """Sections, kinds and keys, whole or partial, select the named entities."""
    generation = Generation(copies_of(replica), 2)
    assert len(list(select(generation, selection(section, kind, key)))) == count


@pytest.mark.parametrize(
    ("section", "kind", "key", "text"),
    [
        ("user", None, None, "no section"),
        ("users", "topic", None, "section users has no kind 'topic'"),
        ("users", None, "1", "a key is unique in its kind"),
        ("streams", "topic", "one", "'one' is no stream_id of topics"),
        ("streams", "topic", str(2**64), "is no stream_id"),
        ("streams", "topic", "0xz", "no hexadecimal key"),
        ("streams", "streams_counters", "1", "has no key"),
    ],
)
def test_refused_selections(section: str, kind: str | None, key: str | None, text: str) -> None:
    """A selection outside a section is refused, with the possible ones."""
    with pytest.raises(NoSuchEntity, match=text) as refused:
        selection(section, kind, key)
    assert refused.value.next_step


def test_unknown_kind_is_told(replica: SnapshotDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind of a later version is reported with the way out."""
    from viewstamp.format import kinds

    known = dict(kinds.KINDS)
    stage = next(number for number, name in SECTION_NAMES.items() if name == "streams")
    del known[stage, 2]
    monkeypatch.setattr("viewstamp.snapshots.entities.KINDS", known)
    with pytest.raises(BadSection, match="section streams has entities of kind 2, unknown here"):
        list(select(Generation(copies_of(replica), 2), selection("streams")))
