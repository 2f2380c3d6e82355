"""A file of a snapshot that is read in parts, from copies that were verified before."""

from __future__ import annotations

import pytest

from coordinator.snapshot.errors import NoIntactCopy
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.layout import LAYERS
from testkit.generation_builders import COPY_DIRECTORIES, Sections, entities, memory, open_files
from testkit.memory_storage import MemoryStorage

HALF = 100


def written(storage: MemoryStorage) -> SnapshotFiles:
    """Return files with one generation."""
    files = open_files(storage)
    Sections(files).write(1, entities(1, 8))
    return files


def test_a_copy_that_could_not_be_repaired_is_not_read_again() -> None:
    """The second part comes from the copies that were intact, though the bad one is still there."""
    storage = memory()
    files = written(storage)
    with files.pinned(1) as pinned:
        layer = next(file for file in pinned.files if file.name.startswith(LAYERS))
        whole = b"".join(pinned.chunks(layer, layer.size_bytes))
        storage.flip(f"{COPY_DIRECTORIES[0]}/{layer.name}", HALF + 1)
        storage.capacity_bytes -= storage.free_bytes("")
        first = next(pinned.chunks(layer, HALF))
        second = next(pinned.chunks(layer, layer.size_bytes, HALF, is_verified=True))
        assert first + second == whole
        assert storage.content(f"{COPY_DIRECTORIES[0]}/{layer.name}") != whole


def test_copies_that_are_gone_are_looked_for_again() -> None:
    """Once no copy can be read that was intact, the next part is verified anew, and found."""
    storage = memory()
    files = written(storage)
    with files.pinned(1) as pinned:
        layer = next(file for file in pinned.files if file.name.startswith(LAYERS))
        whole = b"".join(pinned.chunks(layer, layer.size_bytes))
        bad, *good = (f"{directory}/{layer.name}" for directory in COPY_DIRECTORIES)
        storage.flip(bad, HALF + 1)
        full_bytes = storage.free_bytes("")
        storage.capacity_bytes -= full_bytes
        next(pinned.chunks(layer, HALF))
        storage.capacity_bytes += full_bytes
        for path in good:
            storage.unlink(path)
        storage.replace(bad, whole)
        with pytest.raises(NoIntactCopy):
            next(pinned.chunks(layer, HALF, HALF, is_verified=True))
        again = next(pinned.chunks(layer, layer.size_bytes, HALF, is_verified=True))
        assert again == whole[HALF:]
