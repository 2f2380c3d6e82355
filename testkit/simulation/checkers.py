"""What must hold whatever happens: one small class for each promise.

A checker is told of everything that goes on, by the hooks of `Checker`, and raises `Broken`. Each
has a planted bug in `test_planted_bugs.py` that it finds.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

from coordinator import vsr
from coordinator.journal import Recovery
from coordinator.journal.segment import segment_path
from coordinator.replica.data_directory import JOURNAL_DIRECTORY, ReplicaFiles
from coordinator.vsr import Prepare, message_shapes, messages
from coordinator.vsr.message_guards import AMONG_VOTERS
from testkit.simulation.application import ApplicationModel, Executed, SimulatedRequest
from testkit.simulation.clients import Answer, Read
from testkit.simulation.history import History
from testkit.simulation.levels import level_behind
from viewstamp.format.prepare import NO_PARENT

if TYPE_CHECKING:
    from testkit.simulation.machine import Machine


class Broken(AssertionError):  # noqa: N818 - it says what happened.
    """A promise is broken; `checker` says which one."""

    def __init__(self, checker: str, what: str) -> None:
        super().__init__(f"{checker}: {what}")
        self.checker = checker


class Checker:
    """The hooks; a checker overrides those that it needs."""

    def __init__(self, history: History) -> None:
        self.history = history

    def broken(self, what: str) -> Broken:
        """The exception to raise."""
        return Broken(type(self).__name__, what)

    def started(self, replica: int, files: ReplicaFiles, machine: Machine) -> None:
        """A process opened its directory."""

    def ended(self, replica: int) -> None:
        """A process is gone."""

    def disk_lost(self, replica: int) -> None:
        """A disk was replaced by an empty one."""

    def stepped(self, replica: int, core: vsr.Replica) -> None:
        """A core took a step."""

    def sent(self, replica: int, message: Any) -> None:
        """A replica sent a message to another."""

    def durable(self, replica: int, prepare: Prepare, machine: Machine) -> None:
        """A replica's journal reported an entry as durable."""

    def discarded(self, replica: int, op: int) -> None:
        """A replica is about to take everything above `op` out of its journal."""

    def committed(self, replica: int, prepare: Prepare) -> None:
        """A replica executes an entry."""

    def executed(self, replica: int, executed: Executed) -> None:
        """An entry went through all stages of a replica."""

    def asked(self, pending: SimulatedRequest | Read) -> None:
        """A client sends something for the first time."""

    def acknowledged(self, request: SimulatedRequest, answer: Answer) -> None:
        """A client got the reply to a request."""

    def read(self, read: Read, answer: Answer) -> None:
        """A client got the reply to a read."""


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
        self.history.model.commit(prepare)


class ExecutedInOrder(Checker):
    """From its start on, a process executes every op once, without a gap."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._last: dict[int, int] = {}

    def started(self, replica: int, files: ReplicaFiles, machine: Machine) -> None:
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

    def started(self, replica: int, files: ReplicaFiles, machine: Machine) -> None:
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
        copies = self.history.copies(op, checksum)
        if copies < self.history.replication:
            raise self.broken(
                f"replica {replica} takes op {op} for committed with {copies} durable copies"
            )
        self._proven_op = max(self._proven_op, op)


class StandbysOnlyFollow(Checker):
    """A standby never leads, and says nothing that counts, or that only a primary says."""

    LEADS: Final = (
        messages.PrepareMessage,
        messages.CommitMessage,
        messages.StartViewMessage,
        messages.ReadIndexReplyMessage,
    )

    def stepped(self, replica: int, core: vsr.Replica) -> None:
        if replica >= self.history.replica_count and (core.is_voter or core.primary == replica):
            raise self.broken(f"standby {replica} votes, or leads: {core}")

    def sent(self, replica: int, message: Any) -> None:
        counts = isinstance(message, (*AMONG_VOTERS, *self.LEADS))
        if counts and replica >= self.history.replica_count:
            raise self.broken(f"standby {replica} says {message}")


class DurableIsDurable(Checker):
    """A loss of power takes no entry that a journal reported as durable or started from."""

    def started(self, replica: int, files: ReplicaFiles, machine: Machine) -> None:
        for header in files.start.suffix:
            self._check(replica, header.op, files.journal, machine)

    def durable(self, replica: int, prepare: Prepare, machine: Machine) -> None:
        assert machine.process is not None
        self._check(replica, prepare.op, machine.process.files.journal, machine)

    def _check(self, replica: int, op: int, journal: Any, machine: Machine) -> None:
        place = journal.index.get(op)
        if place is None or machine.is_excused(op):
            return
        path = segment_path(f"data/{JOURNAL_DIRECTORY}", place.segment)
        if not machine.disk.is_durable(path, place.offset, place.extent_bytes):
            raise self.broken(f"replica {replica} says that op {op} is durable, and it is not")


class RestartKeeps(Checker):
    """A restart finds, or knows to be damaged, every entry that was reported durable before."""

    def started(self, replica: int, files: ReplicaFiles, machine: Machine) -> None:
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


def is_known_lost(recovery: Recovery, op: int) -> bool:
    """Whether a start knows that it cannot say what it once had at `op`: it never denies it."""
    head_op = 0 if recovery.head is None else recovery.head.op
    highest = max((head_op, *recovery.holes))
    return op in recovery.holes or (recovery.head_uncertain and op > highest)


class ViewsMonotonic(Checker):
    """A replica never forgets a view in which it promised anything, or goes back in one."""

    PROMISES: Final = (
        messages.PrepareOkMessage,
        messages.DoViewChangeMessage,
        messages.StartViewMessage,
    )

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._promised: dict[int, int] = {}
        self._seen: dict[int, tuple[int, int]] = {}

    def started(self, replica: int, files: ReplicaFiles, machine: Machine) -> None:
        superblock = files.start.superblock
        view = superblock.view if superblock is not None else 0
        if view < self._promised.get(replica, 0):
            raise self.broken(
                f"replica {replica} restarted in view {view}, having promised in view "
                f"{self._promised[replica]}"
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
        if isinstance(message, self.PROMISES):
            self._promised[replica] = max(self._promised.get(replica, 0), message.view)


class OneLogPerView(Checker):
    """In one view, one op is one entry: a view has one primary, which sequences it once."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._known: dict[tuple[int, int], bytes] = {}

    def sent(self, replica: int, message: Any) -> None:
        if isinstance(message, messages.PrepareMessage):
            self._check(message.prepare)

    def durable(self, replica: int, prepare: Prepare, machine: Machine) -> None:
        self._check(prepare)

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
        decided = level_behind(op - 1)
        if level > decided:
            raise self.broken(f"op {op} has level {level}, and {decided} was decided before it")


class DigestsEqual(Checker):
    """After each entry, every replica is in the same state."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._digests: dict[int, bytes] = {}

    def executed(self, replica: int, executed: Executed) -> None:
        if executed.digest is None:
            return
        agreed = self._digests.setdefault(executed.op, executed.digest)
        if agreed != executed.digest:
            raise self.broken(f"replica {replica} is in another state after op {executed.op}")


class ExactlyOnce(Checker):
    """A request takes effect in one entry, the same on every replica, however often it is sent."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._effective: dict[Hashable, int] = {}

    def executed(self, replica: int, executed: Executed) -> None:
        for request in executed.effective:
            before = self._effective.setdefault(request, executed.op)
            if before != executed.op:
                raise self.broken(
                    f"request {request} took effect at ops {before} and {executed.op}"
                )


class RepliesAreTheModels(Checker):
    """What clients are told is what a plain loop over the one history says."""

    def acknowledged(self, request: SimulatedRequest, answer: Answer) -> None:
        wrong = self.history.model.wrong_reply(request, answer.op, answer.reply)
        if wrong is not None:
            raise self.broken(f"{request} was answered {answer}: {wrong}")

    def read(self, read: Read, answer: Answer) -> None:
        wrong = self.history.model.wrong_read(read.query, answer.op, answer.reply)
        if wrong is not None:
            raise self.broken(f"{read} was answered {answer}: {wrong}")


class AcknowledgedIsKept(Checker):
    """An acknowledged request is on a quorum of disks at that moment, and in the one history."""

    def acknowledged(self, request: SimulatedRequest, answer: Answer) -> None:
        # The reply came out of this entry, or of one before it.
        checksum = self.history.checksum(answer.op)
        if checksum is None:
            raise self.broken(f"{request} was answered with op {answer.op}, which nobody executed")
        copies = self.history.copies(answer.op, checksum)
        if copies < self.history.replication:
            raise self.broken(f"op {answer.op} was acknowledged with {copies} durable copies")
        self.history.acknowledged_op = max(self.history.acknowledged_op, answer.op)


class ReadsAreLinearizable(Checker):
    """A read sees all that anybody had been told of before it was asked for."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._known_op: dict[tuple[int, int], int] = {}
        self._told_op = 0

    def asked(self, pending: SimulatedRequest | Read) -> None:
        if isinstance(pending, Read):
            known_op = max(self._told_op, self.history.acknowledged_op)
            self._known_op[pending.client, pending.number] = known_op

    def read(self, read: Read, answer: Answer) -> None:
        known_op = self._known_op.pop((read.client, read.number))
        if answer.op < known_op:
            raise self.broken(f"{read} was answered of op {answer.op}; op {known_op} was known")
        self._told_op = max(self._told_op, answer.op)


# In this order: the first one makes the history that the others compare with.
CHECKERS: Final[tuple[type[Checker], ...]] = (
    OneHistory,
    ExecutedInOrder,
    CommittedOnQuorum,
    StandbysOnlyFollow,
    DurableIsDurable,
    RestartKeeps,
    ViewsMonotonic,
    OneLogPerView,
    LogsAreWhole,
    NothingCommittedDiscarded,
    LevelsAscend,
    DigestsEqual,
    ExactlyOnce,
    RepliesAreTheModels,
    AcknowledgedIsKept,
    ReadsAreLinearizable,
)

HOOKS: Final = tuple(
    name for name in vars(Checker) if not name.startswith("_") and name != "broken"
)


class Checks:
    """All checkers, told of everything by hooks of the same names."""

    def __init__(self, replica_count: int, model: ApplicationModel) -> None:
        self.history = History(replica_count, model)
        self._checkers = [checker(self.history) for checker in CHECKERS]
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

    def started(self, replica: int, files: ReplicaFiles, machine: Machine) -> None:
        """A process opened its directory."""
        self.tell("started", replica, files, machine)
        self.history.started(replica, files.journal, files.start.base_op)

    def ended(self, replica: int) -> None:
        """A process is gone."""
        self.tell("ended", replica)

    def disk_lost(self, replica: int) -> None:
        """A disk was replaced by an empty one."""
        self.tell("disk_lost", replica)
        self.history.disk_lost(replica)

    def stepped(self, replica: int, core: vsr.Replica) -> None:
        """A core took a step."""
        self.tell("stepped", replica, core)

    def sent(self, replica: int, message: Any) -> None:
        """A replica sends a message."""
        self.tell("sent", replica, message)

    def durable(self, replica: int, prepare: Any, machine: Machine) -> None:
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

    def asked(self, pending: SimulatedRequest | Read) -> None:
        """A client begins."""
        self.tell("asked", pending)

    def acknowledged(self, request: SimulatedRequest, answer: Answer) -> None:
        """A client got its reply."""
        self.tell("acknowledged", request, answer)

    def read(self, read: Read, answer: Answer) -> None:
        """A client got what it read."""
        self.tell("read", read, answer)
