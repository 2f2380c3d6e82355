"""The loop of one replica: it feeds the core and the mux, and carries out their effects.

Everything happens on one event loop, one event at a time: client batches, durable records, answers
of stages. The loop decides nothing; `coordinator.vsr` and `coordinator.mux` do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from coordinator import vsr
from coordinator.base.clock import now_ticks
from coordinator.base.errors import HaltedError
from coordinator.base.slices import Steps
from coordinator.journal import CorruptRecord
from coordinator.mux import types as mux_types
from coordinator.mux.mux import Mux, TakenApart
from coordinator.replica.append_backpressure import AppendBackpressure
from coordinator.replica.apply_queue import ApplyQueue, ApplyQueuePorts, check_decided
from coordinator.replica.intake import Intake
from coordinator.replica.mux_effects import MuxEffects
from coordinator.replica.peers import NO_PEERS, PeerPorts
from coordinator.replica.ports import (
    WALL_CLOCK,
    DriverClock,
    DriverEvents,
    JournalRoom,
    Progress,
)
from coordinator.replica.reads import ReplicaReads
from coordinator.replica.serving import Serving
from coordinator.replica.ticker import Ticker
from coordinator.replica.writer import JournalWriter
from coordinator.stages import codec
from viewstamp.format.prepare import SealedPrepare

_log = logging.getLogger(__name__)


class Driver:
    """Core, mux and writer of one replica, wired together."""

    def __init__(
        self,
        core: vsr.Replica,
        mux: Mux,
        writer: JournalWriter[vsr.CoreState],
        events: DriverEvents,
        peers: PeerPorts = NO_PEERS,
        clock: DriverClock = WALL_CLOCK,
    ) -> None:
        self.progress = Progress()
        self.core = core
        self.mux = mux
        self.serving = Serving(core, self.progress, peers)
        self.mux_effects = MuxEffects(mux, self._carry_out, self.guard)
        self._apply_queue = ApplyQueue(self._apply_queue_ports(writer), self.progress)
        self.reads = ReplicaReads(self, self._apply_queue, mux, self.mux_effects)
        self.intake = Intake(core, self, self.serving, mux, events.room, clock.stamp_us)
        self.entries = AppendBackpressure(
            core, self.step, self.intake.may_use_reserve, events.entry_room or events.room
        )
        self._clock = clock
        self._writer = writer
        self._events = events
        self._peers = peers
        self._steps: deque[vsr.Event] = deque()
        self._stepping = False
        self._has_failed = False
        self._is_guarding = False
        self._ticker = Ticker(self._tick, hears_first=lambda: not self.serving.is_primary)
        self._background: set[asyncio.Task[None]] = set()
        # Told with the first step: a snapshot may have brought the core into a later epoch.
        self._membership: vsr.Membership | None = None
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            vsr.PersistPrepares: self._persist_prepares,
            vsr.PersistSuperblock: lambda effect: writer.persist_superblock(effect.state),
            vsr.Commit: self._committed,
            vsr.Admitted: self._admitted,
            vsr.Refused: lambda effect: self.intake.refused(effect.reason),
            vsr.ReadIndexGranted: self.reads.granted,
            vsr.ReadIndexRefused: self._read_refused,
            vsr.StatusChanged: self._status_changed,
            vsr.Halted: self._halted,
            vsr.BootstrapReady: lambda effect: self._events.bootstrap_ready(effect.nonces),
            vsr.Dropped: self._dropped,
            vsr.Arm: lambda effect: self._ticker.arm(effect.at_ticks),
            vsr.Send: self._send_to_peer,
            vsr.DiscardAfter: lambda effect: writer.discard_after(effect.op),
            vsr.SendCommitted: peers.send_committed,
            vsr.SendHeld: peers.send_held,
            vsr.SnapshotNeeded: peers.snapshot_needed,
            vsr.Stuck: peers.stuck,
        }

    def _apply_queue_ports(self, writer: JournalWriter[vsr.CoreState]) -> ApplyQueuePorts:
        return ApplyQueuePorts(
            writer.read,
            self._take_apart,
            self._hand_over,
            self._found_faulty,
            self._start,
            self.guard,
            self._is_urgent,
        )

    def start(self, event: vsr.Start) -> None:
        """Give the core what the disk holds."""
        if event.suffix:
            self.progress.op = event.suffix[-1].op
        self.progress.committed_op = self.progress.applied_op = event.base_op
        self.progress.committed_revision = self.progress.applied_revision = self.mux.revision
        self.guard(lambda: check_decided(self.mux.feature_level))
        self.step(event)

    def found(self, body: bytes) -> None:
        """Sequence the bootstrap entry."""
        self.step(vsr.Found(body, self._clock.stamp_us()))

    def pump(self) -> None:
        """Admit waiting requests while the pipeline and the disk have room. A call in the middle of
        a step is deferred, because the step's own entries may take the room when it ends."""
        if self._stepping:
            asyncio.get_running_loop().call_soon(self.pump)
            return
        self.entries.look()
        self.intake.pump()

    def _is_urgent(self) -> bool:
        """Return whether somebody waits for commits: callers, a new primary, reads of a backup."""
        follows = self.progress.status is vsr.ReplicaStatus.NORMAL and not self.serving.is_primary
        return not follows or self.reads.waiting > 0

    # --- The core ---

    def step(self, event: vsr.Event) -> None:
        """Give the core one event and carry out its effects; reentrant calls wait their turn."""
        self._steps.append(event)
        if not self._stepping:
            self.guard(self._drain_steps)

    def _send_to_peer(self, effect: vsr.Send) -> None:
        if self.entries.may_send(effect):
            self._peers.send(effect.to_replica, effect.message)

    def _drain_steps(self) -> None:
        self._stepping = True
        try:
            while self._steps:
                effects = self.core.step(self._steps.popleft(), now_ticks())
                if self.core.membership is not self._membership:
                    self._epoch_began()
                for effect in effects:
                    self._handlers[type(effect)](effect)
        finally:
            self._stepping = False

    def _epoch_began(self) -> None:
        """Tell the shell who belongs to the cluster now, before it is to send them anything.

        What is committed stays here: its callers get their answers from this replica.
        """
        before, self._membership = self._membership, self.core.membership
        self._events.epoch_began(self._membership)
        if before is not None:
            self.intake.let_go(kept_op=self.core.marks.commit_max)

    def guard(self, action: Callable[[], None]) -> None:
        """Run an action; a failure ends the process, because the state may be half-changed.

        After a failure nothing more is done, however long the process takes to end.
        """
        if self._has_failed:
            return
        if self._is_guarding:
            action()  # a failure also ends the enclosing action
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
        self.intake.admitted(effect.op)

    def _persist_prepares(self, effect: vsr.PersistPrepares) -> None:
        if not self.intake.is_admitting:  # entries of another primary
            self.progress.op = self.core.marks.op
        self._events.persisting(effect.prepares)
        use_reserve = any(map(self.intake.may_use_reserve, effect.prepares))
        self._writer.persist_prepares(effect.prepares, use_reserve=use_reserve)

    def prepares_durable(self, prepares: Sequence[SealedPrepare]) -> None:
        """Tell the core which records the journal has synced."""
        self._events.persisted(prepares)
        records = tuple(vsr.RecordId(p.op, p.checksum) for p in prepares)
        self.step(vsr.RecordsDurable(records))
        self.pump()

    def superblock_durable(self, state: vsr.CoreState) -> None:
        """Tell the core what the superblock holds."""
        self.step(vsr.SuperblockDurable(state))
        self.pump()

    def discarded(self, op: int) -> None:
        """Tell the core that everything above `op` is gone from the journal."""
        self.step(vsr.Discarded(op))

    def _status_changed(self, effect: vsr.StatusChanged) -> None:
        if self.serving.is_primary:
            if vsr.epoch_of(effect.view) == vsr.epoch_of(self.progress.view):
                self.intake.let_go()
            self.mux.admission.reset()
        # A new view may have discarded entries without replacing them.
        self.progress.op = self.core.marks.op
        self.progress.status = effect.status
        self.progress.view = effect.view
        self.progress.primary = effect.primary
        self._events.status_changed(effect)
        self._apply_queue.hurry()

    def _halted(self, effect: vsr.Halted) -> None:
        raise HaltedError(effect.reason)

    def _dropped(self, effect: vsr.Dropped) -> None:
        name = effect.rule.value
        self.progress.dropped[name] = self.progress.dropped.get(name, 0) + 1

    def _tick(self) -> None:
        self.step(vsr.Tick())
        self.pump()  # a primary that gives up its view fails those who wait for a place

    # --- Commits ---

    def _committed(self, effect: vsr.Commit) -> None:
        # An entry found damaged comes again, behind later ones.
        self.progress.committed_op = max(self.progress.committed_op, effect.op)
        self._events.committed(effect.op)
        self._apply_queue.add(effect)

    def _found_faulty(self, op: int, damage: CorruptRecord) -> None:
        _log.error("op %d is damaged in the journal", op, exc_info=damage)
        self.found_faulty(op)

    def found_faulty(self, op: int) -> None:
        """Have a damaged record rewritten: at once if it is in memory and the journal has room,
        else when a peer sends it and there is room."""
        self.step(vsr.RecordFaulty(op, self._events.room() is JournalRoom.FREE))

    def _take_apart(self, prepare: vsr.Prepare) -> Steps[TakenApart]:
        batch = self.intake.batch_of(prepare.op)
        logged = codec.requests_of(prepare.body) if batch is None else batch.requests
        requests = yield from codec.logged_requests(logged)
        header = prepare.header
        taken_apart = yield from self.mux.take_apart(
            mux_types.CommittedPrepare(
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

        self.mux_effects.lead(enter)
        self.reads.handed_over()

    # --- The mux ---

    def _carry_out(self, effect: mux_types.MuxEffect) -> None:
        if isinstance(effect, mux_types.SendBatch):
            self._send(effect.batch)
        elif isinstance(effect, mux_types.Applied):
            self._applied(effect)
        elif isinstance(effect, mux_types.CutTaken):
            self._events.cut_taken(effect)
        elif isinstance(effect, mux_types.CatalogChanged):
            self._events.catalog_changed(effect)
        else:
            self.reads.carry_out(effect)

    def _send(self, batch: mux_types.StageBatch) -> None:
        if batch.stage is mux_types.Stage.CATALOG:
            reply = self._events.local_read(batch)
            # Deferred: the mux has not finished the step that sent the batch.
            asyncio.get_running_loop().call_soon(self.mux_effects.stage_replied, reply)
        else:
            clock_us = 0 if batch.sequence else self._clock.now_us()  # reads may be logins
            self._events.stage(batch.stage).send(codec.encode_batch(batch, clock_us))

    def _applied(self, applied: mux_types.Applied) -> None:
        self.progress.applied_op = applied.op
        self.progress.applied_revision = applied.last_revision
        check_decided(self.mux.feature_level)
        self.intake.applied(applied.op, applied.replies)
        self._events.applied(applied)
        self.step(vsr.PrepareApplied(applied.op))
        self.pump()

    def _read_refused(self, effect: vsr.ReadIndexRefused) -> None:
        self.reads.refused(effect.token, self.serving.refusal_of(effect.reason))

    # --- Tasks ---

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.fatal(error)
