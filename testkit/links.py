"""Replicas whose links can be cut, one way or both, by TCP proxies.

The bytes of one direction wait until the link is healed. Clients and services are never cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from viewstamp.cluster import LocalCluster, LocalReplicas, Program
from viewstamp.cluster.preflight import (
    KEY_FILE,
    ensure_cluster_key,
    free_address,
    prepare_directory,
)

CHUNK_BYTES: Final = 64 * 1024
ANY_PORT: Final = "127.0.0.1:0"


class Links(Protocol):
    """The links between replicas; at first all are healthy."""

    def cut(self, source: int, target: int) -> None:
        """Drop or hold all bytes from `source` to `target`; the other direction is another link."""
        ...

    def heal(self) -> None:
        """Heal all links."""
        ...


def unchanged(_: int, program: Program) -> Program:
    """Return a program of a replica as it is."""
    return program


class LinkedReplicas(LocalReplicas):
    """Replicas that listen at given addresses, with given addresses of each other."""

    def __init__(
        self,
        directory: Path,
        own: Sequence[str],
        peers: Sequence[Sequence[str]],
        *,
        adapt: Callable[[int, Program], Program] = unchanged,
        arguments: Sequence[str] = (),
    ) -> None:
        """Place the replicas on addresses.

        `peers[i]` has the addresses by which replica `i` reaches the others; at `i` it listens.
        `adapt` changes each program of each replica; `arguments` are the coordinators' flags.
        """
        super().__init__(directory, len(own), coordinator_arguments=arguments, adapt=adapt)
        self._own = own
        self._peers = peers

    def _make_replicas(self) -> list[LocalCluster]:
        prepare_directory(self.data_directory)
        ensure_cluster_key(self.data_directory / KEY_FILE)
        cluster_id = self._ensure_cluster_id()
        given = enumerate(zip(self._own, self._peers, strict=True))
        return [self._replica(i, own, peers, cluster_id) for i, (own, peers) in given]


class LinkGate:
    """One direction of a proxy: open, shut, or open for a number of further bytes."""

    def __init__(self) -> None:
        self._is_open = asyncio.Event()
        self.open()

    def open(self) -> None:
        """Let everything pass."""
        self._left_bytes: int | None = None
        self._is_open.set()

    def shut(self) -> None:
        """Hold everything back."""
        self._is_open.clear()

    def allow(self, size_bytes: int) -> None:
        """Pass about so many further bytes, and hold back the rest."""
        self._left_bytes = size_bytes

    async def passed(self, size_bytes: int) -> None:
        """Count so many bytes, and wait until they may pass."""
        if self._left_bytes is not None:
            self._left_bytes -= size_bytes
            if self._left_bytes < 0:
                self.shut()
        await self._is_open.wait()


class Proxy:
    """Forwards connections to one address; either direction can be stopped."""

    def __init__(self, address: str) -> None:
        self.forward, self.backward = LinkGate(), LinkGate()
        self._writers: set[asyncio.StreamWriter] = set()
        self._host, _, port = address.rpartition(":")
        self._port = int(port)

    async def passes_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            beyond_reader, beyond_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, beyond_writer}
        try:
            await asyncio.gather(
                _pump(reader, beyond_writer, self.forward),
                _pump(beyond_reader, writer, self.backward),
            )
        finally:
            self._writers -= {writer, beyond_writer}
            writer.close()
            beyond_writer.close()

    def break_off(self) -> None:
        """Reset every connection that stands; new ones are passed on."""
        for writer in self._writers:
            writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: LinkGate) -> None:
    """Forward bytes while the direction is open; the end of one direction ends both."""
    with suppress(ConnectionError):
        while data := await reader.read(CHUNK_BYTES):
            await gate.passed(len(data))
            writer.write(data)
            await writer.drain()
    await gate.passed(0)
    writer.close()


class ProxyLinks:
    """A proxy for the connections of each replica to each other one."""

    def __init__(self) -> None:
        self.proxies: dict[tuple[int, int], Proxy] = {}

    def cut(self, source: int, target: int) -> None:
        """Stop requests from `source`, and its answers."""
        self.proxies[source, target].forward.shut()
        self.proxies[target, source].backward.shut()

    def heal(self) -> None:
        """Let everything pass."""
        for proxy in self.proxies.values():
            proxy.forward.open()
            proxy.backward.open()


@asynccontextmanager
async def behind_proxies(
    directory: Path,
    count: int,
    arguments: Sequence[str] = (),
    *,
    adapt: Callable[[int, Program], Program] = unchanged,
) -> AsyncIterator[tuple[LinkedReplicas, ProxyLinks]]:
    """Yield replicas that reach each other through proxies, not yet started, and their links."""
    links = ProxyLinks()
    listens = [free_address(ANY_PORT) for _ in range(count)]
    peers = [list(listens) for _ in range(count)]
    async with AsyncExitStack() as stack:
        stack.callback(links.heal)  # open, so that every connection can end
        for source in range(count):
            for target in range(count):
                if source != target:
                    proxy = links.proxies[source, target] = Proxy(listens[target])
                    server = await asyncio.start_server(proxy.passes_on, "127.0.0.1", 0)
                    stack.callback(server.close)
                    peers[source][target] = "127.0.0.1:{1}".format(*server.sockets[0].getsockname())
        own = [ANY_PORT] * count
        yield LinkedReplicas(directory, own, peers, adapt=adapt, arguments=arguments), links
