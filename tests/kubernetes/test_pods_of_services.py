"""The overlay with services in pods of their own, in a real Kubernetes of three nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from testkit.kubernetes.cluster import Kubernetes
from tests.kubernetes.background_load import load
from tests.kubernetes.deployment import HEADLESS, ClientPod, Deployment

pytestmark = pytest.mark.kubernetes
REPLICAS = 3
SERVICES = "--selector=app.kubernetes.io/component=services"


@pytest.fixture(scope="module", name="deployment")
def _deployment(kubernetes: Kubernetes) -> Iterator[Deployment]:
    deployment = Deployment(kubernetes, "apart", REPLICAS)
    deployment.wait_rollout()
    yield deployment
    deployment.delete()


def test_a_replica_loses_the_pod_of_its_services(
    kubernetes: Kubernetes, deployment: Deployment
) -> None:
    """The pod with the primary's services is replaced under load; no coordinator restarts."""
    password = deployment.password()
    client = ClientPod(kubernetes, HEADLESS, deployment.authority())
    client.log_in(password)
    number = deployment.primary(client).rpartition("-")[2]
    names = [one["metadata"]["name"] for one in deployment.get("pods", SERVICES)["items"]]
    before = {name: pod["metadata"]["uid"] for name, pod in deployment.pods().items()}

    with load(client, password, "services") as told:
        deployment.kubectl("delete", "pod", f"viewstamp-services-{number}")
        deployment.kubectl("wait", "--for=condition=Ready", "pod", SERVICES, "--timeout=300s")
        deployment.wait_ready()

    assert sorted(names) == [f"viewstamp-services-{one}" for one in range(REPLICAS)]
    told.assert_nothing_lost()
    assert {name: pod["metadata"]["uid"] for name, pod in deployment.pods().items()} == before
    services = json.loads(client.must("status", "--json"))["services"]
    assert [one["connected"] for one in services] == [True] * len(services)
    client.delete()
