"""The Submit stream: many commands and reads per message, for one session and one user."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc.aio

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
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal
from viewstamp.tokens import AccessToken

Context = grpc.aio.ServicerContext[Any, Any]


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
    ) -> None:
        self.cluster_id = cluster_id
        self.authenticator = authenticator
        self.commands = commands
        self.reads = reads
        self.timers = timers
        self._check_serving = check_serving

    async def serve(self, context: Context) -> None:
        """Serve one stream until either side ends it."""
        try:
            self._check_serving()
            principal = self.authenticator.principal(context.invocation_metadata())
            session_id = await self._open(context, principal)
        except Refusal as refusal:
            await abort(context, refusal)
        self.timers.stream_opened(session_id)
        try:
            await _Stream(self, context, principal, session_id).run()
        finally:
            self.timers.stream_closed(session_id)

    async def _open(self, context: Context, principal: AccessToken) -> int:
        message = await context.read()
        if message is grpc.aio.EOF or not message.HasField("open"):
            raise Refusal(
                Reason.REASON_MALFORMED_REQUEST, "the first message of a stream must be `open`"
            )
        session_id: int = message.open.session_id
        last = self.commands.open_session(session_id, principal) if session_id else 0
        opened = submit_pb2.StreamOpened(last_request_number=last, cluster_id=self.cluster_id)
        await context.write(submit_pb2.SubmitResponse(opened=opened))
        return session_id


class _Stream:
    """One open stream: a reader that admits, a writer that answers as requests retire."""

    def __init__(
        self, streams: SubmitStreams, context: Context, principal: AccessToken, session_id: int
    ) -> None:
        self._streams = streams
        self._context = context
        self._principal = principal
        self._session_id = session_id
        self._outgoing: deque[submit_pb2.SubmitResponse] = deque()
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Serve until the client ends the stream or the token expires."""
        writer = asyncio.create_task(self._write())
        try:
            await self._read()
        except Refusal as refusal:
            await abort(self._context, refusal)
        finally:
            writer.cancel()

    async def _read(self) -> None:
        while True:
            message = await self._context.read()
            if message is grpc.aio.EOF:
                return
            self._streams.authenticator.check_fresh(self._principal)
            kind = message.WhichOneof("kind")
            if kind == "command":
                await self._command(message.command)
            elif kind == "read":
                self._start_read(message.read)
            else:
                raise Refusal(
                    Reason.REASON_MALFORMED_REQUEST,
                    "a message after the first must be `command` or `read`",
                )

    async def _command(self, request: submit_pb2.CommandRequest) -> None:
        number = request.number
        try:
            admitted = await self._streams.commands.admit(
                self._session_id, request, self._principal
            )
        except Refusal as refusal:
            self._send(refused_command(number, refusal))
            return
        suffixes = admitted.suffixes
        admitted.future.add_done_callback(
            lambda future: self._send(self._command_answer(number, future, suffixes))
        )

    def _command_answer(
        self,
        number: int,
        future: asyncio.Future[Reply],
        suffixes: Sequence[Mapping[int, bytes]],
    ) -> submit_pb2.SubmitResponse:
        failure = future.exception()
        if failure is None:
            return command_reply(number, future.result(), self._streams.cluster_id, suffixes)
        if isinstance(failure, Refusal):
            return refused_command(number, failure)
        raise failure

    def _start_read(self, request: submit_pb2.ReadRequest) -> None:
        read_id = request.read_id
        try:
            future = self._streams.reads.start(
                request.spans, self._principal, self._session_id, consistency_of(request)
            )
        except Refusal as refusal:
            self._send(refused_read(read_id, refusal))
            return
        future.add_done_callback(lambda done: self._send(self._read_answer(read_id, done)))

    def _read_answer(
        self, read_id: int, future: asyncio.Future[Reply]
    ) -> submit_pb2.SubmitResponse:
        failure = future.exception()
        if failure is None:
            return read_reply(read_id, future.result(), self._streams.cluster_id)
        if isinstance(failure, Refusal):
            return refused_read(read_id, failure)
        raise failure

    def _send(self, response: submit_pb2.SubmitResponse) -> None:
        self._outgoing.append(response)
        self._wake.set()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outgoing:
                await self._context.write(self._outgoing.popleft())
