"""What the scrubber acts upon: files, the journal's thread, the core, alarms and clocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol, TypeVar

from coordinator.journal.interface import HeldRecords
from coordinator.snapshot.files import SnapshotFiles
from coordinator.storage import Storage
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.worker_thread import WorkerThread

Result = TypeVar("Result")


class ScrubAlarm(Enum):
    """The kinds of alarms of the scrubber."""

    COPY_BAD = auto()  # the subject is the name of a snapshot file
    JOURNAL_DAMAGED = auto()
    SUPERBLOCK_DAMAGED = auto()
    STALLED = auto()


class ScrubAlarms(Protocol):
    """Alarms of a replica, by kind and subject. Telling again changes the text."""

    def tell(self, kind: ScrubAlarm, text: str, subject: str = "") -> None:
        """Raise an alarm, or change what it says."""

    def clear(self, kind: ScrubAlarm, subject: str = "") -> None:
        """End an alarm, if there is one."""

    def keep_files(self, names: Collection[str]) -> None:
        """End the alarms of all other snapshot files: those are gone."""


class ScrubbedSuperblock(Protocol):
    """The superblock (`replica.superblock_file.SuperblockFile`). Both methods block."""

    @property
    def exists(self) -> bool:
        """Whether it was ever written."""

    @property
    def is_in_place(self) -> bool:
        """Whether its file has its name; blocks."""

    def deviating(self) -> tuple[int, ...]:
        """Return the copies that are not as they were written, or are being written."""

    def mend(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rewrite the copies that deviate; return them, and those that deviate even now."""


class ScrubbedJournal(Protocol):
    """The journal, in its own thread."""

    @property
    def kept_records(self) -> HeldRecords:
        """The records of the log by segment."""

    def read(self, op: int) -> Any | None:
        """Return the prepare of an op; raises CorruptRecord."""

    def header(self, op: int) -> Any | None:
        """Return the header of an op, None if it is not held."""


class JournalThread(Protocol):
    """Runs calls between the writes of the journal."""

    async def call(self, function: Callable[[], Result]) -> Result:
        """Run a call there."""


# Brings a file of a generation from the other replicas. Raises `transfer.PASSING`.
BringFile = Callable[[int, str], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class ScrubPorts:
    """What the scrubber acts upon.

    `thread` is its own, for everything that blocks. `is_lone` says whether no other replica votes
    now.
    `cut_op` is the cut of the snapshot to restart from, 0 for none. `found_faulty` tells the core
    of a damaged record. `manifest_of` is the manifest of a generation, if it is in memory.
    `is_held` says whether the replica has better things to do just now, `is_busy` whether commands
    came since it was last asked. `bring` is None for a replica without peers.
    """

    storage: Storage
    thread: WorkerThread
    superblock: ScrubbedSuperblock
    journal: ScrubbedJournal
    writer: JournalThread
    files: SnapshotFiles
    is_lone: Callable[[], bool]
    cut_op: Callable[[], int]
    found_faulty: Callable[[int], None]
    manifest_of: Callable[[int], SnapshotManifest | None]
    is_held: Callable[[], bool]
    is_busy: Callable[[], bool]
    alarms: ScrubAlarms
    bring: BringFile | None
    clock_ms: Callable[[], int]
    wall_clock_us: Callable[[], int]
