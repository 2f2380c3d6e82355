"""The owners of copy directories: swapped, foreign, new and shared ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.snapshot.errors import DirectoriesUnused, WrongCopyDirectory
from coordinator.snapshot.files import SnapshotDirectories, SnapshotFiles
from coordinator.snapshot.identity import (
    IDENTITY_FILE,
    CopyIdentity,
    decode_identity,
    encode_identity,
)
from coordinator.storage import DirectoryInUse, FileStorage
from testkit.generation_builders import (
    COPY_DIRECTORIES,
    Repairs,
    Sections,
    entities,
    loaded_state,
    memory,
    open_files,
    scrubbed,
)
from testkit.journal_builders import CLUSTER_ID, OTHER_CLUSTER_ID
from testkit.memory_storage import MemoryStorage
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.prepare import checksum_of

A, B, C = COPY_DIRECTORIES


def test_the_identity_is_pinned() -> None:
    """The bytes of a known identity never change, and read back as they were."""
    identity = CopyIdentity(CLUSTER_ID, replica_id=3, copy=2)
    data = encode_identity(identity)
    assert data[16:].hex() == (
        "565343440100020003000000000000000001020304050607" + "08090a0b0c0d0e0f" + "00" * 16
    )
    assert data[:16] == checksum_of(data[16:])
    assert decode_identity(data) == identity


IMPOSSIBLE: list[tuple[int, bytes, type[FormatError], str]] = [
    (4, b"\2", FormatVersionError, "version 2 is unknown"),
    (12, b"\1", FormatError, "reserved bytes"),
    (40, b"\1", FormatError, "reserved bytes"),
    (0, b"X", FormatError, "magic"),
]


@pytest.mark.parametrize(("offset", "value", "error", "match"), IMPOSSIBLE)
def test_impossible_identities_are_refused(
    offset: int, value: bytes, error: type[FormatError], match: str
) -> None:
    """An identity with a correct checksum is refused for any other error in it."""
    data = encode_identity(CopyIdentity(CLUSTER_ID, 0, 0))
    checked = data[16 : 16 + offset] + value + data[16 + offset + 1 :]
    with pytest.raises(error, match=match):
        decode_identity(checksum_of(checked) + checked)
    with pytest.raises(FormatError, match="is 63 bytes"):
        decode_identity(data[:-1])


def test_a_later_version_of_the_identity_is_not_called_damaged() -> None:
    """An identity of a later build stops opening, and is not overwritten."""
    storage = used()
    data = encode_identity(CopyIdentity(CLUSTER_ID, 0, 1))
    checked = data[16:20] + b"\2" + data[21:]
    storage.replace(f"{B}/{IDENTITY_FILE}", checksum_of(checked) + checked)
    with pytest.raises(FormatVersionError, match=f"{B}/{IDENTITY_FILE}: .*version 2"):
        open_files(storage)


def used() -> MemoryStorage:
    """A disk with a generation in three directories that nobody holds."""
    storage = memory()
    files = open_files(storage)
    Sections(files).write(1, entities(1, 2))
    files.close()
    return storage


def without_identity(storage: MemoryStorage) -> None:
    storage.remove(f"{B}/{IDENTITY_FILE}")


def of_another_cluster(storage: MemoryStorage) -> None:
    identity = encode_identity(CopyIdentity(OTHER_CLUSTER_ID, 0, 1))
    storage.replace(f"{B}/{IDENTITY_FILE}", identity)


REFUSED: list[tuple[Callable[[MemoryStorage], None], dict[str, object], str]] = [
    (lambda storage: None, {"paths": (A, C, B)}, "copies/c belongs to copy 2, .* as copy 1"),
    (lambda storage: None, {"paths": (B, C, A)}, "copies/b belongs to copy 1, .* as copy 0"),
    (lambda storage: None, {"replica_id": 1}, "copies/a belongs to replica 0, .* replica 1"),
    (lambda storage: None, {"cluster_id": OTHER_CLUSTER_ID}, "belongs to cluster 000102"),
    (lambda storage: None, {"paths": (A, B)}, "3 different directories"),
    (lambda storage: None, {"paths": (A, B, B)}, "3 different directories"),
    (lambda storage: None, {"paths": (A, B, C, "copies/d")}, "3 different directories"),
    (without_identity, {}, "copies/b has files but no IDENTITY"),
    (of_another_cluster, {}, "copies/b belongs to cluster 0102"),
]


@pytest.mark.parametrize(("change", "options", "match"), REFUSED)
def test_directories_that_do_not_fit_are_refused(
    change: Callable[[MemoryStorage], None], options: dict[str, object], match: str
) -> None:
    """Swapped, foreign and missing directories are named; nothing is changed or stays locked."""
    storage = used()
    change(storage)
    before = storage.snapshot()
    for _ in range(2):
        with pytest.raises(WrongCopyDirectory, match=match):
            open_files(storage, **options)  # type: ignore[arg-type]  # A table of keyword arguments.
    assert storage.snapshot() == before


def test_a_new_disk_is_taken_into_use_and_filled() -> None:
    """An empty directory in place of a lost one gets an identity, and its files by repair."""
    storage = used()
    storage.empty_directory(C)
    storage.replace(f"{C}/lost+found", b"")
    files = open_files(storage)
    assert storage.exists(f"{C}/{IDENTITY_FILE}")
    assert all(each.is_intact for each in scrubbed(files, 1))
    assert storage.names(f"{C}/layers") == storage.names(f"{A}/layers")
    assert storage.names(f"{C}/manifests") == storage.names(f"{A}/manifests")


def test_what_a_crash_left_in_the_making_goes() -> None:
    """The next open removes temporary files in each folder, and nothing else."""
    storage = used()
    before = storage.snapshot()
    for folder in ("", "layers/", "manifests/"):
        storage.replace(f"{B}/{folder}x.coordinator.tmp", b"half")
    open_files(storage).close()
    assert storage.snapshot() == before


def test_a_directory_is_held_by_one_process() -> None:
    """While snapshot files are open no other process may open them; afterwards any may."""
    storage = used()
    files = open_files(storage)
    with pytest.raises(DirectoryInUse, match="copies/a is in use"):
        open_files(storage)
    files.close()
    open_files(storage).close()


def test_real_directories(tmp_path: Path) -> None:
    """On a file system a generation is written and loaded, and a link to a directory is refused."""
    paths = [str(tmp_path / name) for name in ("a", "b", "c")]
    files = open_files(FileStorage(), paths=paths)
    sections = Sections(files)
    manifest = sections.write(1, entities(1, 5))
    assert files.rebuild_reserve(manifest) == []
    files.close()
    for name in ("a", "b", "c"):
        assert (tmp_path / name / "reserve").stat().st_size >= 4096
    files = open_files(FileStorage(), paths=paths)
    assert loaded_state(files, 1) == sections.state
    assert files.problems(1) == []
    files.close()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(WrongCopyDirectory, match="another name of one of the other"):
        open_files(FileStorage(), paths=[paths[0], str(tmp_path / "link"), paths[2]])


def test_reserved_space_is_real(tmp_path: Path) -> None:
    """Reserving takes blocks on the disk without writing them; they read as zeros."""
    file = FileStorage().create(str(tmp_path / "reserve"))
    file.reserve(1 << 20)
    assert file.size() == 1 << 20
    assert file.read(12345, 16) == bytes(16)
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= 1 << 20
    file.close()


def test_directories_of_a_disk_that_is_not_mounted(tmp_path: Path) -> None:
    """A start where nothing was ever kept begins nothing; any one of the old directories is
    enough."""
    paths = [str(tmp_path / "mounted" / name) for name in "abc"]
    files = open_files(FileStorage(), paths=_made(paths))
    Sections(files).write(4, entities(4, 6))
    state = loaded_state(files, 4)
    files.close()
    (tmp_path / "mounted").rename(tmp_path / "disk")
    directories = SnapshotDirectories(tuple(_made(paths)), CLUSTER_ID, 0, generation=4)
    with pytest.raises(DirectoriesUnused, match=r"not mounted\?.*empty --data-directory") as caught:
        SnapshotFiles(FileStorage(), directories, report=Repairs())
    assert all(path in str(caught.value) for path in paths)
    assert not any((Path(path) / IDENTITY_FILE).exists() for path in paths)
    shutil.rmtree(paths[1])
    shutil.copytree(tmp_path / "disk" / "b", paths[1])
    files = SnapshotFiles(FileStorage(), directories, report=Repairs(), reserve_bytes_min=0)
    try:
        assert loaded_state(files, 4) == state
        assert all((Path(path) / IDENTITY_FILE).exists() for path in paths)
    finally:
        files.close()


def _made(paths: list[str]) -> list[str]:
    for path in paths:
        Path(path).mkdir(parents=True)
    return paths
