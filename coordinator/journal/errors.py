"""What can go wrong with a journal or a superblock, and what the operator can do about it."""

# Names say what happened in the words of the operations manual; a suffix would add nothing.
# ruff: noqa: N818

from __future__ import annotations

from typing import Final

_WAYS_OUT: Final = (
    "Nothing was changed. Ways out: (1) keep a copy of this data directory; start one of several "
    "replicas with an empty directory, never with an older one; give a lone replica the whole "
    "directory back from a copy that was taken while it was stopped; (2) where the disk itself is "
    "failing, copy the directory to another disk, which may read the sectors again; (3) found a "
    "new cluster from the latest completed snapshot by disaster restore, which loses the commands "
    "after that snapshot"
)


class JournalError(Exception):
    """Any failure of the journal or the superblock."""


class NoSpace(JournalError):
    """Appending would use up the reserve. Nothing was written; the journal stays usable."""


class JournalFailed(JournalError):
    """The disk refused a write or a sync. What is durable is unknown: the process must end."""


class CorruptRecord(JournalError):
    """A record that was intact when this process last read it no longer is."""

    def __init__(self, path: str, offset: int, op: int, reason: str) -> None:
        self.path = path
        self.offset = offset
        self.op = op
        self.reason = reason
        super().__init__(f"record of op {op} in {path} at offset {offset} is damaged: {reason}")


class CorruptJournal(JournalError):
    """A journal that this replica cannot repair alone. `op` is None where it is unknown."""

    def __init__(self, path: str, offset: int, op: int | None, reason: str) -> None:
        self.path = path
        self.offset = offset
        self.op = op
        self.reason = reason
        what = "unknown op" if op is None else f"op {op}"
        super().__init__(f"{path} at offset {offset} ({what}): {reason}. {_WAYS_OUT}")


class MissingSegment(JournalError):
    """A segment between two others is gone, with all its records."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{path} is missing, but segments before and after it exist. {_WAYS_OUT}")


class JournalNotFound(JournalError):
    """There is no journal to open. `create` makes it once, and never silently again."""

    def __init__(self, directory: str) -> None:
        super().__init__(
            f"no journal segments in {directory}, though this replica was bootstrapped. Opening "
            f"does not make a new journal, since that would forget acknowledged commands. "
            f"{_WAYS_OUT}"
        )


class JournalExists(JournalError):
    """A journal with records exists where a new one was to be made."""

    def __init__(self, directory: str) -> None:
        super().__init__(
            f"{directory} holds a journal with records; open it, or choose an empty directory"
        )


class WrongCluster(JournalError):
    """A file of another cluster."""

    def __init__(self, path: str, found: bytes, expected: bytes) -> None:
        super().__init__(
            f"{path} belongs to cluster {found.hex()}, this replica to {expected.hex()}; "
            f"check the data directory that it was given"
        )


class WrongReplica(JournalError):
    """A file of another replica of this cluster."""

    def __init__(self, path: str, found: int, expected: int) -> None:
        super().__init__(
            f"{path} belongs to replica {found}, this process is replica {expected}; "
            f"check the data directory and the replica index that it was given"
        )


class SuperblockError(JournalError):
    """Any reason why a superblock cannot be used."""


class SuperblockNotFound(SuperblockError):
    """There is no superblock file: the replica was never bootstrapped here."""


class SuperblockFailed(SuperblockError):
    """Fewer than three copies could be written and verified: the process must end."""


class SuperblockQuorumLost(SuperblockError):
    """Fewer than two copies agree on the newest state."""


class SuperblockFork(SuperblockError):
    """Two intact copies of one sequence number differ: two histories were written."""


class SuperblockNotConnected(SuperblockError):
    """An intact copy is not the parent of the one that follows it."""


class SuperblockNotMonotonic(SuperblockError):
    """A later state takes back a promise of an earlier one."""


def _way_out(*, single: bool) -> str:
    if single:
        return "Bring superblock and journal back from one backup"
    return (
        "Keep a copy of this directory, and start the replica with an empty one: it would vote as "
        "if it had not acknowledged later entries"
    )


class SuperblockOlder(SuperblockError):
    """The journal was written under a later superblock: an older copy was put in its place."""

    def __init__(self, path: str, offset: int, evidence: str, *, single: bool) -> None:
        super().__init__(
            f"the record in {path} at offset {offset} {evidence}: it is an older copy. Nothing was "
            f"changed. {_way_out(single=single)}"
        )


class SuperblockExists(SuperblockError):
    """A superblock exists where a new one was to be made: this replica was bootstrapped already."""
