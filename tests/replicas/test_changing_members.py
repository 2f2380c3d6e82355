"""Members come and go on real processes, under load and kills."""

from __future__ import annotations

import asyncio
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.replicas.growing import GrowingReplicas
from tests.replicas.snapshotting import ARGUMENTS, FILLER, several_generations
from tests.replicas.trial import (
    SETTLE_TIMEOUT_S,
    ReplicasTrial,
    agree,
    status_of,
    trial_of,
    under_load,
)
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.client import connect
from viewstamp.cluster import ClusterFailed
from viewstamp.cluster.local import COORDINATOR
from viewstamp.errors import Refusal

pytestmark = pytest.mark.long

OPERATIONS: Final = 40
FIVE: Final = 5
NORMAL: Final = cluster_pb2.REPLICA_STATUS_NORMAL


async def test_from_one_to_five_and_back_under_load_and_kills(tmp_path: Path) -> None:
    """Nothing that was answered is lost from 1 to 3, 5, 3 and 1 replicas, though the primary is
    killed at each step; the last one alone has the whole history, also after a restart."""
    cluster = GrowingReplicas(tmp_path)
    async with trial_of(cluster) as made:  # type: ignore[arg-type]
        async with under_load(made):
            for _ in range(FIVE - 1):
                added = await cluster.add(made.admin)
                await made.until_answered(OPERATIONS)
                await kill_primary(made, cluster)
                assert added in cluster.members
            for replica in range(FIVE - 1):
                await cluster.remove(made.admin, replica)
                await made.until_answered(OPERATIONS)
                await kill_primary(made, cluster)
        await agree(made)
        status = await made.admin.status()
        assert [each.replica_id for each in status.replicas] == [FIVE - 1]
        # Each of four was added and promoted, and four were removed.
        assert status.epoch == 3 * (FIVE - 1)
        before = await status_of(cluster.addresses[0], cluster)  # type: ignore[arg-type]
        await cluster.stop()
        await cluster.start()
        await cluster.wait_ready()
        after = await status_of(cluster.addresses[0], cluster)  # type: ignore[arg-type]
        assert [each.state_digest for each in after.services] == [
            each.state_digest for each in before.services
        ]


async def kill_primary(made: ReplicasTrial, cluster: GrowingReplicas) -> None:
    """Kill the primary's coordinator, and wait until callers are served again."""
    primary = await made.primary()
    cluster.members[primary].supervised[COORDINATOR].send(signal.SIGKILL)
    await made.until_answered(OPERATIONS)


@pytest.mark.exhaustive
async def test_who_slept_while_all_others_were_replaced_is_told(tmp_path: Path) -> None:
    """It knows nobody of the present members, and they tell it: it follows, and its vote counts."""
    cluster = GrowingReplicas(tmp_path)
    async with trial_of(cluster, callers=1) as made:  # type: ignore[arg-type]
        for _ in range(2):
            await cluster.add(made.admin)
        sleeper = cluster.members.pop(2)
        await sleeper.stop()
        for old in (0, 1):
            await cluster.add(made.admin)
            await cluster.remove(made.admin, old)
        async with under_load(made):
            await made.until_answered(OPERATIONS)
        cluster.members[2] = sleeper
        await sleeper.start()
        await sleeper.wait_ready()
        # Voters are 2, 3 and 4: without the sleeper these two could lose nobody.
        await cluster.members.pop(3).stop()
        async with under_load(made):
            await made.until_answered(OPERATIONS)
        await agree(made)


@pytest.mark.exhaustive
async def test_a_snapshot_brings_replicas_into_the_epoch_of_the_others(tmp_path: Path) -> None:
    """Of one that slept, and of one that is added and knows a backup alone, the log is gone. Both
    come by a state transfer, whose snapshot names the members, and then count for the quorum."""
    cluster = GrowingReplicas(tmp_path, *ARGUMENTS)
    async with trial_of(cluster, callers=1) as made:  # type: ignore[arg-type]
        await made.admin.users.create(FILLER, "a password of a filler")
        for _ in range(2):
            await cluster.add(made.admin)
        sleeper = cluster.members.pop(2)
        await sleeper.stop()
        for old in (0, 1):
            await cluster.add(made.admin)
            await cluster.remove(made.admin, old)
        await several_generations(made)
        cluster.members[2] = sleeper
        await sleeper.start()
        await sleeper.wait_ready()
        primary = await made.primary()
        backup = next(each for each in (3, 4) if each != primary)
        added = await cluster.add(made.admin, knows=[backup])
        epoch = (await made.admin.status()).epoch
        for address in cluster.addresses:
            told = await status_of(address, cluster)  # type: ignore[arg-type]
            assert (told.epoch, len(told.replicas)) == (epoch, 4)
        # Of the voters 2, 3, 4 and the added one, these two commit by themselves.
        await lead_until(made, 2)
        for other in (3, 4):
            await cluster.members[other].stop()
        await made.admin.streams.create("by-the-two")
        for other in (3, 4):
            await cluster.members[other].start()
        await cluster.wait_ready()
        assert added == 5
        await agree(made)


@pytest.mark.exhaustive
async def test_a_lost_disk_of_a_founder_beside_a_primary_that_was_added(tmp_path: Path) -> None:
    """Its founding flags know nothing of the primary, which finds it all the same. Until it has its
    vote back, no replica is removed that the quorum needs."""
    cluster = GrowingReplicas(tmp_path)
    async with trial_of(cluster, callers=1) as made:  # type: ignore[arg-type]
        for _ in range(2):
            await cluster.add(made.admin)
        await lead_until(made, 2)
        lost = cluster.members[1]
        await lost.stop()
        shutil.rmtree(cluster.replica_directory(1))
        await cluster.rejoin(1)
        await insist_on_vote(made, 1)
        async with under_load(made):
            await made.until_answered(OPERATIONS)
        await agree(made)


async def test_the_directory_of_a_removed_replica_disturbs_nobody(tmp_path: Path) -> None:
    """Started again it knows that it was removed, is never ready, and the others go on."""
    cluster = GrowingReplicas(tmp_path)
    async with trial_of(cluster, callers=1) as made:  # type: ignore[arg-type]
        for _ in range(2):
            await cluster.add(made.admin)
        address = cluster.peer_addresses[0]
        await cluster.remove(made.admin, 0)
        cluster.peer_addresses[0] = address
        stray = cluster.started_again(0, "--replica-count=1")
        await stray.start()
        try:
            async with under_load(made):
                await made.until_answered(OPERATIONS)
            # Its superblock says so, whether or not the others still tell it.
            await until_said(stray.log_path(COORDINATOR), '"status": "removed"')
            with pytest.raises(ClusterFailed):
                await stray.wait_ready(1)
        finally:
            await stray.stop()
        await agree(made)


@pytest.mark.exhaustive
async def test_all_replicas_that_joined_start_together(tmp_path: Path) -> None:
    """After a stop of all of them nobody waits to be introduced by another one."""
    cluster = GrowingReplicas(tmp_path)
    async with trial_of(cluster, callers=1) as made:  # type: ignore[arg-type]
        await cluster.add(made.admin)
        await cluster.stop()
        await cluster.rejoin(0)
        await cluster.rejoin(1)
        await cluster.wait_ready()
        # They serve at other ports than before, which the callers of the trial do not know.
        password = cluster.root_password_path.read_text().strip()
        async with await connect(cluster.addresses, username="root", password=password) as client:
            await client.streams.create("together")
            status = await client.status()
        assert (status.epoch, [each.replica_id for each in status.replicas]) == (2, [0, 1])


async def lead_until(made: ReplicasTrial, replica: int) -> None:
    """Have the view change until this replica leads."""
    async with asyncio.timeout(SETTLE_TIMEOUT_S):
        while await made.primary() != replica:
            with suppress(Refusal):
                await made.admin.step_down()
            await asyncio.sleep(0.5)


async def insist_on_vote(made: ReplicasTrial, replica: int) -> None:
    """Wait until nothing speaks against a replica as the primary: it has its vote."""
    async with asyncio.timeout(SETTLE_TIMEOUT_S):
        while True:
            known = {each.replica_id: each for each in (await made.admin.status()).replicas}
            if known[replica].status == NORMAL and not known[replica].unfit:
                return
            await asyncio.sleep(0.2)


async def until_said(log: Path, words: str) -> None:
    """Wait until a process has logged something."""
    async with asyncio.timeout(SETTLE_TIMEOUT_S):
        while True:
            if words in log.read_text():
                return
            await asyncio.sleep(0.2)
