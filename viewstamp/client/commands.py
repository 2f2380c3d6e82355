"""Commands under way: queued, numbered, answered or refused. No I/O."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final

from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client.errors import ClientClosed, OutcomeUnknown, TimedOut, with_unknown_outcome
from viewstamp.client.packing import (
    CALLS_PER_REQUEST_MAX,
    PackedBatch,
    Parcel,
    PendingCall,
    fail_all,
    take_parcel,
)
from viewstamp.client.verdicts import BLAMES_CONTENT, RetryVerdict, copy_of, verdict_on
from viewstamp.client.window import OutstandingRequest, RequestWindow
from viewstamp.errors import Refusal

RESEND_FROM: Final = "resend_from"


class ClientCommands:
    """The commands of one client and the session that carries them (id 0: none)."""

    def __init__(self) -> None:
        self.waiting: deque[PendingCall | PackedBatch] = deque()
        self.window = RequestWindow()
        self.session_id = 0
        self.session_ended = False

    def start_session(self, session_id: int) -> None:
        """Number from 1 again, in a new session."""
        self.window = RequestWindow()
        self.session_id = session_id
        self.session_ended = False

    def next_requests(self) -> list[submit_pb2.SubmitRequest]:
        """Return what may be sent now, packed.

        A request takes at most half of the callers, so that another is under way while their
        answers come back: the pipeline never drains.
        """
        requests = []
        while self.waiting and self.window.has_room and not self.session_ended:
            callers = len(self.waiting) + self.window.command_count
            parcel = take_parcel(self.waiting, min(CALLS_PER_REQUEST_MAX, (callers + 1) // 2))
            if parcel is not None:
                requests.append(self._message(self.window.admit(parcel)))
        return requests

    def resend(self) -> list[submit_pb2.SubmitRequest]:
        """Return what must be sent again now, in order of numbers."""
        return [self._message(request) for request in self.window.resend()]

    def acknowledgement(self) -> submit_pb2.SubmitRequest:
        """Return a request that has no commands and no number."""
        return submit_pb2.SubmitRequest(command=submit_pb2.CommandRequest(acked=self.window.acked))

    @property
    def is_answer_due(self) -> bool:
        """Whether a request is on the wire."""
        return any(request.on_wire for request in self.window.outstanding)

    def on_reply(self, reply: submit_pb2.CommandReply, *, can_renew: bool) -> RetryVerdict | None:
        """Settle the request of an answer; return what else its refusal requires, if anything."""
        if not reply.HasField("error"):
            request = self.window.settle(reply.number)
            if request is not None:
                request.parcel.deliver(reply.header, reply.spans)
                if request.parcel.is_costly:
                    self._costly_calls_get_on()
            return None
        request = self.window.get(reply.number)
        if request is None:
            return None
        refusal = Refusal.from_error(reply.error)
        return self._on_refused(request, refusal, in_log=reply.header.op > 0, can_renew=can_renew)

    def detach(self) -> None:
        """Note that the stream has ended; outstanding requests go over the next one."""
        self.window.hold_all()

    def end_session(self, refusal: Refusal) -> None:
        """Fail the outstanding requests: the cluster refused the session, or will never answer."""
        for request in self.window.outstanding:
            fail_request(request, refusal)
        self.start_session(0)

    def lose_session(self, why: str) -> None:
        """Fail the outstanding requests with OutcomeUnknown; the next command has a new session."""
        for request in self.window.outstanding:
            request.parcel.fail(self._outcome_unknown(request, why))
        self.start_session(0)

    def fail_waiting(self, error: Callable[[], Exception]) -> None:
        """Fail the calls that were never sent."""
        fail_all(self.waiting, error)
        self.waiting.clear()

    def close(self) -> None:
        """Fail everything with ClientClosed."""
        self.fail_waiting(lambda: ClientClosed("the client was closed; the command was not sent"))
        for request in self.window.outstanding:
            text = (
                f"the client was closed; request number {request.number} of session "
                f"{self.session_id} had been sent, whether it took effect is unknown"
            )
            request.parcel.fail(lambda text=text: ClientClosed(text))  # type: ignore[misc]
        self.window = RequestWindow()

    def expire(self, now: float) -> float:
        """Fail the calls whose deadline has passed; return the earliest deadline left."""
        earliest = expire_owners(
            self.waiting,
            now,
            lambda: TimedOut(
                "the deadline passed before the command could be sent: it changed nothing; is the "
                "cluster reachable?"
            ),
        )
        for request in self.window.outstanding:
            error = self._outcome_unknown(request, "the deadline passed before the answer came")
            earliest = min(earliest, expire_owners(request.parcel.owners, now, error))
        return earliest

    def _costly_calls_get_on(self) -> None:
        """Extend the deadlines of calls that wait behind other costly calls."""
        now = asyncio.get_running_loop().time()
        sent = chain.from_iterable(r.parcel.owners for r in self.window.outstanding)
        for owner in chain(self.waiting, sent):
            if isinstance(owner, PendingCall) and owner.method.normalize:
                owner.wait_on(now)

    def _on_refused(
        self, request: OutstandingRequest, refusal: Refusal, *, in_log: bool, can_renew: bool
    ) -> RetryVerdict | None:
        verdict = verdict_on(refusal)
        if verdict is RetryVerdict.RENEW and (request.renewed or not can_renew):
            verdict = RetryVerdict.FINAL
        if self._is_history_lost(refusal):
            self.lose_session("the cluster has forgotten requests that it had answered")
            return RetryVerdict.RECONNECT
        if verdict in (
            RetryVerdict.RETRY,
            RetryVerdict.RECONNECT,
            RetryVerdict.REOPEN,
            RetryVerdict.RENEW,
        ):
            request.renewed |= verdict is RetryVerdict.RENEW
            self.window.hold(request.number)
            return verdict
        if verdict is RetryVerdict.ENDED:
            return self._on_ended(request, refusal)
        if verdict is RetryVerdict.LOST:
            self.window.settle(request.number)
            request.parcel.fail(self._outcome_unknown(request, refusal.message))
            return None
        return self._on_final(request, refusal, in_log=in_log)

    def _is_history_lost(self, refusal: Refusal) -> bool:
        resend_from = refusal.details.get(RESEND_FROM, "")
        return resend_from.isdigit() and int(resend_from) <= self.window.acked

    def _on_ended(self, request: OutstandingRequest, refusal: Refusal) -> RetryVerdict | None:
        self.session_ended = True
        self.window.settle(request.number)
        fail_request(request, refusal)
        if self.window.is_empty:
            self.start_session(0)
        return None

    def _on_final(
        self, request: OutstandingRequest, refusal: Refusal, *, in_log: bool
    ) -> RetryVerdict | None:
        if in_log:
            self.window.settle(request.number)
        else:
            self.window.drop(request.number)
        if request.parcel.is_shared and refusal.reason in BLAMES_CONTENT:
            self._send_each_alone(request.parcel)
        else:
            request.parcel.fail(lambda: copy_of(refusal))
        return RetryVerdict.RETRY

    def _send_each_alone(self, parcel: Parcel) -> None:
        for owner in reversed(parcel.owners):
            assert isinstance(owner, PendingCall)
            owner.alone = True
            self.waiting.appendleft(owner)

    def _message(self, request: OutstandingRequest) -> submit_pb2.SubmitRequest:
        command = submit_pb2.CommandRequest(
            number=request.number,
            acked=self.window.acked,
            spans=request.parcel.spans,
            traces=request.parcel.traces,
        )
        return submit_pb2.SubmitRequest(command=command)

    def _outcome_unknown(self, request: OutstandingRequest, why: str) -> Callable[[], Exception]:
        number, session_id = request.number, self.session_id
        text = (
            f"{why}; request number {number} of session {session_id} had been sent: whether it "
            "took effect is unknown; read before you repeat it"
        )
        return lambda: OutcomeUnknown(text, session_id=session_id, request_number=number)


def fail_request(request: OutstandingRequest, refusal: Refusal) -> None:
    """Refuse a request to its callers; say if an earlier copy may have taken effect."""
    if request.sends > 1 or (request.sends == 1 and not request.on_wire):
        request.parcel.fail(lambda: with_unknown_outcome(refusal, request.number))
    else:
        request.parcel.fail(lambda: copy_of(refusal))


def expire_owners(
    owners: Iterable[PendingCall | PackedBatch], now: float, error: Callable[[], Exception]
) -> float:
    """Fail the owners whose deadline has passed; return the earliest one left, or infinity."""
    earliest = math.inf
    for owner in owners:
        if owner.future.done():
            continue
        if owner.deadline <= now:
            owner.future.set_exception(error())
        else:
            earliest = min(earliest, owner.deadline)
    return earliest
