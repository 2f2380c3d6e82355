"""Commands before the log: a request that does not get there gives its number back."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence

import pytest

from coordinator.gateway.commands import CommandAdmission
from coordinator.gateway.normalize import Normalizer
from coordinator.gateway.quotas import QuotaConfig, Quotas
from coordinator.gateway.routes import Routes
from coordinator.gateway.shares import Shares
from coordinator.mux.mux import Mux
from coordinator.mux.sessions import HeaderVerdict
from coordinator.mux.types import LoggedRequest, LoggedSpan, RegisterSession
from coordinator.replica.batcher import LooseCommand, Reply, SessionRequest
from coordinator.stages.codec import ProtobufCodec
from viewstamp.api.domain.v1 import domain_service_pb2 as domain
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.api.submit.v1.submit_service_pb2 import Span
from viewstamp.api.users.v1 import users_service_pb2
from viewstamp.errors import Refusal
from viewstamp.routing import file_closure, methods_of_file
from viewstamp.tokens import AccessToken

ROOT = AccessToken(0, 1, 2**62)
SESSION = 17
CREATE_STREAM, CREATE_USER = 200, 100
DONE = Reply(1, 1, 1, ())
NO_QUOTAS = QuotaConfig(0, 0)


class World:
    """Commands over a real sessions machine, a log that can refuse, a service that can hang."""

    def __init__(self, quotas: QuotaConfig = NO_QUOTAS) -> None:
        """Register one session of root."""
        self.quotas = quotas
        self.now_ms = 0
        self.logged: list[SessionRequest] = []
        self.used: list[int] = []
        self.evicted: list[int] = []
        self.refusal: Refusal | None = None
        self.not_leading: Refusal | None = None
        self.learned: Callable[[], None] = lambda: None
        self.confirmed = 0
        self.normalized = asyncio.Event()
        self.normalized.set()
        self.normalizing = 0
        self.mux = Mux({}, ProtobufCodec())
        self.register(SESSION)
        routes = Routes()
        for file in (streams_service_pb2.DESCRIPTOR, users_service_pb2.DESCRIPTOR):
            methods = [method.full_name for method in methods_of_file(file)]
            closure = file_closure([file])
            routes.update(domain.DescribeResponse(file_descriptors=closure, methods=methods))
        self.shares = Shares(self.mux.replies, self.evicted.append)
        self.commands = CommandAdmission(
            routes,
            Normalizer(routes, {2: self}),
            self,
            self.mux.sessions,
            self.mux.admission,
            self.shares,
            Quotas(self.quotas, lambda: self.now_ms),
            self.used.append,
            self.confirm,
        )

    async def confirm(self) -> None:
        """Lead, or not; meanwhile something may be learned from the log."""
        self.confirmed += 1
        await asyncio.sleep(0)
        self.learned()
        if self.not_leading is not None:
            raise self.not_leading

    def register(self, session_id: int) -> None:
        """Learn of a session of root."""
        span = LoggedSpan(code=1, count=1, items=b"", user_id=0, credential_revision=1)
        nonce = session_id.to_bytes(16, "little")
        self.mux.sessions.apply(RegisterSession(nonce), span, 0, session_id)
        self.mux.replies.open(session_id, 0)

    def submit(self, waiting: SessionRequest | LooseCommand) -> None:
        """Take a request into the log, or refuse it."""
        if self.refusal is not None:
            raise self.refusal
        assert isinstance(waiting, SessionRequest)
        self.logged.append(waiting)

    async def normalize(
        self, request: domain.NormalizeRequest, timeout_ms: int
    ) -> domain.NormalizeResponse:
        """Answer once `normalized` is set."""
        self.normalizing += 1
        await self.normalized.wait()
        return domain.NormalizeResponse(items=request.items)

    async def submit_loose(self, command: LooseCommand) -> None:
        """Send a command without a session."""
        self.commands.submit_loose(command)

    async def admit(self, number: int, code: int = CREATE_STREAM) -> asyncio.Future[Reply]:
        """Admit a request of one command."""
        return await self.admit_spans(number, [submit.Span(code=code, count=1, items=b"\x0a\x00")])

    async def admit_spans(self, number: int, spans: Sequence[Span]) -> asyncio.Future[Reply]:
        """Admit a request."""
        request = submit.CommandRequest(number=number, spans=spans)
        return (await self.commands.admit(SESSION, request, ROOT)).future


async def refused(attempt: Callable[[], object]) -> Refusal:
    """Return the refusal of an admission."""
    with pytest.raises(Refusal) as caught:
        await attempt()  # type: ignore[misc]
    return caught.value


async def test_refused_at_the_door() -> None:
    """A request that the batcher refuses keeps its number free, and those after it are gaps."""
    world = World()
    world.refusal = Refusal(Reason.REASON_OVERLOADED, "full")
    assert (await refused(lambda: world.admit(1))).reason == Reason.REASON_OVERLOADED
    world.refusal = None
    gap = await refused(lambda: world.admit(2))
    assert (gap.reason, gap.details["resend_from"]) == (Reason.REASON_REQUEST_GAP, "1")
    await world.admit(1)
    await world.admit(2)
    assert [request.logged.number for request in world.logged] == [1, 2]


async def test_refused_while_waiting() -> None:
    """Requests that waited and did not get into the log, for lack of space, can be sent again."""
    world = World()
    futures = [await world.admit(number) for number in (1, 2, 3)]
    for request in world.logged:
        request.future.set_exception(Refusal(Reason.REASON_NO_SPACE, "full"))
    for future in futures:
        with pytest.raises(Refusal, match="full"):
            await future
    await asyncio.sleep(0)
    world.logged.clear()
    for number in (1, 2, 3):
        await world.admit(number)
    assert [request.logged.number for request in world.logged] == [1, 2, 3]


async def test_same_number_joins() -> None:
    """A number in flight is joined, not logged again; a caller that leaves ends it for nobody."""
    world = World()
    first, second = await world.admit(1), await world.admit(1)
    assert first is second
    waiting = asyncio.ensure_future(asyncio.shield(first))
    await asyncio.sleep(0)
    waiting.cancel()
    world.logged[0].future.set_result(DONE)
    assert await second is DONE


async def test_order_over_normalization() -> None:
    """What is sent later waits for what is being made loggable: the log has no gap."""
    world = World()
    world.normalized.clear()
    first = asyncio.create_task(world.admit(1, CREATE_USER))
    again = asyncio.create_task(world.admit(1, CREATE_USER))
    second = asyncio.create_task(world.admit(2))
    await asyncio.sleep(0)
    assert (world.normalizing, world.logged) == (1, [])
    world.normalized.set()
    await asyncio.gather(first, again, second)
    assert [request.logged.number for request in world.logged] == [1, 2]


async def test_caller_that_leaves_during_normalization() -> None:
    """Its number is free, the next in line goes on, and no lock is left behind."""
    world = World()
    world.normalized.clear()
    leaving = asyncio.create_task(world.admit(1, CREATE_USER))
    staying = asyncio.create_task(world.admit(1, CREATE_USER))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    world.normalized.set()
    await staying
    assert [request.logged.number for request in world.logged] == [1]
    del leaving, staying
    await asyncio.sleep(0)
    gc.collect()
    assert len(world.commands._turns) == 0


async def test_sessions_that_are_none() -> None:
    """Unknown sessions, and none at all, are refused and leave nothing behind."""
    world = World()
    cases = ((99, Reason.REASON_SESSION_EVICTED), (0, Reason.REASON_SESSION_REQUIRED))
    for session_id, reason in cases:
        for request in (
            submit.CommandRequest(number=1, spans=spans()),
            submit.CommandRequest(acked=2**63),
        ):
            with pytest.raises(Refusal) as caught:
                await world.commands.admit(session_id, request, ROOT)
            assert caught.value.reason == reason
    assert (world.used, world.logged, len(world.commands._turns)) == ([], [], 0)


async def test_committed_and_left_alone_is_still_in_flight() -> None:
    """Callers were let go at a view change, yet the entry is applied: its reply is not lost."""
    world = World()
    await world.admit(1)
    logged = LoggedRequest(SESSION, 1, 0, (LoggedSpan(CREATE_STREAM, 1, b"", 0, 1),))
    assert world.mux.sessions.check_header(logged) is HeaderVerdict.APPLY
    world.mux.admission.commit(SESSION, 1)
    world.mux.admission.reset()
    world.logged[0].future.set_exception(Refusal(Reason.REASON_VIEW_CHANGE, "moved"))
    await asyncio.sleep(0)
    again = await refused(lambda: world.admit(1))
    assert again.reason == Reason.REASON_VIEW_CHANGE


CUT_OFF = Refusal(Reason.REASON_VIEW_CHANGE, "nobody confirms it")
YOUNGER = 23


def spans() -> list[submit.Span]:
    """Return one command."""
    return [submit.Span(code=CREATE_STREAM, count=1, items=b"\x0a\x00")]


# What a primary that was cut off would say of what another one knows, and how often it asks a
# quorum before it says anything.
PAST: dict[str, Callable[[World], Awaitable[object]]] = {
    "a stream": lambda world: world.commands.open_session(YOUNGER, ROOT),
    "a stream of a known session": lambda world: world.commands.open_session(SESSION, ROOT),
    "a call": lambda world: world.commands.check_caller(YOUNGER, ROOT),
    "a gap": lambda world: world.admit(2),
    "acknowledged": lambda world: world.commands.admit(
        SESSION, submit.CommandRequest(number=1, acked=1, spans=spans()), ROOT
    ),
}


@pytest.mark.parametrize("asked", PAST)
async def test_a_primary_that_may_be_cut_off_says_nothing_of_the_past(asked: str) -> None:
    """No session has ended, and no number is missing, before a quorum says that it leads."""
    world = World()
    world.not_leading = CUT_OFF
    assert await refused(lambda: PAST[asked](world)) is CUT_OFF
    assert (world.confirmed, world.used, world.logged) == (1, [], [])


async def test_what_is_said_is_what_was_learned_by_then() -> None:
    """A session that becomes known while a quorum is asked is served, and so is a next number."""
    world = World()
    world.learned = lambda: world.register(YOUNGER)
    assert await world.commands.open_session(YOUNGER, ROOT) == 0
    world.learned = lambda: world.mux.admission.admit(SESSION, 1)
    await world.admit(2)
    assert [request.logged.number for request in world.logged] == [2]


async def test_nobody_is_asked_for_what_is_known() -> None:
    """A unary call of a known session, and the next number, cost no question."""
    world = World()
    await world.commands.check_caller(SESSION, ROOT)
    await world.admit(1)
    await world.admit(1)
    assert world.confirmed == 0


async def test_a_primary_says_that_a_session_has_ended() -> None:
    """Once it is known to lead, nobody else could know better."""
    world = World()
    for ask in (world.commands.open_session, world.commands.check_caller):
        said = await refused(lambda ask=ask: ask(YOUNGER, ROOT))  # type: ignore[misc]
        assert said.reason == Reason.REASON_SESSION_EVICTED
