"""Rot: whatever byte of a file flips is noticed, and what becomes of it.

============== =============================== ================================================
file           noticed by                      what becomes of it
============== =============================== ================================================
layer          whole-file BLAKE3, which is the repaired from another copy by load, scrub and
               file's name; block checksums    compaction; all three bad: AllCopiesBad
manifest       its checksum                    the same
identity       its checksum                    written anew if another directory's is intact;
                                               all three bad: refused
reserve        nothing: it has no content      nothing
superblock     checksum of each of four copies repaired as long as two copies agree on the
                                               newest state; else refused
journal        checksums of records            a segment header is repaired; the last record, if
                                               never known to be synced, is cut; anything else is
                                               refused by a single replica, which names the
                                               record (`test_journal_recovery.py`,
                                               every byte), and repaired from peers by others
============== =============================== ================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from coordinator.journal import Superblock, SuperblockQuorumLost
from coordinator.snapshot.errors import NoIntactCopy, WrongCopyDirectory
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.identity import IDENTITY_BYTES, IDENTITY_FILE
from coordinator.snapshot.layout import layer_check, layer_file
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
from testkit.journal_builders import CLUSTER_ID
from viewstamp.format.manifest import sections as sections_of
from viewstamp.format.superblock import COPIES, COPY_BYTES, SuperblockState

GENERATION = 2
GENERATION_BYTES_MIN = 64 * 1024


class Rotting:
    """A generation of a base and a delta per section, on a disk that rots."""

    def __init__(self) -> None:
        self.storage = memory()
        self.repairs = Repairs()
        self.files: SnapshotFiles = open_files(self.storage, self.repairs)
        sections = Sections(self.files)
        sections.write(1, entities(1, 14, size_bytes=700))
        changed = entities(2, 7, first=8)
        changed[3][1, b"000004"] = None
        self.manifest = sections.write(GENERATION, changed)
        self.checks = {
            layer_file(reference.digest): layer_check(reference)
            for _, section in sections_of(self.manifest)
            for reference in section.layers
        }
        self.state = sections.state
        self.names = [each.name for each in scrubbed(self.files, GENERATION)]
        self.sizes = {
            name: len(self.storage.content(f"{COPY_DIRECTORIES[0]}/{name}")) for name in self.names
        }
        self.pristine = self.storage.snapshot()

    def places(self, every: int) -> Iterator[tuple[str, int]]:
        """Return a sample of the bytes of the generation's files, by name and offset."""
        places = ((name, at) for name, size in self.sizes.items() for at in range(size))
        return (place for index, place in enumerate(places) if index % every == 0)

    def flip(self, name: str, offset: int, copies: Sequence[int]) -> None:
        """Flip a bit of one byte in some of the copies."""
        for copy in copies:
            self.storage.flip(f"{COPY_DIRECTORIES[copy]}/{name}", offset, 1 << offset % 8)

    def scrub_one(self, name: str) -> None:
        """Examine one file as `SnapshotFiles.scrub` and `load` do, and no other."""
        if name in self.checks:
            self.files.copies.scrub(name, self.checks[name])
        else:
            assert self.files.stored_manifest(GENERATION) == self.manifest

    def is_pristine(self, name: str) -> bool:
        """Return whether every copy of a file is as it was written."""
        paths = (f"{directory}/{name}" for directory in COPY_DIRECTORIES)
        return all(self.storage.content(path) == self.pristine[path] for path in paths)


def check_repaired(rotting: Rotting, name: str, offset: int, copies: Sequence[int]) -> None:
    """Check for one report, of this file and these copies, with every copy as it was written."""
    assert rotting.repairs.names == [name], offset
    intact = [each == "intact" for each in rotting.repairs.verdicts[0]]
    assert intact == [number not in copies for number in range(len(COPY_DIRECTORIES))]
    assert rotting.is_pristine(name), offset
    rotting.repairs.names.clear()
    rotting.repairs.verdicts.clear()


def test_a_flip_in_one_copy_does_not_change_what_is_loaded() -> None:
    """Loading notices a flipped byte of any file in any copy, repairs it, and gives the state."""
    rotting = Rotting()
    count = 0
    for name, offset in rotting.places(every=401):
        copies = [offset % len(COPY_DIRECTORIES)]
        rotting.flip(name, offset, copies)
        assert loaded_state(rotting.files, GENERATION) == rotting.state
        check_repaired(rotting, name, offset, copies)
        count += 1
    assert count >= GENERATION_BYTES_MIN // 401


def test_a_flip_in_two_copies_does_not_change_what_is_loaded() -> None:
    """The third copy suffices to repair the two others."""
    rotting = Rotting()
    for name, offset in rotting.places(every=397):
        copies = [each for each in range(3) if each != offset % 3]
        rotting.flip(name, offset, copies)
        assert loaded_state(rotting.files, GENERATION) == rotting.state
        check_repaired(rotting, name, offset, copies)


def test_a_flip_in_all_copies_is_refused() -> None:
    """When every copy has the same flip, the error names file, directories and ways out; all
    stays."""
    rotting = Rotting()
    for name, offset in rotting.places(every=499):
        rotting.flip(name, offset, range(3))
        before = rotting.storage.snapshot()
        with pytest.raises(NoIntactCopy, match=r"Ways out: .*disaster restore") as raised:
            rotting.files.load(GENERATION)
        assert raised.value.name == name
        assert [directory for directory, _ in raised.value.reasons] == list(COPY_DIRECTORIES)
        assert all(directory in str(raised.value) for directory in COPY_DIRECTORIES)
        assert rotting.storage.snapshot() == before
        rotting.flip(name, offset, range(3))
    assert loaded_state(rotting.files, GENERATION) == rotting.state
    assert rotting.repairs.names == []


@pytest.mark.long
def test_every_flipped_byte_of_every_file_is_noticed_and_repaired() -> None:
    """A flipped byte in one copy of any file is noticed and repaired, and the digest stays."""
    rotting = Rotting()
    count = 0
    for name, offset in rotting.places(every=1):
        copies = [offset % len(COPY_DIRECTORIES)]
        rotting.flip(name, offset, copies)
        rotting.scrub_one(name)
        check_repaired(rotting, name, offset, copies)
        rotting.storage.log.clear()
        count += 1
    print(f"{count} bytes of {len(rotting.sizes)} files: all noticed, all repaired")
    assert count == sum(rotting.sizes.values()) >= GENERATION_BYTES_MIN
    assert rotting.files.problems(GENERATION) == []
    assert loaded_state(rotting.files, GENERATION) == rotting.state


def test_every_flipped_byte_of_an_identity_is_noticed_and_repaired() -> None:
    """A damaged identity is rewritten from the other directories; without others it is refused."""
    storage = memory()
    open_files(storage).close()
    pristine = storage.snapshot()
    for offset in range(IDENTITY_BYTES):
        storage.flip(f"{COPY_DIRECTORIES[offset % 3]}/{IDENTITY_FILE}", offset)
        open_files(storage).close()
        assert storage.snapshot() == pristine
        for directory in COPY_DIRECTORIES:
            storage.flip(f"{directory}/{IDENTITY_FILE}", offset)
        before = storage.snapshot()
        with pytest.raises(WrongCopyDirectory, match="no other copy directory says"):
            open_files(storage)
        assert storage.snapshot() == before
        for directory in COPY_DIRECTORIES:
            storage.flip(f"{directory}/{IDENTITY_FILE}", offset)


def test_flips_in_several_copies_of_the_superblock() -> None:
    """Two damaged copies of four are repaired; with three nothing is believed or changed."""
    storage = memory()
    state = SuperblockState(CLUSTER_ID, 0, 1, view=1, log_view=1, commit_max=5, generation=2)
    Superblock.create(storage, "copies/superblock", state).close()
    pristine = storage.snapshot()
    for position in range(0, COPY_BYTES, 61):
        bad = [(position + number) % COPIES for number in range(3)]
        for copy in bad[:2]:
            storage.flip("copies/superblock", copy * COPY_BYTES + position)
        superblock = Superblock.open(storage, "copies/superblock")
        assert superblock.repaired_copies == tuple(sorted(bad[:2]))
        assert superblock.state == state
        superblock.close()
        assert storage.snapshot() == pristine
        for copy in bad:
            storage.flip("copies/superblock", copy * COPY_BYTES + position)
        before = storage.snapshot()
        with pytest.raises(SuperblockQuorumLost):
            Superblock.open(storage, "copies/superblock")
        assert storage.snapshot() == before
        for copy in bad:
            storage.flip("copies/superblock", copy * COPY_BYTES + position)
