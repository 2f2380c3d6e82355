"""Jobs that restore, as the rendered manifests have them, run as processes on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import boto3
import pytest
from moto.server import ThreadedMotoServer

from coordinator.replica.data_directory import DirectoryOptions, open_replica
from tests.deploy.pod import (
    CLUSTER_ID,
    CONFIG_MAPS,
    RESTORING,
    ROOT,
    Object,
    arguments,
    coordinator,
    mounts,
    overlay,
)
from tests.past.past_histories import CLUSTER_ID as CLUSTER_OF_HISTORIES
from tests.past.past_histories import history, sealed
from tests.viewstamp.archive.shipped import KEY, ShippedReplica
from viewstamp.archive.object_store import open_store
from viewstamp.limits import MIB

pytestmark = pytest.mark.long
TIMEOUT_S: Final = 300
PREPARES: Final = 12
REPLICAS: Final = 3


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An encrypted archive of a random history, in a store like S3 that processes find."""
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
    replica = ShippedReplica(
        tmp_path / "lost",
        replica_count=1,
        cluster_id=CLUSTER_OF_HISTORIES,
        segment_bytes=4 * MIB,
    )
    entries = sealed(history(Random(11), PREPARES))
    replica.take(entries)
    replica.change(commit_max=len(entries))
    store = open_store(CONFIG_MAPS["viewstamp-restore", "source"])
    assert replica.ship(store, (KEY,)).archived_op == len(entries)
    yield
    server.stop()


def in_root(container: Object, root: Path, words: list[str]) -> list[str]:
    """Return arguments with the paths of a container's volumes below a directory."""
    paths = "|".join(sorted(mounts(container), key=len, reverse=True))
    return [re.sub(rf"=({paths})/", rf"={root}\1/", word) for word in words]


def run(container: Object, replica: int, root: Path) -> str:
    """Run a job's command with its volumes below a directory; return what it printed."""
    for path in mounts(container):
        (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    key = root / "etc/viewstamp/log-archive-key/archive.key"
    key.write_text(KEY.secret.hex() + "\n")
    key.chmod(0o600)
    words = in_root(container, root, arguments(container, replica))
    done = subprocess.run(
        [sys.executable, "-m", "viewstamp.cli", *words],
        cwd=ROOT,
        env={**os.environ, "HOME": str(root / "tmp")},
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    return done.stdout


def test_jobs_found_replicas_on_the_volumes_of_their_pods(lost: None, tmp_path: Path) -> None:
    """Each job writes what the coordinator of its pod starts from, with all three copies where that
    one keeps them, and the snapshot is the same everywhere."""
    objects = overlay(RESTORING)
    flags = coordinator(objects)["args"]
    prefix = "--snapshot-directory="
    roots = []
    for replica in range(REPLICAS):
        volumes = tmp_path / f"pod-{replica}"
        (container,) = objects["Job", f"viewstamp-restore-{replica}"]["spec"]["template"]["spec"][
            "containers"
        ]
        assert "restored" in run(container, replica, volumes)

        copies = in_root(container, volumes, [flag for flag in flags if flag.startswith(prefix)])
        options = DirectoryOptions(
            volumes / "var/lib/viewstamp/data",
            replica,
            REPLICAS,
            bytes.fromhex(CLUSTER_ID),
            snapshots=tuple(Path(each.removeprefix(prefix)) for each in copies),
        )
        assert len(options.snapshots) == 3
        files = open_replica(options)
        assert files.base is not None
        roots.append(files.base.manifest.root)
        files.close()
    assert len(set(roots)) == 1
