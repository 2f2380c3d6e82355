"""How a Submit stream is opened when the server refuses before it has read anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest

from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client.link import OPENINGS_MAX, open_stream
from viewstamp.client.session import RawSession

NOTHING = grpc.aio.Metadata()
LOST = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, NOTHING, NOTHING, "SendMessageOperation")
REFUSED = grpc.aio.AioRpcError(grpc.StatusCode.UNAUTHENTICATED, NOTHING, NOTHING, "log in again")
GONE = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, NOTHING, NOTHING, "connection reset")


class RefusedCall:
    """A stream whose first write or first read may fail."""

    def __init__(self, written: Exception | None, read: Exception | None) -> None:
        self._written = written
        self._read = read

    def cancel(self) -> None:
        """End it."""

    async def write(self, _: submit_pb2.SubmitRequest) -> None:
        """Take the opening, or fail."""
        if self._written is not None:
            raise self._written

    async def read(self) -> submit_pb2.SubmitResponse:
        """Return that the stream is open, or fail."""
        if self._read is not None:
            raise self._read
        return submit_pb2.SubmitResponse(opened=submit_pb2.StreamOpened(last_request_number=7))


class Channel:
    """Gives out prepared streams, in their order."""

    def __init__(self, *calls: RefusedCall) -> None:
        self.calls = list(calls)

    def stream_stream(self, *_: Any, **__: Any) -> Callable[..., RefusedCall]:
        """Return the function that begins a stream."""
        return lambda **_: self.calls.pop(0)

    async def close(self) -> None:
        """Nothing is held."""


async def test_a_refusal_is_heard_though_the_first_write_lost_it() -> None:
    """A stream whose opening could not be written is opened again, and gives its refusal."""
    channel: Any = Channel(
        RefusedCall(LOST, None), RefusedCall(LOST, None), RefusedCall(None, REFUSED)
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await open_stream(channel, "token", 1)
    assert caught.value is REFUSED


async def test_an_opening_that_was_lost_once_succeeds() -> None:
    """The stream of the second try serves."""
    channel: Any = Channel(RefusedCall(LOST, None), RefusedCall(None, None))
    assert (await open_stream(channel, "token", 1))[1].last_request_number == 7


async def test_openings_end() -> None:
    """A server that never takes the first message is given up after a few tries."""
    channel: Any = Channel(*[RefusedCall(LOST, None)] * (OPENINGS_MAX + 1))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await open_stream(channel, "token", 1)
    assert caught.value is LOST
    assert len(channel.calls) == 1


async def test_a_lost_connection_is_told_at_once() -> None:
    """A lost connection is not tried again here: the caller looks for another address."""
    channel: Any = Channel(RefusedCall(GONE, None), RefusedCall(None, None))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await open_stream(channel, "token", 1)
    assert caught.value is GONE


class RefusedEndpoint:
    """An endpoint whose channel gives out prepared streams."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def open(self) -> Channel:
        """Return the channel."""
        return self._channel


async def test_a_raw_session_hears_a_refusal_that_its_first_write_lost() -> None:
    """A session that is opened again says why it is refused, not that a write was lost."""
    channel = Channel(RefusedCall(LOST, None), RefusedCall(None, REFUSED))
    endpoint: Any = RefusedEndpoint(channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with RawSession(endpoint, "token", session_id=1):
            pass
    assert caught.value is REFUSED
