"""Keeps a Submit stream open and moves one client's calls over it.

Everything runs on one event loop. `viewstamp.client.commands` and `viewstamp.client.reads`
decide what a reply or a refusal means; this module carries that out.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from google.protobuf.message import Message

from viewstamp import limits
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.cancellation import end_if_cancelled
from viewstamp.client.commands import ClientCommands
from viewstamp.client.consistency import Consistency
from viewstamp.client.errors import CannotConnect, ClientClosed, ProtocolError
from viewstamp.client.link import StreamCall, SubmitLink, open_stream
from viewstamp.client.lookout import Lookout
from viewstamp.client.packing import PackedBatch, PendingCall
from viewstamp.client.pulse import Pulse
from viewstamp.client.reads import ClientReads
from viewstamp.client.transport import (
    HINTS_IN_A_ROW_MAX,
    AccessTokenSource,
    Endpoint,
    Endpoints,
    refusal_in,
    unary,
)
from viewstamp.client.trouble import Trouble, cause_of, words_about
from viewstamp.client.verdicts import (
    ELECTION_BACKOFF_MAX_S,
    ELSEWHERE,
    PRIMARY_DETAIL,
    RETRIES_BEFORE_MOVING,
    Backoff,
    RetryVerdict,
    copy_of,
    told_delay_s,
    verdict_on,
)
from viewstamp.errors import Refusal

if TYPE_CHECKING:
    from viewstamp.client.tracing import ClientTracing

logger = logging.getLogger(__name__)

# The limit for login, registration and opening together.
OPEN_TIMEOUT_S: Final = 10.0
KEEP_ALIVE_S: Final = limits.SESSION_IDLE_TIMEOUT_MS / 1000 / 5


class Submitter:
    """One client's calls and the stream that carries them."""

    def __init__(
        self,
        endpoints: Endpoints,
        identity: AccessTokenSource,
        *,
        register: bool,
        tracing: ClientTracing | None = None,
    ) -> None:
        self.commands = ClientCommands()
        self.reads = ClientReads(lambda: endpoints.has_others)
        self.pulse = Pulse()
        self.cluster_id = b""
        # That the primary told when the stream opened; 0 if its build does not tell it.
        self.feature_level = 0
        self._loop = asyncio.get_running_loop()
        self._endpoints = endpoints
        self._identity = identity
        self._lookout = Lookout(endpoints, identity)
        self._tracing = tracing
        self._register_at_once = register
        self._nonce = os.urandom(limits.SESSION_NONCE_BYTES)
        self._link: SubmitLink | None = None
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._trouble = "no answer"
        self._cause = Trouble.OTHER
        self._has_renewed = False
        self._closed = False
        self._reconnect_backoff = Backoff()
        self._election_backoff = Backoff(ELECTION_BACKOFF_MAX_S)
        self._resend_backoff = Backoff()
        self._resend_timer: asyncio.TimerHandle | None = None
        self._past_backoff = Backoff()
        self._past_timer: asyncio.TimerHandle | None = None
        self._pump_scheduled = False
        self._work = asyncio.Event()
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._deadline_armed = math.inf
        self._keep_alive_timer = self._loop.call_later(KEEP_ALIVE_S, self._keep_alive)

    @property
    def is_connected(self) -> bool:
        """Whether a stream is open now."""
        return self._link is not None

    async def start(self, timeout_s: float) -> None:
        """Connect. Raises Refusal if the login is refused, CannotConnect if no replica answers."""
        self._task = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._opened)
        except TimeoutError:
            raise CannotConnect(
                f"no cluster answers at {self._endpoints} within {timeout_s:g} s: {self._trouble}",
                self._cause,
            ) from None

    async def close(self) -> None:
        """End the stream. Waiting calls fail with ClientClosed."""
        self._closed = True
        for timer in (
            *(self._resend_timer, self._past_timer),
            *(self._deadline_timer, self._keep_alive_timer),
        ):
            if timer is not None:
                timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if not self._opened.done():
            self._opened.cancel()
        self.commands.close()
        self.reads.fail(lambda: ClientClosed("the client was closed before the read was answered"))

    def add_command(self, owner: PendingCall | PackedBatch) -> None:
        """Queue a command or a batch. Raises ClientClosed."""
        self._check_open()
        self.commands.waiting.append(owner)
        self._arm_deadline(owner.deadline)
        self._schedule_pump()

    def add_read(self, call: PendingCall, consistency: Consistency) -> None:
        """Queue a read. Raises ClientClosed."""
        self._check_open()
        self.reads.add(call, consistency)
        self._arm_deadline(call.deadline)
        self._schedule_pump()

    async def call_alone(self, request: Message, timeout_s: float, at_revision: int = 0) -> Any:
        """Call a method outside of the stream, at an earlier revision if one is given.

        Goes on to the primary that a replica names: with TLS none passes calls on. Raises Refusal,
        AioRpcError.
        """
        endpoint, names_left = self._endpoints.current, HINTS_IN_A_ROW_MAX
        while True:
            try:
                return await self._call_at(endpoint, request, timeout_s, at_revision)
            except Refusal as refusal:
                name = refusal.details.get(PRIMARY_DETAIL, "")
                if refusal.reason != Reason.REASON_NOT_PRIMARY or not (name and names_left):
                    raise
                endpoint, names_left = self._endpoints.at(name), names_left - 1

    async def _call_at(
        self, endpoint: Endpoint, request: Message, timeout_s: float, at_revision: int
    ) -> Any:
        async with endpoint.open() as channel:
            token = await self._identity.access_token(channel)
            return await unary(
                channel, request, access_token=token, timeout_s=timeout_s, at_revision=at_revision
            )

    # --- Sending ---

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client is closed: connect again")

    def _schedule_pump(self) -> None:
        # Calls made in the same turn of the loop are packed together; a single call goes at once.
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        self._work.set()
        if self._tracing is not None:
            self._tracing.sent()
        link = self._link
        if link is None:
            return
        for request in self.reads.next_requests():
            link.send(request)
        if self.commands.waiting and self.commands.session_id == 0:
            # This stream carries reads alone: the next one has a session.
            link.end()
            return
        for request in self.commands.next_requests():
            link.send(request)

    def _resend(self) -> None:
        self._resend_timer = None
        self.reads.resume(is_past=False)
        if self._link is not None:
            for request in self.commands.resend():
                self._link.send(request)
        self._schedule_pump()

    def _resume_past(self) -> None:
        self._past_timer = None
        self.reads.resume(is_past=True)
        self._schedule_pump()

    def _keep_alive(self) -> None:
        # Only an acknowledgement: it frees cached replies, and keeps an idle session from expiring.
        if self._link is not None and self.commands.session_id:
            self._link.send(self.commands.acknowledgement())
        self._keep_alive_timer = self._loop.call_later(KEEP_ALIVE_S, self._keep_alive)

    # --- Receiving ---

    def _receive(self, response: submit_pb2.SubmitResponse) -> None:
        kind = response.WhichOneof("kind")
        if kind == "command":
            self._on_command(response.command)
        elif kind == "commands":
            for reply in response.commands.replies:
                self._on_command(reply)
        elif kind == "read":
            self._on_read(response.read)
        elif kind == "notice":
            self.pulse.noticed(response.notice.group_ids)
        else:
            raise ProtocolError(f"the cluster sent {kind} where an answer was due")
        self._schedule_pump()

    def _on_command(self, reply: submit_pb2.CommandReply) -> None:
        verdict = self.commands.on_reply(reply, can_renew=self._identity.can_renew)
        self._carry_out(verdict, reply.error)

    def _on_read(self, reply: submit_pb2.ReadReply) -> None:
        is_past = self.reads.is_past(reply.read_id)
        verdict = self.reads.on_reply(reply)
        if not is_past or verdict is RetryVerdict.RECONNECT:
            self._carry_out(verdict, reply.error)
        elif verdict is RetryVerdict.RETRY:
            # Nothing else waits for the past, and another replica would build it from the
            # beginning.
            self._schedule_past(told_delay_s(Refusal.from_error(reply.error)))
        else:
            self._past_backoff.reset()

    def _carry_out(self, verdict: RetryVerdict | None, error: errors_pb2.Error) -> None:
        if verdict is None:
            self._resend_backoff.reset()
        elif verdict is RetryVerdict.RETRY and (
            (delay_s := told_delay_s(Refusal.from_error(error))) or not self._is_worth_moving
        ):
            self._schedule_resend(delay_s)
        else:
            if verdict is RetryVerdict.RENEW:
                self._identity.forget()
            elif verdict is not RetryVerdict.REOPEN:
                self._endpoints.advance(Refusal.from_error(error).details.get(PRIMARY_DETAIL))
            self._resend_backoff.reset()
            self._end_link()

    @property
    def _is_worth_moving(self) -> bool:
        patience_ends = self._resend_backoff.attempts >= RETRIES_BEFORE_MOVING
        return patience_ends and self._endpoints.has_others

    def _schedule_resend(self, delay_s: float) -> None:
        if self._resend_timer is None:
            # The delay of the refusal, and a little more, so that clients do not all return
            # together.
            pause_s = delay_s + self._resend_backoff.next_s()
            self._resend_timer = self._loop.call_later(pause_s, self._resend)

    def _schedule_past(self, delay_s: float) -> None:
        if self._past_timer is None:
            pause_s = delay_s + self._past_backoff.next_s()
            self._past_timer = self._loop.call_later(pause_s, self._resume_past)

    def _end_link(self) -> None:
        if self._link is not None:
            self._link.end()

    # --- Connecting ---

    async def _run(self) -> None:
        while True:
            end_if_cancelled()
            was_ended = False
            backoff = self._reconnect_backoff
            try:
                was_ended = await self._serve_once()
            except Refusal as refusal:
                backoff = self._election_backoff
                await self._on_refused(refusal)
            except grpc.aio.AioRpcError as error:
                told = refusal_in(error)
                if told is None:
                    await self._on_failed(error)
                else:
                    backoff = self._election_backoff
                    await self._on_refused(told)
            except (ProtocolError, TimeoutError) as error:
                self._trouble = str(error) or "no answer"
                self._endpoints.failed()
            except ValueError as error:  # the address is invalid
                await self._on_invalid(error)
            except OSError as error:
                await self._on_unreadable(error)
            if not was_ended:
                await asyncio.sleep(backoff.next_s())

    async def _serve_once(self) -> bool:
        """Serve one stream on one connection; return whether this side ended it."""
        async with self._endpoints.current.open() as channel:
            if self._endpoints.is_unconfirmed:
                await self._lookout.confirm(channel, self.cluster_id)
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                call = await self._open(channel)
            link = SubmitLink(call, self._receive, self._is_answer_due, self._look_elsewhere)
            self._attach(link)
            try:
                await link.run()
            finally:
                self._detach()
            if link.has_stalled:
                # The backups may have left this primary; another replica then knows the new one.
                self._endpoints.advance()
            return link.was_ended

    async def _open(self, channel: grpc.aio.Channel) -> StreamCall:
        token = await self._identity.access_token(channel)
        if self.commands.session_id == 0 and (self._register_at_once or self.commands.waiting):
            await self._register(channel, token)
        call, opened = await open_stream(channel, token, self.commands.session_id)
        if self.cluster_id and self.cluster_id != opened.cluster_id:
            self.commands.lose_session("another cluster answers at this address")
            self.cluster_id = opened.cluster_id
            raise ProtocolError("another cluster answers at this address")
        self.cluster_id = opened.cluster_id
        self.feature_level = opened.feature_level
        self._endpoints.learn(opened.addresses)
        return call

    async def _register(self, channel: grpc.aio.Channel, token: str) -> None:
        # The nonce stays the same until an answer comes, so a repeat finds the same session.
        request = sessions_pb2.RegisterSessionRequest(nonce=self._nonce)
        response = await unary(channel, request, access_token=token, tracing=self._tracing)
        self._nonce = os.urandom(limits.SESSION_NONCE_BYTES)
        self._register_at_once = False
        self.commands.start_session(response.session_id)

    def _attach(self, link: SubmitLink) -> None:
        self._link = link
        self._endpoints.reached()
        self._has_renewed = False
        self._reconnect_backoff.reset()
        self._election_backoff.reset()
        if not self._opened.done():
            self._opened.set_result(None)
        for request in self.commands.resend():
            link.send(request)
        self._schedule_pump()

    def _detach(self) -> None:
        self._link = None
        self.commands.detach()
        self.reads.detach()

    async def _look_elsewhere(self) -> None:
        """Go to another replica at once if that one leads, because then this one is cut off.

        Commands are sent there again under the same numbers, so none takes effect twice.
        """
        if (leading := await self._lookout.leading(self.cluster_id)) is not None:
            self._endpoints.go_to(leading)
            self._end_link()

    def _is_answer_due(self) -> bool:
        return self.reads.is_waiting or self.commands.is_answer_due

    async def _on_refused(self, refusal: Refusal) -> None:
        verdict = verdict_on(refusal)
        if refusal.details.get(PRIMARY_DETAIL, "?") not in self._trouble:
            self._trouble = f"{refusal.name}: {refusal.message}"
        if self._endpoints.is_unconfirmed and verdict not in ELSEWHERE:
            self._identity.forget_renewable()  # perhaps a stranger gave it
            self._endpoints.failed()
        elif refusal.reason == Reason.REASON_QUOTA_EXCEEDED:
            await self._give_up(refusal)  # every replica would say the same, for a while
        elif verdict in ELSEWHERE:
            self._endpoints.advance(refusal.details.get(PRIMARY_DETAIL))
        elif verdict is RetryVerdict.REOPEN:
            pass  # the same replica, after a pause
        elif verdict is RetryVerdict.ENDED and self.commands.session_id:
            self.commands.end_session(refusal)
        elif verdict is RetryVerdict.RENEW and self._identity.can_renew and not self._has_renewed:
            self._has_renewed = True
            self._identity.forget()
        else:
            await self._give_up(refusal)

    async def _on_failed(self, error: grpc.aio.AioRpcError) -> None:
        place, has_tls = self._endpoints.current.address, self._endpoints.has_tls
        self._cause = cause_of(error, has_tls=has_tls)
        self._trouble = words_about(error, place, has_tls=has_tls)
        if self._endpoints.is_named and self._cause is Trouble.NAME_UNKNOWN:
            self._cause = Trouble.PRIMARY_UNKNOWN
            self._trouble = self._cause.value.format(address=place)
        elif self._endpoints.is_named:
            self._trouble = f"the primary is at {place}, as was said there: {self._trouble}"
        is_no_cluster = error.code() is grpc.StatusCode.UNIMPLEMENTED
        if is_no_cluster and not self._endpoints.is_unconfirmed:
            await self._give_up(CannotConnect(self._trouble, self._cause))
            return
        self._endpoints.failed()

    async def _on_invalid(self, error: ValueError) -> None:
        if self._endpoints.is_unconfirmed:
            self._endpoints.failed()
        else:
            await self._give_up(CannotConnect(f"cannot connect to {self._endpoints}: {error}"))

    async def _on_unreadable(self, error: OSError) -> None:
        """The authority's file cannot be read. One that was good may be under replacement."""
        self._trouble = f"cannot connect to {self._endpoints}: {error}"
        if not self._opened.done():
            await self._give_up(CannotConnect(self._trouble))

    async def _give_up(self, error: Refusal | CannotConnect) -> None:
        """Fail every call, because another attempt would change nothing; wait for another call."""
        if not self._opened.done():
            self._opened.set_exception(error)
        logger.warning("calls fail until this is resolved: %s", error)
        as_refusal = error if isinstance(error, Refusal) else None
        self.commands.fail_waiting(lambda: another(error))
        if as_refusal is not None:
            self.commands.end_session(as_refusal)
        else:
            self.commands.lose_session(str(error))
        self.reads.fail(lambda: another(error))
        self._work.clear()
        await self._work.wait()

    # --- Deadlines ---

    def _arm_deadline(self, deadline: float) -> None:
        # One timer, set for the earliest deadline; calls with equal timeouts do not move it.
        if deadline < self._deadline_armed:
            if self._deadline_timer is not None:
                self._deadline_timer.cancel()
            self._deadline_armed = deadline
            self._deadline_timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        now = self._loop.time()
        self._deadline_armed = math.inf
        self._arm_deadline(min(self.commands.expire(now), self.reads.expire(now)))


def another(error: Refusal | CannotConnect) -> Exception:
    """Copy an error, because each caller must raise an exception of its own."""
    return copy_of(error) if isinstance(error, Refusal) else CannotConnect(str(error), error.cause)
