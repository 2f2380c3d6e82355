"""Replicas that repair their snapshots before they start, and how others see them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from coordinator.app import snapshot_repair as mending_module
from coordinator.app.members import MemberPorts, Members
from coordinator.app.snapshot_repair import mend
from coordinator.base.alarms import Alarms
from coordinator.base.roster import Roster
from coordinator.peers.files_only import FilesOnly
from coordinator.peers.peers import PeersConfig
from coordinator.peers.tls import certificate_name
from coordinator.replica.data_directory import DamagedSnapshot
from coordinator.snapshot.errors import NoIntactCopy
from coordinator.snapshot.layout import layer_file
from coordinator.snapshot.provider import StoredSnapshots
from testkit.generation_builders import (
    COPY_DIRECTORIES,
    STAGES,
    Sections,
    entities,
    loaded_state,
    memory,
    open_files,
)
from testkit.journal_builders import CLUSTER_ID
from tests.coordinator.peers.certificates import BEGIN, Authority
from tests.coordinator.peers.peer_trial import COUNT, config, free_addresses, serving, until
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.certificates import certificate_watch
from viewstamp.format.manifest import section_of
from viewstamp.format.superblock import SuperblockState

GENERATION = 1
WAIT_S = 60


class HurtMember:
    """A replica without an intact copy of one layer, a different layer for each replica."""

    def __init__(self, replica_id: int) -> None:
        """Write a generation, and damage it."""
        storage = memory()
        self.files = open_files(storage, replica_id=replica_id)
        self.sections = Sections(self.files)
        manifest = self.sections.write(GENERATION, entities(GENERATION, 8))
        state = SuperblockState(CLUSTER_ID, replica_id, COUNT, 0, 0, 10, GENERATION, 0)
        layer = section_of(manifest, STAGES[replica_id]).layers[0]
        for directory in COPY_DIRECTORIES:
            storage.flip(f"{directory}/{layer_file(layer.digest)}", 100)
        with pytest.raises(NoIntactCopy) as caught:
            self.files.load(GENERATION)
        self.damaged = DamagedSnapshot(self.files, state, caught.value)


async def test_replicas_mend_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All replicas start with different damaged files, and each gets its file from another."""
    monkeypatch.setattr(mending_module, "RETRY_MAX_MS", 10)
    addresses = free_addresses()
    replicas = [HurtMember(replica) for replica in range(COUNT)]
    left = set(range(COUNT))
    all_mended = asyncio.Event()

    async def come_up(replica: int) -> None:
        mine = replace(config(addresses, replica), cluster_id=CLUSTER_ID)
        await mend(replicas[replica].damaged, mine, tmp_path / str(replica))
        left.discard(replica)
        if not left:
            all_mended.set()
        # It starts, and serves its files like any other.
        async with serving(mine, snapshots=StoredSnapshots(replicas[replica].files)):
            await all_mended.wait()

    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        for replica in range(COUNT):
            group.create_task(come_up(replica))
    for hurt in replicas:
        assert loaded_state(hurt.files, GENERATION) == hurt.sections.state


def members(configuration: PeersConfig, alarms: Alarms) -> Members:
    """Return the members of a replica that does nothing but raise alarms."""
    names = MemberPorts.__dataclass_fields__
    ports = MemberPorts(**{name: MagicMock() for name in names})
    ports.files.superblock.exists = False  # type: ignore[misc]
    roster = Roster.founding(configuration.replica_id, configuration.replica_count)
    return Members(configuration, replace(ports, alarms=alarms, roster=roster))


async def test_a_certificate_is_renewed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A replica whose certificate has expired repairs its snapshot once it is renewed."""
    monkeypatch.setattr(mending_module, "RETRY_MAX_MS", 10)
    monkeypatch.setattr(certificate_watch, "CHECK_INTERVAL_MS", 10)
    authority = Authority.create(tmp_path / "authority")
    addresses = free_addresses()
    names = [certificate_name(replica) for replica in range(2)]
    expired = authority.issue(names[0], valid=(BEGIN, BEGIN + timedelta(days=1)))
    mine = replace(config(addresses, 0, expired), cluster_id=CLUSTER_ID)
    theirs = replace(config(addresses, 1, authority.issue(names[1])), cluster_id=CLUSTER_ID)
    hurt, other = HurtMember(0), HurtMember(1)
    async with asyncio.timeout(WAIT_S), serving(theirs, snapshots=StoredSnapshots(other.files)):
        mending = asyncio.create_task(mend(hurt.damaged, mine, tmp_path / "0"))
        await until(lambda: any("could not be fetched" in each for each in caplog.messages))
        authority.issue(names[0])
        await mending
    assert loaded_state(hurt.files, GENERATION) == hurt.sections.state


async def test_others_see_that_it_mends() -> None:
    """Alarm and status of another replica show the repair and its obstacle, until it speaks."""
    addresses = free_addresses()
    alarms = Alarms(lambda: 7)
    made = members(config(addresses, 0), alarms)
    hurt = config(addresses, 1)
    standing = ["no copy of a layer is intact"]
    files = FilesOnly(hurt, MagicMock(), lambda: 1, lambda: standing[0])
    await files.start()
    await made.peers.start()
    try:
        await until(lambda: alarms.all() != [])
        (alarm,) = alarms.all()
        assert alarm.kind == cluster_pb2.ALARM_KIND_PEER_MENDING
        assert f"replica 1 at {addresses[1]} cannot start yet" in alarm.message
        assert "no copy of a layer is intact" in alarm.message
        assert made.status()[0].link == "refused: mending"
        standing[0] += "; all peers are away"
        await until(lambda: "all peers are away" in alarms.all()[0].message)
        await files.stop()
        async with serving(hurt):
            await until(lambda: alarms.all() == [])
            assert made.status()[0].link == "connected"
    finally:
        await files.stop()
        await made.peers.stop()
