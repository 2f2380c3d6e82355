"""Writing a generation, reading it back, sharing layers, and the full check."""

from __future__ import annotations

import pytest

from coordinator.mux.stage import Stage
from coordinator.snapshot.errors import (
    ConflictingManifest,
    GenerationDamaged,
    NoIntactCopy,
)
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.generation_writer import GenerationWriter
from coordinator.snapshot.layout import layer_file, manifest_file
from coordinator.snapshot.sections import SectionHead
from testkit.generation_builders import (
    COPY_DIRECTORIES,
    Repairs,
    Sections,
    append_small_blocks,
    empty_manifest,
    entities,
    loaded_state,
    memory,
    open_files,
    scrubbed,
)
from testkit.journal_builders import CLUSTER_ID, OTHER_CLUSTER_ID
from testkit.memory_storage import Loss, MemoryStorage
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format.block import decode_block
from viewstamp.format.manifest import encode_manifest, root_of, section_of
from viewstamp.format.section import SectionTally


def test_a_generation_reads_back_as_it_was_written() -> None:
    """Layers, blocks and manifest are those written; blocks come base first, ready to install."""
    files = open_files(memory())
    sections = Sections(files)
    sections.write(1, entities(1, 8))
    manifest = sections.write(2, {2: {(1, b"000002"): None, (1, b"000100"): b"new"}})
    assert loaded_state(files, 2) == sections.state
    with files.load(2) as loaded:
        assert loaded.manifest == manifest
        blocks = list(loaded.blocks(2))
        assert [layer for layer, _ in blocks] == [0, 0, 0, 1]
        last = decode_block(blocks[-1][1])
        assert [(entry.key, entry.canonical) for entry in last] == [
            (b"000002", None),
            (b"000100", b"new"),
        ]
        # An unchanged section keeps its chain.
        assert len(loaded.layers[3]) == 1


def test_layers_are_in_three_directories_under_their_digest() -> None:
    """Every directory has every layer of a generation, byte for byte, named by its BLAKE3."""
    storage = memory()
    manifest = Sections(open_files(storage)).write(1, entities(1, 3))
    for stage in range(1, 6):
        reference = section_of(manifest, stage).layers[0]
        name = layer_file(reference.digest)
        contents = {storage.content(f"{directory}/{name}") for directory in COPY_DIRECTORIES}
        assert len(contents) == 1
        assert len(contents.pop()) == reference.size_bytes


def test_a_layer_that_is_there_is_not_written_again() -> None:
    """Writing the same generation again renames no file onto an intact one."""
    storage = memory()
    files = open_files(storage)
    Sections(files).write(1, entities(1, 3))
    before = storage.snapshot()
    storage.log.clear()
    Sections(files).write(1, entities(1, 3))
    assert not [step for step in storage.log if step.startswith("rename")]
    assert storage.snapshot() == before


def test_a_layer_that_is_there_is_made_durable_all_the_same() -> None:
    """An existing layer is made durable: its process may have died before syncing its name."""
    original, storage = memory(), memory()
    digest = write_one_section(open_files(original))
    files = open_files(storage)
    paths = [f"{directory}/{layer_file(digest)}" for directory in COPY_DIRECTORIES]
    for path in paths:
        file = storage.create(path)
        file.write(0, original.content(path))
        file.sync()
    assert write_one_section(files) == digest
    storage.crash(Loss.DROP)
    assert [storage.content(path) for path in paths] == [original.content(path) for path in paths]


def write_one_section(files: SnapshotFiles) -> bytes:
    """Write a layer of generation 1 and return its digest."""
    writer = GenerationWriter(files, empty_manifest(1, 10, None))
    section = writer.section(Stage(1), SectionHead(1, 0))
    append_small_blocks(section, [(1, b"key", None, b"value")], SectionTally())
    return section.finish().digest


def test_a_damaged_layer_is_written_again() -> None:
    """Writing a layer replaces a damaged copy of it."""
    storage = memory()
    files = open_files(storage)
    manifest = Sections(files).write(1, entities(1, 3))
    before = storage.snapshot()
    storage.flip(f"copies/b/{layer_file(section_of(manifest, 2).layers[0].digest)}", 90)
    Sections(files).write(1, entities(1, 3))
    assert storage.snapshot() == before


def test_a_stored_manifest_stays() -> None:
    """A writer gets the stored manifest if its root is the same, and is refused otherwise."""
    storage = memory()
    files = open_files(storage)
    manifest = Sections(files).write(1, entities(1, 3))
    again = SnapshotManifest()
    again.CopyFrom(manifest)
    again.view = 7
    before = storage.snapshot()
    assert files.write_manifest(again) == manifest
    again.timestamp += 1
    again.root = root_of(again)
    with pytest.raises(ConflictingManifest, match="gave two states"):
        files.write_manifest(again)
    assert storage.snapshot() == before


def test_what_is_not_there_is_named() -> None:
    """A generation without files is None; where it is needed, an error names the ways out."""
    files = open_files(memory())
    assert files.stored_manifest(3) is None
    assert files.generations() == []
    with pytest.raises(NoIntactCopy, match=r"manifests/0{19}3.manifest .* in copies/c: missing"):
        files.load(3)


def put_manifest(storage: MemoryStorage, generation: int, manifest: SnapshotManifest) -> None:
    """Put a well-formed manifest into every directory."""
    manifest.root = root_of(manifest)
    for directory in COPY_DIRECTORIES:
        storage.replace(f"{directory}/{manifest_file(generation)}", encode_manifest(manifest))


def changed(manifest: SnapshotManifest, **fields: object) -> SnapshotManifest:
    """Return a copy with other fields."""
    other = SnapshotManifest()
    other.CopyFrom(manifest)
    for name, field in fields.items():
        setattr(other, name, field)
    return other


def test_a_manifest_of_another_place_is_not_believed() -> None:
    """An intact manifest of another cluster, or under another generation's name, is damage."""
    storage = memory()
    files = open_files(storage)
    manifest = Sections(files).write(1, entities(1, 2))
    put_manifest(storage, 2, manifest)
    with pytest.raises(NoIntactCopy, match="is of generation 1, must be of 2"):
        files.load(2)
    put_manifest(storage, 1, changed(manifest, cluster_id=OTHER_CLUSTER_ID))
    with pytest.raises(NoIntactCopy, match=f"must be {CLUSTER_ID.hex()}"):
        files.load(1)


def test_intact_copies_that_differ_are_made_equal() -> None:
    """Of two intact manifests that differ the first directory's is kept, and the other reported."""
    storage, repairs = memory(), Repairs()
    files = open_files(storage, repairs)
    manifest = Sections(files).write(1, entities(1, 2))
    other = encode_manifest(changed(manifest, view=9))
    storage.replace(f"copies/c/{manifest_file(1)}", other)
    assert files.stored_manifest(1) == manifest
    assert repairs.verdicts == [("intact", "intact", "differs from an intact copy; repaired")]
    assert storage.content(f"copies/c/{manifest_file(1)}") == encode_manifest(manifest)


def test_a_manifest_that_does_not_fit_its_layers_is_refused() -> None:
    """Files that are intact but do not belong together are not loaded."""
    storage = memory()
    files = open_files(storage)
    manifest = Sections(files).write(1, entities(1, 2))
    wrong = changed(manifest)
    section_of(wrong, 2).version = 2
    put_manifest(storage, 1, wrong)
    with pytest.raises(GenerationDamaged, match="section version 1"):
        files.load(1)


def test_digests_are_computed_from_the_layers() -> None:
    """The full check finds digests and counts that the layers do not give, with their stages."""
    storage = memory()
    files = open_files(storage)
    manifest = Sections(files).write(1, entities(1, 2))
    assert files.problems(1) == []
    wrong = changed(manifest)
    section_of(wrong, 2).state_digest = bytes(31) + b"\1"
    section_of(wrong, 4).kinds[0].entities -= 1
    section_of(wrong, 4).kinds.add(kind=3, entities=1)
    del section_of(wrong, 4).kinds[0]
    put_manifest(storage, 1, wrong)
    found = files.problems(1)
    assert [each.partition(":")[0] for each in found] == [
        "section of stage 2",
        "section of stage 4",
    ]
    assert "state digest is 00000" in found[0]
    assert "entities by kind" in found[1]


def test_a_scrub_tells_file_by_file() -> None:
    """A layer without an intact copy gives a verdict, and the scrub goes on with the next files."""
    storage = memory()
    files = open_files(storage)
    manifest = Sections(files).write(1, entities(1, 2))
    lost = layer_file(section_of(manifest, 2).layers[0].digest)
    for directory in COPY_DIRECTORIES:
        storage.remove(f"{directory}/{lost}")
    verdicts = scrubbed(files, 1)
    assert [each.files_left for each in verdicts] == [5, 4, 3, 2, 1, 0]
    assert verdicts[-1].name == manifest_file(1)
    assert {each.name for each in verdicts if not each.is_intact} == {lost}
    bad = next(each for each in verdicts if each.name == lost)
    assert {str(copy) for copy in bad.copies} == {"missing; not repaired: no copy is intact"}
