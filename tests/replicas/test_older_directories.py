"""A data directory is put back as it was at an earlier moment, on a cluster of real processes."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

import grpc.aio
import pytest

from tests.replicas.snapshotting import empty
from tests.replicas.trial import ReplicasTrial, agree, trial, under_load
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.errors import Refusal

pytestmark = pytest.mark.long

OPERATIONS: Final = 100
DEADLINE_S: Final = 60


@pytest.mark.exhaustive
async def test_an_older_directory_is_refused_until_it_is_emptied(tmp_path: Path) -> None:
    """The others refuse a replica with an earlier copy of its volume, also after their own kills,
    and take it back blank."""
    async with trial(tmp_path, callers=3) as made:
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            victim = (await made.primary() + 1) % 3
            hurt = made.replicas.replicas[victim]
            await hurt.stop()
            shutil.copytree(hurt.data_directory, tmp_path / "copy")
            await hurt.start()
            await made.replicas.wait_ready()
            await made.until_answered(OPERATIONS)
            await hurt.stop()
            shutil.rmtree(hurt.data_directory)
            shutil.copytree(tmp_path / "copy", hurt.data_directory)
            await hurt.start()
            await refused(made, victim)
            for other in sorted({0, 1, 2} - {victim}):
                made.replicas.replicas[other].kill("coordinator")
            said = await refused(made, victim)
            assert f"the data directory of replica {victim} is an older copy" in said
            assert f"start replica {victim} with an empty directory" in said
            await made.until_answered(OPERATIONS)
            await hurt.stop()
            empty(made.replicas.replica_directory(victim))
            made.replicas.replicas[(victim + 1) % 3].kill("coordinator")
            await hurt.start()
            await made.replicas.wait_ready()
            await made.until_answered(OPERATIONS)
        await agree(made)


async def refused(made: ReplicasTrial, victim: int) -> str:
    """Wait until both others report that they refuse a replica; return what one of them says."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with suppress(grpc.aio.AioRpcError, Refusal):  # of one that is only just starting
                statuses = await made.statuses(without={victim})
                texts = [text for status in statuses for text in refusals(status, victim)]
                if len(texts) == len(statuses):
                    return texts[0]
            await asyncio.sleep(0.1)


def refusals(status: cluster_pb2.GetStatusResponse, victim: int) -> list[str]:
    """Return what a replica's alarms say of a peer with which it exchanges no messages."""
    return [
        alarm.message
        for alarm in status.alarms
        if alarm.kind == cluster_pb2.ALARM_KIND_PEER_REFUSED
        and alarm.message.startswith(f"replica {victim} ")
    ]
