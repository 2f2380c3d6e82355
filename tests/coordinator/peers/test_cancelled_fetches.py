"""A fetch from a peer that is cancelled ends, also if the call answers with its status instead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from coordinator.peers import fetch
from coordinator.peers.fetch import SnapshotFetcher
from coordinator.peers.hello import WIRE_VERSION, Hello

OWN = Hello(b"c" * 16, WIRE_VERSION, 0, 3, b"d" * 32, b"n" * 16, 1)
PEERS = (1, 2)
STATUS = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())


class LosingChannel:
    """Its calls wait, and answer a cancellation with their status."""

    def __init__(self) -> None:
        """Begin with nobody who waits."""
        self.waits = 0
        self.has_begun = asyncio.Event()

    async def wait(self, *_: Any, **__: Any) -> bytes:
        """Wait to be cancelled."""
        self.waits += 1
        self.has_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise STATUS from None
        return b""

    def unary_unary(self, _: str) -> Callable[..., Awaitable[bytes]]:
        """Return a call."""
        return self.wait

    def unary_stream(self, _: str) -> Callable[..., Any]:
        """Return a call that is read."""
        return lambda _: SimpleNamespace(read=self.wait)

    async def close(self) -> None:
        """Do nothing."""


async def manifest(fetcher: SnapshotFetcher) -> None:
    """Fetch a manifest."""
    await fetcher.manifest(PEERS[0], 1)


async def layer(fetcher: SnapshotFetcher) -> None:
    """Fetch a layer from either peer."""
    async for _ in fetcher.layer(PEERS, 1, b"d" * 32, 100):
        pass


async def part(fetcher: SnapshotFetcher) -> None:
    """Fetch a part of a layer."""
    async for _ in fetcher.part(PEERS[0], 1, b"d" * 32, 0, 100):
        pass


@pytest.mark.parametrize("work", [manifest, layer, part])
async def test_a_cancelled_fetch_ends(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[SnapshotFetcher], Awaitable[None]]
) -> None:
    """The status of a call that was cancelled does not have the fetcher ask the next peer."""
    channel = LosingChannel()
    monkeypatch.setattr(fetch, "dial", lambda *_: channel)
    fetcher = SnapshotFetcher(lambda: OWN, dict.fromkeys(PEERS, "nowhere"), None)
    fetching = asyncio.ensure_future(work(fetcher))
    await channel.has_begun.wait()
    fetching.cancel()
    await asyncio.wait({fetching}, timeout=1)
    assert fetching.cancelled()
    assert channel.waits == 1
