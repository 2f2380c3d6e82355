"""Calls by random scripts: what each end says, in turn, and how the call ends.

Both ends follow one script, so that neither waits for what the other never does. A transcript is
what both have seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from viewstamp.grpc_transport import Transport

SERVICE: Final = "test.Random"
PATIENCE_S: Final = 20
_NUMBER: Final = "number"

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]


class ScriptEnd(Enum):
    """How a call ends."""

    RETURN = "return"
    ABORT = "abort"
    RAISE = "raise"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """One message, and who sends it."""

    is_request: bool
    size: int


@dataclass(frozen=True, slots=True)
class Script:
    """One call. Where an end sends one message only, `steps` has one for it, or none."""

    sends_many: bool
    answers_many: bool
    metadata: Metadata
    initial: Metadata | None
    steps: Sequence[ScriptStep]
    is_half_closed: bool
    end: ScriptEnd
    code: grpc.StatusCode
    details: str
    trailing: Metadata

    @property
    def path(self) -> str:
        """The method of this shape."""
        return f"/{SERVICE}/{_shape(self.sends_many)}{_shape(self.answers_many)}"


def _shape(has_many: bool) -> str:
    return "Many" if has_many else "One"


@dataclass
class Transcript:
    """What both ends saw; equal if the two calls were alike to both."""

    requests: list[int | None] = field(default_factory=list)
    """Sizes of messages, None for the end."""
    answers: list[int | None] = field(default_factory=list)
    metadata: list[tuple[str, Any]] = field(default_factory=list)
    initial: list[tuple[str, Any]] = field(default_factory=list)
    trailing: list[tuple[str, Any]] = field(default_factory=list)
    code: grpc.StatusCode | None = None
    details: str | None = ""
    server: str = ""


def _own(metadata: Any) -> list[tuple[str, Any]]:
    """Return the metadata of scripts, without those of transports. The order has a meaning among
    values of one key alone."""
    own = [(key, value) for key, value in metadata or () if key.startswith("x-")]
    return sorted(own, key=itemgetter(0))


class Scripted:
    """A call that follows a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen = Transcript()
        self.is_followed = asyncio.Event()
        """The handler has come to the end of the script."""
        self.is_over = asyncio.Event()
        """The handler has ended."""


class ScriptedServer:
    """Serves calls by their scripts."""

    def __init__(self) -> None:
        self.calls: list[Scripted] = []
        """By the number that each sends with its metadata."""

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return a handler for each shape."""
        methods: dict[str, Any] = {
            "OneOne": grpc.unary_unary_rpc_method_handler(self._one),
            "OneMany": grpc.unary_stream_rpc_method_handler(self._many),
            "ManyOne": grpc.stream_unary_rpc_method_handler(self._many_one),
            "ManyMany": grpc.stream_stream_rpc_method_handler(self._many_many),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _one(self, request: bytes, context: Any) -> bytes:
        return await self._serve(request, context)

    async def _many(self, request: bytes, context: Any) -> None:
        await self._serve(request, context)

    async def _many_one(self, _: AsyncIterator[bytes], context: Any) -> bytes:
        return await self._serve(None, context)

    async def _many_many(self, _: AsyncIterator[bytes], context: Any) -> None:
        await self._serve(None, context)

    async def _serve(self, request: bytes | None, context: Any) -> bytes:
        metadata = tuple(context.invocation_metadata())
        call = self.calls[int(dict(metadata)[_NUMBER])]
        call.seen.metadata = _own(metadata)
        try:
            answer = await _follow(call, request, context)
            await _end(call.script, context)
        except asyncio.CancelledError:
            call.seen.server = "cancelled"
            raise
        except grpc.aio.AbortError:
            call.seen.server = "aborted"
            raise
        else:
            call.seen.server = "returned"
        finally:
            call.is_over.set()
        return answer


async def _follow(call: Scripted, request: bytes | None, context: Any) -> bytes:
    """Take and send messages by the script; return the answer where there is one only."""
    script, requests = call.script, call.seen.requests
    if script.initial is not None:
        await context.send_initial_metadata(script.initial)
    answer = b""
    for step in script.steps:
        if step.is_request:
            requests.append(len(await context.read() if request is None else request))
        elif script.answers_many:
            await context.write(bytes(step.size))
        else:
            answer = bytes(step.size)
    if script.is_half_closed and script.sends_many:
        assert await context.read() is grpc.aio.EOF
        requests.append(None)
    call.is_followed.set()
    return answer


async def _end(script: Script, context: Any) -> None:
    if script.end is ScriptEnd.ABORT:
        await context.abort(script.code, script.details, script.trailing)
    if script.end is ScriptEnd.RAISE:
        raise ValueError("as planned")
    if script.end is ScriptEnd.CANCEL:
        await asyncio.sleep(PATIENCE_S)
    context.set_trailing_metadata(script.trailing)
    context.set_code(script.code)
    context.set_details(script.details)


class ScriptedLine:
    """A client and a server, each on one transport."""

    def __init__(self, client: Transport, server: Transport) -> None:
        self._client = client
        self._scripted = ScriptedServer()
        self._server: Any = server.server(())

    async def start(self) -> None:
        """Serve, and connect."""
        self._server.add_generic_rpc_handlers((self._scripted.handlers(),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._channel: Any = self._client.channel(f"127.0.0.1:{port}", (), None)

    async def close(self) -> None:
        """End both."""
        await self._channel.close()
        await self._server.stop(None)

    async def transcript(self, script: Script) -> Transcript:
        """Make a call by a script, and return what both ends saw."""
        call = Scripted(script)
        self._scripted.calls.append(call)
        metadata = (_NUMBER, str(len(self._scripted.calls) - 1)), *script.metadata
        async with asyncio.timeout(PATIENCE_S):
            made = self._begin(script, metadata)
            await _speak(script, made, call.seen)
            if script.end is ScriptEnd.CANCEL:
                await call.is_followed.wait()
                made.cancel()
            await _hear_the_end(script, made, call.seen)
            await call.is_over.wait()
        return call.seen

    def _begin(self, script: Script, metadata: Metadata) -> Any:
        make = {
            (False, False): self._channel.unary_unary,
            (False, True): self._channel.unary_stream,
            (True, False): self._channel.stream_unary,
            (True, True): self._channel.stream_stream,
        }[script.sends_many, script.answers_many](script.path)
        if script.sends_many:
            return make(metadata=metadata)
        only = next(step.size for step in script.steps if step.is_request)
        return make(bytes(only), metadata=metadata)


async def _speak(script: Script, call: Any, seen: Transcript) -> None:
    for step in script.steps:
        if step.is_request and script.sends_many:
            await call.write(bytes(step.size))
        elif not step.is_request and script.answers_many:
            seen.answers.append(len(await call.read()))
    if script.is_half_closed and script.sends_many:
        await call.done_writing()


async def _hear_the_end(script: Script, call: Any, seen: Transcript) -> None:
    try:
        if not script.answers_many:
            seen.answers.append(len(await call))
        else:
            assert await call.read() is grpc.aio.EOF
            seen.answers.append(None)
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        pass  # the code says it
    seen.code, seen.details = await call.code(), await call.details()
    if script.end is not ScriptEnd.CANCEL:
        seen.trailing = _own(await call.trailing_metadata())
    # The library's client sometimes forgets the first metadata of a call without a message.
    if any(size is not None for size in seen.answers):
        seen.initial = _own(await call.initial_metadata())
