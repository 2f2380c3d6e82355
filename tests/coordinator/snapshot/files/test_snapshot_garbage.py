"""What is removed, what is kept, and that no writer loses a layer that it will name."""

from __future__ import annotations

import threading

import pytest

from coordinator.mux.stage import Stage
from coordinator.snapshot.errors import CopyNotWritten
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.generation_writer import GenerationWriter
from coordinator.snapshot.layout import layer_file, manifest_file
from coordinator.snapshot.sections import SectionHead
from testkit.generation_builders import (
    COPY_DIRECTORIES,
    Sections,
    append_small_blocks,
    empty_manifest,
    entities,
    loaded_state,
    memory,
    open_files,
)
from testkit.memory_storage import MemoryStorage
from viewstamp.format.manifest import section_of
from viewstamp.format.section import SectionTally


def five_generations() -> tuple[MemoryStorage, Sections]:
    """Generations 1 to 5, each with its own layers."""
    storage = memory()
    files = open_files(storage)
    for generation in range(1, 6):
        sections = Sections(files)
        sections.write(generation, entities(generation, 2))
    return storage, sections


# The catalog's generations, the superblock's; those that are removed.
ROOTS: list[tuple[list[int], int, tuple[int, ...]]] = [
    ([1, 2, 3, 4, 5], 5, ()),
    ([2, 4, 5], 5, (1, 3)),
    ([], 5, (1, 2, 3, 4)),
    ([], 3, (1, 2)),
    ([1, 5], 4, (2, 3)),
    ([], 0, ()),
]


@pytest.mark.parametrize(("live", "adopted", "gone"), ROOTS)
def test_roots_are_kept(live: list[int], adopted: int, gone: tuple[int, ...]) -> None:
    """The catalog's generations, the superblock's and later ones stay whole; the rest is
    removed."""
    storage, sections = five_generations()
    collected = sections.files.collect_garbage(live, adopted)
    assert collected.generations == gone
    left = [generation for generation in range(1, 6) if generation not in gone]
    assert sections.files.generations() == left
    for generation in left:
        assert sections.files.problems(generation) == []
    again = sections.files.collect_garbage(live, adopted)
    assert (again.generations, again.layers) == ((), ())
    names = {tuple(storage.names(f"{directory}/layers")) for directory in COPY_DIRECTORIES}
    assert len(names) == 1


def test_layers_of_a_deleted_generation_go() -> None:
    """A failed generation is deleted; the next collection removes the layers that only it named."""
    storage, sections = five_generations()
    before = storage.snapshot()
    sections.write(6, entities(6, 2))
    sections.files.delete(6)
    assert sections.files.stored_manifest(6) is None
    collected = sections.files.collect_garbage([1, 2, 3, 4, 5], 5)
    assert len(collected.layers) == 5
    assert storage.snapshot() == before


def test_what_is_being_written_is_no_garbage() -> None:
    """Layers without a manifest stay while their generation is written, and go if that ends."""
    storage, sections = five_generations()
    writer = GenerationWriter(sections.files, empty_manifest(6, 60, None))
    section = writer.section(Stage(1), SectionHead(1, 0))
    append_small_blocks(section, [(1, b"key", None, b"new")], SectionTally())
    digest = section.finish().digest
    assert sections.files.collect_garbage([], 5).layers != ()
    assert storage.exists(f"copies/b/{layer_file(digest)}")
    sections.files.release(6)
    assert sections.files.collect_garbage([], 5).layers == (digest,)
    assert not storage.exists(f"copies/b/{layer_file(digest)}")


def test_what_is_being_read_is_no_garbage() -> None:
    """The layers of a generation that is open stay until it is closed."""
    _, sections = five_generations()
    with sections.files.load(2) as loaded:
        collected = sections.files.collect_garbage([], 5)
        assert collected.generations == (1, 3, 4)
        for stage in loaded.layers:
            assert len(list(loaded.blocks(stage))) == 1
    assert len(sections.files.collect_garbage([], 5).layers) == 5


def test_a_pinned_generation_can_be_downloaded_and_checked() -> None:
    """A pinned generation's files, manifest last, can be read and verified though no root keeps
    them."""
    storage, sections = five_generations()
    with sections.files.pinned(2) as pinned:
        sections.files.collect_garbage([], 5)
        assert pinned.files[-1].name == manifest_file(2)
        storage.flip(f"copies/a/{pinned.files[0].name}", 99)
        for file in pinned.files:
            data = b"".join(pinned.chunks(file, 100))
            assert data == storage.content(f"copies/a/{file.name}"), "repaired, and so equal"
            assert len(data) == file.size_bytes
        assert [each.files_left for each in pinned.scrub()] == [5, 4, 3, 2, 1, 0]
        assert sections.files.problems(2) == []
    assert sections.files.collect_garbage([], 5).generations == (2,)


def test_an_unreadable_manifest_keeps_what_it_may_name_and_nothing_else() -> None:
    """Layers up to an unreadable manifest's generation stay while it is kept; later garbage
    goes."""
    storage, sections = five_generations()
    sections.write(6, entities(6, 2))
    sections.files.delete(6)
    for directory in COPY_DIRECTORIES:
        storage.flip(f"{directory}/{manifest_file(3)}", 100)
    sections.files.close()
    files = open_files(storage)  # an earlier process wrote these
    before = storage.names("copies/a/layers")
    collected = files.collect_garbage([3], 5)
    assert len(collected.unreadable) == 1
    assert "0003.manifest" in collected.unreadable[0]
    assert collected.generations == (1, 2, 4)
    # The five of the failed generation, and those that only the fourth had named.
    assert len(collected.layers) >= 5
    left = storage.names("copies/a/layers")
    assert set(left) == set(before) - {f"{each.hex()}.layer" for each in collected.layers}
    again = files.collect_garbage([3], 5)
    assert (again.layers, len(again.unreadable)) == ((), 1)
    assert files.problems(5) == []
    assert files.collect_garbage([], 5).unreadable == ()
    assert files.problems(5) == []


def test_a_layer_that_was_cut_off_ends_nobody_beside_an_unreadable_manifest() -> None:
    """Nobody knows which generation an empty file was for, so it stays while that may matter."""
    storage, sections = five_generations()
    for directory in COPY_DIRECTORIES:
        storage.flip(f"{directory}/{manifest_file(3)}", 100)
        storage.replace(f"{directory}/{layer_file(bytes(32))}", b"")
    sections.files.close()
    files = open_files(storage)

    kept = files.collect_garbage([3], 5)
    gone = files.collect_garbage([], 5)

    assert len(kept.unreadable) == 1
    assert bytes(32) not in kept.layers
    assert bytes(32) in gone.layers


def test_a_chain_that_was_collected_is_not_gone_on_from() -> None:
    """A writer that asks too late for a chain is told so before anything is written."""
    storage, sections = five_generations()
    old = sections.files.stored_manifest(2)
    assert old is not None
    sections.files.collect_garbage([], 5)
    before = storage.snapshot()
    with pytest.raises(CopyNotWritten, match="ask for the chain again"):
        sections.files.keep_chain(6, 1, section_of(old, 1))
    assert storage.snapshot() == before


def test_a_chain_that_is_gone_on_from_is_no_garbage() -> None:
    """The layers of a chain stay until the generation that began on them is given up."""
    storage, sections = five_generations()
    old = sections.files.stored_manifest(2)
    assert old is not None
    chain = sections.files.keep_chain(6, 1, section_of(old, 1))
    paths = [f"copies/a/{layer_file(each.digest)}" for each in chain]
    sections.files.collect_garbage([], 5)
    assert paths
    assert all(map(storage.exists, paths))
    sections.files.release(6)
    sections.files.collect_garbage([], 5)
    assert not all(map(storage.exists, paths))


def test_other_files_are_left_alone() -> None:
    """A file that is neither layer nor manifest is left alone."""
    storage, sections = five_generations()
    for name in ("layers/notes.txt", "manifests/x.manifest", "layers/00.layer"):
        storage.replace(f"copies/a/{name}", b"?")
    sections.files.collect_garbage([], 5)
    assert storage.exists("copies/a/layers/notes.txt")
    assert storage.exists("copies/a/manifests/x.manifest")
    assert storage.exists("copies/a/layers/00.layer")


def give_up_after_three_sections(files: SnapshotFiles) -> None:
    """Write some layers of generation 6 and no manifest."""
    writer = GenerationWriter(files, empty_manifest(6, 60, None))
    for stage in (1, 2, 3):
        section = writer.section(Stage(stage), SectionHead(1, 0))
        changes = [
            (kind, key, None, new) for (kind, key), new in sorted(entities(6, 2)[stage].items())
        ]
        append_small_blocks(section, changes, SectionTally())
        section.finish()
    files.release(6)


def test_collecting_all_the_time_beside_a_writer_takes_nothing_away() -> None:
    """A thread that collects all the time never takes what a writer finds or writes."""
    _, sections = five_generations()
    done = threading.Event()
    failures: list[BaseException] = []

    def collect() -> None:
        try:
            while not done.is_set():
                sections.files.collect_garbage([5], 5)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        for _ in range(10):
            # A layer that was given up is garbage until the next attempt finds and names it.
            give_up_after_three_sections(sections.files)
            again = Sections(sections.files)
            again.write(6, entities(6, 2))
            assert loaded_state(sections.files, 6) == again.state
            sections.files.delete(6)
    finally:
        done.set()
        thread.join()
    assert failures == []
