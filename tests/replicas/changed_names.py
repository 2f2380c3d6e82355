"""Scenarios of names whose addresses change, run where /etc/hosts can be replaced.

`python -m tests.replicas.changed_names SCENARIO DIRECTORY` runs one: start it with
`in_own_hosts_file`. It exits with 0 if all promises were kept; otherwise a traceback says which one
was not. Every address is one of loopback, as when a pod comes back on another node.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import grpc.aio

import viewstamp
from testkit.links import LinkedReplicas
from tests.replicas.trial import unary
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.client import Client
from viewstamp.cluster import Program
from viewstamp.cluster.local import COORDINATOR

COUNT: Final = 3
CLIENT_PORT: Final = 7400
PEER_PORT: Final = 7500
TIMEOUT_S: Final = 90
HOSTS: Final = Path("/etc/hosts")
UNKNOWN: Final = "connecting: name_unknown"
# The last arguments count: the addresses of this start, which a file has.
START_AT: Final = (
    f'at=$(cat "$1"); shift; exec "$@" --listen $at:{CLIENT_PORT} --peer-listen $at:{PEER_PORT}'
)


def can_replace_hosts(directory: Path) -> bool:
    """Whether this user can give a process an /etc/hosts of its own."""
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    command = in_own_hosts_file(directory / "probed-hosts", "true")
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def in_own_hosts_file(hosts: Path, *command: str) -> list[str]:
    """Return the command line that runs another one with this file in the place of /etc/hosts."""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    hosts.write_text("127.0.0.1 localhost\n")
    script = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'
    return ["unshare", *as_root, "--mount", "sh", "-c", script, "sh", str(hosts), *command]


@dataclass
class ChangedNamesTrial:
    """Three replicas that know each other, and are known, by names."""

    replicas: LinkedReplicas
    directory: Path
    names: dict[str, str]

    def place(self, replica: int, address: str) -> None:
        """Say where the next start of a replica listens."""
        (self.directory / f"address-{replica}").write_text(address)

    def publish(self, replica: int, address: str | None) -> None:
        """Let a name have an address, or none."""
        self.names.pop(name_of(replica), None)
        if address is not None:
            self.names[name_of(replica)] = address
        lines = [f"{address} {name}\n" for name, address in self.names.items()]
        # In place: another file would not be seen through the mount.
        HOSTS.write_text("".join(("127.0.0.1 localhost\n", *lines)))

    def kill(self, replica: int) -> None:
        """Kill a coordinator; its supervisor starts it again, where it is placed then."""
        self.replicas.replicas[replica].kill(COORDINATOR)

    async def links_of(self, replica: int, address: str) -> dict[int, str]:
        """Return how the links of a replica are, asked at an address."""
        request = cluster_pb2.GetStatusRequest()
        answer = await unary(self.replicas, f"{address}:{CLIENT_PORT}", request, stale=True)
        return {each.replica_id: each.link for each in answer.replicas if each.link}

    async def until_link(self, source: int, target: int, due: str) -> None:
        """Wait until the link of a replica that did not move, to another one, is like this."""

        async def is_so() -> bool:
            return (await self.links_of(source, first_address(source)))[target] == due

        await until(is_so)


def name_of(replica: int) -> str:
    """Return the host name of a replica."""
    return f"replica{replica}.test"


def first_address(replica: int) -> str:
    """Return where a replica listens at first."""
    return f"127.77.0.{replica + 1}"


def next_address(replica: int) -> str:
    """Return where it listens after it moved."""
    return f"127.77.1.{replica + 1}"


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again until a condition holds."""
    async with asyncio.timeout(TIMEOUT_S):
        while not await _holds(condition):  # noqa: ASYNC110  another process brings it about
            await asyncio.sleep(0.1)


async def _holds(condition: Callable[[], Awaitable[bool]]) -> bool:
    try:
        return await condition()
    except (grpc.aio.AioRpcError, viewstamp.Refusal, OSError):
        return False


@asynccontextmanager
async def replicas_by_name(directory: Path, *unknown: int) -> AsyncIterator[ChangedNamesTrial]:
    """Start three replicas, and leave at first some names unknown."""
    own = [f"{first_address(replica)}:{CLIENT_PORT}" for replica in range(COUNT)]
    peers = [f"{name_of(replica)}:{PEER_PORT}" for replica in range(COUNT)]

    def at_its_place(replica: int, program: Program) -> Program:
        if program.name != COORDINATOR:
            return program
        where = str(directory / f"address-{replica}")
        told = ("--advertise", f"{name_of(replica)}:{CLIENT_PORT}")
        command = ("/bin/sh", "-c", START_AT, "sh", where, *program.command, *told)
        return replace(program, command=command)

    made = LinkedReplicas(directory / "data", own, [peers] * COUNT, adapt=at_its_place)
    trial = ChangedNamesTrial(made, directory, {})
    for replica in range(COUNT):
        trial.place(replica, first_address(replica))
        trial.publish(replica, None if replica in unknown else first_address(replica))
    await made.start()
    try:
        yield trial
    finally:
        await made.stop()


@asynccontextmanager
async def client_of(trial: ChangedNamesTrial) -> AsyncIterator[Client]:
    """Connect a client that knows the replicas by their names."""
    secret = trial.replicas.root_password_path.read_text().strip()
    addresses = [f"{name_of(replica)}:{CLIENT_PORT}" for replica in range(COUNT)]
    client = await viewstamp.connect(
        addresses, username="root", password=secret, timeout_s=TIMEOUT_S, connect_timeout_s=60
    )
    async with client:
        yield client


async def primary_moves(directory: Path) -> None:
    """The primary comes back at another address, and leads again: the others reach it, callers do,
    and a backup passes commands on to it."""
    async with replicas_by_name(directory) as trial:
        await trial.replicas.wait_ready()
        async with client_of(trial) as client:
            await client.streams.create("before")
            await lead(client, 2)
            # The backup has a connection to the primary by its name.
            await forwarded(trial, "passed-on-before")
            trial.place(2, next_address(2))
            trial.kill(2)
            await trial.until_link(0, 2, "connecting")
            # As in Kubernetes: the name changes after the pod has gone.
            trial.publish(2, next_address(2))
            begin = time.monotonic()
            for source in (0, 1):
                await trial.until_link(source, 2, "connected")
            print(f"links after {time.monotonic() - begin:.1f} s")
            await client.streams.create("meanwhile")
            await lead(client, 2)
            begin = time.monotonic()
            await until(lambda: passes_on(trial, "passed-on-after"))
            print(f"passed on after another {time.monotonic() - begin:.1f} s")
            await client.streams.create("after")


async def lead(client: Client, replica: int) -> None:
    """Ask for step-downs until a replica leads."""

    async def leads() -> bool:
        if (await client.status()).primary == replica:
            return True
        await client.step_down()
        return False

    await until(leads)


async def forwarded(trial: ChangedNamesTrial, stream: str) -> None:
    """Have replica 0, a backup, pass a command on to the primary."""
    request: Any = streams_pb2.CreateStreamRequest(name=stream)
    await unary(trial.replicas, f"{first_address(0)}:{CLIENT_PORT}", request)


async def passes_on(trial: ChangedNamesTrial, stream: str) -> bool:
    """Return whether it does."""
    await forwarded(trial, stream)
    return True


async def names_unknown_at_the_start(directory: Path) -> None:
    """A cluster of which one name is unknown waits, says so, and begins once it is known."""
    async with replicas_by_name(directory, 2) as trial:
        logs = [trial.replicas.replicas[source].log_path(COORDINATOR) for source in (0, 1)]

        async def are_said() -> bool:
            return all(name_of(2) in log.read_text() for log in logs)

        await until(are_said)
        trial.publish(2, first_address(2))
        await trial.replicas.wait_ready()
        async with client_of(trial) as client:
            await client.streams.create("orders")
        assert restarts(trial) == [0] * COUNT


async def name_unknown_later(directory: Path) -> None:
    """A name that is unknown for a while costs that link alone, which comes back by itself."""
    async with replicas_by_name(directory) as trial:
        await trial.replicas.wait_ready()
        async with client_of(trial) as client:
            trial.publish(2, None)
            trial.kill(2)
            for source in (0, 1):
                await trial.until_link(source, 2, UNKNOWN)
            await client.streams.create("meanwhile")
            trial.publish(2, first_address(2))
            for source in (0, 1):
                await trial.until_link(source, 2, "connected")
            await client.streams.create("after")
        assert restarts(trial) == [0, 0, 1]


def restarts(trial: ChangedNamesTrial) -> list[int]:
    """Return how often each coordinator was started again."""
    return [each.restarts[COORDINATOR] for each in trial.replicas.replicas]


SCENARIOS: Final[Mapping[str, Callable[[Path], Awaitable[None]]]] = MappingProxyType(
    {
        each.__name__: each
        for each in (primary_moves, names_unknown_at_the_start, name_unknown_later)
    }
)


async def main(name: str, directory: Path) -> None:
    """Run one scenario."""
    await SCENARIOS[name](directory)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
