"""The loop of one replica: it feeds the core and the mux, and carries their effects out.

Everything happens on one event loop, one event at a time: client batches, durable records, answers
of stages. Nothing in here decides anything; what to do comes from `coordinator.vsr` and
`coordinator.mux`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from coordinator import vsr
from coordinator.journal import CorruptRecord
from coordinator.mux import types as mux_types
from coordinator.mux.mux import Mux, TakenApart
from coordinator.replica.batcher import (
    Batch,
    Batcher,
    LooseCommand,
    Reply,
    SessionRequest,
    is_about_snapshots,
)
from coordinator.replica.entries import Entries
from coordinator.replica.errors import HaltedError
from coordinator.replica.handover import Handover, HandoverPorts, check_decided
from coordinator.replica.intake import Intake
from coordinator.replica.mux_effects import MuxEffects
from coordinator.replica.peers import NO_PEERS, PeerPorts
from coordinator.replica.ports import (
    DriverEvents,
    Progress,
    Room,
    StageLink,
    now_ticks,
    wall_clock_us,
)
from coordinator.replica.reads import ReplicaReads
from coordinator.replica.refusals import not_read_here, not_serving
from coordinator.replica.ticker import Ticker
from coordinator.replica.writer import Writer
from coordinator.slices import Steps
from coordinator.stages import codec
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.format.prepare import Prepare

_log = logging.getLogger(__name__)


class Driver:
    """Core, mux and writer of one replica, wired together."""

    def __init__(
        self,
        core: vsr.Replica,
        mux: Mux,
        writer: Writer[vsr.SuperblockState],
        events: DriverEvents,
        peers: PeerPorts = NO_PEERS,
    ) -> None:
        self.progress = Progress()
        self.mux = mux
        self.reads = ReplicaReads(self, mux)
        self._intake = Intake(core, self, events.room)
        self._entries = Entries(self, events.room)
        self._core = core
        self._writer = writer
        self._events = events
        self._peers = peers
        self._stages: dict[mux_types.Stage, StageLink] = {}
        self._steps: deque[vsr.Event] = deque()
        self._stepping = False
        self._mux_effects = MuxEffects(self._carry_out, self.guard)
        self._has_failed = False
        self._is_guarding = False
        self._ticker = Ticker(self._tick, hears_first=lambda: not self.is_serving)
        self._background: set[asyncio.Task[None]] = set()
        self._handover = Handover(
            HandoverPorts(
                self._read_entry,
                self._take_apart,
                self._hand_over,
                self._found_faulty,
                self._start,
                self.guard,
                self._is_urgent,
            )
        )
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            vsr.PersistPrepares: self._persist_prepares,
            vsr.PersistSuperblock: self._persist_superblock,
            vsr.Commit: self._committed,
            vsr.Admitted: self._admitted,
            vsr.Refused: lambda effect: self._intake.refused(effect.reason),
            vsr.ReadIndexGranted: self._read_granted,
            vsr.ReadIndexRefused: self._read_refused,
            vsr.StatusChanged: self._status_changed,
            vsr.Halted: self._halted,
            vsr.FoundingReady: lambda effect: self._events.founding_ready(effect.nonces),
            vsr.Dropped: self._dropped,
            vsr.Arm: self._arm,
            vsr.Send: self._send_to_peer,
            vsr.DiscardAfter: lambda effect: writer.discard_after(effect.op),
            vsr.SendCommitted: peers.send_committed,
            vsr.SendHeld: peers.send_held,
            vsr.SnapshotNeeded: peers.snapshot_needed,
            vsr.Stuck: peers.stuck,
        }

    # --- Wiring ---

    def connect(self, stage: mux_types.Stage, link: StageLink) -> None:
        """Say how a stage is reached; before `start`."""
        self._stages[stage] = link

    def start(self, event: vsr.Start) -> None:
        """Give the core what the disk holds."""
        if event.suffix:
            self.progress.op = event.suffix[-1].op
        self.progress.committed_op = self.progress.retired_op = event.base_op
        self.progress.committed_revision = self.progress.retired_revision = self.mux.revision
        self.guard(lambda: check_decided(self.mux.feature_level))
        self.step(event)

    def found(self, body: bytes) -> None:
        """Sequence the founding entry."""
        self.step(vsr.Found(body, wall_clock_us()))

    # --- From the gateway ---

    def submit(self, waiting: SessionRequest | LooseCommand) -> None:
        """Queue a request for the log; its future gets the reply. Raises Refusal."""
        self._intake.submit(waiting)

    def pump(self) -> None:
        """Admit what waits while the pipeline and the disk have room; not in the middle of a step,
        whose own entries may have taken the room only when it is over."""
        if self._stepping:
            asyncio.get_running_loop().call_soon(self.pump)
            return
        self._entries.look()
        self._intake.pump()

    @property
    def batcher(self) -> Batcher:
        """What waits for a place in the log."""
        return self._intake.batcher

    def batch_of(self, op: int) -> Batch | None:
        """Return what waits for an op; None if it came from a replay, or has retired."""
        return self._intake.batch_of(op)

    def read(
        self, read: mux_types.Read, *, linearizable: bool, revision: int
    ) -> asyncio.Future[Reply]:
        """Start a read; the future may fail with Refusal. Raises Refusal OVERLOADED."""
        return self.reads.start(read, linearizable=linearizable, revision=revision)

    def next_token(self) -> int:
        """Return a token for a read, never used before in this process."""
        return self.reads.next_token()

    @property
    def feature_level(self) -> int:
        """The level in force, as far as the log was applied here."""
        return self.mux.feature_level

    # --- For reads ---

    @property
    def view(self) -> int:
        """The view of this replica."""
        return self.progress.view

    def is_handed_over(self, op: int, revision: int) -> bool:
        """Whether the stages were given the log up to both."""
        waiting_op = self._handover.next_op
        handed_over = self.progress.committed_op if waiting_op is None else waiting_op - 1
        return op <= handed_over and revision <= self.progress.committed_revision

    def hurry(self) -> None:
        """Hand over what is committed, at once: somebody waits for it."""
        self._handover.hurry()

    def _is_urgent(self) -> bool:
        """Whether somebody waits for commits: callers, a new primary, reads of a backup."""
        follows = self.progress.status is vsr.Status.NORMAL and not self.is_serving
        return not follows or self.reads.waiting > 0

    def lead(self, effects: Callable[[], Sequence[mux_types.MuxEffect]]) -> None:
        """Ask the mux for effects and carry them out; what is raised ends the process."""
        self.guard(lambda: self._mux_effects.lead(effects))

    # --- From the stages ---

    def stage_replied(self, reply: mux_types.StageReply) -> None:
        """Take the answer of a stage."""
        self.lead(lambda: self.mux.reply(reply))

    def read_followed(self, outcome: mux_types.QueryOutcome) -> None:
        """Take the answer to a deferred read."""
        self.lead(lambda: self.mux.deferred(outcome))

    def stage_lost(self, stage: mux_types.Stage) -> None:
        """Fail the reads that a dead service will not answer."""
        refusal = Refusal(
            Reason.REASON_DOMAIN_RESTARTING,
            f"the service of stage {stage.name.lower()} is restarting: try again",
            stage=stage.name.lower(),
        )
        error = refusal.to_answer().SerializeToString()
        self._mux_effects.forget_reads(stage)
        self.lead(lambda: self.mux.fail_reads(stage, error))

    def ask_proposals(self) -> None:
        """Have every stage tell its pending proposals anew."""
        self.lead(self.mux.poke_proposals)

    # --- The core ---

    def step(self, event: vsr.Event) -> None:
        """Give the core one event and carry its effects out; reentrant calls wait their turn."""
        self._steps.append(event)
        if not self._stepping:
            self.guard(self._drain_steps)

    def received(self, message: vsr.Message) -> None:
        """Take a message of another replica."""
        self._entries.received(message)

    def _send_to_peer(self, effect: vsr.Send) -> None:
        if self._entries.may_send(effect):
            self._peers.send(effect.to_replica, effect.message)

    def holds(self, prepare: vsr.Prepare) -> bool:
        """Whether the log has this very entry, intact."""
        return self._core.holds(prepare.op, prepare.checksum)

    @property
    def head_op(self) -> int:
        """The last op of the log here."""
        return self._core.marks.op

    @property
    def has_vote(self) -> bool:
        """Whether this replica counts in its view; one that lost its disk does not at first."""
        return self._core.is_voter

    @property
    def recordable_commit(self) -> int:
        """How far the superblock may say that the log is committed; less than was executed, if the
        disk has not all of that yet."""
        return self._core.recordable_commit

    @property
    def is_stepping(self) -> bool:
        """Whether the effects of a step are being carried out."""
        return self._stepping

    def _drain_steps(self) -> None:
        self._stepping = True
        try:
            while self._steps:
                for effect in self._core.step(self._steps.popleft(), now_ticks()):
                    self._handlers[type(effect)](effect)
        finally:
            self._stepping = False

    def guard(self, action: Callable[[], None]) -> None:
        """Run an action; what it raises ends the process: the state may be half-changed.

        So nothing is done any more from then on, however long the process takes to end.
        """
        if self._has_failed:
            return
        if self._is_guarding:
            action()  # what it raises ends what it is a part of, too
            return
        self._is_guarding = True
        try:
            action()
        except Exception as error:
            self._has_failed = True
            self._events.fatal(error)
        finally:
            self._is_guarding = False

    def _admitted(self, effect: vsr.Admitted) -> None:
        self.progress.op = effect.op
        self._intake.admitted(effect.op)

    def not_serving(self, reason: vsr.RefusalReason) -> Refusal:
        """Return what the core's reason means for a caller."""
        return not_serving(reason, self.progress.primary, self._peers.address)

    def _persist_prepares(self, effect: vsr.PersistPrepares) -> None:
        if not self._intake.is_admitting:  # entries of another primary
            self.progress.op = self._core.marks.op
        self._events.persisting(effect.prepares)
        use_reserve = any(map(self.may_use_reserve, effect.prepares))
        self._writer.persist_prepares(effect.prepares, use_reserve=use_reserve)

    def may_use_reserve(self, prepare: vsr.Prepare) -> bool:
        """Whether an entry may go into the space that is reserved for snapshots."""
        batch = self.batch_of(prepare.op)
        if batch is not None:
            return batch.may_use_reserve
        # Another primary admitted it. The bodies are looked into only when it makes a difference.
        return self._events.room() is not Room.FREE and is_about_snapshots(prepare.body)

    def prepares_durable(self, prepares: Sequence[Prepare]) -> None:
        """Tell the core what the journal has synced."""
        self._events.persisted(prepares)
        records = tuple(vsr.RecordId(p.op, p.checksum) for p in prepares)
        self.step(vsr.RecordsDurable(records))
        self.pump()

    def _persist_superblock(self, effect: vsr.PersistSuperblock) -> None:
        self._writer.persist_superblock(effect.state)

    def superblock_durable(self, state: vsr.SuperblockState) -> None:
        """Tell the core what the superblock holds."""
        self.step(vsr.SuperblockDurable(state))
        self.pump()

    def discarded(self, op: int) -> None:
        """Tell the core that everything above `op` is gone from the journal."""
        self.step(vsr.Discarded(op))

    def _status_changed(self, effect: vsr.StatusChanged) -> None:
        if self.is_serving:
            self._intake.let_go()
            self.mux.admission.reset()
        # A new view may have discarded entries, and put no others in their place.
        self.progress.op = self._core.marks.op
        self.progress.status = effect.status
        self.progress.view = effect.view
        self.progress.primary = effect.primary
        self._events.status_changed(effect)
        self._handover.hurry()

    @property
    def is_serving(self) -> bool:
        """Whether this replica is the primary, in status normal."""
        is_primary = self.progress.primary == self._peers.replica_id
        return is_primary and self.progress.status is vsr.Status.NORMAL

    def check_serving(self) -> None:
        """Raise Refusal unless this replica is the primary, in status normal."""
        if self.is_serving:
            refusal = self._core.batch_refusal()
            if refusal is vsr.RefusalReason.ABDICATING:
                raise self.not_serving(refusal)
        else:
            is_normal = self.progress.status is vsr.Status.NORMAL
            reason = vsr.RefusalReason.NOT_PRIMARY if is_normal else vsr.RefusalReason.VIEW_CHANGE
            raise self.not_serving(reason)

    def check_reading(self) -> None:
        """Raise Refusal unless reads are answered here; a backup does so, too."""
        if self.progress.status is not vsr.Status.NORMAL:
            raise self.not_serving(vsr.RefusalReason.VIEW_CHANGE)

    def late_read(self, deadline_ms: int) -> Refusal | None:
        """Return where a linearizable read belongs that got no answer here; None: nowhere else."""
        primary = self.progress.primary
        if primary == self._peers.replica_id:
            return None  # whether it serves by now or not, nobody else can answer
        return not_read_here(primary, self._peers.address(primary), deadline_ms)

    def _halted(self, effect: vsr.Halted) -> None:
        raise HaltedError(effect.reason)

    def _dropped(self, effect: vsr.Dropped) -> None:
        name = effect.rule.value
        self.progress.dropped[name] = self.progress.dropped.get(name, 0) + 1

    def _arm(self, effect: vsr.Arm) -> None:
        self._ticker.arm(effect.at_ticks)

    def _tick(self) -> None:
        self.step(vsr.Tick())
        self.pump()  # a primary that gives its view up leaves nobody waiting for a place

    # --- Commits ---

    def _committed(self, effect: vsr.Commit) -> None:
        # An entry that was found damaged comes once more, behind later ones.
        self.progress.committed_op = max(self.progress.committed_op, effect.op)
        self._events.committed(effect.op)
        self._handover.add(effect)

    async def _read_entry(self, op: int) -> Prepare | None:
        return await self._writer.read(op)

    def _found_faulty(self, op: int, damage: CorruptRecord) -> None:
        _log.error("op %d is damaged in the journal", op, exc_info=damage)
        self.found_faulty(op)

    def found_faulty(self, op: int) -> None:
        """Have a damaged record written anew: at once if it is in memory and the journal has room,
        else when a peer sends it and there is room."""
        self.step(vsr.RecordFaulty(op, self._events.room() is Room.FREE))

    def _take_apart(self, prepare: vsr.Prepare) -> Steps[TakenApart]:
        batch = self.batch_of(prepare.op)
        logged = codec.requests_of(prepare.body) if batch is None else batch.requests
        requests = yield from codec.logged_requests(logged)
        header = prepare.header
        taken_apart = yield from self.mux.take_apart(
            mux_types.Prepare(
                op=header.op,
                view=header.view,
                first_revision=header.first_revision,
                timestamp=header.timestamp,
                feature_level=header.feature_level,
                requests=requests,
            )
        )
        return taken_apart

    def _hand_over(self, prepare: vsr.Prepare, taken_apart: TakenApart) -> None:
        def enter() -> Sequence[mux_types.MuxEffect]:
            effects = self.mux.enter(taken_apart)
            header = prepare.header
            self.progress.committed_revision = header.first_revision + header.command_count - 1
            self.progress.handed_over_bytes += header.size
            self._events.handed_over(header.op)
            return effects

        self._mux_effects.lead(enter)
        self.reads.handed_over()

    # --- The mux ---

    def _carry_out(self, effect: mux_types.MuxEffect) -> None:
        if isinstance(effect, mux_types.SendBatch):
            self._send(effect.batch)
        elif isinstance(effect, mux_types.Retired):
            self._retired(effect)
        elif isinstance(effect, mux_types.CutTaken):
            self._events.cut_taken(effect)
        elif isinstance(effect, mux_types.CatalogChanged):
            self._events.catalog_changed(effect)
        else:
            self.reads.carry_out(effect)

    def _send(self, batch: mux_types.StageBatch) -> None:
        if batch.stage is mux_types.Stage.CATALOG:
            reply = self._events.local_read(batch)
            # Not at once: the mux has not finished the step that sent the batch.
            asyncio.get_running_loop().call_soon(self.stage_replied, reply)
        else:
            self._stages[batch.stage].send(codec.encode_batch(batch))

    def _retired(self, retired: mux_types.Retired) -> None:
        self.progress.retired_op = retired.op
        self.progress.retired_revision = retired.last_revision
        check_decided(self.mux.feature_level)
        self._intake.retired(retired.op, retired.replies)
        self._events.retired(retired)
        self.step(vsr.PrepareRetired(retired.op))
        self.pump()

    # --- Reads ---

    def _read_granted(self, effect: vsr.ReadIndexGranted) -> None:
        self.reads.granted(effect)

    def _read_refused(self, effect: vsr.ReadIndexRefused) -> None:
        self.reads.refused(effect.token, self.not_serving(effect.reason))

    # --- Tasks ---

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.fatal(error)
