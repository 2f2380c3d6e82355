"""Three replicas as real processes: killed, paused and restarted under load, they agree."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.replicas.trial import (
    KEYS,
    STREAM,
    agree,
    on_transports,
    status_of,
    trial,
    unary,
    under_load,
)
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.client.identifiers import identifier
from viewstamp.cluster.local import COORDINATOR
from viewstamp.transports import GRPCIO, WIRE

pytestmark = pytest.mark.long

OPERATIONS = 150


@pytest.mark.parametrize(
    "transports",
    [
        (WIRE,),
        pytest.param((GRPCIO,), marks=pytest.mark.exhaustive),
        pytest.param((GRPCIO, WIRE, WIRE), marks=pytest.mark.exhaustive),
    ],
    ids="-".join,
)
async def test_the_primary_is_killed_again_and_again(
    tmp_path: Path, transports: tuple[str, ...]
) -> None:
    """The primary dies; callers see one history, and all replicas end in the same state, whatever
    carries their messages."""
    async with trial(tmp_path, adapt=on_transports(transports)) as made:
        async with under_load(made):
            for _ in range(4):
                await made.until_answered(OPERATIONS)
                made.replicas.replicas[await made.primary()].kill(COORDINATOR)
                await made.until_answered(OPERATIONS)
                await made.replicas.wait_ready()
        await agree(made)


@pytest.mark.exhaustive
async def test_a_killed_backup_catches_up(tmp_path: Path) -> None:
    """The cluster serves without a backup, which has everything again soon after its restart."""
    async with trial(tmp_path) as made:
        async with under_load(made):
            primary = await made.primary()
            backup = (primary + 1) % 3
            made.replicas.replicas[backup].kill(COORDINATOR)
            await made.until_answered(2 * OPERATIONS)
            assert await made.primary() == primary
            await made.replicas.wait_ready()
            await made.until_answered(OPERATIONS)
        await agree(made)


@pytest.mark.exhaustive
async def test_services_of_the_primary_and_of_a_backup_die(tmp_path: Path) -> None:
    """A dead domain service is restarted and replays its commands, at any replica."""
    async with trial(tmp_path) as made:
        async with under_load(made):
            for replica in range(3):
                await made.until_answered(OPERATIONS)
                made.replicas.replicas[replica].kill("streams")
            await made.replicas.wait_ready()
            await made.until_answered(OPERATIONS)
        await agree(made)


@pytest.mark.exhaustive
async def test_a_paused_primary_is_replaced_and_comes_back_as_a_backup(tmp_path: Path) -> None:
    """A paused primary continues in the belief that it leads, and none of its messages counts."""
    async with trial(tmp_path) as made:
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            paused = await made.primary()
            made.replicas.replicas[paused].kill(COORDINATOR, signal.SIGSTOP)
            await made.until_answered(2 * OPERATIONS)
            made.replicas.replicas[paused].kill(COORDINATOR, signal.SIGCONT)
            await made.until_answered(OPERATIONS)
            assert await made.primary() != paused
        await agree(made)


async def test_all_replicas_die_at_once(tmp_path: Path) -> None:
    """After a restart of all replicas, every acknowledged change is there."""
    async with trial(tmp_path) as made:
        async with under_load(made):
            await made.until_answered(2 * OPERATIONS)
            for replica in made.replicas.replicas:
                replica.kill(COORDINATOR)
            await made.until_answered(2 * OPERATIONS)
        await made.replicas.wait_ready()
        await agree(made)


async def test_without_a_majority_nothing_is_acknowledged(tmp_path: Path) -> None:
    """A primary alone answers nothing; with one of the others back, it serves again."""
    async with trial(tmp_path) as made:
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            primary = await made.primary()
            others = [made.replicas.replicas[replica] for replica in range(3) if replica != primary]
            for other in others:
                other.kill(COORDINATOR, signal.SIGSTOP)
            await asyncio.sleep(0.5)  # messages under way have arrived
            before = made.answered
            await asyncio.sleep(2)
            assert made.answered == before
            for other in others:
                other.kill(COORDINATOR, signal.SIGCONT)
            await made.until_answered(OPERATIONS)
        await agree(made)


async def test_the_primary_hands_over_when_it_is_told_to(tmp_path: Path) -> None:
    """StepDown changes the primary without a death, even through a backup; callers go on."""
    async with trial(tmp_path) as made:
        async with under_load(made):
            for _ in range(2):
                before = await made.primary()
                await made.admin.step_down()
                await made.until_answered(OPERATIONS)
                assert await made.primary() != before
            before = await made.primary()
            backup = made.replicas.addresses[(before + 1) % 3]
            await unary(made.replicas, backup, cluster_pb2.StepDownRequest())
            await made.until_answered(OPERATIONS)
            assert await made.primary() != before
        await agree(made)


async def test_any_replica_can_be_asked(tmp_path: Path) -> None:
    """Plain gRPC calls on a backup: commands are forwarded, and stale reads are answered there."""
    async with trial(tmp_path, callers=0) as made:
        primary = await made.primary()
        backup = made.replicas.addresses[(primary + 1) % 3]
        request = streams_pb2.CreateTopicRequest(
            stream=identifier(STREAM), name=KEYS[0], partitions_count=1
        )
        created = await unary(made.replicas, backup, request)
        read = streams_pb2.GetTopicRequest(stream=identifier(STREAM), topic=identifier(KEYS[0]))
        found = await unary(made.replicas, backup, read)
        assert found.topic.id == created.topic_id
        await made.settled()
        found = await unary(made.replicas, backup, read, stale=True)
        assert found.topic.id == created.topic_id
        own = await status_of(backup, made.replicas)
        assert [replica.status for replica in own.replicas] == [
            cluster_pb2.REPLICA_STATUS_NORMAL
        ] * 3
        assert own.primary == primary
