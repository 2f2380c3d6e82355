"""Three replicas and a standby as real processes: it follows all, and has no vote."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import grpc.aio
import pytest

from tests.replicas.trial import (
    SETTLE_TIMEOUT_S,
    STREAM,
    ReplicasTrial,
    agree,
    status_of,
    trial,
    unary,
    under_load,
)
from tests.viewstamp.cli.conftest import CommandLine
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.client.identifiers import identifier
from viewstamp.cluster import ClusterFailed, LocalReplicas
from viewstamp.cluster.local import COORDINATOR
from viewstamp.errors import Refusal
from viewstamp.routing import SERVICE_NAMES

pytestmark = pytest.mark.long

STANDBY = 3
OPERATIONS = 150
VOTERS = 3


async def caught_up(made: ReplicasTrial) -> cluster_pb2.Replica:
    """Wait until the standby reports to the primary that it has everything; return its status.

    That takes heartbeats: the standby must hear of the last commit, and it reports at intervals.
    """
    async with asyncio.timeout(SETTLE_TIMEOUT_S):
        while True:
            address = made.replicas.addresses[await made.primary()]
            standby = (await status_of(address, made.replicas)).replicas[STANDBY]
            if standby.op and standby.lag == 0:
                return standby
            await asyncio.sleep(0.1)


@pytest.mark.exhaustive
async def test_the_standby_follows_whoever_leads(tmp_path: Path) -> None:
    """Primaries die, the standby too; in the end it has the same state, and it never led."""
    async with trial(tmp_path, VOTERS, standbys=1) as made:
        async with under_load(made):
            led = set()
            for _ in range(3):
                await made.until_answered(OPERATIONS)
                primary = await made.primary()
                led.add(primary)
                made.replicas.replicas[primary].kill(COORDINATOR)
                await made.until_answered(OPERATIONS)
                await made.replicas.wait_ready()
            made.replicas.replicas[STANDBY].kill(COORDINATOR)
            await made.until_answered(2 * OPERATIONS)
            await made.replicas.wait_ready()
        await agree(made)

        standby = await caught_up(made)
        status = await status_of(made.replicas.standby_addresses[0], made.replicas)
        assert led <= set(range(VOTERS))
        assert standby.role == cluster_pb2.REPLICA_ROLE_STANDBY
        assert [replica.role for replica in status.replicas].count(standby.role) == 1


async def test_a_standby_holds_nobody_up_and_is_no_quorum(tmp_path: Path) -> None:
    """A frozen standby delays nobody; a standby and one replica make no quorum."""
    async with trial(tmp_path, VOTERS, standbys=1) as made:
        async with under_load(made):
            made.replicas.replicas[STANDBY].kill(COORDINATOR, signal.SIGSTOP)
            await made.until_answered(2 * OPERATIONS)
            made.replicas.replicas[STANDBY].kill(COORDINATOR, signal.SIGCONT)
            await made.until_answered(OPERATIONS)
        await agree(made)
        primary = await made.primary()
        for replica in range(VOTERS):
            if replica != primary:
                made.replicas.replicas[replica].kill(COORDINATOR, signal.SIGSTOP)
        request = streams_pb2.CreateTopicRequest(
            stream=identifier(STREAM), name="of nobody", partitions_count=1
        )
        with pytest.raises((Refusal, grpc.aio.AioRpcError)):
            await unary(made.replicas, made.replicas.addresses[primary], request)
        for replica in range(VOTERS):
            if replica != primary:
                made.replicas.replicas[replica].kill(COORDINATOR, signal.SIGCONT)


async def test_a_standby_passes_commands_on_and_reads_what_it_holds(tmp_path: Path) -> None:
    """A caller that knows only the standby is served, by the primary or by the standby's state."""
    async with trial(tmp_path, VOTERS, standbys=1, callers=1) as made:
        (address,) = made.replicas.standby_addresses
        create = streams_pb2.CreateTopicRequest(
            stream=identifier(STREAM), name="over there", partitions_count=1
        )
        await unary(made.replicas, address, create)
        await agree(made)

        read = streams_pb2.GetTopicRequest(
            stream=identifier(STREAM), topic=identifier("over there")
        )
        found = await unary(made.replicas, address, read, stale=True)

        assert found.topic.name == "over there"
        assert (await unary(made.replicas, address, read)).topic.name == "over there"


@pytest.mark.exhaustive
async def test_status_shows_the_standby_and_what_it_holds(tmp_path: Path) -> None:
    """The primary shows its role and lag; the standby's own status has the primary's digests."""
    async with trial(tmp_path / "data", VOTERS, standbys=1, callers=1) as made:
        await agree(made)
        await caught_up(made)
        shown = []
        for address, flags in (
            (made.replicas.addresses[0], ()),
            (made.replicas.standby_addresses[0], ("--here",)),
        ):
            line = CommandLine(address, tmp_path)
            line.password_file.write_text(made.replicas.root_password_path.read_text())
            assert (await asyncio.to_thread(line.log_in)).code == 0
            arguments = ("status", "--digests", "--json", *flags)
            shown.append((await asyncio.to_thread(line, *arguments)).data)

        ours, theirs = shown
        roles = [replica["role"] for replica in ours["replicas"]]
        assert sorted(roles) == ["backup", "backup", "primary", "standby"]
        assert roles[STANDBY] == "standby"
        assert ours["replicas"][STANDBY]["lag"] == 0
        # A replica reports no link to itself.
        assert [each["replica_id"] for each in theirs["replicas"] if not each["link"]] == [STANDBY]
        held = [service["state_digest"] for service in theirs["services"]]
        assert held == [service["state_digest"] for service in ours["services"]]
        assert [len(digest) for digest in held] == [64] * len(SERVICE_NAMES)


async def test_a_standby_is_never_started_as_a_voter(tmp_path: Path) -> None:
    """A standby's directory refuses another count of replicas, and says why."""
    async with trial(tmp_path, VOTERS, standbys=1, callers=1):
        pass
    promoted = LocalReplicas(tmp_path, VOTERS + 1, "127.0.0.1:0")

    # The others refuse the count, too, and the first that fails would hide this one's error.
    try:
        await promoted.start()
        with pytest.raises(ClusterFailed) as caught:
            await promoted.replicas[STANDBY].wait_ready()
    finally:
        await promoted.stop()

    assert "belongs to standby 3 beside 3 replicas, and a standby never gets a vote" in str(
        caught.value
    )
