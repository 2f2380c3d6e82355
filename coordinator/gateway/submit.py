"""The Submit stream: many commands and reads per message, for one session and one user."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

from coordinator.base.slices import TimeSlice
from coordinator.base.tasks import first_to_end
from coordinator.gateway.answers import Answer, AnswerQueue, Make, UserAnswers
from coordinator.gateway.audit import Audit
from coordinator.gateway.commands import CommandAdmission
from coordinator.gateway.principal import Authenticator
from coordinator.gateway.reads import ReadStarter, consistency_of
from coordinator.gateway.replies import (
    command_reply,
    read_reply,
    refused_command,
    refused_read,
    weight_of,
)
from coordinator.gateway.slow_readers import end_in_time, write_in_time
from coordinator.gateway.stream_messages import Context, encoded_notice, next_request, response_of
from coordinator.gateway.stream_places import StreamPlaces
from coordinator.gateway.telemetry import GatewayWatch
from coordinator.gateway.timers import SessionTimers
from coordinator.gateway.watched_requests import WatchedRequest
from coordinator.replica.batcher import Reply
from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal
from viewstamp.tokens import AccessToken

# Requests of one stream that were read and whose answers are unwritten. A client that sends more,
# or does not read its answers, is not read from until it does.
ANSWERS_DUE_MAX: Final = 1_024

# The function that makes an answer, and the bytes that it keeps until then beyond the minimum.
Weighed: TypeAlias = tuple[Make, int]

_log = logging.getLogger(__name__)


class SubmitStreams:
    """Serves every Submit stream of this replica."""

    def __init__(
        self,
        cluster_id: bytes,
        authenticator: Authenticator,
        commands: CommandAdmission,
        reads: ReadStarter,
        timers: SessionTimers,
        check_serving: Callable[[], None],
        watch: GatewayWatch | None = None,
        audit: Audit | None = None,
        addresses: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.audit = audit
        self._addresses = addresses
        self.cluster_id = cluster_id
        self.authenticator = authenticator
        self.commands = commands
        self.reads = reads
        self.timers = timers
        self.watch = watch
        self._check_serving = check_serving
        self._open: dict[int, set[_Stream]] = {}
        # The newest stream of each session: nothing new is taken from older ones.
        self._newest: dict[int, _Stream] = {}
        self._places = StreamPlaces()
        # Kept alive by the streams of each user.
        self._answers: WeakValueDictionary[int, UserAnswers] = WeakValueDictionary()

    async def serve(self, context: Context) -> None:
        """Serve one stream until either side ends it."""
        peer = context.peer()
        try:
            self._check_serving()
            principal = self.authenticator.principal(context.invocation_metadata())
            self.commands.check_credentials(principal)
            with self._places.place(principal.user_id):
                await self._serve(context, principal)
        except Refusal as refusal:
            if self.audit is not None:
                self.audit.denied("Submit", context, peer, refusal)
            await end_in_time(context, refusal)

    def session_ended(self, session_id: int) -> None:
        """End the streams of an ended session, after the answers they have."""
        # Answers applied together with the end of the session are on their way to the streams.
        asyncio.get_running_loop().call_soon(self._end_streams, session_id)
        if self.audit is not None and session_id in self._open:
            self.audit.session_ended(session_id)

    def credentials_ended(self, user_id: int) -> None:
        """End the streams that were opened with ended credentials, after the answers they have.

        Such streams could do nothing more, but would keep places of the user for ever.
        """
        asyncio.get_running_loop().call_soon(self._places.check_credentials, user_id)

    def end_all(self, refusal: Refusal) -> None:
        """End every stream of a session, after the answers it has: clients continue elsewhere."""
        for streams in list(self._open.values()):
            for stream in streams:
                stream.end(refusal)

    def takes_notices(self, session_id: int) -> bool:
        """Return whether a session has an open stream that takes notices."""
        stream = self._newest.get(session_id)
        return stream is not None and stream.takes_notices

    def notice(self, session_id: int, group_ids: Collection[int]) -> None:
        """Tell the stream of a session, if it is still there, that places in groups changed."""
        stream = self._newest.get(session_id)
        if stream is not None and stream.takes_notices:
            stream.notice(group_ids)

    def answers_of(self, user_id: int) -> UserAnswers:
        """Return the state that the streams of a user share."""
        return self._answers.setdefault(user_id, UserAnswers())

    def check_newest(self, session_id: int, stream: _Stream) -> None:
        """Raise Refusal STREAM_REPLACED unless the stream is the newest of its session."""
        if self._newest.get(session_id) is not stream:
            raise _replaced(session_id)

    def check_no_stream(self, session_id: int) -> None:
        """Raise Refusal STREAM_REPLACED if a stream of the session is open: it fences unary calls
        too.

        A delayed call could otherwise claim a number that its client has since given to another
        request, over the stream.
        """
        if session_id in self._newest:
            raise Refusal(
                Reason.REASON_STREAM_REPLACED,
                f"session {session_id} has an open stream, perhaps on a machine that is"
                " gone: open a"
                " new stream, which ends the old one at once, and send the call over it",
                session=session_id,
            )

    def _end_streams(self, session_id: int) -> None:
        for stream in self._open.get(session_id, ()):
            stream.end(
                Refusal(
                    Reason.REASON_SESSION_EVICTED,
                    f"session {session_id} has ended: register a new one",
                    session=session_id,
                )
            )

    async def _serve(self, context: Context, principal: AccessToken) -> None:
        opening = await _opening(context)
        if opening.session_id:
            await self._serve_session(context, principal, opening)
        else:
            self.commands.check_credentials(principal)
            stream = _Stream(self, context, principal, opening)
            with self._places.serving(principal.user_id, stream):
                await self._write_opened(context, 0)
                await stream.run()

    async def _write_opened(self, context: Context, last_number: int) -> None:
        opened = submit_pb2.StreamOpened(
            last_request_number=last_number,
            cluster_id=self.cluster_id,
            feature_level=self.commands.routes.level_in_force(),
            addresses=self._addresses(),
        )
        await context.write(submit_pb2.SubmitResponse(opened=opened).SerializeToString())

    async def _serve_session(
        self, context: Context, principal: AccessToken, opening: submit_pb2.OpenStream
    ) -> None:
        session_id = opening.session_id
        last_number = await self.commands.open_session(session_id, principal)
        stream = _Stream(self, context, principal, opening)
        # Nothing is awaited between the last look at the session and fencing its older streams, and
        # only then is the stream open: a client told so may renumber what was never answered.
        self._fence_elders(session_id, stream)
        self.timers.stream_opened(session_id)
        try:
            with self._places.serving(principal.user_id, stream):
                await self._write_opened(context, last_number)
                # It may have ended while `opened` was written.
                self.commands.check_session(session_id)
                await stream.run()
        finally:
            self.timers.stream_closed(session_id)
            self._closed(session_id, stream)

    def _fence_elders(self, session_id: int, stream: _Stream) -> None:
        self._newest[session_id] = stream
        for elder in self._open.get(session_id, ()):
            elder.end(_replaced(session_id))
        self._open.setdefault(session_id, set()).add(stream)

    def _closed(self, session_id: int, stream: _Stream) -> None:
        if self._newest.get(session_id) is stream:
            del self._newest[session_id]
        streams = self._open[session_id]
        streams.remove(stream)
        if not streams:
            del self._open[session_id]


async def _opening(context: Context) -> submit_pb2.OpenStream:
    timeout_ms = limits.STREAM_OPENING_TIMEOUT_MS
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            message = await next_request(context)
    except TimeoutError as error:
        raise Refusal(
            Reason.REASON_MALFORMED_REQUEST,
            f"the first message of a stream, `open`, must arrive within {timeout_ms} ms",
            timeout_ms=timeout_ms,
        ) from error
    if message is None or not message.HasField("open"):
        raise Refusal(
            Reason.REASON_MALFORMED_REQUEST, "the first message of a stream must be `open`"
        )
    return message.open


def _replaced(session_id: int) -> Refusal:
    return Refusal(
        Reason.REASON_STREAM_REPLACED,
        f"session {session_id} has opened a newer stream: send its commands over the newer one",
        session=session_id,
    )


class _Stream:
    """One open stream: a reader that admits, a writer that answers as requests are applied."""

    def __init__(
        self,
        streams: SubmitStreams,
        context: Context,
        principal: AccessToken,
        opening: submit_pb2.OpenStream,
    ) -> None:
        self._streams = streams
        self._context = context
        self._principal = principal
        self._session_id = opening.session_id
        self.takes_notices = opening.takes_notices
        self._noticed: set[int] = set()  # groups of which the client is to be told
        # Kept, because gRPC cannot tell it once the call is over.
        self._peer = context.peer()
        of_user = streams.answers_of(principal.user_id)
        self._outgoing = AnswerQueue(packs=opening.takes_packed_answers, of_user=of_user)
        self._wake = asyncio.Event()
        self._answers_due = 0
        self._answer_written = asyncio.Event()
        self._reads: set[asyncio.Future[Reply]] = set()
        self._end: Refusal | None = None

    async def run(self) -> None:
        """Serve until the client has sent its last message and got its last answer.

        Raises Refusal if this side ends the stream.
        """
        try:
            await first_to_end(
                asyncio.create_task(self._read()), asyncio.create_task(self._write())
            )
        finally:
            for future in list(self._reads):
                future.cancel()  # nobody waits for the answers
            self._outgoing.close()

    def end(self, refusal: Refusal) -> None:
        """End the stream after the answers that are ready."""
        self._end = self._end or refusal
        self._wake.set()

    def notice(self, group_ids: Collection[int]) -> None:
        """Tell the client of changed places, beside the answers."""
        self._noticed.update(group_ids)
        self._wake.set()

    def check_credentials(self) -> None:
        """End the stream if the credentials that it was opened with have ended."""
        try:
            self._streams.commands.check_credentials(self._principal)
        except Refusal as refusal:
            self.end(refusal)

    async def _read(self) -> None:
        while True:
            await self._until(self._has_room)
            message = await next_request(self._context)
            if message is None:
                await self._until(lambda: not self._answers_due)
                return
            await self._unless_ended()
            self._streams.authenticator.check_fresh(self._principal)
            kind = message.WhichOneof("kind")
            if kind == "command":
                await self._command(message.command)
            elif kind == "commands" and message.commands.requests:
                await self._commands(message.commands.requests)
            elif kind == "read":
                self._start_read(message.read)
            else:
                raise Refusal(
                    Reason.REASON_MALFORMED_REQUEST,
                    "a message after the first must be `command`, `commands` or `read`",
                )
            # What this message holds is on its way before the next one is taken. Messages that
            # came together would else share each stage, and every caller wait for all of them.
            await asyncio.sleep(0)

    def _has_room(self) -> bool:
        return self._answers_due < ANSWERS_DUE_MAX and not self._outgoing.is_full

    async def _until(self, may_go_on: Callable[[], bool]) -> None:
        while not may_go_on():
            self._answer_written.clear()
            await self._answer_written.wait()

    async def _commands(self, requests: Iterable[submit_pb2.CommandRequest]) -> None:
        own = TimeSlice()
        for request in requests:
            await self._until(self._has_room)
            await own.give_way()
            await self._unless_ended()
            await self._command(request)

    async def _unless_ended(self) -> None:
        """Wait for ever if this side ends the stream: nothing more is taken, and the writer says
        why."""
        if self._end is not None:
            await asyncio.Event().wait()

    def _check_fence(self) -> None:
        """Raise Refusal if nothing new may be sequenced for this stream."""
        if self._end is not None:
            raise self._end
        if self._session_id:
            self._streams.check_newest(self._session_id, self)

    async def _command(self, request: submit_pb2.CommandRequest) -> None:
        self._answers_due += 1
        number = request.number
        watched = self._watched(request)
        try:
            admitted = await self._streams.commands.admit(
                self._session_id, request, self._principal, watched.traces, self._check_fence
            )
        except Refusal as refusal:
            watched.refused(refusal)
            self._tell(request, refusal)
            self._send(refused_command(number, refusal))
            return
        answer = partial(self._command_answer, request, admitted.future, admitted.suffixes, watched)
        if admitted.future.done():
            self._answer(answer)  # weighed before the next request is read
        else:
            admitted.future.add_done_callback(lambda _: self._answer(answer))

    def _tell(self, request: submit_pb2.CommandRequest, outcome: Reply | Refusal) -> None:
        audit = self._streams.audit
        if audit is not None:
            audit.request(request, self._principal, self._session_id, self._peer, outcome)

    def _command_answer(
        self,
        request: submit_pb2.CommandRequest,
        future: asyncio.Future[Reply],
        suffixes: Sequence[Mapping[int, bytes]],
        watched: WatchedRequest,
    ) -> Weighed:
        failure = future.exception()
        number, cluster_id = request.number, self._streams.cluster_id
        if failure is None:
            reply = future.result()
            watched.answered(reply)
            self._tell(request, reply)
            make = partial(command_reply, number, reply, cluster_id, suffixes)
            return make, weight_of(reply, suffixes)
        if isinstance(failure, Refusal):
            watched.refused(failure)
            self._tell(request, failure)
            return partial(refused_command, number, failure), 0
        return partial(_fail, failure), 0

    def _watched(
        self, request: submit_pb2.CommandRequest | submit_pb2.ReadRequest
    ) -> WatchedRequest:
        return WatchedRequest(self._streams.watch, request, self._principal.user_id)

    def _start_read(self, request: submit_pb2.ReadRequest) -> None:
        self._answers_due += 1
        read_id = request.read_id
        watched = self._watched(request)
        try:
            future = self._streams.reads.start(
                request.spans, self._principal, self._session_id, consistency_of(request)
            )
        except Refusal as refusal:
            watched.refused(refusal)
            self._send(refused_read(read_id, refusal))
            return
        self._reads.add(future)
        future.add_done_callback(lambda done: self._read_done(request, done, watched))

    def _read_done(
        self,
        request: submit_pb2.ReadRequest,
        future: asyncio.Future[Reply],
        watched: WatchedRequest,
    ) -> None:
        self._reads.discard(future)
        if not future.cancelled():
            self._answer(partial(self._read_answer, request, future, watched))

    def _read_answer(
        self,
        request: submit_pb2.ReadRequest,
        future: asyncio.Future[Reply],
        watched: WatchedRequest,
    ) -> Weighed:
        read_id, audit = request.read_id, self._streams.audit
        failure = future.exception()
        if failure is None:
            reply = future.result()
            if audit is not None:
                audit.reads(request.spans, self._principal, self._peer, reply)
            watched.answered(reply)
            make = partial(read_reply, read_id, reply, self._streams.cluster_id)
            return make, weight_of(reply)
        if isinstance(failure, Refusal):
            watched.refused(failure)
            return partial(refused_read, read_id, failure), 0
        return partial(_fail, failure), 0

    def _answer(self, answer: Callable[[], Weighed]) -> None:
        """Send an answer; end the stream if there is none, since its client would wait for ever."""
        try:
            make, weight = answer()
        except (Exception, asyncio.CancelledError):
            self.end(_without_answer())
        else:
            self._send(make, weight)

    def _send(self, answer: Answer | Make, weight: int = 0) -> None:
        self._outgoing.add(answer, weight)
        self._wake.set()

    async def _write(self) -> None:
        while True:
            while self._outgoing or self._noticed:
                if self._noticed:
                    await self._write_notice()
                    continue
                encoded, count = await self._next_message()
                await write_in_time(self._context, encoded, limits.ANSWER_READING_TIMEOUT_MS)
                self._outgoing.written()
                self._answers_due -= count
                self._answer_written.set()
            if self._end is not None:
                raise self._end
            self._wake.clear()
            await self._wake.wait()

    async def _write_notice(self) -> None:
        noticed, self._noticed = self._noticed, set()
        encoded = encoded_notice(noticed)
        await write_in_time(self._context, encoded, limits.ANSWER_READING_TIMEOUT_MS)

    async def _next_message(self) -> tuple[bytes, int]:
        """Return the next message, whose answers weigh far more than its bytes, and their number.

        If an answer cannot be made, the stream ends: the client must not wait. Raises Refusal.
        """
        try:
            answers = await self._outgoing.take()
            return response_of(answers).SerializeToString(), len(answers)
        except Exception as error:
            raise _without_answer() from error


def _without_answer() -> Refusal:
    """Log the error raised in place of an answer, and return the refusal that ends the stream."""
    _log.exception("an answer on a Submit stream could not be made")
    return Refusal(Reason.REASON_INTERNAL, "the replica could not make the answer: see its log")


def _fail(failure: BaseException) -> Answer:
    raise failure
