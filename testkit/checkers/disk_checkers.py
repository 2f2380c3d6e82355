"""Promises of disks: what a journal and a superblock give back after the end of a process."""

from __future__ import annotations

from typing import Any, Final

from coordinator import vsr
from coordinator.replica.data_directory import ReplicaFiles
from coordinator.vsr import Prepare, messages
from testkit.checkers.checker import CheckedMachine, Checker
from testkit.checkers.history import History, is_known_lost


class DurableIsDurable(Checker):
    """A loss of power takes no entry that a journal reported as durable or started from."""

    def started(self, replica: int, files: ReplicaFiles, machine: CheckedMachine) -> None:
        for header in files.start.suffix:
            self._check(replica, header.op, machine)

    def durable(self, replica: int, prepare: Prepare, machine: CheckedMachine) -> None:
        self._check(replica, prepare.op, machine)

    def _check(self, replica: int, op: int, machine: CheckedMachine) -> None:
        place = machine.journal.index.get(op)
        if place is None or machine.is_excused(op):
            return
        if not machine.holds_durably(place.segment, place.offset, place.extent_bytes):
            raise self.broken(f"replica {replica} says that op {op} is durable, and it is not")


class RestartKeeps(Checker):
    """A restart finds, or knows to be damaged, every entry that was reported durable before."""

    def started(self, replica: int, files: ReplicaFiles, machine: CheckedMachine) -> None:
        journal = files.journal
        for op, checksum in self.history.held.get(replica, {}).items():
            header = journal.header(op)
            is_kept = header is not None and header.checksum == checksum
            is_covered = op <= max(files.start.base_op, journal.first_op - 1)
            # Where a whole record is lost, others may be in doubt: it could have replaced them.
            # What was in doubt at an earlier start and not replaced yet is known to be missing.
            is_in_doubt = bool(machine.damaged_ops) and is_known_lost(files.recovery, op)
            is_off = self.history.is_off(replica, op, files.start.base_op)
            is_excused = is_in_doubt or is_off or machine.is_excused(op)
            if not (is_kept or is_covered or is_excused):
                raise self.broken(
                    f"replica {replica} restarted without op {op}, which was durable: "
                    f"{files.recovery}"
                )


class OlderSuperblocksAreRefused(Checker):
    """No process starts with a superblock that is older than its journal."""

    def started(self, replica: int, files: ReplicaFiles, machine: CheckedMachine) -> None:
        if machine.has_older_superblock:
            raise self.broken(f"replica {replica} started with an older superblock")


class ViewsMonotonic(Checker):
    """A replica never forgets a view in which it promised anything, or goes back in one.

    It never forgets either which view its log was of when it vouched for an entry of that log.
    """

    PROMISES: Final = (
        messages.PrepareOkMessage,
        messages.DoViewChangeMessage,
        messages.StartViewMessage,
    )

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._promised: dict[int, tuple[int, int]] = {}
        """For each replica the latest view and the latest view of a log that it told others."""
        self._seen: dict[int, tuple[int, int]] = {}

    def started(self, replica: int, files: ReplicaFiles, machine: CheckedMachine) -> None:
        superblock = files.start.superblock
        found = (superblock.view, superblock.log_view) if superblock is not None else (0, 0)
        if machine.has_lied:
            self.disk_lost(replica)  # the others, or the start, have to refuse what is left
        promised = self._promised.get(replica, (0, 0))
        if found[0] < promised[0] or found[1] < promised[1]:
            raise self.broken(
                f"replica {replica} restarted in view {found[0]} with the log of view {found[1]}, "
                f"having promised in view {promised[0]} with the log of view {promised[1]}"
            )
        self._seen.pop(replica, None)

    def disk_lost(self, replica: int) -> None:
        self._promised.pop(replica, None)

    def stepped(self, replica: int, core: vsr.Replica) -> None:
        views = (core.marks.view, core.marks.log_view)
        before = self._seen.get(replica, (0, 0))
        if views[0] < before[0] or views[1] < before[1]:
            raise self.broken(f"replica {replica} went from views {before} back to {views}")
        self._seen[replica] = views

    def sent(self, replica: int, message: Any) -> None:
        if not isinstance(message, self.PROMISES):
            return
        log_view = message.view
        if isinstance(message, messages.DoViewChangeMessage):
            log_view = message.log_view
        view_before, log_view_before = self._promised.get(replica, (0, 0))
        self._promised[replica] = (max(view_before, message.view), max(log_view_before, log_view))
