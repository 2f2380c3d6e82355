"""Batches of clients, which wait for a place in the log, and then until they are applied.

The intake admits batches while the pipeline and the disk have room. When this replica stops
leading, the intake answers all waiting callers at once, because only the next primary can decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from coordinator import vsr
from coordinator.base.clock import wall_clock_us
from coordinator.mux import types as mux_types
from coordinator.replica.answers import answer, fail, no_space
from coordinator.replica.batcher import (
    Batcher,
    LooseCommand,
    PrepareBatch,
    SessionRequest,
    is_about_snapshots,
)
from coordinator.replica.ports import JournalRoom
from coordinator.replica.refusals import NOT_SERVING, left_in_the_log
from viewstamp import limits
from viewstamp.errors import Refusal


class IntakeCore(Protocol):
    """The core as seen from here."""

    @property
    def unapplied_count(self) -> int:
        """Return how many entries of the log are not yet applied."""
        ...

    def batch_refusal(self) -> vsr.RefusalReason | None:
        """Return why a batch would be refused now; None if it would be admitted."""
        ...


class Machines(Protocol):
    """The mux as seen from here."""

    @property
    def feature_level(self) -> int:
        """Return the feature level in force, as far as the log was applied here."""
        ...


class IntakeReplica(Protocol):
    """The driver as seen from here."""

    def step(self, event: vsr.Event) -> None:
        """Give the core an event."""
        ...

    def guard(self, action: Callable[[], None]) -> None:
        """Run an action; a failure ends the process."""
        ...


class IntakeServing(Protocol):
    """Whom this replica serves, as seen from here."""

    def refusal_of(self, reason: vsr.RefusalReason) -> Refusal:
        """Return what the core's reason means for a caller."""
        ...


class Intake:
    """Batches of one replica's clients.

    `room` says whether the journal has room for another. `clock_us` is the time of their entries.
    """

    def __init__(
        self,
        core: IntakeCore,
        replica: IntakeReplica,
        serving: IntakeServing,
        machines: Machines,
        room: Callable[[], JournalRoom],
        clock_us: Callable[[], int] = wall_clock_us,
    ) -> None:
        self.batcher = Batcher()
        self._core = core
        self._replica = replica
        self._serving = serving
        self._machines = machines
        self._room = room
        self._clock_us = clock_us
        self._is_pump_due = False
        self._batch: PrepareBatch | None = None  # of the step under way
        self._in_log: dict[int, PrepareBatch] = {}
        self._runs_in_log = 0

    # --- Into the log ---

    def submit(self, waiting: SessionRequest | LooseCommand) -> None:
        """Queue a request for the log; its future gets the reply. Raises Refusal."""
        refusal = self._core.batch_refusal()
        if refusal is not None and refusal in NOT_SERVING:
            raise self._serving.refusal_of(refusal)
        self.batcher.add(waiting)
        if not self._is_pump_due and self._is_worth_a_look:
            # Requests that arrive in the same turn of the loop share the prepare.
            self._is_pump_due = True
            asyncio.get_running_loop().call_soon(self._pump_due)

    def pump(self) -> None:
        """Admit waiting requests while the pipeline has room; never call it in the middle of a
        step."""
        self._replica.guard(self._admit_waiting)

    def _pump_due(self) -> None:
        self._is_pump_due = False
        self.pump()

    def _admit_waiting(self) -> None:
        while len(self.batcher):
            refusal = self._core.batch_refusal()
            if refusal in NOT_SERVING:
                self.batcher.refuse_all(self._serving.refusal_of(refusal))
                return
            room = self._room()
            if room in _NO_ROOM:
                self.batcher.refuse_ordinary(no_space())
            if room is JournalRoom.EXHAUSTED:
                self.batcher.refuse_asked(no_space())
            if refusal is not None:
                return  # whatever makes room in the pipeline calls again
            batch = self.batcher.take_snapshot_command()
            if batch is None and room is JournalRoom.FREE:
                batch = self.batcher.take_change()
            if batch is None:
                if room is not JournalRoom.FREE or self._is_gathering:
                    return  # whatever makes room, or is applied, calls again
                batch = self.batcher.take()
                assert batch is not None
            self._admit(batch)

    @property
    def _is_worth_a_look(self) -> bool:
        is_alone = len(self.batcher) == 1 or self.batcher.has_lone_command
        return is_alone or not self._is_gathering

    @property
    def _is_gathering(self) -> bool:
        under_way = self._core.unapplied_count
        # Later requests must not stand behind prepares that each take long.
        is_long = under_way > 0 and self._runs_in_log >= limits.PREPARE_RUNS_MAX
        return is_long or not self.batcher.is_worth_a_prepare(under_way)

    def _admit(self, batch: PrepareBatch) -> None:
        self._batch = batch
        level = self._machines.feature_level
        self._replica.step(
            vsr.ClientBatch(
                batch.body, batch.command_count, self._clock_us(), level, batch.ends_epoch
            )
        )
        self._batch = None

    # --- In the log ---

    @property
    def is_admitting(self) -> bool:
        """Whether the step under way is that of a batch."""
        return self._batch is not None

    def batch_of(self, op: int) -> PrepareBatch | None:
        """Return the batch that waits for an op; None if it was replayed, or has been applied."""
        return self._in_log.get(op)

    def may_use_reserve(self, prepare: vsr.Prepare) -> bool:
        """Return whether an entry may use the space reserved for snapshots."""
        batch = self.batch_of(prepare.op)
        if batch is not None:
            return batch.may_use_reserve
        # Another primary admitted it. The body is decoded only when it makes a difference.
        return self._room() is not JournalRoom.FREE and is_about_snapshots(prepare.body)

    def admitted(self, op: int) -> None:
        """Note that the batch of this step is entry `op`; the bootstrap entry has no batch."""
        if self._batch is not None:
            self._in_log[op] = self._batch
            self._runs_in_log += self._batch.runs

    def refused(self, reason: vsr.RefusalReason) -> None:
        """Fail the batch of this step, which was not taken."""
        if self._batch is not None:
            fail(self._batch, self._serving.refusal_of(reason))

    def applied(self, op: int, replies: Sequence[mux_types.RequestReply]) -> None:
        """Answer those who wait for an op."""
        batch = self._in_log.pop(op, None)
        if batch is not None:
            self._runs_in_log -= batch.runs
            answer(batch, replies)

    def let_go(self, kept_op: int = 0) -> None:
        """Release everybody who waits here: only the next primary can answer them.

        Batches in the log may be committed or not. Sessions repeat the request under its number and
        get its one result; callers without a session have to look. Entries up to `kept_op` are
        known to be committed, and are answered here.
        """
        self.batcher.refuse_all(self._serving.refusal_of(vsr.RefusalReason.VIEW_CHANGE))
        # Other entries may take these ops.
        for op in [op for op in self._in_log if op > kept_op]:
            batch = self._in_log.pop(op)
            self._runs_in_log -= batch.runs
            fail(batch, left_in_the_log())


_NO_ROOM: Final = frozenset({JournalRoom.FULL, JournalRoom.EXHAUSTED})
