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
from viewstamp.client.errors import TimedOut
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


@dataclass(slots=True, eq=False)
class _Asked:
    parcel: Parcel
    consistency: Consistency


class ClientReads:
    """The reads of one client; reads of different consistency never share a request.

    `has_others` tells whether there is another replica to ask.
    """

    def __init__(self, has_others: Callable[[], bool] = lambda: False) -> None:
        self._has_others = has_others
        self._waiting: dict[Consistency, deque[PendingCall | PackedBatch]] = {}
        self._asked: dict[int, _Asked] = {}
        self._asked_count = 0  # calls
        self._next_id = 1
        # Refused for now: nothing is asked before the pause is over.
        self.paused = False

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is due."""
        return bool(self._asked)

    @property
    def is_empty(self) -> bool:
        """Whether no read waits or is asked."""
        return not self._asked and not any(self._waiting.values())

    def add(self, call: PendingCall, consistency: Consistency) -> None:
        """Queue a read."""
        self._waiting.setdefault(consistency, deque()).append(call)

    def next_requests(self) -> list[submit_pb2.SubmitRequest]:
        """Return what may be asked now, packed."""
        requests = []
        for consistency, queue in list(self._waiting.items()):
            while queue and len(self._asked) < READS_IN_FLIGHT_MAX and not self.paused:
                callers = len(queue) + self._asked_count
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
        self._asked_count -= asked.parcel.count
        if not reply.HasField("error"):
            return self._deliver(asked, reply)
        refusal = Refusal.from_error(reply.error)
        verdict = self._verdict_on(refusal, asked.consistency)
        if verdict in (RetryVerdict.RETRY, RetryVerdict.RECONNECT):
            self._put_back(asked)
            self.paused = True
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
        self._asked.clear()
        self._asked_count = 0
        self.paused = False

    def fail(self, error: Callable[[], Exception]) -> None:
        """Fail every read."""
        for queue in self._waiting.values():
            fail_all(queue, error)
        for asked in self._asked.values():
            asked.parcel.fail(error)
        self._waiting.clear()
        self._asked.clear()
        self._asked_count = 0

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
        self.paused = True
        return RetryVerdict.RETRY

    def _ask(self, parcel: Parcel, consistency: Consistency) -> submit_pb2.SubmitRequest:
        read_id = self._next_id
        self._next_id += 1
        self._asked[read_id] = _Asked(parcel, consistency)
        self._asked_count += parcel.count
        read = submit_pb2.ReadRequest(
            read_id=read_id,
            consistency=consistency.to_proto(),
            spans=parcel.spans,
            traces=parcel.traces,
        )
        return submit_pb2.SubmitRequest(read=read)

    def _put_back(self, asked: _Asked) -> None:
        queue = self._waiting.setdefault(asked.consistency, deque())
        queue.extendleft(reversed(asked.parcel.owners))

    def _ask_each_alone(self, asked: _Asked) -> None:
        for owner in asked.parcel.owners:
            assert isinstance(owner, PendingCall)
            owner.alone = True
        self._put_back(asked)
