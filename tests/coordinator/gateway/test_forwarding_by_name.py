"""Calls that a backup forwards to a primary whose name changes its address, or has none."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import pytest

from coordinator.gateway import forwarding as module
from tests.coordinator.gateway.test_forwarding import PATH, ForwardedCaller, passing_on, primary
from tests.coordinator.peers.name_server import named
from viewstamp import grpc_transport
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

OLD, NEW = "127.77.2.1", "127.0.0.1"
# Far longer than a change takes, and shorter than the half minute for which the library by itself
# would not ask again.
CHANGE_TIMEOUT_S = 20


async def hello(_: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    """Answer as the primary."""
    return b"answer"


@pytest.mark.parametrize("before", [OLD, None])
async def test_a_name_that_gets_another_address(before: str | None) -> None:
    """Calls that cannot leave are refused with no doubt about their outcome, and soon after the
    name leads to the primary they are passed on."""
    async with (
        primary(hello) as port,
        named(before, port) as (names, target),
        passing_on(target) as forwarding,
    ):
        caller: Any = ForwardedCaller()
        with pytest.raises(Refusal, match="try again") as caught:
            await forwarding.forward(PATH, b"", caller)
        assert caught.value.reason == Reason.REASON_VIEW_CHANGE
        names.address = NEW
        async with asyncio.timeout(CHANGE_TIMEOUT_S):
            while True:
                try:
                    answer = await forwarding.forward(PATH, b"", caller)
                    break
                except Refusal:
                    await asyncio.sleep(0.05)
        assert answer == b"answer"


@pytest.mark.parametrize(("interval_ms", "opened"), [(0, 3), (3_600_000, 1)])
async def test_a_channel_that_connects_to_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, interval_ms: int, opened: int
) -> None:
    """A call that could not leave has the next one ask for the name by another channel, but not
    more often than once an interval; a channel that was left is closed."""
    monkeypatch.setattr(module, "RESOLVE_INTERVAL_MS", interval_ms)
    channels: list[grpc.aio.Channel] = []

    def open_channel(*arguments: Any) -> grpc.aio.Channel:
        channels.append(grpc_transport.open_channel(*arguments))
        return channels[-1]

    monkeypatch.setattr(module, "grpc_transport", SimpleNamespace(open_channel=open_channel))
    async with named(None, 1) as (_, target), passing_on(target) as forwarding:
        for _ in range(3):
            with pytest.raises(Refusal, match="try again"):
                await forwarding.forward(PATH, b"", cast(Any, ForwardedCaller()))
    assert len(channels) == opened
    shut = grpc.ChannelConnectivity.SHUTDOWN
    assert [channel.get_state() for channel in channels] == [shut] * opened
