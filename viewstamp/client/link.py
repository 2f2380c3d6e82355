"""One Submit stream on one connection: opened, read and written until either side ends it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc.aio

from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client.errors import ProtocolError
from viewstamp.client.transport import bearer
from viewstamp.limits import KIB

SUBMIT_PATH: Final = "/viewstamp.api.submit.v1.SubmitService/Submit"
# If an answer is due and nothing comes for this long, the connection counts as dead.
STALL_TIMEOUT_S: Final = 10.0
STALL_CHECK_S: Final = 0.25
# If nothing comes for this long, then for twice as long and so on, the client asks other replicas
# whether they lead. That is cheap, and the client does not leave a primary that is only slow.
LOOK_ELSEWHERE_S: Final = 1.0
# How long the reader may take to learn why a stream ended whose writer failed.
VERDICT_TIMEOUT_S: Final = 1.0
# A refusal that overtakes the first message makes its writing fail, and grpc.aio then forgets the
# refusal: the stream is opened again to hear it. It is a race, so a few times are enough.
OPENINGS_MAX: Final = 4
# So many bytes of requests share a message; the cost of the message itself is then negligible.
PACKED_BYTES_MAX: Final = 256 * KIB

StreamCall = grpc.aio.StreamStreamCall[Any, Any]


async def open_stream(
    channel: grpc.aio.Channel, access_token: str, session_id: int
) -> tuple[StreamCall, submit_pb2.StreamOpened]:
    """Open a Submit stream. Raises grpc.aio.AioRpcError, ProtocolError."""
    method = channel.stream_stream(
        SUBMIT_PATH,
        request_serializer=submit_pb2.SubmitRequest.SerializeToString,
        response_deserializer=submit_pb2.SubmitResponse.FromString,
    )
    opening = submit_pb2.OpenStream(
        session_id=session_id, takes_packed_answers=True, takes_notices=True
    )
    call = await with_first_message(
        lambda: method(metadata=bearer(access_token)), submit_pb2.SubmitRequest(open=opening)
    )
    response: Any = await call.read()
    if response is grpc.aio.EOF or not response.HasField("opened"):
        raise ProtocolError("the cluster did not answer the opening of a stream with `opened`")
    return call, response.opened


async def with_first_message(
    begin: Callable[[], StreamCall], message: submit_pb2.SubmitRequest
) -> StreamCall:
    """Return a stream that took its first message. Raises grpc.aio.AioRpcError."""
    for openings_left in reversed(range(OPENINGS_MAX)):
        call = begin()
        try:
            await call.write(message)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.INTERNAL or not openings_left:
                raise
        else:
            return call
    raise AssertionError("the last opening returns or raises")


class SubmitLink:
    """One open stream. `send` queues; answers go to `receive` as they come.

    `look_elsewhere` is called if `is_waiting` and no answer has come for a while.
    """

    def __init__(
        self,
        call: StreamCall,
        receive: Callable[[submit_pb2.SubmitResponse], None],
        is_waiting: Callable[[], bool],
        look_elsewhere: Callable[[], Awaitable[None]],
    ) -> None:
        self._call = call
        self._receive = receive
        self._is_waiting = is_waiting
        self._look_elsewhere = look_elsewhere
        self._outgoing: asyncio.Queue[submit_pb2.SubmitRequest] = asyncio.Queue()
        self._ended = asyncio.Event()
        self.has_stalled = False
        """Whether an answer was due and nothing came for long."""
        self._heard_at = asyncio.get_running_loop().time()

    def send(self, request: submit_pb2.SubmitRequest) -> None:
        """Queue a message."""
        self._outgoing.put_nowait(request)

    def end(self) -> None:
        """Make `run` return."""
        self._ended.set()

    @property
    def was_ended(self) -> bool:
        """Whether this side ended it."""
        return self._ended.is_set()

    async def run(self) -> None:
        """Serve until either side ends the stream. Raises grpc.aio.AioRpcError if it failed."""
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        others = [asyncio.create_task(self._ended.wait()), asyncio.create_task(self._watch())]
        tasks = [reader, writer, *others]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if writer.done() and not reader.done():
                await asyncio.wait([reader], timeout=VERDICT_TIMEOUT_S)
            if reader.done():
                await reader
        finally:
            for task in tasks:
                task.cancel()
            self._call.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            response: Any = await self._call.read()
            if response is grpc.aio.EOF:
                return
            self._heard_at = clock()
            self._receive(response)

    async def _write(self) -> None:
        while True:
            waiting = deque([await self._outgoing.get()])
            while not self._outgoing.empty():
                waiting.append(self._outgoing.get_nowait())
            # Send in two halves: the cluster works on one while the other is under way.
            half = (len(waiting) + 1) // 2
            while waiting:
                await self._call.write(next_message(waiting, half))

    async def _watch(self) -> None:
        clock = asyncio.get_running_loop().time
        look_after_s = LOOK_ELSEWHERE_S
        while True:
            await asyncio.sleep(STALL_CHECK_S)
            if not self._is_waiting():
                self._heard_at = clock()
            silent_s = clock() - self._heard_at
            if silent_s > STALL_TIMEOUT_S:
                self.has_stalled = True
                return
            if silent_s < LOOK_ELSEWHERE_S:
                look_after_s = LOOK_ELSEWHERE_S
            elif silent_s >= look_after_s:
                look_after_s *= 2
                await self._look_elsewhere()


def next_message(
    waiting: deque[submit_pb2.SubmitRequest], requests_max: int
) -> submit_pb2.SubmitRequest:
    """Take one message from the front; neighbours with commands become one."""
    first = waiting.popleft()
    requests = [first.command]
    size = first.ByteSize()
    while first.HasField("command") and waiting and waiting[0].HasField("command"):
        size += waiting[0].ByteSize()
        if size > PACKED_BYTES_MAX or len(requests) == requests_max:
            break
        requests.append(waiting.popleft().command)
    if len(requests) == 1:
        return first
    return submit_pb2.SubmitRequest(commands=submit_pb2.CommandRequests(requests=requests))
