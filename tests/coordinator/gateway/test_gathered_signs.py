"""Signs of life of many callers are one read, of which each gets its own part."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from coordinator.gateway import gathered_signs
from coordinator.gateway.reads import ReadConsistency, ReadStarter
from coordinator.gateway.requested_reads import RequestedReads
from coordinator.gateway.routes import Routes
from coordinator.gateway.shares import Shares
from coordinator.mux.types import Caller
from coordinator.replica.batcher import AnsweredSpan, Reply
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.errors.v1.errors_pb2 import Error, IndexedError, Reason
from viewstamp.errors import Refusal
from viewstamp.framing import frame_all
from viewstamp.routing import Method, methods_of_file
from viewstamp.tokens import AccessToken

METHODS = {method.name: method for method in methods_of_file(api.DESCRIPTOR)}
SIGN, OTHER = METHODS["KeepAliveConsumerGroup"], METHODS["GetConsumerGroup"]
ANN, BOB = AccessToken(1, 10, 1), AccessToken(2, 20, 1)
USED_UP = Refusal.of(Reason.REASON_COMMAND_TOO_LARGE, "answers", limit=1).to_error()
LEAVES = Refusal.of(Reason.REASON_OVERLOADED, "member_leaves", session_id=1).to_error()


class SignsReader:
    """Remembers what it was asked, and answers when the test says so."""

    def __init__(self) -> None:
        self.together: list[tuple[Method, tuple[Caller, ...], bytes]] = []
        self.alone: list[tuple[str, int, int]] = []
        self.futures: list[asyncio.Future[Reply]] = []
        self.refusal: Refusal | None = None

    def read_together(
        self, method: Method, callers: tuple[Caller, ...], items: bytes
    ) -> asyncio.Future[Reply]:
        """Remember a read of several callers."""
        if self.refusal is not None:
            raise self.refusal
        self.together.append((method, callers, items))
        return self._asked()

    def read(
        self,
        spans: Sequence[RequestedReads],
        principal: AccessToken | None,
        session_id: int,
        consistency: ReadConsistency,
        address: str,
    ) -> asyncio.Future[Reply]:
        """Remember a read of one caller."""
        assert principal is not None
        assert consistency.linearizable or not spans[0].method.at_primary
        self.alone.append((spans[0].method.name, principal.user_id, session_id))
        return self._asked()

    def late(self, deadline_ms: int) -> Refusal | None:
        """Know no other replica."""
        return None

    def _asked(self) -> asyncio.Future[Reply]:
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]


class SignsGateway:
    """Starts signs of life over a reader, and lets them begin when the test says so."""

    def __init__(self, level: int = limits.FEATURE_LEVEL_SIGNS, deadline_ms: int = 5_000) -> None:
        self.reader = SignsReader()
        self.shares = Shares(None, lambda _: None)  # type: ignore[arg-type]
        routes = Routes(lambda: level)
        self.starter = ReadStarter(routes, self.reader, deadline_ms, self.shares)

    def start(
        self, who: AccessToken, session_id: int, *items: bytes, method: Method = SIGN, **fields: Any
    ) -> asyncio.Future[Reply]:
        """Start the signs of one message."""
        span = replace(RequestedReads(method, len(items), frame_all(items)), **fields)
        return self.starter.start_spans([span], who, session_id, ReadConsistency(False))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let signs wait for others in the same turn of the event loop alone."""
    monkeypatch.setattr(gathered_signs, "MEMBER_GATHERING_MS", 0)


async def turns() -> None:
    """Let whatever is due be done."""
    for _ in range(10):
        await asyncio.sleep(0)


def answer(*results: bytes, **errors: Error) -> Reply:
    """Return the answer to a read; `errors` by index, as e1."""
    told = [IndexedError(index=int(name[1:]), error=error) for name, error in errors.items()]
    return Reply(3, 40, 500, (AnsweredSpan(frame_all(results), told),))


async def test_each_caller_gets_its_part() -> None:
    """One read names everybody in order; results and refusals find their way back."""
    gateway = SignsGateway()
    ann, bob = gateway.start(ANN, 7, b"a", b"b"), gateway.start(BOB, 8, b"c")
    assert gateway.reader.together == []
    await turns()
    callers = (Caller(1, ANN.credential_revision, 7, 2), Caller(2, BOB.credential_revision, 8, 1))
    assert gateway.reader.together == [(SIGN, callers, frame_all([b"a", b"b", b"c"]))]
    gateway.reader.futures[0].set_result(answer(b"A", b"", b"", e1=LEAVES, e2=LEAVES))
    first, second = await ann, await bob
    assert first == answer(b"A", b"", e1=LEAVES)
    assert second == answer(b"", e0=LEAVES)
    await turns()
    assert gateway.reader.alone == []
    assert len(gateway.shares) == 0


ALONE: dict[str, Callable[[SignsGateway], asyncio.Future[Reply]]] = {
    "a large one": lambda g: g.start(ANN, 7, b"x" * limits.SIGN_BYTES_MAX),
    "another count": lambda g: g.start(ANN, 7, b"a", count=2),
    "malformed": lambda g: g.start(ANN, 7, items=b"\x0a\x7f", count=1),
    "another method": lambda g: g.start(ANN, 7, b"a", method=OTHER),
    "another gate": lambda g: g.start(ANN, 7, b"a", gate=3),
    "too many of a user": lambda g: g.start(ANN, 7, *[b"a"] * limits.SIGNS_TOGETHER_PER_USER_MAX),
}


@pytest.mark.parametrize("case", ALONE)
async def test_what_could_harm_others_goes_alone(case: str) -> None:
    """Large, malformed and too many signs, and other reads, are reads of their own, at once."""
    gateway = SignsGateway()
    gateway.start(ANN, 6, b"z")
    ALONE[case](gateway)
    assert [user for _, user, _ in gateway.reader.alone] == [1]
    await turns()
    assert [len(callers) for _, callers, _ in gateway.reader.together] == [1]


async def test_one_read_has_so_many_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes beyond is read alone, so floods cost those who send them."""
    monkeypatch.setattr(gathered_signs, "SIGNS_TOGETHER_MAX", 3)
    gateway = SignsGateway()
    for user in range(1, 6):
        gateway.start(AccessToken(user, 0, 1), user, b"a")
    await turns()
    assert [user for _, user, _ in gateway.reader.alone] == [4, 5]
    assert [len(callers) for _, callers, _ in gateway.reader.together] == [3]


async def test_a_lower_level_reads_each_alone() -> None:
    """Before its level a service may not know of several callers."""
    gateway = SignsGateway(limits.FEATURE_LEVEL_SIGNS - 1)
    gateway.start(ANN, 7, b"a")
    assert gateway.reader.alone == [(SIGN.name, 1, 7)]


async def test_nothing_is_asked_for_nobody() -> None:
    """Who stops waiting is left out, and without anybody there is no read."""
    gateway = SignsGateway()
    gateway.start(ANN, 7, b"a").cancel()
    await turns()
    assert gateway.reader.together == []
    gateway.start(ANN, 7, b"a").cancel()
    gateway.start(BOB, 8, b"b")
    gone = gateway.start(ANN, 9, b"c")
    await turns()
    ((_, callers, _),) = gateway.reader.together
    assert [caller.session_id for caller in callers] == [8, 9]
    gone.cancel()
    gateway.reader.futures[0].set_result(answer(b"B", b"C"))
    await turns()
    assert len(gateway.shares) == 0


async def test_who_is_refused_for_others_is_asked_alone() -> None:
    """A sign whose room others used up is read again; it ends if nobody waits for it any more."""
    gateway = SignsGateway()
    ann, bob, gone = (gateway.start(who, n, b"a") for who, n in ((ANN, 7), (BOB, 8), (BOB, 9)))
    await turns()
    gateway.reader.futures[0].set_result(answer(b"A", b"", b"", e1=USED_UP, e2=USED_UP))
    assert await ann == answer(b"A")
    await turns()
    assert gateway.reader.alone == [(SIGN.name, 2, 8), (SIGN.name, 2, 9)]
    gone.cancel()
    await turns()
    assert gateway.reader.futures[2].cancelled()
    gateway.reader.futures[1].set_result(answer(b"B"))
    assert await bob == answer(b"B")
    assert len(gateway.shares) == 0


class LeapingClock:
    """The clock of the event loop, which a test sets forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time
        self.leap_s = 0.0
        monkeypatch.setattr(loop, "time", lambda: now() + self.leap_s)

    async def leap(self, leap_s: float) -> None:
        """Let time pass, and what is due be done."""
        self.leap_s += leap_s
        await turns()


@pytest.mark.parametrize("is_alone", [False, True])
async def test_a_sign_has_one_deadline(monkeypatch: pytest.MonkeyPatch, is_alone: bool) -> None:
    """It waits for others, with them, and alone, for no longer than any other read in all."""
    gateway, clock = SignsGateway(deadline_ms=60_000), LeapingClock(monkeypatch)
    ann, bob = gateway.start(ANN, 7, b"a"), gateway.start(BOB, 8, b"b")
    await clock.leap(20)
    if is_alone:
        gateway.reader.futures[0].set_result(answer(b"", b"", e0=USED_UP, e1=USED_UP))
    await clock.leap(20)
    assert len(gateway.reader.alone) == (2 if is_alone else 0)
    assert not ann.done() and not bob.done()
    await clock.leap(20)
    assert ann.done() and bob.done()
    for told in await asyncio.gather(ann, bob, return_exceptions=True):
        assert isinstance(told, Refusal) and told.reason == Reason.REASON_READ_DEADLINE
    assert all(future.done() for future in gateway.reader.futures)
    assert len(gateway.shares) == 0


ENDINGS: dict[str, Callable[[asyncio.Future[Reply]], object]] = {
    "given up": lambda future: future.cancel(),
    "malformed": lambda future: future.set_result(Reply(3, 40, 500, (AnsweredSpan(b"\x7f", []),))),
    "without a span": lambda future: future.set_result(Reply(3, 40, 500, ())),
    "a defect": lambda future: future.set_exception(RuntimeError("a defect")),
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_no_sign_waits_for_ever(ending: str) -> None:
    """Whatever becomes of a read, everybody in it is told, and nobody is asked again."""
    gateway = SignsGateway()
    waiting = [gateway.start(ANN, 7, b"a"), gateway.start(BOB, 8, b"b")]
    await turns()
    ENDINGS[ending](gateway.reader.futures[0])
    await turns()
    assert [future.done() for future in waiting] == [True, True]
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(each, Exception) for each in told)
    assert len(gateway.shares) == 0


async def test_a_sign_that_is_given_up_alone_is_told() -> None:
    """A read of one sign whose room others used up may end without an answer, too."""
    gateway = SignsGateway()
    ann, bob = gateway.start(ANN, 7, b"a"), gateway.start(BOB, 8, b"b")
    await turns()
    gateway.reader.futures[0].set_result(answer(b"", b"B", e0=USED_UP))
    assert await bob == answer(b"B")
    gateway.reader.futures[1].cancel()
    await turns()
    assert ann.done()
    with pytest.raises(Refusal, match="given up"):
        await ann
    assert len(gateway.shares) == 0


@pytest.mark.parametrize("moment", ["begin", "later", "deadline", "alone"])
async def test_a_failure_reaches_everybody(moment: str) -> None:
    """A read that cannot begin, fails, or is late fails every sign in it, and holds no share."""
    gateway = SignsGateway(deadline_ms=1 if moment == "deadline" else 5_000)
    failure = Refusal(Reason.REASON_VIEW_CHANGE, "no primary")
    gateway.reader.refusal = failure if moment == "begin" else None
    waiting = [gateway.start(ANN, 7, b"a"), gateway.start(BOB, 8, b"b")]
    await turns()
    if moment == "later":
        gateway.reader.futures[0].set_exception(failure)
    if moment == "alone":
        gateway.reader.futures[0].set_result(answer(b"", b"", e0=USED_UP, e1=USED_UP))
        await turns()
        for future in gateway.reader.futures[1:]:
            future.set_exception(failure)
    told = await asyncio.gather(*waiting, return_exceptions=True)
    reasons = {error.reason for error in told if isinstance(error, Refusal)}
    late = moment == "deadline"
    assert reasons == {Reason.REASON_READ_DEADLINE if late else Reason.REASON_VIEW_CHANGE}
    assert len(told) == 2 and len(gateway.shares) == 0
