"""Directories of replicas in few steps, for tests of what a start makes of their files."""

from __future__ import annotations

from pathlib import Path

from coordinator import vsr
from coordinator.replica.data_directory import (
    DirectoryOptions,
    Mend,
    ReplicaFiles,
    open_replica,
)
from coordinator.storage import FileStorage
from testkit.journal_builders import CLUSTER_ID, SEGMENT_BYTES, chain
from viewstamp.limits import FEATURE_LEVEL_NAMED_SUPERBLOCK

LEVEL = FEATURE_LEVEL_NAMED_SUPERBLOCK
SUPERBLOCK = "superblock"
FIRST_STATE = vsr.CoreState(view=1, log_view=1, commit_max=0)


def opened(path: Path, replica_count: int = 3, mend: Mend | None = None) -> ReplicaFiles:
    """Open the directory of replica 0."""
    options = DirectoryOptions(path, 0, replica_count, CLUSTER_ID, SEGMENT_BYTES)
    return open_replica(options, FileStorage(), mend)


def begun(path: Path, replica_count: int = 3, level: int = LEVEL) -> ReplicaFiles:
    """Journal op 1 and write the first superblock, as a bootstrap does."""
    files = opened(path, replica_count)
    files.journal.append(chain(1, feature_level=level))
    files.superblock.write_core(FIRST_STATE)
    return files


def append(files: ReplicaFiles, level: int = LEVEL) -> None:
    """Journal one more entry."""
    head = files.journal.head
    assert head is not None
    last = files.journal.read(head.op)
    files.journal.append(chain(1, after=last, feature_level=level))


def adopt_view(files: ReplicaFiles) -> None:
    """Write the superblock of the next view."""
    view = files.superblock.state.view + 1
    files.write_core(vsr.CoreState(view=view, log_view=view, commit_max=0))


def content(path: Path) -> dict[str, bytes]:
    """Return everything below the directory, except who holds it."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != "LOCK")
    return {str(file.relative_to(path)): file.read_bytes() for file in files}
