"""Signs of life: reads at the primary that wait a moment for others, and are read together.

Thousands of members show life one by one. As a read of its own each would cost the coordinator many
times what it costs the service. So those of one method that come within a moment are one read with
several callers, which is authorized and answered for each of them.

A sign that could harm the others goes alone: a large or a malformed one, and those that a user has
beyond a share. So does one that was refused because of what the others took, in the time that is
left to it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from coordinator.gateway.requested_reads import RequestedReads
from coordinator.mux.types import Caller
from coordinator.replica.batcher import AnsweredSpan, Reply
from viewstamp.api.errors.v1.errors_pb2 import IndexedError, Reason
from viewstamp.errors import Refusal
from viewstamp.framing import FramingError, frame_all, unframe
from viewstamp.limits import (
    MEMBER_GATHERING_MS,
    SIGN_BYTES_MAX,
    SIGNS_TOGETHER_MAX,
    SIGNS_TOGETHER_PER_USER_MAX,
)
from viewstamp.routing import Method
from viewstamp.tokens import AccessToken

# Start reads: of several callers, and of one. They may raise Refusal, and their futures fail with
# it, at the latest at the deadline of reads that began at the last argument, by the loop's clock.
StartTogether: TypeAlias = Callable[
    [Method, tuple[Caller, ...], bytes, float], asyncio.Future[Reply]
]
StartAlone: TypeAlias = Callable[[RequestedReads, AccessToken, int, float], asyncio.Future[Reply]]

# How a service refuses a call of a read whose other calls have used up its bytes, or its time.
_USED_UP: Final = frozenset(
    {(Reason.REASON_COMMAND_TOO_LARGE, "answers"), (Reason.REASON_OVERLOADED, "reads")}
)


@dataclass(frozen=True, slots=True)
class _Sign:
    """The signs of one message, and who waits for the answer."""

    span: RequestedReads
    principal: AccessToken
    session_id: int
    future: asyncio.Future[Reply]
    began_s: float  # of the loop's time

    @property
    def caller(self) -> Caller:
        """Whose they are."""
        who = self.principal
        return Caller(who.user_id, who.credential_revision, self.session_id, self.span.count)


@dataclass(slots=True)
class _Group:
    """The signs of one method that wait for others."""

    signs: list[_Sign] = field(default_factory=list)
    count: int = 0
    of_user: Counter[int] = field(default_factory=Counter)


class GatheredSigns:
    """Gathers signs, and gives each its answer."""

    def __init__(self, together: StartTogether, alone: StartAlone) -> None:
        self._together = together
        self._alone = alone
        self._gathered: dict[int, _Group] = {}

    def gather(
        self, span: RequestedReads, principal: AccessToken, session_id: int
    ) -> asyncio.Future[Reply] | None:
        """Return the answer to come, which may fail with Refusal; None for reads that go alone."""
        if not _may_share(span):
            return None
        loop = asyncio.get_running_loop()
        gathered = self._gathered.get(span.method.code)
        if gathered is None:
            gathered = self._gathered[span.method.code] = _Group()
            loop.call_later(MEMBER_GATHERING_MS / 1000, self._begin, span.method)
        of_user = gathered.of_user[principal.user_id] + span.count
        count = gathered.count + span.count
        if of_user > SIGNS_TOGETHER_PER_USER_MAX or count > SIGNS_TOGETHER_MAX:
            return None
        gathered.of_user[principal.user_id], gathered.count = of_user, count
        future: asyncio.Future[Reply] = loop.create_future()
        gathered.signs.append(_Sign(span, principal, session_id, future, loop.time()))
        return future

    def _begin(self, method: Method) -> None:
        gathered = self._gathered.pop(method.code)
        signs = [sign for sign in gathered.signs if not sign.future.done()]
        if not signs:
            return
        callers = tuple(sign.caller for sign in signs)
        items = b"".join(sign.span.items for sign in signs)
        try:
            answered = self._together(method, callers, items, signs[0].began_s)
        except Exception as failure:  # a caller that is not told would wait for ever
            _fail(signs, failure)
        else:
            answered.add_done_callback(partial(self._answered, signs))

    def _answered(self, signs: Sequence[_Sign], answered: asyncio.Future[Reply]) -> None:
        try:
            replies = list(_replies(signs, _outcome(answered)))
        except Exception as failure:  # a caller that is not told would wait for ever
            _fail(signs, failure)
            return
        for sign, reply in zip(signs, replies, strict=True):
            if sign.future.done():
                continue
            if len(signs) > 1 and any(map(_is_used_up, reply.spans[0].errors)):
                self._ask_alone(sign)
            else:
                sign.future.set_result(reply)

    def _ask_alone(self, sign: _Sign) -> None:
        try:
            answered = self._alone(sign.span, sign.principal, sign.session_id, sign.began_s)
        except Exception as failure:  # a caller that is not told would wait for ever
            sign.future.set_exception(failure)
            return
        answered.add_done_callback(partial(_pass_on, sign.future))
        # Whoever stops waiting for the sign stops the read.
        sign.future.add_done_callback(lambda _: answered.cancel())


def _may_share(span: RequestedReads) -> bool:
    """Whether signs are small, and as many as they claim: else all others would be refused."""
    if span.gate is not None or len(span.items) > SIGN_BYTES_MAX * span.count:
        return False
    try:
        return len(unframe(span.items)) == span.count
    except FramingError:
        return False


def _replies(signs: Sequence[_Sign], reply: Reply) -> Iterator[Reply]:
    """Yield the part of each sign in the answer to all of them."""
    (answered,) = reply.spans
    results = unframe(answered.results)
    errors = {error.index: error.error for error in answered.errors}
    begin = 0
    for sign in signs:
        end = begin + sign.span.count
        own = [
            IndexedError(index=index - begin, error=errors[index])
            for index in range(begin, end)
            if index in errors
        ]
        span = AnsweredSpan(frame_all(results[begin:end]), own)
        yield Reply(reply.view, reply.op, reply.first_revision, (span,))
        begin = end


def _is_used_up(error: IndexedError) -> bool:
    return (error.error.reason, error.error.case) in _USED_UP


def _outcome(answered: asyncio.Future[Reply]) -> Reply:
    """Return the answer of a read that is done. Raises what it failed with."""
    if answered.cancelled():
        raise Refusal(Reason.REASON_READ_DEADLINE, "the read was given up: try again")
    return answered.result()


def _fail(signs: Sequence[_Sign], failure: Exception) -> None:
    for sign in signs:
        if not sign.future.done():
            sign.future.set_exception(failure)


def _pass_on(future: asyncio.Future[Reply], answered: asyncio.Future[Reply]) -> None:
    """Give what came to whoever still waits."""
    if future.done():
        return
    try:
        future.set_result(_outcome(answered))
    except Exception as failure:  # a caller that is not told would wait for ever
        future.set_exception(failure)
