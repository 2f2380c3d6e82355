"""Reads of one replica, from their request to their answer.

A linearizable read first asks the core for its index. Each read waits until the log has been handed
over that far, and then for its turn: callers take turns, and a few groups are under way to the same
stages (`lane`). A stage without time for a read postpones it, and is asked again. A caller that
stops waiting cancels or fails the future: then nothing of the read is kept, and if it was not sent
it never is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from coordinator import vsr
from coordinator.mux import types as mux_types
from coordinator.replica.answers import span_reply
from coordinator.replica.batcher import Reply
from coordinator.replica.fair_queue import QueuePlace
from coordinator.replica.lane import Lane
from coordinator.replica.ports import Progress
from coordinator.replica.read_shares import ReadShares, caller_of, weight_of
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal


class ReadingReplica(Protocol):
    """The driver as seen from here."""

    progress: Progress

    def step(self, event: vsr.Event) -> None:
        """Give the core an event."""
        ...


class ReadLog(Protocol):
    """The apply queue as seen from here."""

    def has_given(self, op: int, revision: int) -> bool:
        """Return whether the stages were given the log up to both."""
        ...

    def hurry(self) -> None:
        """Have the stages given all commits at once."""
        ...


class Effects(Protocol):
    """The mux's effects as seen from here."""

    def lead(self, effects: Callable[[], Sequence[mux_types.MuxEffect]]) -> None:
        """Ask the mux for effects and carry them out."""
        ...


class ReadMux(Protocol):
    """The mux as seen from here."""

    def read(self, *reads: mux_types.Read) -> list[mux_types.MuxEffect]:
        """Answer reads at the present position."""
        ...

    def stages_of(self, read: mux_types.Read) -> tuple[mux_types.Stage, ...]:
        """Return the stages that a read visits."""
        ...

    def fail_read(self, token: int, error: bytes) -> list[mux_types.MuxEffect]:
        """Answer one read by an error."""
        ...


@dataclass(slots=True)
class _Pending:
    read: mux_types.Read
    future: asyncio.Future[Reply]
    op: int
    revision: int
    # Set once it waits for its turn, or is under way.
    lane: Lane[_Pending] | None = None
    place: QueuePlace[_Pending] | None = None
    is_asked: bool = False  # the core was asked for an index, and has not answered
    is_sent: bool = False


class ReplicaReads:
    """Every unanswered read, by token."""

    def __init__(
        self, replica: ReadingReplica, log: ReadLog, mux: ReadMux, effects: Effects
    ) -> None:
        self._replica = replica
        self._log = log
        self._effects = effects
        self._mux = mux
        self._pending: dict[int, _Pending] = {}
        self._waiting: dict[int, _Pending] = {}
        # By the stages that their reads visit.
        self._lanes: dict[tuple[mux_types.Stage, ...], Lane[_Pending]] = {}
        self._lane_of: dict[int, Lane[_Pending]] = {}  # of each read in the stages
        self._shares = ReadShares()
        self._confirming: dict[int, asyncio.Future[None]] = {}
        self._last_token = 0

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def waiting(self) -> int:
        """The number of reads that wait for the log to reach their revision."""
        return len(self._waiting)

    def next_token(self) -> int:
        """Return a token never used before in this process."""
        self._last_token += 1
        return self._last_token

    def start(
        self, read: mux_types.Read, *, linearizable: bool, revision: int
    ) -> asyncio.Future[Reply]:
        """Start a read; the future may fail with Refusal. Raises Refusal OVERLOADED."""
        self._shares.take(read)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        pending = _Pending(read, future, 0, revision)
        self._pending[read.token] = pending
        future.add_done_callback(lambda _: self._forget(read))
        if linearizable:
            pending.is_asked = True
            self._replica.step(vsr.ReadIndexRequested(read.token))
        else:
            self._place(pending)
        return future

    def confirm(self) -> asyncio.Future[None]:
        """Return a future that is done once a primary is confirmed to lead after this call.

        If this replica leads before and after, that is this replica. The future may fail with
        Refusal; cancel it to stop waiting.
        """
        token = self.next_token()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._confirming[token] = future
        future.add_done_callback(lambda _: self._forget_confirming(token))
        self._replica.step(vsr.ReadIndexRequested(token))
        return future

    def granted(self, effect: vsr.ReadIndexGranted) -> None:
        """Take the op that a read must see, which the core has fixed."""
        confirming = self._confirming.pop(effect.token, None)
        if confirming is not None and not confirming.done():
            confirming.set_result(None)
        pending = self._pending.get(effect.token)
        if pending is not None:  # else nobody waits any more
            pending.is_asked = False
            pending.op = effect.op
            self._place(pending)

    def refused(self, token: int, refusal: Refusal) -> None:
        """Fail a read whose index the core has refused."""
        confirming = self._confirming.pop(token, None)
        if confirming is not None and not confirming.done():
            confirming.set_exception(refusal)
        pending = self._pending.get(token)
        if pending is not None:
            pending.is_asked = False
            if not pending.future.done():
                pending.future.set_exception(refusal)

    def handed_over(self) -> None:
        """Continue the reads that waited for the log just handed over."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for pending in waiting.values():
                self._place(pending)

    def carry_out(
        self, effect: mux_types.ReadAnswered | mux_types.ReadPostponed | mux_types.ReadsLeft
    ) -> None:
        """Take an effect of the mux about reads."""
        if isinstance(effect, mux_types.ReadAnswered):
            self.answered(effect)
        elif isinstance(effect, mux_types.ReadPostponed):
            self.postponed(effect.token)
        else:
            self.left(effect.tokens)

    def answered(self, answered: mux_types.ReadAnswered) -> None:
        """Answer a read as the mux says."""
        pending = self._pending.pop(answered.token, None)
        if pending is None or pending.future.done():
            return
        if answered.error is not None:
            error = errors_pb2.Error.FromString(answered.error)
            pending.future.set_exception(Refusal.from_error(error))
            return
        spans = tuple(span_reply(span) for span in answered.spans)
        pending.future.set_result(
            Reply(self._replica.progress.view, answered.op, answered.revision, spans)
        )

    def _place(self, pending: _Pending) -> None:
        if not self._log.has_given(pending.op, pending.revision):
            self._waiting[pending.read.token] = pending
            self._log.hurry()
            return
        read = pending.read
        lane = self._lanes.setdefault(self._mux.stages_of(read), Lane())
        pending.lane = lane
        pending.place = QueuePlace(caller_of(read), read.token, weight_of(read), pending)
        lane.add(pending.place)
        self._call(lane)

    def _call(self, lane: Lane[_Pending]) -> None:
        """Take groups a little later: reads that arrive in this turn of the loop travel
        together."""
        if lane.may_send and not lane.is_called:
            lane.is_called = True
            asyncio.get_running_loop().call_soon(self._send, lane)

    def _send(self, lane: Lane[_Pending]) -> None:
        lane.is_called = False
        while lane.may_send:
            reads: list[mux_types.Read] = []
            for pending in lane.take():
                if pending.future.done():
                    lane.left(pending.read.token)  # nobody waits for it any more
                    continue
                pending.is_sent = True
                self._lane_of[pending.read.token] = lane
                reads.append(pending.read)
            if reads:
                self._effects.lead(partial(self._mux.read, *reads))

    def postponed(self, token: int) -> None:
        """Queue a read again that its stage had no time for."""
        pending = self._pending.get(token)
        if pending is not None and pending.place is not None:
            pending.is_sent = False
            self._lane_of[token].postponed(pending.place)

    def left(self, tokens: Sequence[int]) -> None:
        """Note that reads have left the stages, answered or not."""
        for token in tokens:
            lane = self._lane_of.pop(token)
            lane.left(token)
            self._call(lane)

    def _forget_confirming(self, token: int) -> None:
        if self._confirming.pop(token, None) is not None:
            self._replica.step(vsr.ReadIndexAbandoned(token))

    def _forget(self, read: mux_types.Read) -> None:
        """Forget a read whose future is done, here, in the core and in the mux."""
        token = read.token
        self._shares.give_back(read)
        self._waiting.pop(token, None)
        pending = self._pending.pop(token, None)
        if pending is None:
            return
        if pending.is_asked:
            self._replica.step(vsr.ReadIndexAbandoned(token))
        if pending.is_sent:
            self._effects.lead(lambda: self._mux.fail_read(token, _ABANDONED))
        elif pending.lane is not None and pending.place is not None:
            pending.lane.remove(pending.place)


# Nobody sees it: its future is done.
_ABANDONED: Final = (
    Refusal(Reason.REASON_READ_DEADLINE, "the caller of this read no longer waits for it")
    .to_error()
    .SerializeToString()
)
