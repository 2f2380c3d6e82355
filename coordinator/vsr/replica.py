"""The replica: one event in, the effects out. All dispatch is by the tables in this file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from coordinator.vsr import acknowledge, commit, drop, founding, normal, reads, startup, view_change
from coordinator.vsr.effects import Arm, Dropped, DropRule, Effect, RefusalReason, Status
from coordinator.vsr.errors import CallerError, demand
from coordinator.vsr.events import (
    Abdicate,
    ClientBatch,
    Discarded,
    Event,
    Found,
    PrepareRetired,
    ReadIndexRequested,
    Received,
    RecordFaulty,
    RecordsDurable,
    Start,
    SuperblockDurable,
    Tick,
)
from coordinator.vsr.invariants import Marks, check_step
from coordinator.vsr.messages import (
    BlankAnswerMessage,
    BlankQueryMessage,
    CommitMessage,
    CommitOkMessage,
    PrepareMessage,
    PrepareOkMessage,
    Seal,
)
from coordinator.vsr.state import Configuration, Jitter, ReadFounders, State, no_jitter
from coordinator.vsr.timeouts import TimeoutName

Handler: TypeAlias = Callable[[State, Any], None]

# A message that has no entry for a status is dropped in it, by the rule "status".
MESSAGE_HANDLERS: dict[type, dict[Status, tuple[drop.Rules, Handler]]] = {
    PrepareMessage: {
        Status.BLANK: (drop.FOUNDING_PREPARE_RULES, founding.on_founding_prepare),
        Status.NORMAL: (drop.NORMAL_PREPARE_RULES, normal.on_prepare),
    },
    PrepareOkMessage: {Status.NORMAL: (drop.PREPARE_OK_RULES, acknowledge.on_prepare_ok)},
    CommitMessage: {Status.NORMAL: (drop.FROM_PRIMARY_RULES, normal.on_commit)},
    CommitOkMessage: {Status.NORMAL: (drop.COMMIT_OK_RULES, reads.on_commit_ok)},
    BlankQueryMessage: {Status.BLANK: (drop.BLANK_QUERY_RULES, founding.on_blank_query)},
    BlankAnswerMessage: {Status.BLANK: (drop.BLANK_ANSWER_RULES, founding.on_blank_answer)},
}

TIMEOUT_HANDLERS: dict[TimeoutName, Callable[[State], None]] = {
    TimeoutName.FOUNDING_QUERY: founding.ask_founders,
    TimeoutName.HEARTBEAT: normal.send_heartbeat,
    TimeoutName.PREPARE_RESEND: normal.resend_prepares,
}


def on_received(state: State, event: Received) -> None:
    """Drop the message by a named rule, or hand it to the handler for this status."""
    message = event.message
    general = (*drop.ANY_RULES, *drop.rules_of_view(message))
    hit = drop.first_hit(general, state, message)
    receiver = MESSAGE_HANDLERS.get(type(message), {}).get(state.status)
    if hit is None and receiver is None:
        hit = DropRule.STATUS
    if hit is None and receiver is not None:
        rules, handler = receiver
        hit = drop.first_hit(rules, state, message)
        if hit is None:
            handler(state, message)
    if hit is not None:
        state.emit(Dropped(hit, message))


def on_tick(state: State, event: Tick) -> None:
    """Run the handlers of all timeouts that are due; each arms its own anew."""
    for name in state.timeouts.fired(state.now_ticks):
        TIMEOUT_HANDLERS[name](state)


def on_records_durable(state: State, event: RecordsDurable) -> None:
    """While blank, the durable record is the founding one."""
    if state.status is Status.BLANK:
        founding.on_records_durable(state, event)
    else:
        acknowledge.on_records_durable(state, event)


def on_event_of_members(state: State, event: Event) -> None:
    """Refuse what only a member of a larger cluster can be told, as long as there is none."""
    demand(False, "a lone replica is not told what concerns several", event)


def on_found(state: State, event: Found) -> None:
    """Only a blank replica can be founded."""
    demand(state.status is Status.BLANK, "Found goes to a blank replica", state.status)
    founding.on_found(state, event)


EVENT_HANDLERS: dict[type, Handler] = {
    Start: startup.on_start,
    Tick: on_tick,
    Received: on_received,
    ClientBatch: normal.on_client_batch,
    Found: on_found,
    RecordsDurable: on_records_durable,
    SuperblockDurable: view_change.on_superblock_durable,
    PrepareRetired: commit.on_prepare_retired,
    Discarded: on_event_of_members,
    RecordFaulty: on_event_of_members,
    Abdicate: on_event_of_members,
    ReadIndexRequested: reads.on_read_index_requested,
}

# What follows from the state alone, whatever the event was. In this order, once, is a fixed point:
# committing lets entries be handed out, that ends a view change, and that lets reads be served.
SETTLE_RULES: tuple[Callable[[State], None], ...] = (
    commit.advance,
    commit.deliver,
    view_change.finish,
    reads.settle,
)


class Replica:
    """One replica of the cluster, as a deterministic function of the events it is given.

    `seal` makes prepares; `read_founders` reads the boot nonces out of a Founded body and is
    needed only if there are other replicas. `jitter(limit)` returns a whole number from 0 to
    `limit`, which keeps replicas from acting at the same moment. See the package docstring for the
    caller's duties.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        seal: Seal,
        read_founders: ReadFounders | None = None,
        jitter: Jitter = no_jitter,
    ) -> None:
        if configuration.replica_count > 1 and read_founders is None:
            raise ValueError("read_founders is needed when replica_count is more than 1")
        self._state = State(configuration, seal, read_founders, jitter)
        self._started = False
        self._broken = False
        self._armed_ticks: int | None = None

    def step(self, event: Event, now_ticks: int) -> list[Effect]:
        """Take one event at `now_ticks`, which never goes back; returns the effects, in order.

        Raises CallerError, with nothing changed, when the driver broke a duty; and
        InvariantViolation when this replica can no longer be trusted: then end the process.
        """
        state = self._state
        self._demand_step(event, now_ticks)
        before, earlier_ticks = Marks.of(state), state.now_ticks
        state.now_ticks = now_ticks
        try:
            EVENT_HANDLERS[type(event)](state, event)
            self._started = True
            for settle in SETTLE_RULES:
                settle(state)
            check_step(before, state)
        except CallerError:
            state.now_ticks = earlier_ticks
            raise
        except BaseException:
            # Half a step was taken: nothing that this state says can be relied on any more.
            self._broken = True
            raise
        self._arm()
        effects, state.effects = state.effects, []
        return effects

    def _demand_step(self, event: Event, now_ticks: int) -> None:
        """What every step asks of the driver, before the event is looked at."""
        demand(not self._broken, "a replica that failed in a step is not stepped again", event)
        demand(
            now_ticks >= self._state.now_ticks,
            f"time never goes back, now {self._state.now_ticks}",
            now_ticks,
        )
        demand(
            isinstance(event, Start) != self._started,
            "Start is the first event, and comes once",
            event,
        )

    def _arm(self) -> None:
        """Say when the next tick is needed, if that changed."""
        earliest = self._state.timeouts.earliest_ticks()
        if earliest != self._armed_ticks:
            self._armed_ticks = earliest
            self._state.emit(Arm(earliest))

    def batch_refusal(self) -> RefusalReason | None:
        """Why a ClientBatch would be refused now; None if it would be admitted."""
        return normal.refusal_of_batch(self._state)

    @property
    def unretired_count(self) -> int:
        """How many entries of the log are not retired yet."""
        return self._state.log.op - self._state.retired_op

    @property
    def status(self) -> Status:
        """The status after the last step."""
        return self._state.status

    @property
    def view(self) -> int:
        """The view the replica is in or moving to."""
        return self._state.view

    @property
    def primary(self) -> int:
        """The index of the primary of `view`."""
        return self._state.primary

    @property
    def marks(self) -> Marks:
        """The numbers that only grow: view, op, commit and retirement."""
        return Marks.of(self._state)

    def __repr__(self) -> str:
        marks = self.marks
        return (
            f"<replica {self._state.replica} of {self._state.replica_count}"
            f" {self.status.value} view={marks.view} log_view={marks.log_view}"
            f" op={marks.op} durable={marks.durable_op} commit={marks.commit_max}"
            f" executed={marks.commit_min} retired={marks.retired_op}>"
        )
