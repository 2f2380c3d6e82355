"""Replicas whose links can be cut, one way or both, by network namespaces.

Each coordinator has an interface of its own, at a bridge. A link is cut one way by giving the
sender a hardware address that nobody has, so that packets vanish as on a broken network. Clients
and services are never cut off. `testkit.links` does without namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from testkit.links import LinkedReplicas
from viewstamp.cluster import Program
from viewstamp.cluster import child as wrapper
from viewstamp.cluster.local import COORDINATOR

NOBODY: Final = "02:00:00:00:00:ff"
NETWORK: Final = "10.77.0"
# With this the supervisor, which is outside, can check whether a port of a replica is free.
NONLOCAL_BIND: Final = Path("/proc/sys/net/ipv4/ip_nonlocal_bind")
CLIENT_PORT: Final = 7400
PEER_PORT: Final = 7500


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

        def inside(replica: int, program: Program) -> Program:
            if program.name != COORDINATOR:
                return program
            return replace(program, command=(*_enter(links.pids[replica]), *program.command))

        yield LinkedReplicas(directory, own, [peers] * count, adapt=inside), links
    finally:
        links.stop()


def _enter(pid: int) -> tuple[str, ...]:
    nsenter = shutil.which("nsenter")
    assert nsenter is not None, "`can_make_namespaces` was not asked"
    return (nsenter, f"--net=/proc/{pid}/ns/net")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
