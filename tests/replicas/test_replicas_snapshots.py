"""Snapshots of three real replicas: a majority suffices, and a replica far behind gets one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import pytest

from coordinator.app.members import TRANSFER_FOLDER
from coordinator.snapshot.layer_parts import PARTIAL_SUFFIX
from testkit.links import behind_proxies
from tests.replicas.snapshotting import (
    ARGUMENTS,
    DEADLINE_S,
    FILLER,
    all_restart_from,
    empty,
    many_topics,
    several_generations,
    snapshot,
    transfers,
)
from tests.replicas.trial import ReplicasTrial, agree, token_of, trial, trial_of, under_load
from tests.viewstamp.cli.conftest import CommandLine
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.client import Endpoint, unary
from viewstamp.cluster.local import COORDINATOR
from viewstamp.errors import Refusal
from viewstamp.limits import MIB
from viewstamp.snapshots import catalog_view

pytestmark = pytest.mark.long

OPERATIONS: Final = 100
GENERATIONS: Final = 10
# Layers of this size take several messages.
BYTES_BEFORE_THE_KILL: Final = 3 * MIB // 2
LOST: Final = 2
PARTIAL: Final = f"*{PARTIAL_SUFFIX}"


@pytest.mark.exhaustive
async def test_two_of_three_complete_a_snapshot(tmp_path: Path) -> None:
    """With a backup down, a snapshot completes; after a death, the next primary completes one."""
    async with trial(tmp_path, arguments=ARGUMENTS) as made:
        async with under_load(made):
            first = await snapshot(made.admin)
            primary = await made.primary()
            await made.replicas.replicas[(primary + 1) % 3].stop()
            second = await snapshot(made.admin)
            assert second.generation > first.generation
            await made.replicas.replicas[(primary + 1) % 3].start()
            await made.replicas.wait_ready()
            made.replicas.replicas[primary].kill(COORDINATOR)
            third = await snapshot(made.admin)
            assert third.generation > second.generation
            await made.replicas.wait_ready()
            await made.until_answered(OPERATIONS)
        await agree(made)
        await all_restart_from(made, third.generation)


@pytest.mark.exhaustive
async def test_one_of_three_knows_its_snapshots(tmp_path: Path) -> None:
    """A killed replica without a quorum shows root the snapshots that it knew of."""
    async with trial(tmp_path / "data", arguments=ARGUMENTS) as made:
        taken = await snapshot(made.admin)
        line = CommandLine(made.replicas.addresses[0], tmp_path)
        line.password_file.write_text(made.replicas.root_password_path.read_text())
        assert (await asyncio.to_thread(line.log_in)).code == 0
        left, *others = made.replicas.replicas
        async with Endpoint(made.replicas.addresses[0]).open() as channel:
            token = await token_of(made.replicas, channel)
        async with asyncio.timeout(DEADLINE_S):
            while True:
                if taken in catalog_view.read(left.data_directory).snapshots:
                    break
                await asyncio.sleep(0.1)
        for other in others:
            await other.stop()
        left.kill(COORDINATOR)
        found = await known_alone(made, taken.generation, token)
        assert found.snapshot == taken
        asked = [("list",), ("show", "0"), ("show", str(taken.generation))]
        for words in asked:
            said = await asyncio.to_thread(line, "snapshot", *words, "--here", "--json")
            assert taken.root.hex() in said.out
        for other in others:
            await other.start()
        await made.replicas.wait_ready()
        await agree(made)


async def known_alone(
    made: ReplicasTrial, generation: int, token: str
) -> snapshots_pb2.GetSnapshotResponse:
    """Ask replica 0 until it has restarted and answers; it cannot be in status normal."""
    request = snapshots_pb2.GetSnapshotRequest(generation=generation)
    async with asyncio.timeout(DEADLINE_S), Endpoint(made.replicas.addresses[0]).open() as channel:
        while True:
            with suppress(Refusal, grpc.aio.AioRpcError):
                status = await unary(
                    channel, cluster_pb2.GetStatusRequest(), access_token=token, stale=True
                )
                assert status.replicas[0].status != cluster_pb2.REPLICA_STATUS_NORMAL
                found: snapshots_pb2.GetSnapshotResponse = await unary(
                    channel, request, access_token=token, stale=True
                )
                return found
            await asyncio.sleep(0.1)


async def test_snapshots_go_on_while_primaries_die(tmp_path: Path) -> None:
    """Cuts, deaths and view changes in any order: roots agree, and all adopt one snapshot."""
    often = (*ARGUMENTS, "--snapshot-commands", "40", "--snapshot-deadline-ms", "5000")
    async with trial(tmp_path, arguments=often) as made:
        async with under_load(made):
            for _ in range(4):
                await made.until_answered(OPERATIONS)
                made.replicas.replicas[await made.primary()].kill(COORDINATOR)
                await made.until_answered(OPERATIONS)
                await made.replicas.wait_ready()
        await agree(made)
        last = await snapshot(made.admin)
        assert last.generation > 4
        await all_restart_from(made, last.generation)
        assert [alarm.message for status in await made.settled() for alarm in status.alarms] == []


async def test_a_backup_that_was_away_for_long_is_given_a_snapshot(tmp_path: Path) -> None:
    """A replica ten generations behind gets a snapshot under load, and reaches the same state."""
    async with trial(tmp_path, arguments=ARGUMENTS) as made:
        await made.admin.users.create(FILLER, "a password of a filler")
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            backup = (await made.primary() + 1) % 3
            await made.replicas.replicas[backup].stop()
            await several_generations(made, GENERATIONS)
            await made.replicas.replicas[backup].start()
            await made.replicas.wait_ready()
            await made.until_answered(OPERATIONS)
        await agree(made)
        (done,) = transfers(made, backup)
        print(f"state transfer after {GENERATIONS} generations: {done}")
        assert done["fetched_bytes"] > 0
        assert made.replicas.replicas[backup].restarts[COORDINATOR] == 1
        # It is a full member: it also makes its own part of the next snapshot.
        last = await snapshot(made.admin)
        await all_restart_from(made, last.generation)
        await agree(made)


@pytest.mark.exhaustive
async def test_a_backup_that_was_away_for_seconds_needs_none(tmp_path: Path) -> None:
    """The others keep for a while the log that a replica lacks, though their snapshots cover it."""
    patient = (*ARGUMENTS, "--journal-retain-ms", "600000")
    async with trial(tmp_path, arguments=patient) as made:
        await made.admin.users.create(FILLER, "a password of a filler")
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            backup = (await made.primary() + 1) % 3
            await made.replicas.replicas[backup].stop()
            await several_generations(made)
            await made.replicas.replicas[backup].start()
            await made.replicas.wait_ready()
            await made.until_answered(OPERATIONS)
        await agree(made)
        assert transfers(made, backup) == []


@pytest.mark.exhaustive
async def test_a_lost_disk_is_made_good_by_the_others(tmp_path: Path) -> None:
    """A replica with an emptied directory gets a snapshot and the later log, and then may vote."""
    async with trial(tmp_path, arguments=ARGUMENTS) as made:
        await made.admin.users.create(FILLER, "a password of a filler")
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            primary = await made.primary()
            lost, other = (primary + 1) % 3, (primary + 2) % 3
            await made.replicas.replicas[lost].stop()
            empty(made.replicas.replica_directory(lost))
            await several_generations(made)
            await made.replicas.replicas[lost].start()
            await made.replicas.wait_ready()
            await made.until_answered(OPERATIONS)
        await agree(made)
        (done,) = transfers(made, lost)
        print(f"state transfer to an empty disk: {done}")
        # With one of the others down, the quorum needs its vote.
        await made.replicas.replicas[other].stop()
        async with under_load(made):
            await made.until_answered(OPERATIONS)


@pytest.mark.exhaustive
async def test_a_transfer_that_is_killed_goes_on(tmp_path: Path) -> None:
    """A restart keeps the bytes that had come before, and fetches only the rest."""
    async with (
        behind_proxies(tmp_path, 3, ARGUMENTS) as (replicas, links),
        trial_of(replicas) as made,
    ):
        await made.admin.users.create(FILLER, "a password of a filler")
        lost = made.replicas.replicas[LOST]
        await lost.stop()
        empty(lost.data_directory)
        await many_topics(made.admin)
        await several_generations(made)
        for other in range(LOST):
            links.proxies[LOST, other].backward.allow(BYTES_BEFORE_THE_KILL)
        async with under_load(made):
            await lost.start()
            had_bytes = await killed_midway(made)
            links.heal()
            await made.replicas.wait_ready()
            await made.until_answered(OPERATIONS)
        await agree(made)
        first, *_ = transfers(made, LOST, "began")
        (done,) = transfers(made, LOST)
        print(f"state transfer killed after {had_bytes} of {first['lacking_bytes']} bytes: {done}")
        assert had_bytes >= MIB
        assert done["fetched_bytes"] <= first["lacking_bytes"] - had_bytes


async def killed_midway(made: ReplicasTrial) -> int:
    """Kill the replica once a part of a layer has arrived; return the size of that part."""
    lost = made.replicas.replicas[LOST]
    directory = lost.data_directory / TRANSFER_FOLDER
    async with asyncio.timeout(DEADLINE_S):
        while come_bytes(directory) < MIB:  # noqa: ASYNC110 - another process writes them
            await asyncio.sleep(0.02)
    lost.kill(COORDINATOR)
    return come_bytes(directory)


def come_bytes(directory: Path) -> int:
    """Return the size of the part of a layer that has arrived; a whole layer is moved away."""
    found = 0
    for path in directory.glob(PARTIAL):
        with suppress(FileNotFoundError):
            found = max(found, path.stat().st_size)
    return found
