"""Promises of the log: what replicas commit, execute, discard and say to each other."""

from __future__ import annotations

from typing import Any, Final

from coordinator import vsr
from coordinator.replica.data_directory import ReplicaFiles
from coordinator.vsr import Prepare, epoch_of, epochs, message_shapes, messages
from coordinator.vsr.message_guards import AMONG_VOTERS
from testkit.checkers.checker import CheckedMachine, Checker
from testkit.checkers.history import History
from viewstamp.format.prepare import NO_PARENT


class OneHistory(Checker):
    """Every replica executes the same entries, and each is the child of the one before."""

    def committed(self, replica: int, prepare: Prepare) -> None:
        entries = self.history.entries
        if prepare.op <= len(entries):
            agreed = entries[prepare.op - 1]
            if agreed.checksum != prepare.checksum:
                raise self.broken(
                    f"replica {replica} executes op {prepare.op} {prepare.checksum.hex()} of view "
                    f"{prepare.view}; others executed {agreed.checksum.hex()} of view {agreed.view}"
                )
            return
        parent = entries[-1].checksum if entries else NO_PARENT
        if prepare.op != len(entries) + 1 or prepare.parent != parent:
            raise self.broken(f"replica {replica}: op {prepare.op} continues another history")
        entries.append(prepare)


class ExecutedInOrder(Checker):
    """From its start on, a process executes every op once, without a gap."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._last: dict[int, int] = {}

    def started(self, replica: int, files: ReplicaFiles, machine: CheckedMachine) -> None:
        self._last[replica] = files.start.base_op

    def committed(self, replica: int, prepare: Prepare) -> None:
        if prepare.op != self._last[replica] + 1:
            raise self.broken(
                f"replica {replica} executes op {prepare.op} after op {self._last[replica]}"
            )
        self._last[replica] = prepare.op


class CommittedOnQuorum(Checker):
    """No replica treats an entry as committed before a replication quorum of disks has it."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._commits: dict[int, int] = {}
        self._proven_op = 0

    def started(self, replica: int, files: ReplicaFiles, machine: CheckedMachine) -> None:
        self._commits[replica] = 0

    def stepped(self, replica: int, core: vsr.Replica) -> None:
        commit = core.marks.commit_max
        if commit <= max(self._commits.get(replica, 0), self._proven_op):
            return
        self._commits[replica] = commit
        entry = core.state.log.get(commit)
        if entry is not None:
            self._check(replica, commit, entry.header.checksum)

    def committed(self, replica: int, prepare: Prepare) -> None:
        if prepare.op > self._proven_op:
            self._check(replica, prepare.op, prepare.checksum)

    def _check(self, replica: int, op: int, checksum: bytes) -> None:
        copies = self.history.copies(op, checksum, self.history.views.get(replica, 0))
        if copies < self.history.replication(op):
            raise self.broken(
                f"replica {replica} takes op {op} for committed with {copies} durable copies"
            )
        self._proven_op = max(self._proven_op, op)


class StandbysOnlyFollow(Checker):
    """A standby never leads, and says nothing that counts, or that only a primary says.

    So does a replica that was removed, in all views of later epochs.
    """

    LEADS: Final = (
        messages.PrepareMessage,
        messages.CommitMessage,
        messages.StartViewMessage,
        messages.ReadIndexReplyMessage,
    )

    def stepped(self, replica: int, core: vsr.Replica) -> None:
        leads = replica not in core.membership.voters and core.primary == replica
        if leads or (core.is_voter and not self._has_vote(replica, core.marks.view)):
            raise self.broken(f"standby {replica} votes, or leads: {core}")

    def sent(self, replica: int, message: Any) -> None:
        if not isinstance(message, (*AMONG_VOTERS, *self.LEADS)):
            return
        view = epochs.view_of(message)
        if not self._has_vote(
            replica, self.history.views.get(replica, 0) if view is None else view
        ):
            raise self.broken(f"standby {replica} says {message}")

    def _has_vote(self, replica: int, view: int) -> bool:
        return replica in self.history.epochs[epoch_of(view)].voters


class OneLogPerView(Checker):
    """In one view, one op is one entry: a view has one primary, which sequences it once.

    A replica that dies before its superblock exists is blank, and discards what it has: nobody else
    has heard of its first entry, and it makes another one.
    """

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._known: dict[tuple[int, int], bytes] = {}
        self._alone: dict[tuple[int, int], int] = {}
        """Which replica alone has a first entry that was never sent, by view and op."""

    def sent(self, replica: int, message: Any) -> None:
        if isinstance(message, messages.PrepareMessage):
            self._check(message.prepare)
            self._alone.pop((message.prepare.view, message.prepare.op), None)

    def durable(self, replica: int, prepare: Prepare, machine: CheckedMachine) -> None:
        place = prepare.view, prepare.op
        if place not in self._known and prepare.op == 1:
            self._alone[place] = replica
        self._check(prepare)

    def discarded(self, replica: int, op: int) -> None:
        for place, holder in list(self._alone.items()):
            if holder == replica and place[1] > op:
                del self._alone[place], self._known[place]

    def _check(self, prepare: Any) -> None:
        known = self._known.setdefault((prepare.view, prepare.op), prepare.checksum)
        if known != prepare.checksum:
            raise self.broken(f"op {prepare.op} of view {prepare.view} is two different entries")


class LogsAreWhole(Checker):
    """No replica sends a vote or a log that the others refuse as malformed."""

    def sent(self, replica: int, message: Any) -> None:
        is_log = isinstance(message, messages.DoViewChangeMessage | messages.StartViewMessage)
        if is_log and not message_shapes.is_whole(message):
            raise self.broken(f"replica {replica} sends a log that is not whole: {message}")


class NothingCommittedDiscarded(Checker):
    """A replica never takes a committed entry out of its log."""

    def discarded(self, replica: int, op: int) -> None:
        held = self.history.held.get(replica, {})
        for later, checksum in held.items():
            if later > op and self.history.checksum(later) == checksum:
                raise self.broken(f"replica {replica} discards op {later}, which is committed")


class LevelsAscend(Checker):
    """Along the one history the feature level never falls, and rises only after it was decided."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._levels: dict[int, int] = {}

    def committed(self, replica: int, prepare: Any) -> None:
        op, level = prepare.header.op, prepare.header.feature_level
        if self._levels.setdefault(op, level) != level:
            raise self.broken(f"op {op} has level {level} on replica {replica}, and another before")
        before = self._levels.get(op - 1, level)
        if level < before:
            raise self.broken(f"op {op} has level {level}, and the one before it {before}")
        decided = self.history.decided_before(op)
        if level > decided:
            raise self.broken(f"op {op} has level {level}, and {decided} was decided before it")


class LogTimeIsNotAhead(Checker):
    """While at most a minority of clocks is wrong, no entry is of the future of all right ones."""

    def durable(self, replica: int, prepare: Prepare, machine: CheckedMachine) -> None:
        ahead_us = prepare.header.timestamp - machine.latest_right_us()
        if ahead_us > 0:
            raise self.broken(f"op {prepare.op} is {ahead_us} us ahead of every right clock")
