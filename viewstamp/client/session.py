"""A session whose request numbers the caller chooses: for tests of exactly-once behaviour."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio

from viewstamp import limits
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client.link import SUBMIT_PATH, with_first_message
from viewstamp.client.transport import Endpoint, bearer, unary


@dataclass(frozen=True, slots=True)
class RawReply:
    """An answer as decoded message and as the very bytes that arrived (a SubmitResponse)."""

    message: submit_pb2.SubmitResponse
    encoded: bytes


class RawSession:
    """One Submit stream without any help: no packing, no retry, numbers as given.

    Use it as `async with RawSession(endpoint, token) as session`. `session_id` 0 registers a new
    session; another one is opened again (after a crash, say) with its old numbers. Answers come one
    per message, unless `takes_packed_answers` is set; with `takes_notices` there are notices, too.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        access_token: str,
        *,
        session_id: int = 0,
        nonce: bytes = b"",
        takes_packed_answers: bool = False,
        takes_notices: bool = False,
    ) -> None:
        self._channel = endpoint.open()
        self._access_token = access_token
        self._takes_packed_answers = takes_packed_answers
        self._takes_notices = takes_notices
        self._call: grpc.aio.StreamStreamCall[Any, Any] | None = None
        self.nonce = nonce or os.urandom(limits.SESSION_NONCE_BYTES)
        self.session_id = session_id
        self.last_request_number = 0

    async def __aenter__(self) -> RawSession:
        """Register if needed, and open the stream. Raises Refusal, grpc.aio.AioRpcError."""
        try:
            await self.open()
        except BaseException:
            await self._channel.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the stream; the session goes on."""
        await self.close()

    async def open(self) -> None:
        """Register if needed, and open the stream."""
        if self.session_id == 0:
            request = sessions_pb2.RegisterSessionRequest(nonce=self.nonce)
            response = await unary(self._channel, request, access_token=self._access_token)
            self.session_id = response.session_id
        method = self._channel.stream_stream(
            SUBMIT_PATH,
            request_serializer=submit_pb2.SubmitRequest.SerializeToString,
            response_deserializer=bytes,
        )
        opening = submit_pb2.OpenStream(
            session_id=self.session_id,
            takes_packed_answers=self._takes_packed_answers,
            takes_notices=self._takes_notices,
        )
        self._call = await with_first_message(
            lambda: method(metadata=bearer(self._access_token)),
            submit_pb2.SubmitRequest(open=opening),
        )
        opened = await self.receive()
        self.last_request_number = opened.message.opened.last_request_number

    async def submit_request(
        self, number: int, acked: int, spans: Sequence[submit_pb2.Span]
    ) -> RawReply:
        """Send one request under a number and return the next answer that bears that number."""
        command = submit_pb2.CommandRequest(number=number, acked=acked, spans=spans)
        await self.send(submit_pb2.SubmitRequest(command=command))
        while True:
            reply = await self.receive()
            if reply.message.command.number == number:
                return reply

    async def send(self, request: submit_pb2.SubmitRequest) -> None:
        """Send any message."""
        await self._opened().write(request)

    async def receive(self) -> RawReply:
        """Return the next message. Raises grpc.aio.AioRpcError, EOFError at the stream's end."""
        encoded: Any = await self._opened().read()
        if encoded is grpc.aio.EOF:
            raise EOFError("the cluster ended the stream")
        return RawReply(submit_pb2.SubmitResponse.FromString(encoded), encoded)

    async def close(self) -> None:
        """Close the stream; the session goes on."""
        if self._call is not None:
            self._call.cancel()
        await self._channel.close()

    def _opened(self) -> grpc.aio.StreamStreamCall[Any, Any]:
        if self._call is None:
            raise ValueError("the stream is not open: call open() first")
        return self._call
