"""Three replicas' peers in one process, over real gRPC on loopback, and the events they get."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.peers.messages import PeerMessage
from coordinator.peers.peers import PeerEvents, Peers, PeersConfig
from coordinator.peers.routing import Receiver
from coordinator.peers.settings import PeerSettings, PeerTls
from coordinator.peers.status import LinkState, PeerStatus
from coordinator.vsr.messages import CommitMessage
from viewstamp.format.prepare import NO_PARENT, SealedPrepare, seal

CLUSTER = b"c" * 16
OTHER_CLUSTER = b"o" * 16
COUNT = 3
WAIT_S = 20

_hosts = itertools.count(1)


def free_addresses(count: int = COUNT) -> dict[int, str]:
    """Return addresses that nobody else takes: only this test uses the loopback host."""
    host = f"127.{os.getpid() >> 8 & 127 | 128}.{os.getpid() & 255}.{next(_hosts) % 254 + 1}"
    addresses = {}
    with contextlib.ExitStack() as held:
        for replica in range(count):
            listener = held.enter_context(socket.create_server((host, 0)))
            addresses[replica] = f"{host}:{listener.getsockname()[1]}"
    return addresses


def sealed(op: int = 2, body: bytes = b"body", cluster_id: bytes = CLUSTER) -> SealedPrepare:
    """Return an entry of the log."""
    return seal(
        parent=NO_PARENT if op == 1 else b"p" * 16,
        cluster_id=cluster_id,
        view=3,
        op=op,
        commit=op - 1,
        first_revision=op,
        command_count=1,
        feature_level=1,
        timestamp=1_000 + op,
        body=body,
    )


def heartbeat(sender: int, commit: int) -> CommitMessage:
    """Return a small message that a test recognizes by its commit."""
    return CommitMessage(CLUSTER, sender, 3, commit, b"k" * 16, 0)


@dataclass
class PeerTrial:
    """One replica's peers, what they received, and how each link stood, newest last."""

    peers: Peers
    messages: list[PeerMessage] = field(default_factory=list)
    states: list[PeerStatus] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def status(self, replica: int) -> PeerStatus:
        """Return the known state of one peer."""
        return next(status for status in self.peers.status() if status.replica == replica)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that only a received message or an event can bring about."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def until_connected(self, *replicas: int) -> None:
        """Wait until messages to these peers leave at once."""
        await self.until(lambda: all(self.status(r).state is LinkState.CONNECTED for r in replicas))

    async def until_refused(self, replica: int) -> PeerStatus:
        """Wait until a peer refuses this one; return its status."""
        await self.until(lambda: self.status(replica).state is LinkState.REFUSED)
        return self.status(replica)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that no event announces."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def config(addresses: Mapping[int, str], replica: int, tls: PeerTls | None = None) -> PeersConfig:
    """Return the configuration of one replica of three."""
    others = {other: address for other, address in addresses.items() if other != replica}
    settings = PeerSettings(addresses[replica], others, tls)
    return PeersConfig(CLUSTER, replica, COUNT, os.urandom(16), settings)


def restarted(before: PeersConfig, **changes: Any) -> PeersConfig:
    """Return the configuration of another process of the same replica."""
    return replace(before, boot_nonce=os.urandom(16), **changes)


@contextlib.asynccontextmanager
async def serving(configuration: PeersConfig, **options: Any) -> AsyncIterator[PeerTrial]:
    """Run one replica's peers until the block is left."""

    def told(target: list[Any]) -> Callable[[Any], None]:
        def put(item: Any) -> None:
            target.append(item)
            trial.changed.set()

        return put

    messages: list[PeerMessage] = []
    states: list[PeerStatus] = []
    errors: list[BaseException] = []
    events = PeerEvents(dict.fromkeys(Receiver, told(messages)), told(states), told(errors))
    peers = Peers(configuration, events, **options)
    trial = PeerTrial(peers, messages, states, errors)
    await peers.start()
    try:
        yield trial
    finally:
        await peers.stop()
    assert errors == []


@contextlib.asynccontextmanager
async def cluster() -> AsyncIterator[list[PeerTrial]]:
    """Run three replicas that are connected with each other."""
    addresses = free_addresses()
    async with contextlib.AsyncExitStack() as stack:
        trials = [
            await stack.enter_async_context(serving(config(addresses, replica)))
            for replica in range(COUNT)
        ]
        for replica, trial in enumerate(trials):
            await trial.until_connected(*(other for other in range(COUNT) if other != replica))
        yield trials
