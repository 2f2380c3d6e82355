"""An archive in a store like S3 outlives a failover, and then every disk of the cluster."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.replicas.test_disaster_restore import ANYWHERE, REPLICAS, THREE, fill, restore
from tests.viewstamp.archive.shipped import KEY, manifests_of, verified
from viewstamp.archive.object_store import open_store
from viewstamp.client import Client, connect
from viewstamp.cluster import LocalReplicas
from viewstamp.cluster.local import COORDINATOR
from viewstamp.limits import ROOT_USERNAME

PLACE: Final = "s3://bucket/cluster"
BEHIND_THE_FAILOVER: Final = 5
DEADLINE_S: Final = 300


@pytest.fixture
def store_in_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a store like S3, which processes find in their environment."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in (
        ("AWS_ENDPOINT_URL", f"http://{host}:{port}"),
        ("AWS_ACCESS_KEY_ID", "name"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="bucket")
    yield PLACE
    server.stop()


async def archived_up_to(place: str, revision: int) -> None:
    """Wait until an archive reaches a revision."""
    manifests = manifests_of(open_store(place), (KEY,))
    async with asyncio.timeout(DEADLINE_S):
        while True:
            newest = await asyncio.to_thread(manifests.newest)
            parts = newest.manifest.parts if newest else ()
            if parts and parts[-1].last_revision >= revision:
                return
            await asyncio.sleep(0.2)


async def use(cluster: LocalReplicas, place: str) -> tuple[str, int]:
    """Write, lose the primary, write on, and return the password and the last revision."""
    password = cluster.root_password_path.read_text().strip()
    client = await connect(cluster.addresses, username=ROOT_USERNAME, password=password)
    await fill(client, 3)
    created = await client.snapshots.create()
    await client.snapshots.decided(created.generation)
    await archived_up_to(place, (await client.status()).header.revision)
    primary = (await client.status()).primary
    cluster.replicas[primary].supervised[COORDINATOR].send(signal.SIGKILL)
    for index in range(BEHIND_THE_FAILOVER):
        last = await client.streams.create(f"behind-{index}")
    await archived_up_to(place, last.header.revision)
    await client.close()
    return password, last.header.revision


async def names(client: Client) -> set[str]:
    """Return the names of all streams."""
    return {stream.name async for stream in client.streams.list()}


@pytest.mark.long
async def test_an_archive_outlives_all_disks(store_in_s3: str, tmp_path: Path) -> None:
    """Three replicas are restored from the archive alone, and have all that was acknowledged."""
    key = tmp_path / "archive.key"
    key.write_text(KEY.secret.hex() + "\n")
    key.chmod(0o600)
    flags = (f"--archive-to={store_in_s3}", f"--archive-key-file={key}", "--archive-piece-ms=200")
    old = LocalReplicas(tmp_path / "old", REPLICAS, ANYWHERE, coordinator_arguments=flags)
    async with old:
        await old.wait_ready()
        password, revision = await use(old, store_in_s3)
    shutil.rmtree(tmp_path / "old")
    assert verified(open_store(store_in_s3), (KEY,)).is_whole

    report = restore(store_in_s3, "--into", tmp_path / "new", *THREE, "--archive-key-file", key)
    assert (report["revision"] >= revision, report["unconfirmed_entries"]) == (True, 0)
    async with LocalReplicas(tmp_path / "new", REPLICAS, ANYWHERE) as new:
        await new.wait_ready()
        client = await connect(new.addresses, username=ROOT_USERNAME, password=password)
        wanted = {f"behind-{index}" for index in range(BEHIND_THE_FAILOVER)}
        assert wanted | {"stream-0", "stream-1", "stream-2"} == await names(client)
        await client.close()
