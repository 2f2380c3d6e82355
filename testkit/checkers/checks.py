"""All checkers of a run, told of everything by hooks of the same names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from coordinator import vsr
from coordinator.replica.data_directory import ReplicaFiles
from testkit.checkers.checker import AskedRead, CheckedMachine, Checker, Executed, ToldAnswer
from testkit.checkers.client_checkers import (
    AcknowledgedIsKept,
    DigestsEqual,
    ExactlyOnce,
    ReadsAreLinearizable,
)
from testkit.checkers.disk_checkers import (
    DurableIsDurable,
    OlderSuperblocksAreRefused,
    RestartKeeps,
    ViewsMonotonic,
)
from testkit.checkers.epoch_checkers import EpochsAgree, EpochsOnlyGrow, LedByOne
from testkit.checkers.history import History
from testkit.checkers.log_checkers import (
    CommittedOnQuorum,
    ExecutedInOrder,
    LevelsAscend,
    LogsAreWhole,
    LogTimeIsNotAhead,
    NothingCommittedDiscarded,
    OneHistory,
    OneLogPerView,
    StandbysOnlyFollow,
)

# In this order: the first one makes the history that the others compare with.
SHARED: Final[tuple[type[Checker], ...]] = (
    OneHistory,
    ExecutedInOrder,
    CommittedOnQuorum,
    StandbysOnlyFollow,
    DurableIsDurable,
    RestartKeeps,
    OlderSuperblocksAreRefused,
    ViewsMonotonic,
    OneLogPerView,
    LogsAreWhole,
    NothingCommittedDiscarded,
    LevelsAscend,
    DigestsEqual,
    ExactlyOnce,
    AcknowledgedIsKept,
    ReadsAreLinearizable,
    LogTimeIsNotAhead,
    EpochsAgree,
    EpochsOnlyGrow,
    LedByOne,
)

HOOKS: Final = tuple(
    name for name in vars(Checker) if not name.startswith("_") and name != "broken"
)


class Checks:
    """All checkers, told of everything by hooks of the same names."""

    def __init__(self, history: History, kinds: Sequence[type[Checker]]) -> None:
        self.history = history
        self._checkers = [checker(history) for checker in kinds]
        self._listeners = {
            hook: [
                getattr(checker, hook)
                for checker in self._checkers
                if getattr(type(checker), hook) is not getattr(Checker, hook)
            ]
            for hook in HOOKS
        }

    def tell(self, hook: str, *arguments: Any) -> None:
        for listener in self._listeners[hook]:
            listener(*arguments)

    def started(self, replica: int, files: ReplicaFiles, machine: CheckedMachine) -> None:
        """A process opened its directory."""
        self.tell("started", replica, files, machine)
        self.history.started(replica, files.journal, files.start.base_op)

    def disk_lost(self, replica: int) -> None:
        """A disk was replaced by another one."""
        self.tell("disk_lost", replica)
        self.history.disk_lost(replica)

    def stepped(self, replica: int, core: vsr.Replica) -> None:
        """A core took a step."""
        self.history.views[replica] = core.marks.view
        self.history.entered(core.membership)
        self.tell("stepped", replica, core)

    def sent(self, replica: int, message: Any) -> None:
        """A replica sends a message."""
        self.tell("sent", replica, message)

    def durable(self, replica: int, prepare: Any, machine: CheckedMachine) -> None:
        """An entry became durable."""
        self.history.became_durable(replica, prepare)
        self.tell("durable", replica, prepare, machine)

    def discarded(self, replica: int, op: int) -> None:
        """Entries above `op` are being discarded: from now on nothing relies on them here."""
        self.tell("discarded", replica, op)
        self.history.discards(replica, op)

    def committed(self, replica: int, prepare: Any) -> None:
        """A replica executes an entry."""
        self.tell("committed", replica, prepare)

    def executed(self, replica: int, executed: Executed) -> None:
        """An entry went through all stages."""
        self.tell("executed", replica, executed)

    def snapshot_written(self, replica: int, generation: int, root: bytes) -> None:
        """A snapshot is durable."""
        self.tell("snapshot_written", replica, generation, root)

    def read_asked(self, read: AskedRead) -> None:
        """A client begins to read."""
        self.tell("read_asked", read)

    def acknowledged(self, request: Any, answer: ToldAnswer) -> None:
        """A client got its reply."""
        self.tell("acknowledged", request, answer)

    def read(self, read: AskedRead, answer: ToldAnswer) -> None:
        """A client got what it read."""
        self.tell("read", read, answer)
