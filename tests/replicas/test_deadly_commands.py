"""Commands that end the service of every replica are refused alike, and the cluster goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from coordinator.stages.poison import DEATHS_MAX
from tests.replicas import deadly_streams
from tests.replicas.deadly_streams import BOTTOMLESS, DEADLY, MODULE, PROGRAM
from tests.replicas.snapshotting import all_restart_from, snapshot
from tests.replicas.trial import SETTLE_TIMEOUT_S, ReplicasTrial, agree, trial, under_load
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.cluster import Program
from viewstamp.errors import Refusal

pytestmark = pytest.mark.long

OPERATIONS: Final = 50
REPLICAS: Final = 3
RESTARTED: Final = 1
# How many processes end at each replica. The first has the batch among others, the second has it in
# isolation, and later ones report each attempt. A stack overflow ends one: in isolation the service
# takes the command back.
DEATHS: Final = {BOTTOMLESS: 1, DEADLY: 2 + DEATHS_MAX}


def adapt(_: int, program: Program) -> Program:
    """Give every replica the streams service with the defects."""
    if program.name != PROGRAM:
        return program
    words = (deadly_streams.__name__ if word == MODULE else word for word in program.command)
    return replace(program, command=tuple(words))


@pytest.mark.parametrize("name", [DEADLY, pytest.param(BOTTOMLESS, marks=pytest.mark.exhaustive)])
async def test_what_ends_every_service_is_refused_everywhere(tmp_path: Path, name: str) -> None:
    """All replicas give one refusal and an alarm, and a later replay gives them again."""
    async with trial(tmp_path, callers=2, adapt=adapt) as made:
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            refused = await among_others(made, name)
            assert refused.reason == Reason.REASON_INTERNAL
            await made.until_answered(OPERATIONS)
        await agree(made)  # the kept reply with the refusal included
        for replica in range(REPLICAS):
            await is_told_of(made, replica)
            assert deaths(made, replica) >= DEATHS[name]
        await replays(made, name)
        await agree(made)
        await all_restart_from(made, (await snapshot(made.admin)).generation)
        names = {stream.name async for stream in made.admin.streams.list()}
        assert name not in names
        assert {"before", "after"} <= names


async def among_others(made: ReplicasTrial, name: str) -> Refusal:
    """Send the command between two others; return its refusal, the only one."""
    wanted = ("before", name, "after")
    results = await made.admin.batch([streams_pb2.CreateStreamRequest(name=n) for n in wanted])
    first, refused, last = results
    assert not isinstance(first, Refusal) and not isinstance(last, Refusal)
    assert isinstance(refused, Refusal)
    return refused


async def is_told_of(made: ReplicasTrial, replica: int) -> None:
    """Wait until a replica has its own alarm of the command, with the name of the method."""
    async with asyncio.timeout(SETTLE_TIMEOUT_S):
        while True:
            status = (await made.settled())[replica]
            kind = cluster_pb2.ALARM_KIND_COMMAND_REVERTED
            if told := [alarm.message for alarm in status.alarms if alarm.kind == kind]:
                assert all("CreateStream" in message for message in told)
                return


def deaths(made: ReplicasTrial, replica: int) -> int:
    """Return how often a replica's service was restarted."""
    return made.replicas.replicas[replica].restarts[PROGRAM]


async def replays(made: ReplicasTrial, name: str) -> None:
    """Restart a replica, which must find the deadly command again by its replay."""
    restarted = made.replicas.replicas[RESTARTED]
    await restarted.stop()
    await restarted.start()
    await made.replicas.wait_ready()
    await is_told_of(made, RESTARTED)
    assert deaths(made, RESTARTED) >= DEATHS[name]
