"""Links that fall silent though nobody has closed them, as when a machine vanishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from coordinator.peers import link as link_module
from coordinator.peers import peers as peers_module
from coordinator.peers.status import LinkState
from testkit.links import Proxy
from tests.coordinator.gateway.test_forwarding import PINGING, WAITING, sooner
from tests.coordinator.peers.peer_trial import config, free_addresses, serving, until


@asynccontextmanager
async def between(address: str) -> AsyncIterator[tuple[Proxy, str]]:
    """Yield a proxy on the way to a replica, and its own address."""
    proxy = Proxy(address)
    server = await asyncio.start_server(proxy.passes_on, "127.0.0.1", 0)
    try:
        yield proxy, "127.0.0.1:{1}".format(*server.sockets[0].getsockname())
    finally:
        proxy.forward.open()
        proxy.backward.open()
        server.close()


async def test_both_sides_of_a_silent_link_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unanswered pings end the stream on the side that writes it, and on the side that reads it."""
    keys = (PINGING, WAITING)
    for module, name in ((link_module, "CHANNEL_OPTIONS"), (peers_module, "SERVER_OPTIONS")):
        monkeypatch.setattr(module, name, sooner(getattr(module, name), keys))
    addresses = free_addresses()
    async with (
        between(addresses[1]) as (proxy, address),
        serving(config(addresses, 1)) as reader,
        serving(config({**addresses, 1: address}, 0)) as writer,
    ):
        await writer.until_connected(1)
        proxy.forward.shut()
        proxy.backward.shut()
        await writer.until(lambda: writer.status(1).state is LinkState.CONNECTING)
        await until(lambda: not reader.status(0).is_heard)
        proxy.forward.open()
        proxy.backward.open()
        await writer.until_connected(1)
