"""What the checkers see of a world: cores, journals and stages of its coordinators, and clients.

The programs are the shipped ones. Three methods of each coordinator tell the checkers what goes
through them: the step of the core, the entry of an entry into the mux, and its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from coordinator import vsr
from coordinator.journal.interface import ReplicaJournal
from coordinator.mux import types as mux_types
from coordinator.replica.data_directory import ReplicaFiles
from testkit.checkers.checker import Broken, Checker, Executed
from testkit.checkers.checks import SHARED, Checks
from testkit.checkers.client_checkers import SnapshotsAgree
from testkit.checkers.history import History
from testkit.world.workload import READS
from viewstamp.format.prepare import SealedPrepare
from viewstamp.limits import FEATURE_LEVEL_NAMED_SUPERBLOCK

if TYPE_CHECKING:
    from coordinator.app.composition import Coordinator
    from testkit.oracles.history import Operation
    from testkit.world.process import WorldProcess
    from testkit.world.replica import WorldReplica
    from testkit.world.workload import Heard
    from testkit.world.world import World
    from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest

# Clocks that are right are half a second off at most, and drift.
CLOCK_AHEAD_US_MAX: Final = 1_000_000
CHECKERS: Final[tuple[type[Checker], ...]] = (*SHARED, SnapshotsAgree)


class ObservedMachine:
    """The machine of one replica, as the checkers look at it."""

    def __init__(self, world: World, replica: WorldReplica) -> None:
        self._world = world
        self._replica = replica
        self.named_superblock = 0
        """The sequence of the superblock that the journal names; 0 for none."""

    @property
    def files(self) -> ReplicaFiles:
        """The open files of the process that runs."""
        assert self._replica.files is not None, f"replica {self._replica.number} runs"
        return self._replica.files

    @property
    def journal(self) -> ReplicaJournal:
        """The journal of the process that runs."""
        return self.files.journal

    @property
    def damaged_ops(self) -> set[int]:
        """Entries of which a copy on this disk was damaged, now or earlier."""
        return self._replica.damaged_ops

    @property
    def has_older_superblock(self) -> bool:
        """Whether the superblock on the disk is older than the journal beside it."""
        return self.files.superblock.sequence < self.named_superblock

    @property
    def has_lied(self) -> bool:
        """Whether the disk confirmed a sync that it did not do."""
        return self._replica.machine.disk.has_lied

    @property
    def has_diverged(self) -> bool:
        """Whether a story has changed the state of the replica, or its answers."""
        return self._replica.has_diverged

    def is_excused(self, op: int) -> bool:
        """Whether this disk need not give back an entry that it took."""
        return self._replica.is_untrusted or op in self.damaged_ops

    def holds_durably(self, segment: int, offset: int, size: int) -> bool:
        """Whether a loss of power would leave these bytes of the journal as readers see them."""
        if self._replica.file_disk is not None:
            return True  # no run on files loses power
        path = self.journal.kept_records.path(segment)
        return self._replica.machine.disk.is_durable(path, offset, size)

    def latest_right_us(self) -> int:
        """The latest time that a right clock may tell now."""
        return self._world.true_us + CLOCK_AHEAD_US_MAX


@dataclass(frozen=True, slots=True)
class CallOfClient:
    """A read of a client: a caller makes one call at a time."""

    client: int
    number: int


@dataclass(frozen=True, slots=True)
class AnswerFromCluster:
    """What a caller was told, by the entry that it is about."""

    op: int


@dataclass(slots=True)
class Seat:
    """One coordinator process: what it writes, and what it has committed and not handed over."""

    number: int
    machine: ObservedMachine
    coordinator: Coordinator
    process: WorldProcess
    writing: dict[tuple[int, bytes], vsr.Prepare] = field(default_factory=dict)
    committed: dict[int, vsr.Prepare] = field(default_factory=dict)


class Observer:
    """Tells the checkers of everything. The first broken promise ends the run."""

    def __init__(self, world: World, voters: int, heard: Heard) -> None:
        self.checks = Checks(History(voters, lambda op: self._level), CHECKERS)
        self._world = world
        self._machines: dict[int, ObservedMachine] = {}
        self._level = 0
        """The highest feature level that anybody knows to be decided."""
        self._acknowledged_revision = 0
        heard.asked.append(self._asked)
        heard.told.append(self._told)

    def watch(self, replica: WorldReplica) -> None:
        """Watch each process of a replica from its start on.

        Whoever ends processes between two effects of a step has to be there before, so that the
        checkers see only effects that are carried out.
        """
        self._machines[replica.number] = ObservedMachine(self._world, replica)
        replica.opened.append(self._opened)
        replica.disk_replaced.append(self._disk_replaced)

    def demand_kept(self, revision: int) -> None:
        """Demand that replicas which have come to a revision have all that was acknowledged."""
        if revision < self._acknowledged_revision:
            what = f"the end is revision {revision}; {self._acknowledged_revision} was acknowledged"
            raise Broken("AcknowledgedIsKept", what)

    # --- Processes ---

    def _opened(self, replica: WorldReplica) -> None:
        coordinator, machine = replica.coordinator, self._machines[replica.number]
        assert coordinator is not None, "it was just made"
        assert replica.process is not None, "it runs the coordinator"
        seat = Seat(replica.number, machine, coordinator, replica.process)
        self._check(self.checks.started, seat.number, machine.files, machine)
        self._watch_core(seat)
        self._watch_stages(seat)
        self._watch_snapshots(seat)

    def _disk_replaced(self, replica: WorldReplica) -> None:
        self._machines[replica.number].named_superblock = 0
        self._check(self.checks.disk_lost, replica.number)

    def _watch_core(self, seat: Seat) -> None:
        core = seat.coordinator.driver.core
        step = core.step

        def stepped(event: vsr.Event, now_ticks: int) -> Iterator[vsr.Effect]:
            if seat.process.is_alive:
                self._check(self._event, seat, event)
            # The driver looks at the core, which has stepped, before it carries out any effect.
            return carried_out(step(event, now_ticks))

        def carried_out(effects: Iterable[vsr.Effect]) -> Iterator[vsr.Effect]:
            is_seen = False
            for effect in effects:
                if not is_seen:
                    self._check(self.checks.stepped, seat.number, core)
                is_seen = True
                self._check(self._carried_out, seat, effect)
                yield effect
            if not is_seen and seat.process.is_alive:
                self._check(self.checks.stepped, seat.number, core)

        core.step = stepped  # type: ignore[method-assign, assignment]

    def _watch_stages(self, seat: Seat) -> None:
        driver = seat.coordinator.driver
        enter, applied = driver.mux.enter, driver.intake.applied

        def entered(taken_apart: Any) -> Any:
            if seat.process.is_alive:
                self._check(self._committed, seat, taken_apart[0].prepare.op)
            return enter(taken_apart)

        def answered(op: int, replies: Sequence[mux_types.RequestReply]) -> None:
            if seat.process.is_alive:
                self._check(self._executed, seat, op, replies)
            applied(op, replies)

        driver.mux.enter = entered  # type: ignore[method-assign]
        driver.intake.applied = answered  # type: ignore[method-assign]

    def _watch_snapshots(self, seat: Seat) -> None:
        snapshots = seat.machine.files.snapshots
        write = snapshots.write_manifest

        def written(manifest: SnapshotManifest) -> SnapshotManifest:
            stored = write(manifest)
            told = self.checks.snapshot_written
            if not seat.machine.has_diverged:
                self._check(told, seat.number, stored.generation, stored.root)
            return stored

        snapshots.write_manifest = written  # type: ignore[method-assign]

    def _check(self, tell: Callable[..., None], *arguments: Any) -> None:
        try:
            tell(*arguments)
        except Broken as broken:
            self._world.fail(broken)

    # --- The core ---

    def _event(self, seat: Seat, event: vsr.Event) -> None:
        if isinstance(event, vsr.RecordsDurable):
            for record in event.records:
                prepare = seat.writing.pop((record.op, record.checksum), None)
                if prepare is not None:
                    self._durable(seat, prepare)
        elif isinstance(event, vsr.Discarded):
            self.checks.history.discarded(seat.number)

    def _durable(self, seat: Seat, prepare: vsr.Prepare) -> None:
        if prepare.header.feature_level >= FEATURE_LEVEL_NAMED_SUPERBLOCK:
            seat.machine.named_superblock = seat.machine.files.superblock.sequence
        self.checks.durable(seat.number, prepare, seat.machine)

    def _carried_out(self, seat: Seat, effect: vsr.Effect) -> None:
        if isinstance(effect, vsr.Send):
            self.checks.sent(seat.number, effect.message)
        elif isinstance(effect, vsr.PersistPrepares):
            for prepare in effect.prepares:
                seat.writing[prepare.op, prepare.checksum] = prepare
        elif isinstance(effect, vsr.DiscardAfter):
            self.checks.discarded(seat.number, effect.op)
        elif isinstance(effect, vsr.Commit) and effect.prepare is not None:
            seat.committed[effect.op] = effect.prepare

    # --- The stages ---

    def _committed(self, seat: Seat, op: int) -> None:
        prepare = seat.committed.pop(op, None)
        if prepare is None:  # it was read back from the journal
            header = seat.machine.journal.header(op)
            assert header is not None, f"op {op} was read from the journal"
            prepare = SealedPrepare(header, b"")
        level = seat.coordinator.driver.mux.catalog.feature_level
        self._level = max(self._level, level, prepare.header.feature_level if op == 1 else 0)
        self.checks.committed(seat.number, prepare)

    def _executed(self, seat: Seat, op: int, replies: Sequence[mux_types.RequestReply]) -> None:
        effective = tuple(
            (reply.session_id, reply.number)
            for reply in replies
            if reply.session_id and reply.number and reply.op == op and reply.error is None
        )
        mux = seat.coordinator.driver.mux
        if len(mux.sessions) != len(mux.sessions.ids_of_nonce):
            raise Broken("ExactlyOnce", f"a registration up to op {op} opened two sessions")
        digest = None if seat.machine.has_diverged else mux.digests.at(op)
        self.checks.executed(seat.number, Executed(op, effective, digest))

    # --- Clients ---

    def _asked(self, call: Operation) -> None:
        if call.kind in READS:
            self.checks.read_asked(CallOfClient(call.client, call.called_at))

    def _told(self, call: Operation) -> None:
        if call.revision is None:
            return
        op = self.checks.history.op_of_revision(call.revision)
        answer = AnswerFromCluster(len(self.checks.history.entries) + 1 if op is None else op)
        if call.kind in READS:
            read = CallOfClient(call.client, call.called_at)
            self._check(self.checks.read, read, answer)
        else:
            self._acknowledged_revision = max(self._acknowledged_revision, call.revision)
            self._check(self.checks.acknowledged, call, answer)
