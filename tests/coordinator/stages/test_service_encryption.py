"""Coordinator and service over TCP prove to each other who they are, and strangers get nothing."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from coordinator.stages.channel import ServiceCredentials
from coordinator.stages.client import StageClient
from coordinator.stages.greeting import CoordinatorIdentity
from services.runtime.process import bind
from services.runtime.server import DomainServer, new_server
from tests.coordinator.peers.certificates import ALWAYS, BEGIN, Authority
from tests.coordinator.stages.test_stage_client import WAIT_S, ToldStage, put
from tests.services.runtime import echo
from viewstamp import grpc_transport
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import domain_service_pb2_grpc as domain_grpc
from viewstamp.certificates.pem_files import Certificates, PemFiles
from viewstamp.certificates.proven_names import coordinator_name, service_name
from viewstamp.grpc_transport import TlsTexts

IDENTITY = CoordinatorIdentity(b"c" * 16, 0, 1)
SERVICE, COORDINATOR = service_name("consumer_groups", 0), coordinator_name(0)
PAST = (BEGIN, datetime.datetime(2021, 1, 1, tzinfo=datetime.UTC))


@dataclass
class Authorities:
    """The authority of the cluster, and that of somebody else."""

    own: Authority
    other: Authority

    def certificates(self, name: str, issue: str = "own", *, is_old: bool = False) -> Certificates:
        """Return a certificate for a name, whose holder trusts the authority of the cluster."""
        signer: Authority = getattr(self, issue)
        files = signer.issue(name, self.own, valid=PAST if is_old else ALWAYS)
        return Certificates(
            PemFiles("--tls-certificate", files.certificate, files.key, files.authority)
        )


@pytest.fixture
def authorities(tmp_path: Path) -> Authorities:
    """Two authorities with the same name."""
    return Authorities(Authority.create(tmp_path / "own"), Authority.create(tmp_path / "other"))


@contextlib.asynccontextmanager
async def encrypted(certificates: Certificates, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """Serve the echo domain behind TLS until the block is left; yield its address."""
    domain_server, server = DomainServer(echo.DOMAIN), new_server()
    bound = bind(server, address, certificates)
    await domain_server.start(server)
    try:
        yield bound
    finally:
        await domain_server.stop(server)


@contextlib.asynccontextmanager
async def following(
    address: str, certificates: Certificates
) -> AsyncIterator[tuple[StageClient, ToldStage]]:
    """Keep a stream to a service open until the block is left; yield it, and what it tells."""
    told = ToldStage()
    credentials = ServiceCredentials(certificates, SERVICE)
    client = StageClient(echo.DOMAIN.stage, address, told.events(), credentials=credentials)
    client.send(put(1, "one", "1"))
    task = asyncio.create_task(client.run(IDENTITY))
    try:
        yield client, told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


async def complaint(caplog: pytest.LogCaptureFixture) -> str:
    """Wait until the coordinator says why it cannot reach its service; return that."""
    async with asyncio.timeout(WAIT_S):
        while True:
            for record in caplog.records:
                if record.message == "a service cannot be reached; trying again":
                    found: str = record.__dict__["fields"]["why"]
                    return found
            await asyncio.sleep(0.01)


async def test_those_who_belong_together_find_each_other(authorities: Authorities) -> None:
    """With the right names from one authority the stream opens, and batches are answered."""
    async with (
        encrypted(authorities.certificates(SERVICE)) as address,
        following(address, authorities.certificates(COORDINATOR)) as (_, told),
    ):
        assert (await told.reply()).sequence == 1


@pytest.mark.parametrize(
    ("service", "coordinator", "words"),
    [
        ((service_name("streams", 0), "own", False), (COORDINATOR, "own", False), "verify failed"),
        ((service_name("consumer_groups", 1), "own", False), (COORDINATOR, "own", False), "verify"),
        ((SERVICE, "other", False), (COORDINATOR, "own", False), "verify failed"),
        ((SERVICE, "own", True), (COORDINATOR, "own", False), "certificate has expired"),
        ((SERVICE, "own", False), (COORDINATOR, "other", False), "UNAVAILABLE"),
        ((SERVICE, "own", False), (COORDINATOR, "own", True), "UNAVAILABLE"),
        ((SERVICE, "own", False), ("replica-0.viewstamp", "own", False), "must name a coordinator"),
        ((SERVICE, "own", False), (coordinator_name(1), "own", False), f"must name {COORDINATOR}"),
    ],
    ids=[
        "another-service",
        "the-service-of-another-replica",
        "a-service-of-a-stranger",
        "an-expired-service",
        "a-coordinator-of-a-stranger",
        "an-expired-coordinator",
        "no-coordinator",
        "the-coordinator-of-another-replica",
    ],
)
async def test_who_does_not_belong_is_refused_with_the_reason(
    authorities: Authorities,
    caplog: pytest.LogCaptureFixture,
    service: tuple[str, str, bool],
    coordinator: tuple[str, str, bool],
    words: str,
) -> None:
    """A wrong name, authority or time at either end opens no stream, and the log says why."""
    caplog.set_level(logging.WARNING)
    (service_is, signer, is_old), (who, own_signer, own_is_old) = service, coordinator
    async with (
        encrypted(authorities.certificates(service_is, signer, is_old=is_old)) as address,
        following(address, authorities.certificates(who, own_signer, is_old=own_is_old)) as (
            _,
            told,
        ),
    ):
        assert words in await complaint(caplog)

        assert (told.connections, told.replies.qsize()) == (0, 0)


async def test_strangers_get_no_answer_and_take_nothing(authorities: Authorities) -> None:
    """Callers without a certificate, or with that of a service, are refused each method, and the
    coordinator goes on."""
    certificates = authorities.certificates(COORDINATOR)
    service_texts = authorities.certificates(service_name("users", 0)).texts
    named = [("grpc.ssl_target_name_override", SERVICE)]
    async with (
        encrypted(authorities.certificates(SERVICE)) as address,
        following(address, certificates) as (_, told),
    ):
        assert (await told.reply()).sequence == 1
        for texts, code in (
            (None, grpc.StatusCode.UNAVAILABLE),
            (TlsTexts(certificates.texts.authority), grpc.StatusCode.UNAVAILABLE),
            (service_texts, grpc.StatusCode.PERMISSION_DENIED),
        ):
            async with grpc_transport.open_channel(address, named, texts) as channel:
                assert await refusals(channel) == {code}

        assert told.lost.empty()


async def refusals(channel: grpc.aio.Channel) -> set[grpc.StatusCode]:
    """Call each method of a service, and return the codes of the refusals."""
    stub = domain_grpc.DomainServiceStub(channel)
    hello = pb.Hello(cluster_id=IDENTITY.cluster_id, replica_id=0, coordinator_sequence=9)
    codes = set()
    for call in (
        stub.Describe(pb.DescribeRequest()),
        stub.Normalize(pb.NormalizeRequest()),
        stub.ReadSection(pb.ReadSectionRequest(coordinator_sequence=1)).read(),
        stub.Apply(iter([pb.ApplyRequest(hello=hello)])).read(),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            await call
        codes.add(caught.value.code())
    return codes


async def test_renewed_files_are_taken_at_both_ends(authorities: Authorities) -> None:
    """Once all certificates come from another authority, the next stream opens with those."""
    ends = [authorities.certificates(name) for name in (SERVICE, COORDINATOR)]
    service, coordinator = ends
    async with contextlib.AsyncExitStack() as stack:
        async with encrypted(service) as address:
            client, told = await stack.enter_async_context(following(address, coordinator))
            assert (await told.reply()).sequence == 1
            for name in (SERVICE, COORDINATOR):
                authorities.other.issue(name, directory=authorities.own.directory)
            authorities.own.path.write_bytes(authorities.other.path.read_bytes())
            for certificates in ends:
                certificates.take(certificates.look())
        client.send(put(2, "two", "2"))
        async with encrypted(service, address):
            assert (await told.reply()).sequence == 2
    assert told.connections == 2
