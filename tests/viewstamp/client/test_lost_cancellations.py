"""Calls of the client end when they are cancelled, also if they have a status at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from viewstamp.api.cluster.v1.cluster_service_pb2 import GetStatusRequest
from viewstamp.client import unary

LATE = grpc.aio.AioRpcError(
    grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata(), grpc.aio.Metadata()
)


class StubbornChannel:
    """A channel of which each call waits, and answers its cancellation with a status."""

    def __init__(self) -> None:
        self.is_called = asyncio.Event()

    def unary_unary(self, *_: Any, **__: Any) -> Callable[..., Awaitable[Any]]:
        """Return a call as gRPC has it whose status arrives at that moment."""

        async def call(*_: Any, **__: Any) -> None:
            self.is_called.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise LATE from None

        return call


async def test_a_call_ends_though_it_loses_a_cancellation() -> None:
    """Who is cancelled at the moment of a status ends, and does not go on with the next call."""
    channel = StubbornChannel()
    asking = asyncio.create_task(unary(cast(grpc.aio.Channel, channel), GetStatusRequest()))
    await channel.is_called.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
