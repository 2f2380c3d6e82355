"""What can go wrong with the files of snapshots, and what the operator can do about it."""

# Names say what happened in the words of the operations manual; a suffix would add nothing.
# ruff: noqa: N818

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_WAYS_OUT: Final = (
    "Nothing was changed. Ways out: (1) put the file back, under this name, into any one of these "
    "directories, from a download of the generation, from another replica, or from a copy of the "
    "directory: every copy is repaired from it; (2) where a disk is failing, copy its directory to "
    "another disk, which may read the sectors again; (3) found a new cluster from an older "
    "completed generation by disaster restore, which loses the commands after that generation"
)


_UNUSED_WAYS_OUT: Final = (
    "Nothing was changed. Ways out: (1) mount it, or correct --snapshot-directory, and start again;"
    " (2) put a copy of one of these directories in its place, IDENTITY included: the others are"
    " filled from it; (3) one of three or more replicas, whose files are lost for good: start it"
    " with an empty --data-directory, like one that has lost its disk; the others send it all, and"
    " let it vote again"
)


class SnapshotStorageError(Exception):
    """Any failure of the files of snapshots."""


class NoIntactCopy(SnapshotStorageError):
    """No directory has an intact copy. `reasons` are (directory, what is wrong) of each copy."""

    def __init__(self, name: str, reasons: Sequence[tuple[str, str]]) -> None:
        self.name = name
        self.reasons = tuple(reasons)
        found = "; ".join(f"in {directory}: {reason}" for directory, reason in reasons)
        super().__init__(f"no copy of {name} is intact: {found}. {_WAYS_OUT}")


class DirectoriesUnused(NoIntactCopy):
    """All copy directories are new, although they held a snapshot to restart from."""

    def __init__(self, name: str, directories: Sequence[str]) -> None:
        super().__init__(name, [(directory, "the directory is new") for directory in directories])
        self.args = (
            f"this replica restarts from {name}, and was given {', '.join(directories)} for it, but"
            f" nothing was ever kept there: is a disk not mounted? {_UNUSED_WAYS_OUT}",
        )


class CopiesFailed(SnapshotStorageError):
    """A sync failed. What is durable is unknown: the process must end."""


class CopyNotWritten(SnapshotStorageError):
    """A file could not be written. An incomplete file never has a final name."""


class SnapshotNoSpace(CopyNotWritten):
    """The disk is full, and the reserve, if the write may use it, is already given up."""


class WrongCopyDirectory(SnapshotStorageError):
    """The copy directories are not the three that this replica had before."""


class ConflictingManifest(SnapshotStorageError):
    """The generation exists here with another root: two histories were written."""


class GenerationDamaged(SnapshotStorageError):
    """Intact files that do not match the manifest. `problems` says what differs."""

    def __init__(self, generation: int, problems: Sequence[str]) -> None:
        self.generation = generation
        self.problems = tuple(problems)
        super().__init__(
            f"generation {generation} is not what its manifest says: {'; '.join(problems)}. "
            f"Its files are as they were written, so it was written wrongly: go back to an older "
            f"generation, and keep these files for whoever looks for the reason"
        )


class TransferFailed(SnapshotStorageError):
    """A generation could not be brought here; the message says why. It is tried again."""


class CompactionFailed(SnapshotStorageError):
    """A chain could not be merged. The chain itself is unchanged and stays in use."""


class PeerFileUnavailable(Exception):
    """No peer that was asked sends the file, or the rest of it; the message has each one's answer.

    Try again later, or ask others. `is_busy`: the one peer that was asked has no place just now.
    """

    def __init__(self, text: str, *, is_busy: bool = False) -> None:
        super().__init__(text)
        self.is_busy = is_busy
