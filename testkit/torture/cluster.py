"""Three real replicas for some rounds, with a client outside the load and a list of odd deaths."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc.aio

from testkit.links import LinkedReplicas, ProxyLinks, behind_proxies
from testkit.torture.hurt_coordinator import hurt
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.client import Client, connect, unary
from viewstamp.client.errors import ClientError
from viewstamp.client.transport import AccessTokenSource, Credentials, Endpoint
from viewstamp.cluster import Program
from viewstamp.errors import Refusal
from viewstamp.limits import MIB, ROOT_USERNAME

REPLICAS: Final = 3
# Snapshots follow one another, and a replica that was away for long needs one.
ARGUMENTS: Final = (
    *("--snapshot-commands", "2000"),
    *("--snapshot-keep-last", "4"),
    *("--journal-segment-bytes", str(4 * MIB)),
    *("--journal-retain-ms", "0"),
)
STATUS_TIMEOUT_S: Final = 20.0
LOOK_TIMEOUT_S: Final = 1.0
POLL_S: Final = 0.2
# What the supervisor logs when a process has ended; these ends are ours, or asked for.
RESTARTING: Final = "%s %s: restarting"
EXPECTED_ENDS: Final = frozenset({"was killed by SIGKILL", "exited with code 3"})


class OddDeaths(logging.Handler):
    """Collects the ends of processes that nobody killed and that asked for no restart."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take in what the supervisor logs."""
        if record.msg != RESTARTING or not isinstance(record.args, tuple):
            return
        name, end = map(str, record.args)
        if end not in EXPECTED_ENDS:
            self.found.append(f"{name} {end}")


@dataclass(slots=True)
class TortureCluster:
    """A running cluster whose links can be cut."""

    replicas: LinkedReplicas
    links: ProxyLinks
    admin: Client
    password: str
    # One login for all: the check of a password takes long, and a token is good for an hour.
    identity: AccessTokenSource
    deaths: OddDeaths

    @property
    def addresses(self) -> list[str]:
        """Where clients connect, by replica."""
        return self.replicas.addresses

    async def status(
        self, replica: int, *, digests: bool = False, timeout_s: float = STATUS_TIMEOUT_S
    ) -> cluster_pb2.GetStatusResponse:
        """Return what one replica itself says. Raises Refusal, AioRpcError, TimeoutError."""
        async with (
            asyncio.timeout(timeout_s),
            Endpoint(self.addresses[replica]).open() as channel,
        ):
            token = await self.identity.access_token(channel)
            request = cluster_pb2.GetStatusRequest(include_digests=digests)
            found: cluster_pb2.GetStatusResponse = await unary(
                channel, request, access_token=token, stale=True
            )
            return found

    async def primary(self) -> int | None:
        """Return the primary of the highest view that a replica tells of; None if none answers."""
        found = await asyncio.gather(
            *(self.status(each, timeout_s=LOOK_TIMEOUT_S) for each in range(REPLICAS)),
            return_exceptions=True,
        )
        statuses = [each for each in found if isinstance(each, cluster_pb2.GetStatusResponse)]
        newest = max(statuses, key=lambda status: status.header.view, default=None)
        return None if newest is None else newest.primary

    async def settled(self, timeout_s: float) -> list[cluster_pb2.GetStatusResponse]:
        """Wait until all have applied the same op and have the newest snapshot.

        Returns what each says of itself, digests included. Raises TimeoutError.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                with suppress(grpc.aio.AioRpcError, Refusal, ClientError):
                    statuses = [await self.status(each, digests=True) for each in range(REPLICAS)]
                    if are_level(statuses, (await self.admin.snapshots.latest()).generation):
                        return statuses
                await asyncio.sleep(POLL_S)


def are_level(statuses: Sequence[cluster_pb2.GetStatusResponse], generation: int) -> bool:
    """Whether all have applied the same op, and would restart from this generation."""
    own = [each for status in statuses for each in status.replicas if not each.link]
    adopted = {each.generation for each in own}
    return len({status.header.op for status in statuses}) == 1 and adopted == {generation}


@asynccontextmanager
async def running(
    directory: Path,
    arguments: Sequence[str] = ARGUMENTS,
    adapt: Callable[[int, Program], Program] = hurt,
) -> AsyncIterator[TortureCluster]:
    """Start a cluster in an empty directory, and stop it.

    `arguments` are the coordinators' flags; `adapt` changes each program of each replica.
    """
    deaths = OddDeaths()
    supervisor = logging.getLogger("viewstamp.cluster.process")
    supervisor.addHandler(deaths)
    try:
        async with (
            behind_proxies(directory, REPLICAS, arguments, adapt=adapt) as (replicas, links),
            replicas,
        ):
            password = replicas.root_password_path.read_text().strip()
            async with await connect(
                replicas.addresses, username=ROOT_USERNAME, password=password, timeout_s=60.0
            ) as admin:
                identity = AccessTokenSource(Credentials(ROOT_USERNAME, password))
                yield TortureCluster(replicas, links, admin, password, identity, deaths)
    finally:
        supervisor.removeHandler(deaths)
