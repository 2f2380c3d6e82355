"""Full disks, failing syncs, failing writes and reads."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from coordinator.snapshot.errors import (
    CopiesFailed,
    CopyNotWritten,
    NoIntactCopy,
    SnapshotNoSpace,
)
from coordinator.snapshot.layout import layer_file, manifest_file
from testkit.generation_builders import (
    COPY_DIRECTORIES,
    RESERVE_BYTES_MIN,
    Repairs,
    Sections,
    entities,
    loaded_state,
    memory,
    open_files,
    reserves,
    scrubbed,
)
from testkit.memory_storage import MemoryStorage
from viewstamp.format.manifest import section_of

A, B, C = COPY_DIRECTORIES


def failing(verb: str, fragment: str, number: int = errno.EIO) -> Callable[[str], None]:
    """A hook that refuses each step of one kind on paths with a fragment."""

    def refuse(name: str) -> None:
        if name.startswith(f"{verb} ") and fragment in name:
            raise OSError(number, os.strerror(number))

    return refuse


def final_files(storage: MemoryStorage) -> list[str]:
    """Return layers and manifests of final names."""
    return [path for path in storage.paths() if path.endswith((".layer", ".manifest"))]


# --- Space ---


def full_disk(spare_bytes: int) -> tuple[MemoryStorage, Sections]:
    """Generation 1, reserves of 20,000 bytes, and a second disk with so many bytes to spare."""
    storage = memory()
    files = open_files(storage, reserve_bytes_min=20_000)
    sections = Sections(files)
    manifest = sections.write(1, entities(1, 4))
    assert files.rebuild_reserve(manifest) == []
    used_bytes = sum(len(storage.content(p)) for p in storage.paths() if p.startswith(f"{B}/"))
    storage.capacities_bytes[B] = used_bytes + spare_bytes
    return storage, sections


@pytest.mark.parametrize("spare_bytes", [0, 100, 1000, 5000])
def test_the_reserve_lets_a_snapshot_complete_on_a_full_disk(spare_bytes: int) -> None:
    """Only the full directory's reserve is released, and the generation becomes durable."""
    _, sections = full_disk(spare_bytes)
    sections.write(2, entities(2, 4))
    assert reserves(sections.files) == [20_000, 0, 20_000]
    assert all(each.is_intact for each in scrubbed(sections.files, 2))
    assert loaded_state(sections.files, 2) == sections.state


def test_the_reserve_is_made_anew_once_there_is_room() -> None:
    """The directory is named while its disk is full; with room its reserve is back."""
    storage, sections = full_disk(0)
    manifest = sections.write(2, entities(2, 4))
    assert sections.files.rebuild_reserve(manifest) == [B]
    assert not storage.exists(f"{B}/reserve")
    del storage.capacities_bytes[B]
    assert sections.files.rebuild_reserve(manifest) == []
    assert min(reserves(sections.files)) >= 20_000


def test_space_that_goes_while_it_is_reserved_leaves_nothing_behind() -> None:
    """When another process takes the space during reserving, no half reserve stays."""
    storage = memory()
    files = open_files(storage)
    manifest = Sections(files).write(1, entities(1, 2))
    storage.before_step = failing("write", f"{B}/reserve", errno.ENOSPC)
    assert files.rebuild_reserve(manifest) == [B]
    assert not storage.exists(f"{B}/reserve")
    storage.before_step = None
    assert files.rebuild_reserve(manifest) == []


def test_the_reserve_grows_with_the_last_generation() -> None:
    """The reserve is 125 % of the last generation's layers, at least the minimum, and never
    shrinks."""
    files = open_files(memory())
    sections = Sections(files)
    small = sections.write(1, entities(1, 1, size_bytes=20))
    files.rebuild_reserve(small)
    assert reserves(files) == [RESERVE_BYTES_MIN] * 3
    large = sections.write(2, entities(2, 20))
    layers = [layer for stage in range(1, 6) for layer in section_of(large, stage).layers]
    expected = sum(layer.size_bytes for layer in layers) * 125 // 100
    assert expected > RESERVE_BYTES_MIN
    files.rebuild_reserve(large)
    files.rebuild_reserve(small)
    assert reserves(files) == [expected] * 3


def test_a_disk_that_is_full_beyond_the_reserve_fails_the_generation_alone() -> None:
    """The error says so, the existing files are intact, no half file is left, and later it
    works."""
    storage, sections = full_disk(0)
    before = final_files(storage)
    with pytest.raises(SnapshotNoSpace, match=r"copies/b/.*free space"):
        Sections(sections.files).write(2, entities(2, 100))
    assert sections.files.generations() == [1]
    assert not [path for path in storage.paths() if path.endswith(".tmp")]
    sections.files.release(2)
    sections.files.collect_garbage([1], 1)
    assert final_files(storage) == before
    assert loaded_state(sections.files, 1) == sections.state
    del storage.capacities_bytes[B]
    sections.write(2, entities(2, 100))
    assert loaded_state(sections.files, 2) == sections.state


def test_compaction_leaves_the_reserve_alone() -> None:
    """A merged base does not use the reserve: it fails for lack of space, and the chain stays."""
    storage, sections = full_disk(10_000_000)
    manifest = sections.write(2, entities(2, 4))
    storage.capacities_bytes[B] = 1
    with pytest.raises(SnapshotNoSpace):
        sections.files.compact(manifest, 3)
    assert reserves(sections.files) == [20_000] * 3
    assert sections.files.chain(3, section_of(manifest, 3)) == list(section_of(manifest, 3).layers)
    assert not [path for path in storage.paths() if path.endswith(".tmp")]


# --- Syncs ---


@pytest.mark.parametrize("verb", ["sync", "sync_directory"])
@pytest.mark.parametrize("folder", ["layers", "manifests"])
def test_a_failed_sync_ends_all_work(verb: str, folder: str) -> None:
    """A failed sync is never tried again: every later call raises, and no step is taken."""
    storage = memory()
    files = open_files(storage)
    sections = Sections(files)
    manifest = sections.write(1, entities(1, 3))
    storage.before_step = failing(verb, f"{B}/{folder}")
    with pytest.raises(CopiesFailed, match="process must end"):
        sections.write(2, entities(2, 3))
    storage.before_step = None
    before, steps = storage.snapshot(), storage.steps
    attempts: list[Callable[[], object]] = [
        lambda: sections.write(3, entities(3, 1)),
        lambda: files.load(1),
        lambda: scrubbed(files, 1),
        lambda: files.delete(2),
        lambda: files.compact(manifest, 1),
        lambda: files.collect_garbage([1], 1),
        lambda: files.rebuild_reserve(manifest),
    ]
    for attempt in attempts:
        with pytest.raises(CopiesFailed, match="process must end"):
            attempt()
    assert (storage.snapshot(), storage.steps) == (before, steps)


# --- Writes ---


@pytest.mark.parametrize("verb", ["create", "write", "rename"])
def test_a_failing_write_fails_the_generation_alone(verb: str) -> None:
    """Any other error names the file and leaves no temporary file, and work can go on."""
    storage = memory()
    files = open_files(storage)
    sections = Sections(files)
    sections.write(1, entities(1, 3))
    storage.before_step = failing(verb, f"{C}/layers")
    with pytest.raises(CopyNotWritten, match=r"copies/c/layers/.*Input/output error"):
        Sections(files).write(2, entities(2, 3))
    storage.before_step = None
    assert not [path for path in storage.paths() if path.endswith(".tmp")]
    sections.write(2, entities(2, 3))
    assert loaded_state(files, 2) == sections.state


class ForgetfulStorage(MemoryStorage):
    """A disk that claims to have written, and has not."""

    forgetting: str | None = None

    def rename(self, source: str, target: str) -> None:
        """Move a file, and lose its last byte where the test says so."""
        super().rename(source, target)
        if self.forgetting is not None and self.forgetting in target:
            self.replace(target, self.content(target)[:-1])


def test_what_does_not_read_back_is_not_durable() -> None:
    """A copy that reads back differently fails the generation, with file and difference."""
    storage = ForgetfulStorage()
    storage.make_directory("copies")
    sections = Sections(open_files(storage))
    storage.forgetting = f"{B}/layers"
    with pytest.raises(CopyNotWritten, match=r"copies/b/layers/.*does not read back"):
        sections.write(1, entities(1, 2))


# --- Reads ---


class Unreadable(MemoryStorage):
    """Makes files with a fragment in their path unreadable."""

    bad: str | None = None
    number = errno.EIO

    def check_read(self, path: str, offset: int, size: int) -> None:
        """Fail where the test says so."""
        if self.bad is not None and self.bad in path:
            raise OSError(self.number, os.strerror(self.number))


def unreadable() -> tuple[Unreadable, Sections, Repairs]:
    """A generation on a disk that is about to fail."""
    storage, repairs = Unreadable(), Repairs()
    storage.make_directory("copies")
    sections = Sections(open_files(storage, repairs))
    sections.write(1, entities(1, 4))
    return storage, sections, repairs


def test_an_unreadable_disk_is_done_without() -> None:
    """A directory that can neither be read nor repaired is reported; two copies are enough."""
    storage, sections, repairs = unreadable()
    storage.bad = f"{A}/"
    assert loaded_state(sections.files, 1) == sections.state
    assert repairs.names[0] == manifest_file(1)
    assert repairs.verdicts[0][0].startswith("cannot be read: Input/output error; not repaired")
    assert repairs.verdicts[0][1:] == ("intact", "intact")


def test_a_copy_that_fails_after_it_was_verified_is_left_for_the_next() -> None:
    """Reading goes on with another copy if blocks cannot be read or are damaged."""
    storage, sections, _ = unreadable()
    with sections.files.load(1) as loaded:
        storage.bad = f"{A}/layers"
        for layer in loaded.layers[1]:
            storage.flip(f"{B}/{layer_file(section_of(loaded.manifest, 1).layers[0].digest)}", 200)
            assert len(list(layer.entries())) == 4
    with sections.files.load(1) as loaded:
        storage.bad = "/layers"
        with pytest.raises(NoIntactCopy):
            list(loaded.blocks(2))


def test_errors_of_this_process_are_not_called_damage() -> None:
    """Too many open files say nothing about a copy: nothing is repaired, the error is raised."""
    storage, sections, repairs = unreadable()
    storage.bad, storage.number = f"{A}/", errno.EMFILE
    before = storage.snapshot()
    with pytest.raises(OSError, match="Too many open files"):
        sections.files.load(1)
    assert storage.snapshot() == before
    assert repairs.names == []
