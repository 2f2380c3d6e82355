"""Certificates of real replicas end and are renewed while callers call, and no process restarts."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest

from coordinator.peers.tls import certificate_name
from testkit.links import ProxyLinks, behind_proxies
from tests.coordinator.peers.certificates import ALWAYS, BEGIN, Authority, Period
from tests.replicas.trial import ReplicasTrial, agree, lead, token_of, trial_of, under_load
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.client import Endpoint
from viewstamp.client import unary as client_unary
from viewstamp.cluster import Program
from viewstamp.cluster.local import COORDINATOR

pytestmark = pytest.mark.long

COUNT: Final = 3
# Conditions come about within seconds; a machine under load may make them slow.
TIMEOUT_S: Final = 90
REFUSED: Final = "refused: expired_certificate"
LIFETIME: Final = datetime.timedelta(seconds=6)


@dataclass
class CertificatesTrial:
    """Three replicas with certificates of their own, whose links can be broken off."""

    made: ReplicasTrial
    links: ProxyLinks
    authority: Authority
    token: str

    def renew(self, replicas: Sequence[int], valid: Period = ALWAYS) -> None:
        """Replace the certificates of these replicas."""
        for replica in replicas:
            self.authority.issue(certificate_name(replica), valid=valid)

    def expire_soon(self, replicas: Sequence[int]) -> None:
        """Replace them by some that end within seconds."""
        self.renew(replicas, (BEGIN, datetime.datetime.now(datetime.UTC) + LIFETIME))

    def break_off(self, replica: int) -> None:
        """Reset the connections between a replica and the others, in both directions."""
        for ends, proxy in self.links.proxies.items():
            if replica in ends:
                proxy.break_off()

    async def ask(self, replica: int, request: Any) -> Any:
        """Ask one replica, which answers by itself."""
        async with Endpoint(self.made.replicas.addresses[replica]).open() as channel:
            return await client_unary(channel, request, access_token=self.token, stale=True)

    async def alarms(self, replica: int) -> dict[str, str]:
        """Return the alarms of a replica: texts by kind."""
        answer = await self.ask(replica, cluster_pb2.ListAlarmsRequest())
        names = cluster_pb2.AlarmKind.Name
        return {
            names(each.kind).removeprefix("ALARM_KIND_"): each.message for each in answer.alarms
        }

    async def links_of(self, replica: int) -> dict[int, str]:
        """Return how its links to the others are."""
        answer = await self.ask(replica, cluster_pb2.GetStatusRequest())
        return {each.replica_id: each.link for each in answer.replicas if each.link}

    async def until_expired(self, replicas: Sequence[int]) -> None:
        """Wait until each of them says that its certificate has expired."""
        for replica in replicas:
            await self.until_alarm(replica, "CERTIFICATE_EXPIRY", "expired at")

    async def until_alarm(self, replica: int, kind: str, words: str) -> None:
        """Wait until a replica raises an alarm with these words."""

        async def is_raised() -> bool:
            return words in (await self.alarms(replica)).get(kind, "")

        await until(is_raised)

    async def until_links(self, replica: int, *due: str) -> None:
        """Wait until the links of a replica to the others, by their ids, are like this."""

        async def are_so() -> bool:
            return tuple((await self.links_of(replica)).values()) == due

        await until(are_so)

    async def until_healed(self) -> None:
        """Wait until all links stand, and no replica raises an alarm."""
        for replica in range(COUNT):

            async def is_calm(replica: int = replica) -> bool:
                return not await self.alarms(replica)

            await self.until_links(replica, "connected", "connected")
            await until(is_calm)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again until a condition holds."""
    async with asyncio.timeout(TIMEOUT_S):
        while not await condition():  # noqa: ASYNC110  another process brings it about
            await asyncio.sleep(0.1)


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[CertificatesTrial]:
    """Start three replicas with certificates; at the end the same processes must run."""
    authority = Authority.create(directory / "authority")
    files = [authority.issue(certificate_name(replica)) for replica in range(COUNT)]

    def with_certificates(replica: int, program: Program) -> Program:
        if program.name != COORDINATOR:
            return program
        own = files[replica]
        flags = ("--peer-tls-certificate", own.certificate, "--peer-tls-key", own.key)
        trusted = ("--peer-tls-ca", own.authority)
        return replace(program, command=(*program.command, *map(str, (*flags, *trusted))))

    data = directory / "data"
    async with (
        behind_proxies(data, COUNT, adapt=with_certificates) as (replicas, links),
        trial_of(replicas, callers=3) as made,
    ):
        async with Endpoint(replicas.addresses[0]).open() as channel:
            token = await token_of(replicas, channel)
        before = _processes(made)
        yield CertificatesTrial(made, links, authority, token)
        assert _processes(made) == before
        await agree(made)


def _processes(made: ReplicasTrial) -> list[int]:
    return [replica.pids[COORDINATOR] for replica in made.replicas.replicas]


@pytest.mark.exhaustive
async def test_one_replica_with_an_expired_certificate(tmp_path: Path) -> None:
    """The others go on serving without it, all say why, and renewed files heal it."""
    async with running(tmp_path) as trial, under_load(trial.made):
        await lead(trial.made, 2, leads=False)
        trial.expire_soon([2])
        await trial.until_expired([2])
        await trial.made.until_answered(50)
        assert await trial.links_of(2) == {0: "connected", 1: "connected"}
        trial.break_off(2)
        await trial.until_links(2, REFUSED, REFUSED)
        for replica in (0, 1):
            await trial.until_alarm(replica, "PEER_REFUSED", "replica 2 at ")
            assert (await trial.links_of(replica))[2] == REFUSED
        await trial.made.until_answered(50)
        trial.renew([2])
        await trial.until_healed()
        await trial.made.until_answered(50)


@pytest.mark.exhaustive
async def test_all_certificates_expire(tmp_path: Path) -> None:
    """Established links go on, broken ones are refused with the reason, and renewed files bring the
    service back."""
    async with running(tmp_path) as trial, under_load(trial.made):
        everybody = range(COUNT)
        trial.expire_soon(everybody)
        await trial.until_expired(everybody)
        await trial.made.until_answered(50)
        for replica in everybody:
            trial.break_off(replica)
        for replica in everybody:
            await trial.until_links(replica, REFUSED, REFUSED)
        trial.renew(everybody)
        await trial.until_healed()
        await trial.made.until_answered(50)


async def test_half_replaced_files(tmp_path: Path) -> None:
    """A replica whose files do not fit together goes on with those before, also for new links."""
    async with running(tmp_path) as trial, under_load(trial.made):
        trial.authority.issue(certificate_name(1), directory=tmp_path)
        key = trial.authority.directory / f"{certificate_name(1)}.key"
        key.write_bytes((tmp_path / key.name).read_bytes())
        await trial.until_alarm(1, "CERTIFICATE_UNUSABLE", str(key))
        trial.break_off(1)
        await trial.until_links(1, "connected", "connected")
        await trial.made.until_answered(50)
        trial.renew([1])
        await trial.until_healed()
