"""Members come and go in a real Kubernetes, under load, as docs/kubernetes.md says."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from testkit.kubernetes.cluster import Kubernetes
from testkit.kubernetes.layout import KubernetesError
from tests.kubernetes.background_load import load
from tests.kubernetes.deployment import HEADLESS, STATEFUL_SET, ClientPod, Deployment

pytestmark = pytest.mark.kubernetes
PEERS = "viewstamp-headless:7410"


@pytest.fixture(scope="module", name="deployment")
def _deployment(kubernetes: Kubernetes) -> Iterator[Deployment]:
    """One replica, founded by the local overlay."""
    deployment = Deployment(kubernetes, "one", 1)
    deployment.wait_rollout()
    yield deployment
    deployment.delete()


@pytest.fixture(scope="module", name="password")
def _password(deployment: Deployment) -> str:
    return deployment.password()


@pytest.fixture(scope="module", name="client")
def _client(kubernetes: Kubernetes, deployment: Deployment, password: str) -> Iterator[ClientPod]:
    client = ClientPod(kubernetes, HEADLESS)
    client.log_in(password)
    yield client
    client.delete()


def members(client: ClientPod) -> dict[str, int]:
    """Return the id of each replica by the name of its pod."""
    replicas = json.loads(client.wait("status", "--json"))["replicas"]
    return {each["peer_address"].partition(".")[0]: each["replica_id"] for each in replicas}


def grow(deployment: Deployment, client: ClientPod, count: int) -> None:
    """Have more pods, add their replicas, and give them votes."""
    before = members(client)
    deployment.have_pods(count)
    for pod in range(len(before), count):
        client.wait("replica", "add", f"viewstamp-{pod}.{PEERS}")
    for pod in range(len(before), count):
        client.wait("replica", "promote", str(members(client)[f"viewstamp-{pod}"]), "--wait")
    deployment.replicas = count
    deployment.wait_ready()


def shrink(deployment: Deployment, client: ClientPod) -> None:
    """Remove the replica of the last pod, then the pod, then its volume."""
    known = members(client)
    last = f"viewstamp-{len(known) - 1}"
    client.wait("replica", "remove", str(known[last]), "--yes")
    deployment.kubernetes.wait("the others go on", lambda: last not in members(client))
    deployment.have_pods(len(known) - 1)
    deployment.kubernetes.wait("its pod is gone", lambda: last not in deployment.pods())
    deployment.kubectl("delete", "pvc", f"data-{last}")
    deployment.replicas = len(known) - 1


def test_a_founded_replica_is_prepared(deployment: Deployment, client: ClientPod) -> None:
    """Its pod starts again with the flags of one that joins, and keeps its id and its streams.
    Before that nobody changes the number of pods, and after it nobody takes the preparation out."""
    client.must("stream", "create", "before-members")
    with pytest.raises(KubernetesError, match="1 replicas cannot have 3"):
        deployment.have_pods(3)
    cluster = json.loads(client.must("status", "--json"))["cluster"]
    deployment.configure("viewstamp-cluster", **{"cluster-id": cluster})

    deployment.apply("joined")
    deployment.wait_rollout()

    assert members(client) == {"viewstamp-0": 0}
    assert "before-members" in client.wait("stream", "list")
    with pytest.raises(KubernetesError, match="keep the component `members`"):
        deployment.apply("one")


def test_from_one_to_three_to_one_and_to_three_under_load(
    deployment: Deployment, client: ClientPod, password: str
) -> None:
    """Nothing that was acknowledged is lost; the second time pods 1 and 2 are other replicas."""
    with load(client, password, "members") as told:
        grow(deployment, client, 3)
        assert members(client) == {"viewstamp-0": 0, "viewstamp-1": 1, "viewstamp-2": 2}
        with pytest.raises(KubernetesError, match="pods leave one at a time"):
            deployment.have_pods(1)
        shrink(deployment, client)
        shrink(deployment, client)
        assert members(client) == {"viewstamp-0": 0}
        grow(deployment, client, 3)

    told.assert_nothing_lost()
    assert members(client) == {"viewstamp-0": 0, "viewstamp-1": 3, "viewstamp-2": 4}


def test_a_lost_volume_and_a_rollout_of_what_has_grown(
    deployment: Deployment, client: ClientPod, password: str
) -> None:
    """A pod that comes with an empty volume is who it was, and a rolling restart loses nothing."""
    with load(client, password, "grown") as told:
        deployment.kubectl("delete", "pvc", "data-viewstamp-1", "--wait=false")
        deployment.kubectl("delete", "pod", "viewstamp-1")
        deployment.wait_ready()
        deployment.kubectl("rollout", "restart", STATEFUL_SET)
        deployment.wait_rollout()

    told.assert_nothing_lost()
    assert members(client)["viewstamp-1"] == 3
