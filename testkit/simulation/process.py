"""One process of one replica: the real core, journal and superblock, and who serves them.

It is what `coordinator.replica.driver` is in the product, with simulated time in place of an event
loop. Nothing is decided in here either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from coordinator import vsr
from coordinator.replica.apply_queue import RUN_DELAY_MS, RUN_PREPARES_MAX
from coordinator.replica.data_directory import ReplicaFiles
from coordinator.replica.ports import JournalRoom
from testkit.checkers.checker import Executed
from testkit.simulation.application import SimulatedRequest
from testkit.simulation.clients import Answer, NotServed, Read
from testkit.simulation.levels import level_behind
from testkit.simulation.marks import sent_mark
from testkit.simulation.peer_reads import PeerReads
from testkit.simulation.snapshots import Snapshots, state_of
from testkit.simulation.standing import Standing
from testkit.simulation.writer import Job, SimulatedWriter
from viewstamp.limits import FEATURE_LEVEL_NAMED_SUPERBLOCK, TICK_MS

if TYPE_CHECKING:
    from testkit.simulation.machine import Machine

EPOCH_US: Final = 1_700_000_000_000_000
BATCH_REQUESTS_MAX: Final = 4
SETTLE_MS: Final = 200
HUNG_LOOK_MS: Final = 50
CLOCK_LOOK_MS: Final = 1
NO_ROOM: Final = frozenset({JournalRoom.FULL, JournalRoom.EXHAUSTED})
NOT_SERVING: Final = frozenset(
    {
        vsr.RefusalReason.BLANK,
        vsr.RefusalReason.VIEW_CHANGE,
        vsr.RefusalReason.HALTED,
        vsr.RefusalReason.NOT_PRIMARY,
        vsr.RefusalReason.ABDICATING,
    }
)


class ProcessEnded(BaseException):
    """The process is gone: whatever it was doing ends here. `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Process:
    """From one boot to the next crash."""

    def __init__(self, machine: Machine, files: ReplicaFiles, core: vsr.Replica) -> None:
        self.machine = machine
        self.files = files
        self.core = core
        self.writer = SimulatedWriter(self._start_job)
        self.snapshots = Snapshots(self, files, machine.world.generations)
        state = None if files.base is None else state_of(files.base)
        self.application = machine.new_application(state)
        self.application.applied_digests.begin(self.snapshots.cut_op, self.snapshots.adopted)
        self.crash_after_effects: int | None = None
        """After how many more effects the process dies; None: it does not."""
        self.fate: Callable[[Any], bool] | None = None
        """Says before which effect the process dies; None: before none."""
        self.has_rotten_superblock = False
        self._world = machine.world
        self._steps: deque[vsr.Event] = deque()
        self._is_stepping = False
        self._armed = 0
        self._commits: deque[vsr.Commit] = deque()
        self._is_blocked = False  # the first is being read, or is fetched from a peer
        self._handed_over_op = files.start.base_op
        self._is_applying = False
        self._headers: dict[int, vsr.PrepareHeader] = {}
        self._requests: deque[SimulatedRequest] = deque()
        self._in_hand: set[tuple[int, int]] = set()
        self._batch: list[SimulatedRequest] = []
        self._in_log: dict[int, list[SimulatedRequest]] = {}
        self._reads: dict[int, Read] = {}
        self._granted: list[tuple[int, Read]] = []
        self._token = 0
        self._bootstrap: vsr.BootstrapReady | None = None
        self.standing = Standing(self)
        self.peer_reads = PeerReads(self)

    # --- Steps ---

    def step(self, event: vsr.Event) -> None:
        """Give the core an event and carry out its effects; reentrant calls wait their turn."""
        self._steps.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        while self._steps:
            self._one_step(self._steps.popleft())
        self._is_stepping = False
        self.pump()

    def _one_step(self, event: vsr.Event) -> None:
        machine, world = self.machine, self._world
        world.trace.note(machine.name, "<-", event)
        effects = self.core.step(event, world.schedule.now_ms // TICK_MS)
        world.checks.stepped(machine.index, self.core)
        for effect in effects:
            self._die_if_due()
            if self.fate is not None and self.fate(effect):
                raise ProcessEnded("killed at a rare moment")
            world.marks.effect(effect)
            if not isinstance(effect, vsr.Arm):
                world.trace.note(machine.name, "->", effect)
            HANDLERS[type(effect)](self, effect)
        self._die_if_due()

    def _die_if_due(self) -> None:
        if self.crash_after_effects is None:
            return
        if self.crash_after_effects == 0:
            raise ProcessEnded("killed between two effects")
        self.crash_after_effects -= 1

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do something later, if this process still runs then."""
        self.machine.later(delay_ms, action)

    # --- Effects: the network ---

    def _send(self, effect: vsr.Send) -> None:
        if self.standing.may_send(effect):
            self._world.checks.sent(self.machine.index, effect.message)
            self._world.network.send(self.machine.index, effect.to_replica, effect.message)

    # --- Effects: the disk ---

    def _start_job(self, job: Job) -> None:
        def finish() -> None:
            self.machine.meet_doom(job.kind)
            if self.machine.process is self:
                self.writer.finish(job)

        self.later(self.machine.disk_ms(), finish)

    def _persist_prepares(self, effect: vsr.PersistPrepares) -> None:
        self.standing.space.sent(effect.prepares)
        self.writer.append(list(effect.prepares), self.files.journal, self._prepares_durable)

    def _prepares_durable(self, prepares: Sequence[vsr.Prepare]) -> None:
        for prepare in prepares:
            self._world.checks.durable(self.machine.index, prepare, self.machine)
        self.standing.space.written(prepares)
        levels = [prepare.header.feature_level for prepare in prepares]
        if max(levels) >= FEATURE_LEVEL_NAMED_SUPERBLOCK:
            self.machine.named_superblock = self.files.superblock.sequence
        records = tuple(vsr.RecordId(p.op, p.checksum) for p in prepares)
        self.step(vsr.RecordsDurable(records))

    def _persist_superblock(self, effect: vsr.PersistSuperblock) -> None:
        state = effect.state

        def done(_: None) -> None:
            self._world.nemesis.moments.remembered(self.machine, state)
            self.step(vsr.SuperblockDurable(state))

        self.writer.do("superblock", lambda: self.files.write_core(state), done)

    def _discard_after(self, effect: vsr.DiscardAfter) -> None:
        self._world.checks.discarded(self.machine.index, effect.op)

        def done(_: None) -> None:
            self._world.checks.history.discarded(self.machine.index)
            self.step(vsr.Discarded(effect.op))

        self.writer.do("discard", lambda: self.files.journal.discard_after(effect.op), done)

    def _send_committed(self, effect: vsr.SendCommitted) -> None:
        self.peer_reads.send_committed(effect)

    def _send_held(self, effect: vsr.SendHeld) -> None:
        self.peer_reads.send_held(effect)

    def send_found(self, to_replica: int, message: vsr.Message) -> None:
        """Send what the core asked the driver to find."""
        self._world.marks.hit(sent_mark(type(message)))
        self._send(vsr.Send(to_replica, message))

    def found_damaged(self, op: int) -> None:
        """Tell the core of a record that a read found damaged."""
        self._world.marks.hit("read damaged record")
        self.step(vsr.RecordFaulty(op, self.standing.space.room() is JournalRoom.FREE))

    def _settle_journal(self) -> None:
        """Let the disk record that losses are repaired, once it holds the cluster's log."""
        if self.files.journal.is_settled or self.core.status is not vsr.ReplicaStatus.NORMAL:
            return
        self.writer.do("settle", self.files.journal.mark_repaired, lambda _: None)
        self.later(SETTLE_MS, self._settle_journal)

    # --- Effects: commits ---

    def _commit(self, effect: vsr.Commit) -> None:
        """Take a commit: the next one, or again one whose record was damaged."""
        places = {commit.op: place for place, commit in enumerate(self._commits)}
        if effect.op <= self._handed_over_op:
            self._world.marks.hit("commit repeated in vain")
        elif effect.op in places:
            self._commits[places[effect.op]] = effect
            self._is_blocked = self._is_blocked and places[effect.op] > 0
        else:
            self._commits.append(effect)
        if self._may_wait(effect):
            self.later(RUN_DELAY_MS, self._hand_over)
        else:
            self._hand_over()

    def _may_wait(self, commit: vsr.Commit) -> bool:
        """Whether nobody waits for it, as on a backup: then it is handed over with those to come.

        The shell hurries when the status changes; here the delay goes on over that.
        """
        leads = self.core.primary == self.machine.index
        follows = self.core.status is vsr.ReplicaStatus.NORMAL and not leads
        is_whole = commit.prepare is not None and len(self._commits) < RUN_PREPARES_MAX
        return follows and is_whole

    def _hand_over(self) -> None:
        while self._commits and not self._is_blocked:
            commit = self._commits[0]
            if commit.prepare is None:
                self._is_blocked = True
                self._read_commit(commit.op)
                return
            self._commits.popleft()
            self._handed_over_op = commit.op
            self._world.checks.committed(self.machine.index, commit.prepare)
            self._headers[commit.op] = commit.prepare.header
            self.application.start(commit.prepare)
            self._apply()

    def _read_commit(self, op: int) -> None:
        def got(result: tuple[vsr.Prepare | None, bool]) -> None:
            # A damaged one is told to the core, which has it from a peer and commits it again.
            prepare, is_damaged = result
            if is_damaged:
                self.found_damaged(op)
                return
            assert prepare is not None, f"committed op {op} is not in the journal"
            self._commit(vsr.Commit(op, prepare))

        self.writer.do("read", lambda: self.machine.read(self.files.journal, op), got)

    def _apply(self) -> None:
        if not self._is_applying and self.application.is_busy:
            self._is_applying = True
            self.later(self.machine.stage_ms(), self._stages_answered)

    def _stages_answered(self) -> None:
        if self.machine.is_stage_hung:
            self.later(HUNG_LOOK_MS, self._stages_answered)
            return
        self._is_applying = False
        for executed in self.application.step():
            self._cut(executed.op)
            self._applied(executed)
        self._apply()

    def _cut(self, op: int) -> None:
        """Freeze the state where a snapshot is due. Every replica does so after the same entry."""
        header = self._headers.pop(op)
        interval_ops = self._world.options.snapshot_ops
        if interval_ops and op % interval_ops == 0:
            self.application.applied_digests.begin(op, op // interval_ops)
            self.snapshots.cut(op // interval_ops, header, self.application.save())
        self.snapshots.adopt()

    def snapshot_durable(self, generation: int, root: bytes) -> None:
        """Tell the cluster that a generation is on this disk."""
        self._world.marks.hit("snapshot durable")
        self._world.generations.report(self.machine.index, generation, root)

    def background(self, kind: str, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Do something else on the disk, in turn with the journal."""
        self._world.trace.note(self.machine.name, kind)
        self._world.marks.hit(f"job {kind}")
        self.writer.do(kind, work, then)

    def _applied(self, executed: Executed) -> None:
        self._world.checks.executed(self.machine.index, executed)
        self.standing.applied(executed.op)
        batch = self._in_log.pop(executed.op, [])
        for request, reply in zip(batch, executed.replies, strict=False):
            self._in_hand.discard((request.client, request.number))
            self._reply(request.client, Answer(request.number, reply, executed.op))
        self.step(vsr.PrepareApplied(executed.op))
        self._serve_granted()

    # --- Clients ---

    def _reply(self, client: int, answer: Answer | NotServed) -> None:
        self._world.network.send(self.machine.index, client, answer)

    def requested(self, request: SimulatedRequest) -> None:
        """A client's request arrived."""
        refusal = self.core.batch_refusal()
        if refusal in NOT_SERVING:
            self._world.marks.hit(f"refused {refusal.value}")
            self._refuse(request)
        elif (request.client, request.number) not in self._in_hand:
            self._in_hand.add((request.client, request.number))
            self._requests.append(request)
            self.pump()

    def _refuse(self, request: SimulatedRequest | Read) -> None:
        hint = self.core.primary if self.core.status is vsr.ReplicaStatus.NORMAL else None
        self._reply(request.client, NotServed(request.number, hint))

    def pump(self) -> None:
        """Let in what waits while core and journal have room; not in the midst of a step."""
        if self._is_stepping:
            return
        self.standing.entries.look()
        self._admit_waiting()
        self.standing.space.make_if_due()

    def _admit_waiting(self) -> None:
        while self._requests:
            refusal = self.core.batch_refusal()
            room = self.standing.space.room()
            if refusal in NOT_SERVING or room in NO_ROOM:
                # Without room another one may have it; with none anywhere it goes round.
                self._refuse_all()
            if refusal is not None:
                self._world.marks.hit(f"refused {refusal.value}")
            if refusal is not None or room is not JournalRoom.FREE:
                return
            self._admit()

    def _admit(self) -> None:
        count = min(len(self._requests), BATCH_REQUESTS_MAX)
        self._batch = [self._requests.popleft() for _ in range(count)]
        commands = sum(request.command_count for request in self._batch)
        body = self._world.kind.encode(self._batch)
        # The core was asked before, so it does not refuse now.
        self.step(
            vsr.ClientBatch(body, commands, self.standing.clock.stamp_us(), self.feature_level)
        )

    @property
    def feature_level(self) -> int:
        """What the log has decided, as far as it was executed here: every so many ops a raise."""
        return level_behind(self.application.op)

    def admitted(self, effect: vsr.Admitted) -> None:
        """The batch that was handed to the core has its place in the log."""
        self._in_log[effect.op] = self._batch
        self._batch = []

    def _refuse_all(self) -> None:
        while self._requests:
            request = self._requests.popleft()
            self._in_hand.discard((request.client, request.number))
            self._refuse(request)

    def read_requested(self, read: Read) -> None:
        """A client's linearizable read arrived."""
        self._token += 1
        self._reads[self._token] = read
        self.step(vsr.ReadIndexRequested(self._token))

    def _read_granted(self, effect: vsr.ReadIndexGranted) -> None:
        if self.core.primary != self.machine.index:
            self._world.marks.hit("read of a backup")
        self._granted.append((effect.op, self._reads.pop(effect.token)))
        self._serve_granted()

    def _read_refused(self, effect: vsr.ReadIndexRefused) -> None:
        self._refuse(self._reads.pop(effect.token))

    def _serve_granted(self) -> None:
        at_op = self.application.op
        ready = [read for op, read in self._granted if op <= at_op]
        self._granted = [(op, read) for op, read in self._granted if op > at_op]
        for read in ready:
            self._reply(read.client, Answer(read.number, self.application.read(read.query), at_op))

    # --- The other effects ---

    def status_changed(self, effect: vsr.StatusChanged) -> None:
        """Whoever serves no more lets go of its clients: another one may have their requests."""
        if effect.status is not vsr.ReplicaStatus.NORMAL or effect.primary != self.machine.index:
            self._refuse_all()
            self._in_hand.clear()
            self._in_log.clear()
        leads = effect.status is vsr.ReplicaStatus.NORMAL and effect.primary == self.machine.index
        if leads and effect.view > 0:
            self._world.marks.hit("view change")
        if effect.status in (vsr.ReplicaStatus.VIEW_CHANGE, vsr.ReplicaStatus.NORMAL):
            self._world.nemesis.view_changed(self.machine)
        if effect.status is vsr.ReplicaStatus.NORMAL:
            self._settle_journal()

    def _bootstrap_ready(self, effect: vsr.BootstrapReady) -> None:
        body = self._world.kind.bootstrap_body(effect.nonces)
        self._bootstrap = effect

        def found() -> None:
            if self._bootstrap is not effect:
                return
            if self.standing.clock.is_known():
                self.step(vsr.Found(body, self.standing.clock.stamp_us()))
            else:
                self.later(CLOCK_LOOK_MS, found)

        # The product makes a password first; initial members may boot anew meanwhile.
        self.later(self.machine.bootstrap_ms(), found)

    def _arm(self, effect: vsr.Arm) -> None:
        self._armed += 1
        if effect.at_ticks is None:
            return
        armed = self._armed
        delay_ms = effect.at_ticks * TICK_MS - self._world.schedule.now_ms

        def tick() -> None:
            if armed == self._armed:
                self.step(vsr.Tick())

        self.later(delay_ms, tick)

    def _halted(self, effect: vsr.Halted) -> None:
        raise AssertionError(f"replica {self.machine.index} halted: {effect.reason}")

    def halt(self, reason: str) -> NoReturn:
        """End finally. The operator has to start the replica with an empty disk."""
        self._world.nemesis.kept_down.add(self.machine.index)
        raise ProcessEnded(f"halted: {reason}")

    def _stuck(self, effect: vsr.Stuck) -> None:
        self._world.marks.hit(f"stuck {effect.reason}")

    def _snapshot_needed(self, effect: vsr.SnapshotNeeded) -> None:
        machines = self._world.machines
        first = machines[effect.from_replica]
        peers = [first, *(each for each in machines if each not in (first, self.machine))]

        def restart() -> None:
            raise ProcessEnded("restarts from a snapshot")

        if self.snapshots.cut_op >= effect.cut_op:
            # Its own covers as much: what is damaged lies behind it at the next start.
            restart()
        self.snapshots.fetch(lambda: [each.process for each in peers], restart)

    def _nothing(self, effect: Any) -> None:
        """Do nothing. The effect is counted elsewhere."""


HANDLERS: Final[dict[type, Callable[[Process, Any], None]]] = {
    vsr.Send: Process._send,
    vsr.PersistPrepares: Process._persist_prepares,
    vsr.PersistSuperblock: Process._persist_superblock,
    vsr.DiscardAfter: Process._discard_after,
    vsr.SendCommitted: Process._send_committed,
    vsr.SendHeld: Process._send_held,
    vsr.SnapshotNeeded: Process._snapshot_needed,
    vsr.Stuck: Process._stuck,
    vsr.Commit: Process._commit,
    vsr.Admitted: Process.admitted,
    vsr.Refused: Process._nothing,
    vsr.ReadIndexGranted: Process._read_granted,
    vsr.ReadIndexRefused: Process._read_refused,
    vsr.StatusChanged: Process.status_changed,
    vsr.Halted: Process._halted,
    vsr.BootstrapReady: Process._bootstrap_ready,
    vsr.Dropped: Process._nothing,
    vsr.Arm: Process._arm,
}
