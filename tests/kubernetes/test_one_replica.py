"""The local overlay in a real Kubernetes: one replica that is founded, restarted and kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testkit.kubernetes.cluster import Kubernetes
from tests.deploy.pod import NAMESPACE
from tests.kubernetes.deployment import ClientPod, Deployment

pytestmark = pytest.mark.kubernetes
ADDRESS = f"viewstamp.{NAMESPACE}.svc:7400"


@pytest.fixture(scope="module", name="deployment")
def _deployment(kubernetes: Kubernetes) -> Iterator[Deployment]:
    deployment = Deployment(kubernetes, "one", 1)
    deployment.wait_rollout()
    yield deployment
    deployment.delete()


@pytest.fixture(scope="module", name="client")
def _client(kubernetes: Kubernetes, deployment: Deployment) -> Iterator[ClientPod]:
    client = ClientPod(kubernetes, ADDRESS)
    client.log_in(deployment.password())
    yield client
    client.delete()


def test_one_replica_keeps_streams_when_its_pod_is_deleted(
    deployment: Deployment, client: ClientPod
) -> None:
    """Through the service a client creates a stream, and finds it in the pod's successor."""
    client.must("stream", "create", "orders")
    before = deployment.pods()["viewstamp-0"]["metadata"]["uid"]

    deployment.kubectl("delete", "pod", "viewstamp-0")
    deployment.wait_ready()

    assert deployment.pods()["viewstamp-0"]["metadata"]["uid"] != before
    assert "orders" in client.wait("stream", "list")


def test_a_stopped_service_is_started_again(deployment: Deployment, client: ClientPod) -> None:
    """A service that ended is started again by the kubelet, and the replica serves on."""
    before = deployment.restarts()
    program = "import os, signal; os.kill(1, signal.SIGTERM)"
    deployment.kubectl("exec", "viewstamp-0", "--container=streams", "--", "python", "-c", program)

    deployment.kubernetes.wait("a restart", lambda: deployment.restarts() == before + 1)
    deployment.wait_ready()

    assert "orders" in client.wait("stream", "list")
