"""A replica whose state or answers differ from those of the others halts, and the others go on."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from tests.replicas import diverging_streams
from tests.replicas.diverging_streams import BITTER, SOUR
from tests.replicas.snapshotting import DEADLINE_S, all_restart_from, empty, snapshot
from tests.replicas.trial import ReplicasTrial, agree, lead, trial, under_load
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.cli.app import app
from viewstamp.cluster import ClusterFailed, Program
from viewstamp.cluster.local import COORDINATOR
from viewstamp.cluster.process import last_lines

pytestmark = pytest.mark.long

OPERATIONS: Final = 100
WRONG: Final = 1  # the replica with the defect


@pytest.mark.parametrize(
    "leads", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["backup", "primary"]
)
async def test_a_replica_that_diverges_halts(tmp_path: Path, leads: bool) -> None:
    """The halted replica names the section; a diff finds the entity; a new replica replaces it."""
    build = StreamsBuild(diverging_streams.__name__)
    async with trial(tmp_path, adapt=build.adapt) as made:
        async with under_load(made):
            await lead(made, WRONG, leads=leads)
            await made.admin.streams.create("sweet")
            await snapshot(made.admin)
            await made.admin.streams.update("sweet", name=SOUR)
            decided = await snapshot(made.admin)
            await halted(made)
            await made.until_answered(OPERATIONS)
            await said_why(made)
            differing_entity(made, decided.generation)
        await agree(made, without=[WRONG])
        # A replica with the good build and an empty directory can take the place.
        build.module = diverging_streams.MODULE
        broken = made.replicas.replicas[WRONG]
        await broken.stop()
        empty(broken.data_directory)
        await broken.start()
        await made.replicas.wait_ready()
        last = await snapshot(made.admin)
        await all_restart_from(made, last.generation)
        await agree(made)
        await no_alarm_is_left(made)


@pytest.mark.parametrize(
    "leads", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["backup", "primary"]
)
async def test_a_replica_that_answers_otherwise_halts(tmp_path: Path, leads: bool) -> None:
    """The two others contradict it at the next reports, without a snapshot, and go on."""
    build = StreamsBuild(diverging_streams.__name__)
    async with trial(tmp_path, adapt=build.adapt) as made:
        async with under_load(made):
            await lead(made, WRONG, leads=leads)
            await made.admin.streams.create(BITTER)
            await halted(made)
            await made.until_answered(OPERATIONS)
        await agree(made, without=[WRONG])
        (line,) = last_lines(made.replicas.replicas[WRONG].log_path(COORDINATOR), 1)
        assert "on replicas 0 and 2" in line
        assert "It has diverged from the majority and must not go on" in line


@dataclass
class StreamsBuild:
    """The program of streams on the replica with the defect."""

    module: str

    def adapt(self, replica: int, program: Program) -> Program:
        """Return the program of any replica."""
        if (replica, program.name) != (WRONG, diverging_streams.PROGRAM):
            return program
        command = tuple(
            self.module if word == diverging_streams.MODULE else word for word in program.command
        )
        return replace(program, command=command)


async def halted(made: ReplicasTrial) -> None:
    """Wait until the others report the replica as halted; its supervisor does not restart it."""
    async with asyncio.timeout(DEADLINE_S):
        while not await is_shown_halted(made):  # noqa: ASYNC110 - another process shows it
            await asyncio.sleep(0.05)
        with pytest.raises(ClusterFailed, match="has diverged and stays down"):
            while True:  # until the process ends
                await made.replicas.replicas[WRONG].wait_ready()
                await asyncio.sleep(0.05)
    assert await is_shown_halted(made)


async def no_alarm_is_left(made: ReplicasTrial) -> None:
    """Wait until every replica hears that all are well."""
    async with asyncio.timeout(DEADLINE_S):
        while any(status.alarms for status in await made.settled()):  # noqa: ASYNC110 - others do
            await asyncio.sleep(0.05)


async def is_shown_halted(made: ReplicasTrial) -> bool:
    """Whether the primary, another replica, reports that it has halted."""
    found = await made.admin.status()
    status = found.replicas[WRONG].status
    return found.primary != WRONG and status == cluster_pb2.REPLICA_STATUS_HALTED


async def said_why(made: ReplicasTrial) -> None:
    """The last line of its log names the section, and so does the present primary's alarm."""
    (line,) = last_lines(made.replicas.replicas[WRONG].log_path(COORDINATOR), 1)
    assert "the state of streams differs" in line
    assert "It has diverged from the others and must not go on" in line
    kind, told = cluster_pb2.ALARM_KIND_REPLICA_DIVERGED, ""
    async with asyncio.timeout(DEADLINE_S):
        while not told:
            alarms = {alarm.kind: alarm.message for alarm in (await made.admin.status()).alarms}
            told = alarms.get(kind, "")
    assert f"replica {WRONG} has diverged" in told
    assert "the state of streams differs" in told


def differing_entity(made: ReplicasTrial, generation: int) -> None:
    """`viewstamp snapshot diff` of its directory and a good one shows the entity and the field."""
    directories = [str(made.replicas.replica_directory(replica)) for replica in (0, WRONG)]
    sides = [f"{directory}:{generation}" for directory in directories]
    said = CliRunner().invoke(app, ["snapshot", "diff", *sides, "--json"])
    assert said.exit_code == 1, said.output
    found: dict[str, Any] = json.loads(said.stdout)
    assert [row["section"] for row in found["sections"] if not row["is_same"]] == ["streams"]
    (entity,) = found["entities"]
    assert (entity["kind"], entity["change"]) == ("streams", "changed")
    assert entity["fields"] == {"purge_generation": {"a": 0, "b": 1}}
