"""Replicas whose links can be cut, one way or both: by network namespaces, or by TCP proxies.

With namespaces each coordinator has an interface of its own, at a bridge. A link is cut one way by
giving the sender a hardware address that nobody has, so that packets vanish as on a broken network.
With proxies the bytes of one direction wait until the link is healed. Clients and services are
never cut off.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from viewstamp.cluster import LocalCluster, LocalReplicas, Program
from viewstamp.cluster import child as wrapper
from viewstamp.cluster.local import COORDINATOR
from viewstamp.cluster.preflight import (
    KEY_FILE,
    ensure_cluster_key,
    free_address,
    prepare_directory,
)

CHUNK_BYTES: Final = 64 * 1024
NOBODY: Final = "02:00:00:00:00:ff"
NETWORK: Final = "10.77.0"
# With this the supervisor, which is outside, can check whether a port of a replica is free.
NONLOCAL_BIND: Final = Path("/proc/sys/net/ipv4/ip_nonlocal_bind")
CLIENT_PORT: Final = 7400
PEER_PORT: Final = 7500
ANY_PORT: Final = "127.0.0.1:0"


class Links(Protocol):
    """The links between replicas; at first all are healthy."""

    def cut(self, source: int, target: int) -> None:
        """Drop or hold all bytes from `source` to `target`; the other direction is another link."""
        ...

    def heal(self) -> None:
        """Heal all links."""
        ...


class LinkedReplicas(LocalReplicas):
    """Replicas that listen at given addresses, with given addresses of each other."""

    def __init__(
        self,
        directory: Path,
        own: Sequence[str],
        peers: Sequence[Sequence[str]],
        namespaces: Sequence[int] = (),
        arguments: Sequence[str] = (),
    ) -> None:
        """Place the replicas on addresses and in namespaces.

        `peers[i]` has the addresses by which replica `i` reaches the others; at `i` it listens.
        The coordinators run in the network namespaces of the processes `namespaces`; `arguments`
        are their flags.
        """
        adapt = self._inside if namespaces else _unchanged
        super().__init__(directory, len(own), coordinator_arguments=arguments, adapt=adapt)
        self._own = own
        self._peers = peers
        self._namespaces = namespaces

    def _make_replicas(self) -> list[LocalCluster]:
        prepare_directory(self.data_directory)
        ensure_cluster_key(self.data_directory / KEY_FILE)
        cluster_id = self._ensure_cluster_id()
        given = enumerate(zip(self._own, self._peers, strict=True))
        return [self._replica(i, own, peers, cluster_id) for i, (own, peers) in given]

    def _inside(self, replica: int, program: Program) -> Program:
        if program.name != COORDINATOR:
            return program
        return replace(program, command=(*_enter(self._namespaces[replica]), *program.command))


def _unchanged(_: int, program: Program) -> Program:
    return program


# --- Namespaces ---


def can_make_namespaces() -> bool:
    """Whether this user can make network namespaces, and has the tools that they need."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    script = (
        "ip link set lo up && ip link add bridge0 type bridge && echo 1 > $1 && exec"
        " unshare --net ip link add probe0 type veth peer name probe1"
    )
    command = in_new_namespace("sh", "-c", script, "sh", str(NONLOCAL_BIND))
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def in_new_namespace(*command: str) -> list[str]:
    """Return the command line that runs another one as root of a network of its own."""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *as_root, "--net", *command]


class NamespaceLinks:
    """Interfaces at one bridge; the process must have been started with `in_new_namespace`."""

    def __init__(self, count: int) -> None:
        self.addresses = [f"{NETWORK}.{replica + 1}" for replica in range(count)]
        self._cut: list[tuple[int, int]] = []
        self._holders: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Make the bridge, and a namespace for each replica, which a sleeping process holds."""
        NONLOCAL_BIND.write_text("1")
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "bridge0", "type", "bridge")
        _run("ip", "address", "add", f"{NETWORK}.254/24", "dev", "bridge0")
        _run("ip", "link", "set", "bridge0", "up")
        for replica in range(len(self.addresses)):
            self._add(replica)

    def stop(self) -> None:
        """Delete the namespaces."""
        for holder in self._holders:
            holder.kill()
            holder.wait()

    @property
    def pids(self) -> list[int]:
        """A process in each replica's namespace."""
        return [holder.pid for holder in self._holders]

    def cut(self, source: int, target: int) -> None:
        """Redirect all packets from `source` to a hardware address that nobody has."""
        where = (self.addresses[target], "lladdr", NOBODY, "dev", "eth0", "nud", "permanent")
        _run(*_enter(self.pids[source]), "ip", "neighbour", "replace", *where)
        self._cut.append((source, target))

    def heal(self) -> None:
        """Restore the right hardware addresses."""
        for source, target in self._cut:
            where = (self.addresses[target], "dev", "eth0")
            _run(*_enter(self.pids[source]), "ip", "neighbour", "del", *where)
        self._cut.clear()

    def _add(self, replica: int) -> None:
        unshare = shutil.which("unshare")
        assert unshare is not None, "`can_make_namespaces` was not asked"
        # The kernel kills it when this process dies, for whatever reason.
        tied = [sys.executable, "-I", "-S", str(wrapper.__file__), str(os.getpid())]
        sleeper = ["sh", "-c", "echo; exec sleep infinity"]
        holder = subprocess.Popen([*tied, unshare, "--net", *sleeper], stdout=subprocess.PIPE)
        self._holders.append(holder)
        assert holder.stdout is not None
        holder.stdout.readline()
        name, enter = f"replica{replica}", _enter(holder.pid)
        _run("ip", "link", "add", name, "type", "veth", "peer", "eth0", "netns", str(holder.pid))
        _run("ip", "link", "set", name, "master", "bridge0", "up")
        _run(*enter, "ip", "address", "add", f"{self.addresses[replica]}/24", "dev", "eth0")
        _run(*enter, "ip", "link", "set", "eth0", "up")
        _run(*enter, "ip", "link", "set", "lo", "up")


@asynccontextmanager
async def in_namespaces(
    directory: Path, count: int
) -> AsyncIterator[tuple[LinkedReplicas, NamespaceLinks]]:
    """Yield replicas in namespaces of their own, not yet started, and their links."""
    links = NamespaceLinks(count)
    try:
        links.start()
        own = [f"{address}:{CLIENT_PORT}" for address in links.addresses]
        peers = [f"{address}:{PEER_PORT}" for address in links.addresses]
        yield LinkedReplicas(directory, own, [peers] * count, links.pids), links
    finally:
        links.stop()


def _enter(pid: int) -> tuple[str, ...]:
    nsenter = shutil.which("nsenter")
    assert nsenter is not None, "`can_make_namespaces` was not asked"
    return (nsenter, f"--net=/proc/{pid}/ns/net")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


# --- Proxies ---


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
        self._host, _, port = address.rpartition(":")
        self._port = int(port)

    async def passes_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            beyond_reader, beyond_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(
                _pump(reader, beyond_writer, self.forward),
                _pump(beyond_reader, writer, self.backward),
            )
        finally:
            writer.close()
            beyond_writer.close()


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
    directory: Path, count: int, arguments: Sequence[str] = ()
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
        yield LinkedReplicas(directory, own, peers, arguments=arguments), links
