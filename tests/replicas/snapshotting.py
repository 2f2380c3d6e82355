"""Snapshots of replicas under load: tests take and await them, and read logs of transfers."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any, Final

from tests.replicas.trial import ReplicasTrial
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.client import Client
from viewstamp.client.identifiers import identifier
from viewstamp.cluster.local import COORDINATOR
from viewstamp.errors import Refusal
from viewstamp.limits import MIB

SEGMENT_BYTES: Final = 4 * MIB  # the least that is allowed
# Nothing is kept of the journal for who is away, who then needs a snapshot.
ARGUMENTS: Final = (
    *("--journal-segment-bytes", str(SEGMENT_BYTES)),
    *("--journal-retain-ms", "0"),
)
GRANTS: Final = 8_000  # streams in one command, which makes it large
FILLER: Final = "filler"
TRUNCATING: Final = 3  # generations with as much log before each
MANY: Final = "many"
TOPIC_REQUESTS, TOPICS, NAME_BYTES = 4, 3_500, 150
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
        except Refusal as refusal:  # no such streams: the log has it nevertheless
            assert refusal.reason == Reason.REASON_STREAM_NOT_FOUND, refusal


async def several_generations(made: ReplicasTrial, count: int = TRUNCATING) -> None:
    """Take snapshots; the journals of the running replicas then begin after the first ones."""
    for number in range(count):
        if number < TRUNCATING:
            await fill(made.admin)
        await snapshot(made.admin)


async def many_topics(client: Client, requests: int = TOPIC_REQUESTS) -> None:
    """Make the state so large that its compressed layers take several messages."""
    chosen = random.Random(1)
    for number in range(requests):
        stream = f"{MANY}-{number}"
        await client.streams.create(stream)
        names = (urlsafe_b64encode(chosen.randbytes(NAME_BYTES)).decode() for _ in range(TOPICS))
        for result in await client.batch(
            [
                streams_pb2.CreateTopicRequest(
                    stream=identifier(stream), name=name, partitions_count=1
                )
                for name in names
            ]
        ):
            assert not isinstance(result, Refusal), result


async def all_restart_from(made: ReplicasTrial, generation: int) -> None:
    """Wait until every replica reports that it has adopted this generation."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            own = [each for status in await made.settled() for each in status.replicas]
            found = [each.generation for each in own if not each.link]
            if found == [generation] * len(found):
                return
            await asyncio.sleep(0.2)


def transfers(made: ReplicasTrial, replica: int, what: str = "done") -> list[dict[str, Any]]:
    """Return the log entries of a replica's transfers that are done, or that began."""
    text = made.replicas.replicas[replica].log_path(COORDINATOR).read_text()
    # A full disk cuts lines short: only lines about transfers must be whole.
    lines = [json.loads(line) for line in text.splitlines() if f'"state transfer {what}' in line]
    return [line["fields"] for line in lines]


def empty(directory: Path) -> None:
    """Remove the coordinator's files; the supervisor writes the key anew."""
    for name in ("journal", "snapshots", "transfer", "run"):
        shutil.rmtree(directory / name, ignore_errors=True)
    for name in ("superblock", "catalog.sqlite"):
        (directory / name).unlink(missing_ok=True)
