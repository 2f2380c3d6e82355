"""Reads of the past at every replica: all say what the primary said when it was the present."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.replicas.trial import STREAM, ReplicasTrial, agree, token_of, trial, under_load
from viewstamp.api.history.v1 import history_service_pb2 as history_api
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.client import Endpoint
from viewstamp.client.identifiers import identifier
from viewstamp.client.transport import unary
from viewstamp.cluster.local import COORDINATOR

pytestmark = pytest.mark.long

VOTERS: Final = 3
OPERATIONS: Final = 60
BUILD_TIMEOUT_S: Final = 60
LISTED: Final = streams_api.ListTopicsRequest(stream=identifier(STREAM))


async def note_states(made: ReplicasTrial, noted: dict[int, list[str]]) -> None:
    """Note which topics there are, at some revisions that were the present."""
    for _ in range(3):
        await made.until_answered(OPERATIONS)
        listed = await made.admin.call(LISTED)
        noted[listed.header.revision] = [topic.name for topic in listed.topics]


async def check_replica(made: ReplicasTrial, address: str, noted: dict[int, list[str]]) -> None:
    """Fail unless a replica says of each revision what was noted, newest and oldest in turns."""
    async with Endpoint(address).open() as channel:
        token = await token_of(made.replicas, channel)
        for revision in (*sorted(noted), *sorted(noted, reverse=True)):
            listed = await unary(
                channel,
                LISTED,
                access_token=token,
                timeout_s=BUILD_TIMEOUT_S,
                at_revision=revision,
            )
            assert listed.header.revision == revision
            assert [topic.name for topic in listed.topics] == noted[revision]
        request = history_api.BlameEntityRequest(stream=identifier(STREAM))
        blamed = await unary(channel, request, access_token=token, timeout_s=BUILD_TIMEOUT_S)
        assert [change.username for change in blamed.changes] == ["root"]


async def test_all_replicas_have_one_past(tmp_path: Path) -> None:
    """Primary, backups, a replica that was killed, and a standby answer alike."""
    noted: dict[int, list[str]] = {}
    async with trial(tmp_path, VOTERS, standbys=1) as made:
        async with under_load(made):
            await note_states(made, noted)
            primary = await made.primary()
            made.replicas.replicas[primary].kill(COORDINATOR)
            await note_states(made, noted)
            await made.replicas.wait_ready()
        await agree(made)
        assert len(set(map(tuple, noted.values()))) > 1
        addresses = [*made.replicas.addresses, *made.replicas.standby_addresses]
        async with asyncio.TaskGroup() as group:
            for address in addresses:
                group.create_task(check_replica(made, address, noted))
