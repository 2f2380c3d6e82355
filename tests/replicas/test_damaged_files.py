"""Files of a stopped replica are damaged; it starts under load, and the others repair it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.replicas.damage import DAMAGES, Damage, every_copy, every_copy_of_one_layer
from tests.replicas.snapshotting import ARGUMENTS, DEADLINE_S, FILLER, several_generations, snapshot
from tests.replicas.trial import ReplicasTrial, agree, trial, under_load

pytestmark = pytest.mark.long

OPERATIONS: Final = 100
# No replica keeps a generation once there are newer ones.
FORGETFUL: Final = (*ARGUMENTS, "--snapshot-keep-last", "1", "--snapshot-keep-daily", "0")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "leads", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["backup", "primary"]
)
async def test_damaged_files_are_made_good(tmp_path: Path, leads: bool) -> None:
    """Damage to the log, the superblock or a snapshot's files loses nothing."""
    async with trial(tmp_path, callers=3) as made:
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            await adopted_everywhere(made, (await snapshot(made.admin)).generation)
            for damage in DAMAGES.values():
                primary = await made.primary()
                await damaged(made, primary if leads else (primary + 1) % 3, damage)
        await agree(made)


@pytest.mark.exhaustive
async def test_a_snapshot_that_nobody_has_any_more(tmp_path: Path) -> None:
    """All copies of its snapshot are bad, and the others have only newer ones: it takes theirs."""
    async with trial(tmp_path, callers=3, arguments=FORGETFUL) as made:
        await made.admin.users.create(FILLER, "a password of a filler")
        async with under_load(made):
            first = (await snapshot(made.admin)).generation
            await adopted_everywhere(made, first)
            backup = (await made.primary() + 1) % 3
            hurt = made.replicas.replicas[backup]
            await hurt.stop()
            every_copy(hurt.data_directory)
            await several_generations(made)
            await hurt.start()
            await made.replicas.wait_ready()
            await adopted_everywhere(made, first + 1)
            await made.until_answered(OPERATIONS)
        await agree(made)


async def test_all_restart_with_damage_and_mend_each_other(tmp_path: Path) -> None:
    """Each replica lacks a good copy of another layer: none could start without the others."""
    async with trial(tmp_path, callers=3) as made:
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            await adopted_everywhere(made, (await snapshot(made.admin)).generation)
            await made.replicas.stop()
            replicas = made.replicas.replicas
            copies = [
                every_copy_of_one_layer(each.data_directory, i) for i, each in enumerate(replicas)
            ]
            await made.replicas.start()
            await made.replicas.wait_ready()
            assert [is_good() for is_good in copies] == [True] * len(replicas)
            await made.until_answered(OPERATIONS)
        await agree(made)


async def damaged(made: ReplicasTrial, replica: int, damage: Damage) -> None:
    """Stop a replica, damage its files, and start it again; it is whole once it is ready."""
    await made.until_answered(OPERATIONS)
    hurt = made.replicas.replicas[replica]
    await hurt.stop()
    is_good = damage(hurt.data_directory)
    await made.until_answered(OPERATIONS)
    print(f"{damage.__name__} of replica {replica}")
    await hurt.start()
    await made.replicas.wait_ready()
    async with asyncio.timeout(DEADLINE_S):
        while not is_good():  # noqa: ASYNC110 - another process mends it
            await asyncio.sleep(0.1)
    await made.until_answered(OPERATIONS)


async def adopted_everywhere(made: ReplicasTrial, generation: int) -> None:
    """Wait until every replica would restart from a generation, as the primary hears."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = (await made.admin.status()).replicas
            if all(replica.generation >= generation for replica in found):
                return
            await asyncio.sleep(0.1)
