"""Damage of snapshots that comes at a rare moment, or of a rare kind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from coordinator.snapshot.errors import WrongCopyDirectory
from coordinator.snapshot.identity import IDENTITY_FILE
from coordinator.snapshot.incoming import IncomingGeneration
from coordinator.snapshot.layer_parts import PARTIAL_SUFFIX
from coordinator.snapshot.layout import layer_file
from coordinator.snapshot.provider import StoredSnapshots
from coordinator.vsr import SnapshotNeeded
from testkit.generation_builders import (
    COPY_DIRECTORIES,
    Repairs,
    Sections,
    entities,
    loaded_state,
    memory,
    open_files,
)
from testkit.memory_storage import MemoryFile, MemoryStorage
from tests.coordinator.snapshot.files.transfer_trial import NEWEST, TransferTrial
from viewstamp.format import CHECKSUM_BYTES, FormatVersionError
from viewstamp.format.block import BLOCK_VERSION
from viewstamp.format.manifest import section_of
from viewstamp.format.prepare import checksum_of

A = COPY_DIRECTORIES[0]
STAGE = 1
MAGIC_BYTES = 4
PARTIAL_FILES = f"*{PARTIAL_SUFFIX}"


class Unopenable(MemoryStorage):
    """Refuses to open files with a fragment in their path."""

    bad: str | None = None

    def open(self, path: str) -> MemoryFile:
        """Fail where the test says so."""
        if self.bad is not None and self.bad in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().open(path)


def written(storage: MemoryStorage, repairs: Repairs | None = None) -> Sections:
    """Return one generation on a disk."""
    storage.make_directory("copies")
    sections = Sections(open_files(storage, repairs))
    sections.write(1, entities(1, 4))
    return sections


def test_a_copy_that_cannot_be_opened_is_done_without() -> None:
    """It is a damaged copy like any other, reported with the words of the disk."""
    storage, repairs = Unopenable(), Repairs()
    sections = written(storage, repairs)
    storage.bad = f"{A}/layers"
    assert loaded_state(sections.files, 1) == sections.state
    told = [verdicts[0] for name, verdicts in zip(repairs.names, repairs.verdicts, strict=True)]
    assert told
    assert all(each.startswith("cannot be opened: Input/output error") for each in told)


def test_an_identity_that_is_damaged_in_one_directory_is_written_again() -> None:
    """The others say whose the directories are."""
    storage = memory()
    sections = written(storage)
    whole = storage.content(f"{A}/{IDENTITY_FILE}")
    sections.files.close()
    storage.flip(f"{A}/{IDENTITY_FILE}", len(whole) - 1)
    assert loaded_state(open_files(storage), 1) == sections.state
    assert storage.content(f"{A}/{IDENTITY_FILE}") == whole


def test_new_directories_whose_identities_a_disk_lost_are_taken_into_use() -> None:
    """Where nothing was kept yet, empty identities are written anew, with or without folders."""
    storage = memory()
    open_files(storage).close()
    before = storage.snapshot()
    for directory in COPY_DIRECTORIES:
        storage.replace(f"{directory}/{IDENTITY_FILE}", b"")
    open_files(storage).close()
    assert storage.snapshot() == before


def test_empty_identities_beside_kept_files_are_damage() -> None:
    """Where layers were kept and no identity is left, an operator is asked whose they are."""
    storage = memory()
    written(storage).files.close()
    for directory in COPY_DIRECTORIES:
        storage.replace(f"{directory}/{IDENTITY_FILE}", b"")
    with pytest.raises(WrongCopyDirectory, match="IDENTITY is damaged"):
        open_files(storage)


def test_a_block_of_a_newer_build_is_looked_for_in_no_other_copy() -> None:
    """A build that does not know its format does not call it damaged."""
    storage = memory()
    sections = written(storage)
    with sections.files.load(1) as loaded:
        digest = section_of(loaded.manifest, STAGE).layers[0].digest
        (layer,) = loaded.layers[STAGE]
        place = layer.blocks[0]
        for directory in COPY_DIRECTORIES:
            path = f"{directory}/{layer_file(digest)}"
            block = storage.content(path)[place.offset : place.offset + place.size_bytes]
            for offset, newer in enumerate(of_a_newer_build(block)):
                storage.flip(path, place.offset + offset, block[offset] ^ newer)
        with pytest.raises(FormatVersionError, match="block format version"):
            list(layer.entries())


def of_a_newer_build(block: bytes) -> bytes:
    """Return a block with the next version of the format."""
    place = CHECKSUM_BYTES + MAGIC_BYTES
    version = (BLOCK_VERSION + 1).to_bytes(2, "little")
    checked = block[CHECKSUM_BYTES:place] + version + block[place + 2 :]
    return checksum_of(checked) + checked


async def test_who_verifies_is_told_of_a_file_without_an_intact_copy() -> None:
    """The digests of its section cannot be recomputed, which is an answer and no failure."""
    storage = memory()
    sections = written(storage)
    async with StoredSnapshots(sections.files).pinned(1) as generation:
        assert await generation.check_sections() == []
        name = layer_file(section_of(sections.files.load(1).manifest, STAGE).layers[0].digest)
        for directory in COPY_DIRECTORIES:
            storage.flip(f"{directory}/{name}", 200)
        (told,) = await generation.check_sections()
    assert name in told


async def test_log_that_catches_up_with_the_last_layer_needs_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The superblock does not name a generation that everything is here of, and nobody needs."""
    trial = TransferTrial(tmp_path)
    finish = IncomingGeneration.finish

    def finish_late(incoming: IncomingGeneration) -> None:
        finish(incoming)
        trial.held_op = 20

    monkeypatch.setattr(IncomingGeneration, "finish", finish_late)
    trial.transfer.needed(SnapshotNeeded(0, NEWEST, 20))
    await trial.until(lambda: trial.ended == 1)
    assert trial.recorded == []
    assert NEWEST in trial.files.generations()


async def test_a_partial_file_that_is_too_long_is_fetched_anew(tmp_path: Path) -> None:
    """What is behind the end of a layer belongs to something else."""
    trial = TransferTrial(tmp_path)
    trial.fetcher.chunks_left = 1
    trial.transfer.needed(SnapshotNeeded(0, NEWEST, 20))
    await trial.until(lambda: bool(list(trial.directory.glob(PARTIAL_FILES))))
    (partial,) = trial.directory.glob(PARTIAL_FILES)
    partial.write_bytes(partial.read_bytes() + bytes(max(trial.peer.references.values())))
    trial.fetcher.asked.clear()
    trial.transfer = trial.begin()
    await trial.run()
    assert all(offset == 0 for what, _, _, offset in trial.fetcher.asked if what == "layer")
    assert loaded_state(trial.files, NEWEST) == trial.peer.sections.state
