"""Where segments of the journal go that are dropped, looked at before anything is served."""

from __future__ import annotations

from typing import Final

from coordinator.base.errors import ConfigError
from coordinator.storage import Storage

ARCHIVE_PROBE: Final = "archive-probe"


def check_archive(storage: Storage, directory: str, archive: str) -> None:
    """Make the archive, and move a file there. Raises ConfigError if that cannot be done.

    Otherwise the process would end days later, when it drops its first segment, and all replicas at
    about the same time.
    """
    probe, moved = f"{directory}/{ARCHIVE_PROBE}", f"{archive}/{ARCHIVE_PROBE}"
    try:
        storage.make_directory(archive)
        if storage.exists(probe):  # an earlier process died here
            storage.unlink(probe)
        storage.create(probe).close()
        storage.rename(probe, moved)
        storage.unlink(moved)
    except OSError as error:
        raise ConfigError(
            f"--journal-archive {archive}: segments of the journal cannot be moved there ({error});"
            f" give a directory on the file system of {directory}, in a directory that exists"
        ) from error
