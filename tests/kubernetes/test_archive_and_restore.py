"""A cluster ships to an archive in a real Kubernetes, loses its volume, and is founded anew."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest

from testkit.kubernetes.cluster import Kubernetes
from tests.deploy.pod import NAMESPACE
from tests.kubernetes.deployment import (
    ROLLOUT_TIMEOUT_S,
    STATEFUL_SET,
    ClientPod,
    Deployment,
)

pytestmark = pytest.mark.kubernetes
ADDRESS = f"viewstamp.{NAMESPACE}.svc:7400"
VOLUME = "/var/lib/viewstamp-log-archive"
KEY = "cd" * 32
JOB = "job/viewstamp-restore-0"
# Prints the newest revision that an archive holds, in a container that has its volume and key.
ARCHIVED = (
    "import subprocess, sys\n"
    "subprocess.run(['viewstamp', 'archive', 'verify', sys.argv[1], '--archive-key-file',"
    " '/etc/viewstamp/log-archive-key/archive.key', '--json'], check=True)"
)


@pytest.fixture(name="deployment")
def _deployment(kubernetes: Kubernetes) -> Iterator[Deployment]:
    """One replica with an archive; its secret comes after the namespace."""
    deployment = Deployment(kubernetes, "archived", 1)
    deployment.configure("viewstamp-log-archive", place=f"{VOLUME}/first")
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "viewstamp-log-archive-key", "namespace": NAMESPACE},
        "data": {"archive.key": base64.b64encode(KEY.encode()).decode()},
    }
    kubernetes.apply(json.dumps(secret))
    deployment.wait_rollout()
    yield deployment
    deployment.delete()


def archived_revision(deployment: Deployment, place: str) -> int:
    """Return how far an archive can be restored."""
    words = ("exec", "viewstamp-0", "--container=coordinator", "--", "python", "-c", ARCHIVED)
    verdict = json.loads(deployment.kubectl(*words, f"{VOLUME}/{place}"))
    assert verdict["is_whole"]
    revision: int = max(each["last_revision"] for each in verdict["restorable"])
    return revision


def test_a_job_founds_a_cluster_on_the_archive_of_a_lost_one(
    kubernetes: Kubernetes, deployment: Deployment
) -> None:
    """The volume of the only replica is lost. What was archived is there again, with root's old
    password, and the new cluster has an archive of its own."""
    password = deployment.password()
    client = ClientPod(kubernetes, ADDRESS)
    client.log_in(password)
    client.must("stream", "create", "archived")
    revision = json.loads(client.must("status", "--json"))["revision"]
    kubernetes.wait(
        "the archive has it", lambda: archived_revision(deployment, "first") >= revision
    )

    deployment.kubectl("scale", STATEFUL_SET, "--replicas=0")
    kubernetes.wait("no replica is left", lambda: not deployment.pods())
    deployment.kubectl("delete", "pvc", "data-viewstamp-0")
    deployment.configure("viewstamp-restore", source=f"{VOLUME}/first")
    deployment.configure("viewstamp-log-archive", place=f"{VOLUME}/second")
    deployment.apply("restoring")
    deployment.kubectl("wait", "--for=condition=Complete", JOB, f"--timeout={ROLLOUT_TIMEOUT_S}s")
    assert "restored" in deployment.kubectl("logs", JOB)
    assert not deployment.pods()
    deployment.apply("archived")
    deployment.wait_rollout()

    client.log_in(password)
    assert "archived" in client.wait("stream", "list")
    client.must("stream", "create", "behind-the-restore")
    kubernetes.wait(
        "the new archive begins", lambda: archived_revision(deployment, "second") > revision
    )
    client.delete()
