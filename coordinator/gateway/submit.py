"""The Submit stream: many commands and reads per message, for one session and one user."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import grpc.aio
from google.protobuf.message import DecodeError

from coordinator.gateway.commands import Commands
from coordinator.gateway.principal import Authenticator
from coordinator.gateway.reads import Reads, consistency_of
from coordinator.gateway.replies import (
    abort,
    command_reply,
    read_reply,
    refused_command,
    refused_read,
)
from coordinator.gateway.timers import SessionTimers
from coordinator.replica.batcher import Reply
from coordinator.tasks import first_to_end
from coordinator.telemetry.gateway import GatewayWatch, Traces
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal
from viewstamp.limits import KIB
from viewstamp.tokens import AccessToken

# Requests of one stream that were read and whose answers were not written. A client that sends
# more, or does not read its answers, is not read from until it does.
ANSWERS_DUE_MAX: Final = 1_024
# Answers of so many bytes go out together: what a message costs by itself no longer counts then.
PACKED_ANSWERS_BYTES_MAX: Final = 256 * KIB

Context = grpc.aio.ServicerContext[Any, Any]
Answer: TypeAlias = submit_pb2.CommandReply | submit_pb2.ReadReply

_log = logging.getLogger(__name__)


class SubmitStreams:
    """Serves every Submit stream of this replica."""

    def __init__(
        self,
        cluster_id: bytes,
        authenticator: Authenticator,
        commands: Commands,
        reads: Reads,
        timers: SessionTimers,
        check_serving: Callable[[], None],
        watch: GatewayWatch | None = None,
    ) -> None:
        self.cluster_id = cluster_id
        self.authenticator = authenticator
        self.commands = commands
        self.reads = reads
        self.timers = timers
        self.watch = watch
        self._check_serving = check_serving
        self._open: dict[int, set[_Stream]] = {}

    async def serve(self, context: Context) -> None:
        """Serve one stream until either side ends it."""
        try:
            self._check_serving()
            principal = self.authenticator.principal(context.invocation_metadata())
            opening = await self._opened(context, principal)
            await self._serve(_Stream(self, context, principal, opening), opening.session_id)
        except Refusal as refusal:
            await abort(context, refusal)

    def session_ended(self, session_id: int) -> None:
        """End the streams of a session that is no more, after the answers it has got."""
        # Answers that retired with the end of the session are on their way to the streams.
        asyncio.get_running_loop().call_soon(self._end_streams, session_id)

    def end_all(self, refusal: Refusal) -> None:
        """End every stream of a session, after the answers it has got: they go on elsewhere."""
        for streams in list(self._open.values()):
            for stream in streams:
                stream.end(refusal)

    def _end_streams(self, session_id: int) -> None:
        for stream in self._open.get(session_id, ()):
            stream.end(
                Refusal(
                    Reason.REASON_SESSION_EVICTED,
                    f"session {session_id} has ended: register a new one",
                    session=session_id,
                )
            )

    async def _opened(self, context: Context, principal: AccessToken) -> submit_pb2.OpenStream:
        message = await _read(context)
        if message is None or not message.HasField("open"):
            raise Refusal(
                Reason.REASON_MALFORMED_REQUEST, "the first message of a stream must be `open`"
            )
        session_id = message.open.session_id
        last = await self.commands.open_session(session_id, principal) if session_id else 0
        opened = submit_pb2.StreamOpened(last_request_number=last, cluster_id=self.cluster_id)
        await context.write(submit_pb2.SubmitResponse(opened=opened))
        return message.open

    async def _serve(self, stream: _Stream, session_id: int) -> None:
        if not session_id:
            await stream.run()
            return
        self._open.setdefault(session_id, set()).add(stream)
        self.timers.stream_opened(session_id)
        try:
            # It may have ended while `opened` was written.
            self.commands.check_session(session_id)
            await stream.run()
        finally:
            self.timers.stream_closed(session_id)
            streams = self._open[session_id]
            streams.remove(stream)
            if not streams:
                del self._open[session_id]


class _Stream:
    """One open stream: a reader that admits, a writer that answers as requests retire."""

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
        self._packs_answers = opening.takes_packed_answers
        self._outgoing: deque[Answer] = deque()
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
                future.cancel()  # nobody is there for the answers

    def end(self, refusal: Refusal) -> None:
        """End the stream once the answers that are ready were written."""
        self._end = self._end or refusal
        self._wake.set()

    async def _read(self) -> None:
        while True:
            await self._until_due_at_most(ANSWERS_DUE_MAX - 1)
            message = await _read(self._context)
            if message is None:
                await self._until_due_at_most(0)
                return
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

    async def _until_due_at_most(self, limit: int) -> None:
        while self._answers_due > limit:
            self._answer_written.clear()
            await self._answer_written.wait()

    async def _commands(self, requests: Iterable[submit_pb2.CommandRequest]) -> None:
        for request in requests:
            await self._until_due_at_most(ANSWERS_DUE_MAX - 1)
            await self._command(request)

    async def _command(self, request: submit_pb2.CommandRequest) -> None:
        self._answers_due += 1
        number = request.number
        watch = self._streams.watch
        traces = () if watch is None else watch.packed(request, self._principal.user_id)
        try:
            admitted = await self._streams.commands.admit(
                self._session_id, request, self._principal, traces
            )
        except Refusal as refusal:
            self._refused(traces, refusal)
            self._send(refused_command(number, refusal))
            return
        suffixes = admitted.suffixes
        admitted.future.add_done_callback(
            lambda future: self._answer(
                lambda: self._command_answer(number, future, suffixes, traces)
            )
        )

    def _command_answer(
        self,
        number: int,
        future: asyncio.Future[Reply],
        suffixes: Sequence[Mapping[int, bytes]],
        traces: Traces,
    ) -> submit_pb2.CommandReply:
        failure = future.exception()
        if failure is None:
            self._answered(traces, future.result())
            return command_reply(number, future.result(), self._streams.cluster_id, suffixes)
        if isinstance(failure, Refusal):
            self._refused(traces, failure)
            return refused_command(number, failure)
        raise failure

    def _answered(self, traces: Traces, reply: Reply) -> None:
        if traces and self._streams.watch is not None:
            self._streams.watch.answered(traces, reply)

    def _refused(self, traces: Traces, refusal: Refusal) -> None:
        if self._streams.watch is not None:
            self._streams.watch.refused(traces, refusal)

    def _start_read(self, request: submit_pb2.ReadRequest) -> None:
        self._answers_due += 1
        read_id = request.read_id
        watch = self._streams.watch
        traces = () if watch is None else watch.packed(request, self._principal.user_id)
        try:
            future = self._streams.reads.start(
                request.spans, self._principal, self._session_id, consistency_of(request)
            )
        except Refusal as refusal:
            self._refused(traces, refusal)
            self._send(refused_read(read_id, refusal))
            return
        self._reads.add(future)
        future.add_done_callback(lambda done: self._read_done(read_id, done, traces))

    def _read_done(self, read_id: int, future: asyncio.Future[Reply], traces: Traces) -> None:
        self._reads.discard(future)
        if not future.cancelled():
            self._answer(lambda: self._read_answer(read_id, future, traces))

    def _read_answer(
        self, read_id: int, future: asyncio.Future[Reply], traces: Traces
    ) -> submit_pb2.ReadReply:
        failure = future.exception()
        if failure is None:
            self._answered(traces, future.result())
            return read_reply(read_id, future.result(), self._streams.cluster_id)
        if isinstance(failure, Refusal):
            self._refused(traces, failure)
            return refused_read(read_id, failure)
        raise failure

    def _answer(self, make: Callable[[], Answer]) -> None:
        """Send an answer; where none can be made, end the stream: the client must not wait."""
        try:
            answer = make()
        except Exception:
            _log.exception("an answer on a Submit stream could not be made")
            self.end(Refusal(Reason.REASON_INTERNAL, "an answer could not be made: see the log"))
        else:
            self._send(answer)

    def _send(self, answer: Answer) -> None:
        self._outgoing.append(answer)
        self._wake.set()

    async def _write(self) -> None:
        while True:
            while self._outgoing:
                answers = self._next_answers()
                await self._context.write(_response(answers))
                self._answers_due -= len(answers)
                self._answer_written.set()
            if self._end is not None:
                raise self._end
            self._wake.clear()
            await self._wake.wait()

    def _next_answers(self) -> list[Answer]:
        """Take what goes into the next message: one answer, or several of commands."""
        outgoing = self._outgoing
        answers = [outgoing.popleft()]
        if not self._packs_answers or not isinstance(answers[0], submit_pb2.CommandReply):
            return answers
        size = answers[0].ByteSize()
        while outgoing and isinstance(outgoing[0], submit_pb2.CommandReply):
            size += outgoing[0].ByteSize()
            if size > PACKED_ANSWERS_BYTES_MAX:
                break
            answers.append(outgoing.popleft())
        return answers


def _response(answers: Sequence[Any]) -> submit_pb2.SubmitResponse:
    if len(answers) > 1:
        return submit_pb2.SubmitResponse(commands=submit_pb2.CommandReplies(replies=answers))
    answer = answers[0]
    if isinstance(answer, submit_pb2.CommandReply):
        return submit_pb2.SubmitResponse(command=answer)
    return submit_pb2.SubmitResponse(read=answer)


async def _read(context: Context) -> submit_pb2.SubmitRequest | None:
    """Return the next message, None after the last. Raises Refusal for bytes that are none."""
    data = await context.read()
    if data is grpc.aio.EOF:
        return None
    try:
        return submit_pb2.SubmitRequest.FromString(data)
    except DecodeError as error:
        raise Refusal(
            Reason.REASON_MALFORMED_REQUEST,
            "a message of the stream is malformed: send an encoded SubmitRequest",
        ) from error
