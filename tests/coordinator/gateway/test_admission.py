"""Commands before the log: a request that does not reach the log gives its number back."""

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
from viewstamp.framing import frame
from viewstamp.limits import COMMAND_BYTES_MAX
from viewstamp.routing import file_closure, methods_of_file
from viewstamp.tokens import AccessToken

ROOT = AccessToken(0, 1, 2**62)
SESSION = 17
CREATE_STREAM, CREATE_USER = 200, 100
DONE = Reply(1, 1, 1, ())
NO_QUOTAS = QuotaConfig(0, 0)


class AdmissionTrial:
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
        """Lead, or not; the log may teach something meanwhile."""
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
    """A request that the batcher refuses leaves its number free, and those after it are gaps."""
    world = AdmissionTrial()
    world.refusal = Refusal(Reason.REASON_OVERLOADED, "full")
    assert (await refused(lambda: world.admit(1))).reason == Reason.REASON_OVERLOADED
    world.refusal = None
    gap = await refused(lambda: world.admit(2))
    assert (gap.reason, gap.details["resend_from"]) == (Reason.REASON_REQUEST_GAP, "1")
    await world.admit(1)
    await world.admit(2)
    assert [request.logged.number for request in world.logged] == [1, 2]


async def test_a_command_that_is_too_large_claims_no_number() -> None:
    """A request is refused for one command that is too large, and its number stays free."""
    world = AdmissionTrial()
    large = Span(code=CREATE_STREAM, count=1, items=frame(bytes(COMMAND_BYTES_MAX + 1)))
    told = await refused(lambda: world.admit_spans(1, [large]))
    assert told.reason == Reason.REASON_COMMAND_TOO_LARGE
    await world.admit(1)
    assert [request.logged.number for request in world.logged] == [1]


async def test_refused_while_waiting() -> None:
    """Requests that waited and found no space in the log can be sent again."""
    world = AdmissionTrial()
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
    """A second call for a number in flight joins the first; a caller that leaves ends neither."""
    world = AdmissionTrial()
    first, second = await world.admit(1), await world.admit(1)
    assert first is second
    waiting = asyncio.ensure_future(asyncio.shield(first))
    await asyncio.sleep(0)
    waiting.cancel()
    world.logged[0].future.set_result(DONE)
    assert await second is DONE


async def test_order_over_normalization() -> None:
    """A later request waits while an earlier one is prepared for the log, so the log has no gap."""
    world = AdmissionTrial()
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
    """When a caller leaves early its number is free, the next goes on, and no lock stays behind."""
    world = AdmissionTrial()
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
    assert len(world.commands.turns) == 0


async def test_sessions_that_are_none() -> None:
    """A request without a session, or with an unknown one, is refused and leaves nothing behind."""
    world = AdmissionTrial()
    cases = ((99, Reason.REASON_SESSION_EVICTED), (0, Reason.REASON_SESSION_REQUIRED))
    for session_id, reason in cases:
        for request in (
            submit.CommandRequest(number=1, spans=spans()),
            submit.CommandRequest(acked=2**63),
        ):
            with pytest.raises(Refusal) as caught:
                await world.commands.admit(session_id, request, ROOT)
            assert caught.value.reason == reason
    assert (world.used, world.logged, len(world.commands.turns)) == ([], [], 0)


async def test_committed_and_left_alone_is_still_in_flight() -> None:
    """A view change lets callers go, yet the entry is applied and its reply is kept."""
    world = AdmissionTrial()
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


# How a primary that was cut off would answer about state that another one knows, and how often it
# asks a quorum before it answers.
PAST: dict[str, Callable[[AdmissionTrial], Awaitable[object]]] = {
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
    """Only a gateway whose lead a quorum confirms says that a session ended or a number is
    missing."""
    world = AdmissionTrial()
    world.not_leading = CUT_OFF
    assert await refused(lambda: PAST[asked](world)) is CUT_OFF
    assert (world.confirmed, world.used, world.logged) == (1, [], [])


async def test_what_is_said_is_what_was_learned_by_then() -> None:
    """A session that becomes known while a quorum is asked is served, as is a next number."""
    world = AdmissionTrial()
    world.learned = lambda: world.register(YOUNGER)
    assert await world.commands.open_session(YOUNGER, ROOT) == 0
    world.learned = lambda: world.mux.admission.admit(SESSION, 1)
    await world.admit(2)
    assert [request.logged.number for request in world.logged] == [2]


async def test_nobody_is_asked_for_what_is_known() -> None:
    """A unary call of a known session with the next number asks no quorum."""
    world = AdmissionTrial()
    await world.commands.check_caller(SESSION, ROOT)
    await world.admit(1)
    await world.admit(1)
    assert world.confirmed == 0


async def test_a_primary_says_that_a_session_has_ended() -> None:
    """A primary known to lead says that a session has ended, since no replica knows better."""
    world = AdmissionTrial()
    for ask in (world.commands.open_session, world.commands.check_caller):
        said = await refused(lambda ask=ask: ask(YOUNGER, ROOT))  # type: ignore[misc]
        assert said.reason == Reason.REASON_SESSION_EVICTED
