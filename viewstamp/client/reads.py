"""Reads under way. They change nothing, so they are asked again after a break. No I/O."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client.commands import expire_owners
from viewstamp.client.consistency import Consistency
from viewstamp.client.errors import ProtocolError, TimedOut
from viewstamp.client.packing import (
    CALLS_PER_REQUEST_MAX,
    PackedBatch,
    Parcel,
    PendingCall,
    fail_all,
    settle,
    take_parcel,
)
from viewstamp.client.verdicts import RetryVerdict, copy_of, verdict_on
from viewstamp.errors import Refusal

READS_IN_FLIGHT_MAX: Final = 8
# Each may take a minute, and the cluster builds one state at a time.
PAST_READS_IN_FLIGHT_MAX: Final = 2


@dataclass(slots=True, eq=False)
class _Asked:
    parcel: Parcel
    consistency: Consistency


@dataclass(slots=True)
class _ReadWindow:
    """What is asked of one kind, the present or the past, so that neither waits for the other."""

    requests_max: int
    requests: int = 0
    calls: int = 0
    # Refused for now: nothing is asked before the pause is over.
    paused: bool = False

    @property
    def has_room(self) -> bool:
        return self.requests < self.requests_max and not self.paused

    def clear(self) -> None:
        self.requests = self.calls = 0
        self.paused = False


class ClientReads:
    """The reads of one client; reads of different consistency never share a request.

    Reads of the past have a window and a pause of their own. `has_others` tells whether there is
    another replica to ask.
    """

    def __init__(self, has_others: Callable[[], bool] = lambda: False) -> None:
        self._has_others = has_others
        self._waiting: dict[Consistency, deque[PendingCall | PackedBatch]] = {}
        self._asked: dict[int, _Asked] = {}
        self._next_id = 1
        self._present = _ReadWindow(READS_IN_FLIGHT_MAX)
        self._past = _ReadWindow(PAST_READS_IN_FLIGHT_MAX)

    @property
    def is_waiting(self) -> bool:
        """Whether an answer about the present is due; one about the past may be long in coming."""
        return self._present.requests > 0

    def is_past(self, read_id: int) -> bool:
        """Whether a read that was asked is one of the past."""
        asked = self._asked.get(read_id)
        return asked is not None and asked.consistency.at_revision > 0

    def resume(self, *, is_past: bool) -> None:
        """End the pause of the reads of one kind."""
        (self._past if is_past else self._present).paused = False

    def add(self, call: PendingCall, consistency: Consistency) -> None:
        """Queue a read."""
        self._waiting.setdefault(consistency, deque()).append(call)

    def next_requests(self) -> list[submit_pb2.SubmitRequest]:
        """Return what may be asked now, packed."""
        requests = []
        for consistency, queue in list(self._waiting.items()):
            window = self._window_of(consistency)
            while queue and window.has_room:
                callers = len(queue) + window.calls
                parcel = take_parcel(queue, min(CALLS_PER_REQUEST_MAX, (callers + 1) // 2))
                if parcel is not None:
                    requests.append(self._ask(parcel, consistency))
            if not queue:
                # Each revision that a caller demands is a level of its own, so remove empty queues.
                del self._waiting[consistency]
        return requests

    def on_reply(self, reply: submit_pb2.ReadReply) -> RetryVerdict | None:
        """Settle the read of an answer; return what else its refusal requires, if anything."""
        asked = self._asked.pop(reply.read_id, None)
        if asked is None:
            return None
        window = self._window_of(asked.consistency)
        window.requests -= 1
        window.calls -= asked.parcel.count
        if not reply.HasField("error"):
            return self._deliver(asked, reply)
        refusal = Refusal.from_error(reply.error)
        verdict = self._verdict_on(refusal, asked.consistency)
        if verdict in (RetryVerdict.RETRY, RetryVerdict.RECONNECT):
            self._put_back(asked)
            window.paused = True
            return verdict
        if asked.parcel.is_shared:
            self._ask_each_alone(asked)
        else:
            asked.parcel.fail(lambda: copy_of(refusal))
        return None

    def _verdict_on(self, refusal: Refusal, consistency: Consistency) -> RetryVerdict:
        is_late = refusal.reason == Reason.REASON_READ_DEADLINE
        # Another replica would begin to build an earlier state from the beginning.
        if is_late and self._has_others() and not consistency.at_revision:
            # The primary may be cut off from its backups; another replica then knows the new
            # primary.
            return RetryVerdict.RECONNECT
        return verdict_on(refusal)

    def detach(self) -> None:
        """Note that the stream has ended. Open reads are asked again over the next stream."""
        for asked in reversed(self._asked.values()):
            self._put_back(asked)
        self._forget_asked()

    def fail(self, error: Callable[[], Exception]) -> None:
        """Fail every read."""
        for queue in self._waiting.values():
            fail_all(queue, error)
        for asked in self._asked.values():
            asked.parcel.fail(error)
        self._waiting.clear()
        self._forget_asked()

    def expire(self, now: float) -> float:
        """Fail the reads whose deadline has passed; return the earliest deadline left."""
        owners = [owner for queue in self._waiting.values() for owner in queue]
        owners += [owner for asked in self._asked.values() for owner in asked.parcel.owners]
        if not owners:
            return math.inf
        return expire_owners(
            owners, now, lambda: TimedOut("the deadline passed before the read was answered")
        )

    def _deliver(self, asked: _Asked, reply: submit_pb2.ReadReply) -> RetryVerdict | None:
        wanted, shown = asked.consistency.at_revision, reply.header.revision
        if wanted and shown != wanted:
            # An older build takes the unknown consistency for a read of the present.
            text = (
                f"the cluster runs a build that has no reads of the past: asked for revision"
                f" {wanted} it answered at {shown}; upgrade the cluster first"
            )
            asked.parcel.fail(lambda: ProtocolError(text))
            return None
        again: list[PendingCall | PackedBatch] = []
        results = asked.parcel.results(reply.header, reply.spans)
        for owner, result in zip(asked.parcel.owners, results, strict=False):
            if isinstance(result, Refusal) and verdict_on(result) is RetryVerdict.RETRY:
                again.append(owner)
            else:
                settle(owner.future, result)
        if not again:
            return None
        # The service of that domain is restarting: a read may wait for it.
        self._waiting.setdefault(asked.consistency, deque()).extendleft(reversed(again))
        self._window_of(asked.consistency).paused = True
        return RetryVerdict.RETRY

    def _ask(self, parcel: Parcel, consistency: Consistency) -> submit_pb2.SubmitRequest:
        read_id = self._next_id
        self._next_id += 1
        self._asked[read_id] = _Asked(parcel, consistency)
        window = self._window_of(consistency)
        window.requests += 1
        window.calls += parcel.count
        read = submit_pb2.ReadRequest(
            read_id=read_id,
            consistency=consistency.to_proto(),
            spans=parcel.spans,
            traces=parcel.traces,
        )
        return submit_pb2.SubmitRequest(read=read)

    def _window_of(self, consistency: Consistency) -> _ReadWindow:
        return self._past if consistency.at_revision else self._present

    def _forget_asked(self) -> None:
        self._asked.clear()
        self._present.clear()
        self._past.clear()

    def _put_back(self, asked: _Asked) -> None:
        queue = self._waiting.setdefault(asked.consistency, deque())
        queue.extendleft(reversed(asked.parcel.owners))

    def _ask_each_alone(self, asked: _Asked) -> None:
        for owner in asked.parcel.owners:
            assert isinstance(owner, PendingCall)
            owner.alone = True
        self._put_back(asked)
