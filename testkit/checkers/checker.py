"""What every checker is: it is told of everything that goes on, and raises `Broken`."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from coordinator import vsr
from coordinator.journal.interface import ReplicaJournal
from coordinator.replica.data_directory import ReplicaFiles
from coordinator.vsr import Prepare
from testkit.checkers.history import History


class Broken(AssertionError):  # noqa: N818 - it says what happened.
    """A promise is broken; `checker` says which one."""

    def __init__(self, checker: str, what: str) -> None:
        super().__init__(f"{checker}: {what}")
        self.checker = checker


class CheckedMachine(Protocol):
    """The machine of a replica, as far as checkers look at it."""

    @property
    def journal(self) -> ReplicaJournal:
        """The journal of the process that runs."""
        ...

    @property
    def damaged_ops(self) -> set[int]:
        """Entries of which a copy on this disk was damaged, now or earlier."""
        ...

    @property
    def has_older_superblock(self) -> bool:
        """Whether the superblock on the disk is older than the journal beside it."""
        ...

    @property
    def has_lied(self) -> bool:
        """Whether this disk confirmed a sync that it did not do."""
        ...

    def is_excused(self, op: int) -> bool:
        """Whether this disk need not give back an entry that it took."""
        ...

    def holds_durably(self, segment: int, offset: int, size: int) -> bool:
        """Whether a loss of power would leave these bytes of the journal as readers see them."""
        ...

    def latest_right_us(self) -> int:
        """The latest time that a right clock may tell now, in microseconds since 1970."""
        ...


@dataclass(frozen=True, slots=True)
class Executed:
    """One entry went through all stages.

    `effective` names the requests that took effect in it. `digest` is that of the state after it;
    None where it was not computed.
    """

    op: int
    effective: tuple[Hashable, ...]
    digest: Hashable | None


class AskedRead(Protocol):
    """A read. `client` and `number` tell it from every other one."""

    @property
    def client(self) -> int: ...
    @property
    def number(self) -> int: ...


class ToldAnswer(Protocol):
    """What a client was told, and the last entry that it can be about."""

    @property
    def op(self) -> int: ...


class Checker:
    """The hooks; a checker overrides those that it needs."""

    def __init__(self, history: History) -> None:
        self.history = history

    def broken(self, what: str) -> Broken:
        """The exception to raise."""
        return Broken(type(self).__name__, what)

    def started(self, replica: int, files: ReplicaFiles, machine: CheckedMachine) -> None:
        """A process opened its directory."""

    def disk_lost(self, replica: int) -> None:
        """A disk was replaced by another one."""

    def stepped(self, replica: int, core: vsr.Replica) -> None:
        """A core took a step."""

    def sent(self, replica: int, message: Any) -> None:
        """A replica sent a message to another."""

    def durable(self, replica: int, prepare: Prepare, machine: CheckedMachine) -> None:
        """A replica's journal reported an entry as durable."""

    def discarded(self, replica: int, op: int) -> None:
        """A replica is about to take everything above `op` out of its journal."""

    def committed(self, replica: int, prepare: Prepare) -> None:
        """A replica executes an entry."""

    def executed(self, replica: int, executed: Executed) -> None:
        """An entry went through all stages of a replica."""

    def snapshot_written(self, replica: int, generation: int, root: bytes) -> None:
        """A snapshot is durable on a replica, and this is its root."""

    def read_asked(self, read: AskedRead) -> None:
        """A client sends a read for the first time."""

    def acknowledged(self, request: Any, answer: ToldAnswer) -> None:
        """A client got the reply to a request."""

    def read(self, read: AskedRead, answer: ToldAnswer) -> None:
        """A client got the reply to a read."""
