"""Snapshots of three real replicas: a majority is enough, and who is far behind is given one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.replicas.snapshotting import (
    ARGUMENTS,
    FILLER,
    all_restart_from,
    empty,
    several_generations,
    snapshot,
    transfers,
)
from tests.replicas.trial import agree, trial, under_load
from viewstamp.cluster.local import COORDINATOR

pytestmark = pytest.mark.long

OPERATIONS: Final = 100


async def test_two_of_three_complete_a_snapshot(tmp_path: Path) -> None:
    """With a backup down a snapshot is completed, and so with the next primary after a death."""
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


async def test_snapshots_go_on_while_primaries_die(tmp_path: Path) -> None:
    """Cuts, deaths and view changes in any order: roots agree, and all come to restart from one."""
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
    """What its peers have truncated it gets as a snapshot, under load, and ends in their state."""
    async with trial(tmp_path, arguments=ARGUMENTS) as made:
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
        (done,) = transfers(made, backup)
        print(f"state transfer: {done}")
        assert done["fetched_bytes"] > 0
        assert made.replicas.replicas[backup].restarts[COORDINATOR] == 1
        # It is a member like any other: the next snapshot is its own work, too.
        last = await snapshot(made.admin)
        await all_restart_from(made, last.generation)
        await agree(made)


async def test_a_lost_disk_is_made_good_by_the_others(tmp_path: Path) -> None:
    """A replica with an emptied directory gets a snapshot and the rest of the log, and may vote."""
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
        print(f"state transfer: {done}")
        # With one of the others down, the cluster lives by its vote.
        await made.replicas.replicas[other].stop()
        async with under_load(made):
            await made.until_answered(OPERATIONS)
