"""Directories of earlier builds must open to the same log for ever.

`golden/version_N` is the journal and the superblock of a member that has lived through a view
change, or an end of an epoch. A build of its time wrote it once: 1 the first one, 2 the one that
tells torn records from rotten ones, 3 the one whose records name a superblock, 4 the one with
epochs. What they hold is pinned here.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from blake3 import blake3

from coordinator import vsr
from coordinator.vsr.membership import view_in
from tests.coordinator.journal.directories import content, opened
from tests.viewstamp.journals.dumped_journals import live_entries_of
from viewstamp.format.record import FRAME_BYTES, RECORD_MAGIC, SECTOR_BYTES
from viewstamp.journals.log_reading import read_log

GOLDEN = Path(__file__).parent / "golden"
OPS = range(1, 11)
CHANGED = vsr.CoreState(view=2, log_view=2, commit_max=5)
NEXT_EPOCH = vsr.CoreState(
    view=view_in(1, 2),
    log_view=view_in(1, 2),
    commit_max=7,
    membership=vsr.Membership(view_in(1, 2), (0, 1, 3), (4,), ((3, bytes(range(16))),), began_op=7),
)


@dataclass(frozen=True, slots=True)
class GoldenDirectory:
    """A directory: the digest of the checksums of its ops, and what its superblock says."""

    digest: str
    state: vsr.CoreState
    record_versions: frozenset[int]


DIRECTORIES = {
    1: GoldenDirectory("6635de52db66c6e116ed6efef2003c1f", CHANGED, frozenset({1})),
    2: GoldenDirectory("6635de52db66c6e116ed6efef2003c1f", CHANGED, frozenset({2})),
    3: GoldenDirectory("9f4431370eb261cdd918760ed844da07", CHANGED, frozenset({3})),
    4: GoldenDirectory("82d0aaa90635939311bd98f28134159f", NEXT_EPOCH, frozenset({2, 3})),
}


def copied(version: int, path: Path) -> Path:
    """Copy a directory to where it may be written."""
    return shutil.copytree(GOLDEN / f"version_{version}", path / "replica")


def digest_of(checksums: dict[int, bytes]) -> str:
    """Return the digest of the checksums of all ops, which must be there."""
    assert sorted(checksums) == list(OPS)
    return blake3(b"".join(checksums[op] for op in OPS)).hexdigest(16)


def record_versions_in(path: Path) -> set[int]:
    """Return the format versions of all records, as their frames have them."""
    frames = (
        data[at : at + FRAME_BYTES]
        for data in map(Path.read_bytes, path.glob("journal/segment-*"))
        for at in range(SECTOR_BYTES, len(data), SECTOR_BYTES)
    )
    return {
        int.from_bytes(frame[20:22], "little") for frame in frames if frame[16:20] == RECORD_MAGIC
    }


@pytest.mark.parametrize("version", DIRECTORIES)
def test_a_directory_of_an_earlier_build_opens_to_its_log(version: int, tmp_path: Path) -> None:
    """Each op has the checksum that was written then, nothing is reported as lost, and a second
    start finds the same."""
    golden = DIRECTORIES[version]
    path = copied(version, tmp_path)
    assert record_versions_in(path) == golden.record_versions
    for _ in range(2):
        files = opened(path)
        found = {op: prepare.checksum for op in OPS if (prepare := files.journal.read(op))}
        assert digest_of(found) == golden.digest
        assert files.start.superblock == golden.state
        assert files.journal.missing_ops == ()
        assert files.journal.is_settled
        files.close()


@pytest.mark.parametrize("version", DIRECTORIES)
def test_a_directory_of_an_earlier_build_is_read_without_its_replica(
    version: int, tmp_path: Path
) -> None:
    """`viewstamp log` shows the same entries, finds nothing wrong, and changes nothing."""
    path = copied(version, tmp_path)
    before = content(path)
    reading = read_log(path)
    assert digest_of(live_entries_of(reading.survey)) == DIRECTORIES[version].digest
    assert reading.is_whole
    assert content(path) == before
