"""`viewstamp restore` on real clusters: what is left of one becomes another one."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest

from past.founding.jumps import JUMP
from testkit.load.observation import observe, root_password
from testkit.load.state import LoadState
from tests.past.test_restored_cluster import restored, state_of_history
from tests.processes.snapshots import BULK
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client import Client, Endpoint, connect, unary
from viewstamp.client.session import RawSession
from viewstamp.client.transport import bearer
from viewstamp.cluster import LocalCluster, LocalReplicas
from viewstamp.cluster.local import COORDINATOR
from viewstamp.errors import Refusal
from viewstamp.limits import MIB, ROOT_USERNAME

REPLICAS: Final = 3
THREE: Final = ("--replicas", str(REPLICAS))
CREATE_STREAM_PATH: Final = "/viewstamp.api.streams.v1.StreamsService/CreateStream"
# More than two segments.
BULKS: Final = 60
ANYWHERE: Final = "127.0.0.1:0"
# Given by the lost cluster behind what is left of it.
LOST_REVISIONS: Final = 5


@dataclass(slots=True)
class Lost:
    """What is known of a lost cluster."""

    password: str
    state: LoadState
    revision: int
    session_id: int
    nonce: bytes
    personal_access_token: str
    access_token: str


async def login(address: str, password: str) -> str:
    """Return an access token of root."""
    channel = Endpoint(address).open()
    try:
        request = users_pb2.LoginRequest(username=ROOT_USERNAME, password=password)
        return str((await unary(channel, request)).access_token)
    finally:
        await channel.close()


async def fill(client: Client, count: int) -> None:
    """Create entities of all domains."""
    for index in range(count):
        stream = f"stream-{index}"
        await client.streams.create(stream)
        await client.topics.create(stream, "topic", partitions_count=4)
        await client.groups.create(stream, "topic", "group")
        await client.users.create(f"user-{index}", "a password of theirs")
    await client.groups.join("stream-0", "topic", "group")


def addresses_of(cluster: LocalCluster | LocalReplicas) -> list[str]:
    """Return where clients connect."""
    return cluster.addresses if isinstance(cluster, LocalReplicas) else [cluster.address]


async def lose(cluster: LocalReplicas) -> Lost:
    """Use a cluster, cut a snapshot in the midst, and kill all its coordinators at once."""
    addresses = cluster.addresses
    password = cluster.root_password_path.read_text().strip()
    client = await connect(addresses, username=ROOT_USERNAME, password=password)
    await fill(client, 3)
    token = await client.tokens.create("automation")
    created = await client.snapshots.create()
    await client.snapshots.decided(created.generation)
    await client.streams.create("behind the snapshot")
    leader = addresses[(await client.status()).primary]
    access = await login(leader, password)
    async with RawSession(Endpoint(leader), access) as raw:
        session_id, nonce = raw.session_id, raw.nonce
    state, revision = await observe(client), (await client.status()).header.revision
    for replica in cluster.replicas:
        replica.supervised[COORDINATOR].send(signal.SIGKILL)
    await client.close()
    return Lost(password, state, revision, session_id, nonce, token.token, access)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, "-m", "viewstamp.cli", "restore", "--json", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def restore(*arguments: str | Path) -> dict[str, Any]:
    """Run the command, and return its report."""
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def refused(*arguments: str | Path) -> str:
    """Run a command that is refused, and return why."""
    done = run(*arguments)
    assert done.returncode != 0, done.stdout
    return done.stderr


def without_members(state: LoadState) -> LoadState:
    """Return a state whose groups and users are as a restore leaves them."""
    for stream in state.streams.values():
        for topic in stream.topics.values():
            for group in topic.groups.values():
                group.members.clear()
    state.tokens.clear()
    return state


async def check_restored(client: Client, addresses: list[str], lost: Lost) -> None:
    """Fail unless everything is there, and nothing of the lost cluster's is valid."""
    assert await observe(client) == without_members(lost.state)
    status = await client.status()
    created = await client.streams.create("of the new cluster")
    assert created.stream_id > JUMP
    assert created.header.revision > lost.revision + JUMP
    primary = Endpoint(addresses[status.primary])
    token = await login(addresses[status.primary], lost.password)
    with pytest.raises(grpc.aio.AioRpcError, match="has ended or never existed"):
        async with RawSession(primary, token, session_id=lost.session_id, nonce=lost.nonce):
            pass
    with pytest.raises(Refusal, match="not signed by this cluster"):
        async with RawSession(primary, lost.access_token):
            pass
    with pytest.raises(Refusal, match="token"):
        await connect(addresses, personal_access_token=lost.personal_access_token)
    for revision in (1, lost.revision, lost.revision + LOST_REVISIONS):
        with pytest.raises(Refusal, match="are not kept"):
            async with client.watch(from_revision=revision) as watch:
                await anext(aiter(watch))
    created_snapshot = await client.snapshots.create()
    await client.snapshots.decided(created_snapshot.generation)


@asynccontextmanager
async def running(cluster: LocalCluster | LocalReplicas, lost: Lost) -> AsyncIterator[list[str]]:
    """Start a restored cluster, check it, and yield its addresses."""
    async with cluster:
        await cluster.wait_ready()
        addresses = addresses_of(cluster)
        client = await connect(addresses, username=ROOT_USERNAME, password=lost.password)
        try:
            await check_restored(client, addresses, lost)
            yield addresses
        finally:
            await client.close()


async def lose_three(directory: Path) -> Lost:
    """Lose a cluster of three replicas."""
    async with LocalReplicas(directory, REPLICAS, ANYWHERE) as cluster:
        await cluster.wait_ready()
        return await lose(cluster)


@pytest.mark.long
@pytest.mark.exhaustive
async def test_one_replica_founds_three(tmp_path: Path) -> None:
    """Of three killed replicas one directory is left, and three new replicas go on from it."""
    lost = await lose_three(tmp_path / "old")
    source = tmp_path / "old" / "replica-1"
    planned = restore(source, "--into", tmp_path / "new", *THREE, "--dry-run")
    assert not (tmp_path / "new").exists()
    report = restore(source, "--into", tmp_path / "new", *THREE)

    assert report["revision"] >= lost.revision
    assert (report["missing_ops"], report["directories"][0]) == ([], f"{tmp_path}/new/replica-0")
    told = ("revision", "sessions_ended", "tokens_ended", "entities", "next_revision")
    assert [planned[name] for name in told] == [report[name] for name in told]
    assert report["tokens_ended"] == 1
    async with running(LocalReplicas(tmp_path / "new", REPLICAS, ANYWHERE), lost):
        pass
    async with LocalReplicas(tmp_path / "new", REPLICAS, ANYWHERE) as again:
        await again.wait_ready()
        client = await connect(again.addresses, username=ROOT_USERNAME, password=lost.password)
        assert (await client.streams.get("of the new cluster")).id > JUMP
        await client.close()


@pytest.mark.long
async def test_three_are_lost_and_one_begins(tmp_path: Path) -> None:
    """A lone replica goes on from the directory of one of three; so does one from a snapshot."""
    lost = await lose_three(tmp_path / "old")
    source = tmp_path / "old" / "replica-2"
    restore(source, "--into", tmp_path / "log")
    # As in Kubernetes, where the key stays: the cluster's id alone ends old access tokens.
    shutil.copy(tmp_path / "old" / "cluster.key", tmp_path / "log" / "cluster.key")
    async with running(LocalCluster(tmp_path / "log", ANYWHERE), lost):
        pass

    report = restore(source / "snapshots" / "copy-2", "--into", tmp_path / "cut")
    assert report["revision"] < lost.revision
    del lost.state.streams["behind the snapshot"]
    async with running(LocalCluster(tmp_path / "cut", ANYWHERE), lost):
        pass


@pytest.mark.long
@pytest.mark.exhaustive
async def test_any_revision_of_the_log_can_be_restored(tmp_path: Path) -> None:
    """--to-revision takes the log up to a revision, be it in the midst of an entry."""
    async with LocalCluster(tmp_path / "old", ANYWHERE) as cluster:
        await cluster.wait_ready()
        client = await connect(
            cluster.address, username=ROOT_USERNAME, password=root_password(cluster)
        )
        names = [f"stream-{index}" for index in range(20)]
        requests = [client.streams.create(name) for name in names]
        revisions = [(await request).header.revision for request in requests]
        password = root_password(cluster)
        await client.close()
    for count in (1, 10):
        into = tmp_path / f"new-{count}"
        report = restore(
            tmp_path / "old", "--into", into, "--to-revision", str(revisions[count - 1])
        )
        assert report["revision"] == revisions[count - 1]
        assert await names_of_streams(into, password) == names[:count]


async def names_of_streams(directory: Path, password: str) -> list[str]:
    """Start a lone replica, and return the names of its streams."""
    async with LocalCluster(directory, ANYWHERE) as cluster:
        await cluster.wait_ready()
        client = await connect(cluster.address, username=ROOT_USERNAME, password=password)
        try:
            return [stream.name async for stream in client.streams.list()]
        finally:
            await client.close()


async def write_bulk(address: str, password: str) -> None:
    """Fill segments of the journal with large commands that are refused."""
    channel = Endpoint(address).open()
    try:
        call: Any = channel.unary_unary(CREATE_STREAM_PATH)
        metadata = bearer(await login(address, password))
        for _ in range(BULKS):
            with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
                await call(BULK, metadata=metadata)
    finally:
        await channel.close()


@pytest.mark.long
@pytest.mark.exhaustive
async def test_archived_segments_lead_to_any_time(tmp_path: Path) -> None:
    """With its archive the log of a replica reaches back to its first entry, over all snapshots."""
    archive = tmp_path / "archive"
    flags = ("--journal-archive", str(archive), "--journal-segment-bytes", str(4 * MIB))
    cluster = LocalCluster(
        tmp_path / "old",
        ANYWHERE,
        coordinator_arguments=(*flags, "--snapshot-keep-last", "1"),
    )
    async with cluster:
        await cluster.wait_ready()
        password = root_password(cluster)
        client = await connect(cluster.address, username=ROOT_USERNAME, password=password)
        await client.streams.create("first")
        before = datetime.now(UTC)
        await client.streams.create("second")
        for _ in range(2):
            await write_bulk(cluster.address, password)
            created = await client.snapshots.create()
            await client.snapshots.decided(created.generation)
        await client.streams.create("last")
        await client.close()
    assert list(archive.iterdir())
    source = (tmp_path / "old", "--archive", archive)
    time = before.isoformat()

    assert restore(*source, "--into", tmp_path / "time", "--to-time", time)["generation"] == 0
    assert await names_of_streams(tmp_path / "time", password) == ["first"]
    restore(*source, "--into", tmp_path / "all")
    assert await names_of_streams(tmp_path / "all", password) == ["first", "second", "last"]
    said = refused(tmp_path / "old", "--into", tmp_path / "none", "--to-time", time)
    assert "LOG_LACKS_ENTRIES" in said


@pytest.mark.long
def test_up_names_no_password_file_that_is_not_there(tmp_path: Path) -> None:
    """Root of a restored cluster has the password that it had, in no file of the new directory."""
    restored(state_of_history(1), tmp_path / "new", 1)
    command = [sys.executable, "-m", "viewstamp.cli", "up", "--listen", ANYWHERE]
    command += ["--data-directory", str(tmp_path / "new")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("logs:"):
                break
        process.terminate()
    assert "root has the password that it had\n" in said
    assert not [line for line in said if "--password-file" in line]
