"""Snapshots of three real replicas: a majority is enough, and who is far behind is given one."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from tests.replicas.trial import Trial, digests, trial, under_load
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.client import Client
from viewstamp.client.identifiers import identifier
from viewstamp.cluster.local import COORDINATOR
from viewstamp.errors import Refusal
from viewstamp.limits import MIB

pytestmark = pytest.mark.long

OPERATIONS: Final = 100
SEGMENT_BYTES: Final = 4 * MIB  # the least that is allowed
ARGUMENTS: Final = ("--journal-segment-bytes", str(SEGMENT_BYTES))
GRANTS: Final = 8_000  # streams in one command, which makes it large
FILLER: Final = "filler"
DEADLINE_S: Final = 60.0


async def snapshot(client: Client) -> snapshots_pb2.Snapshot:
    """Take a snapshot and wait until it is completed."""
    async with asyncio.timeout(DEADLINE_S):
        created = await client.snapshots.create()
        found = await client.snapshots.decided(created.generation)
    assert found.state == snapshots_pb2.SNAPSHOT_STATE_COMPLETED, found
    return found


async def fill(client: Client) -> None:
    """Sequence more than a segment of the journal, with few commands that change nothing."""
    grants = [
        users_pb2.StreamPermissions(stream=identifier(number), read_stream=True)
        for number in range(1_000, 1_000 + GRANTS)
    ]
    permissions = users_pb2.Permissions(streams=grants)
    for _ in range(SEGMENT_BYTES // permissions.ByteSize() + 2):
        try:
            await client.users.update_permissions(FILLER, permissions)
        except Refusal as refusal:  # for streams that are not there: it was in the log all the same
            assert refusal.reason == Reason.REASON_STREAM_NOT_FOUND, refusal


async def several_generations(made: Trial) -> None:
    """Take snapshots until the journals of the running replicas begin behind the first ones."""
    for _ in range(3):
        await fill(made.admin)
        await snapshot(made.admin)


async def agree(made: Trial) -> None:
    """All replicas have retired the same op, and have the same digests there."""
    statuses = await made.settled()
    assert len({digests(status) for status in statuses}) == 1
    assert made.violations() == []


async def all_restart_from(made: Trial, generation: int) -> None:
    """Wait until every replica says that it would restart from this generation."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            own = [each for status in await made.settled() for each in status.replicas]
            found = [each.generation for each in own if not each.link]
            if found == [generation] * len(found):
                return
            await asyncio.sleep(0.2)


def transfers(made: Trial, replica: int) -> list[dict[str, Any]]:
    """Return what a replica's log says of transfers that were done."""
    path = made.replicas.replicas[replica].log_path(COORDINATOR)
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    done = [
        line for line in lines if str(line.get("message", "")).startswith("state transfer done")
    ]
    return [line["fields"] for line in done]


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


def empty(directory: Path) -> None:
    """Remove what the coordinator has written; the key is given to every replica anew."""
    for name in ("journal", "snapshots", "transfer", "run"):
        shutil.rmtree(directory / name, ignore_errors=True)
    for name in ("superblock", "catalog.sqlite"):
        (directory / name).unlink(missing_ok=True)
