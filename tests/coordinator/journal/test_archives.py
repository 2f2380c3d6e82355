"""The archive of dropped segments, which is looked at when a replica starts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from coordinator.base.errors import ConfigError
from coordinator.replica.data_directory import DirectoryOptions, open_replica
from testkit.memory_storage import MemoryStorage

OPTIONS = DirectoryOptions(Path("data"), replica_id=0, replica_count=1, archive=Path("archive"))


class TwoFileSystems(MemoryStorage):
    """A disk whose archive is on another file system."""

    def rename(self, source: str, target: str) -> None:
        """Move a file within one of them."""
        if source.partition("/")[0] != target.partition("/")[0]:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)
        super().rename(source, target)


def test_a_start_makes_the_archive_and_leaves_nothing_in_it() -> None:
    """An archive that does not exist is made at the start, also beside what a crash has left."""
    storage = MemoryStorage()
    storage.make_directory("data")
    storage.create("data/archive-probe")
    open_replica(OPTIONS, storage).close()
    assert storage.names("archive") == []
    assert "archive-probe" not in storage.names("data")


def test_a_start_refuses_an_archive_where_no_segment_can_go() -> None:
    """Nobody learns at the first dropped segment that the archive is on another file system."""
    with pytest.raises(ConfigError, match=r"--journal-archive archive: .* give a directory on"):
        open_replica(OPTIONS, TwoFileSystems())
