"""Replicas that are not told their ids, as pods of one template: they ask for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replicas.pods import PodReplicas
from tests.replicas.trial import agree, trial_of, under_load

pytestmark = pytest.mark.long
OPERATIONS = 30


@pytest.mark.exhaustive
async def test_pods_come_and_go_with_other_ids_under_load(tmp_path: Path) -> None:
    """From 1 to 3, to 1 and to 3: the second time the same addresses have other ids. A pod that
    lost its disk gets its id again, and all of them start together without being told."""
    cluster = PodReplicas(tmp_path)
    await cluster.found()
    async with trial_of(cluster, callers=2) as made:  # type: ignore[arg-type]
        async with under_load(made):
            assert [await cluster.grow(made.admin, pod) for pod in (1, 2)] == [1, 2]
            await made.until_answered(OPERATIONS)
            for pod, replica in ((2, 2), (1, 1)):
                await cluster.shrink(made.admin, pod, replica)
            assert [await cluster.grow(made.admin, pod) for pod in (1, 2)] == [3, 4]
            await made.until_answered(OPERATIONS)
            await cluster.lose_disk(0)
            await cluster.wait_ready()
            await made.until_answered(OPERATIONS)
        await agree(made)
        await cluster.stop()
        await cluster.start()
        await cluster.wait_ready()
        status = await made.admin.status()
        assert [each.replica_id for each in status.replicas] == [0, 3, 4]
        assert [each.peer_address for each in status.replicas] == cluster.pods
