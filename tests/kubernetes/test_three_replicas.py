"""The replicated overlay in a real Kubernetes of three nodes, with what happens to it in a year.

Each test leaves the cluster whole, and finds it whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from testkit.kubernetes.cluster import Kubernetes
from testkit.kubernetes.layout import NODES, KubernetesError
from tests.deploy.pod import NAMESPACE
from tests.kubernetes.background_load import load
from tests.kubernetes.deployment import CURRENT, OLDER, STATEFUL_SET, ClientPod, Deployment

pytestmark = pytest.mark.kubernetes
REPLICAS = 3
SELECTOR = "app.kubernetes.io/component=replica"
ADDRESSES = [f"viewstamp-{one}.viewstamp-headless.{NAMESPACE}.svc:7400" for one in range(REPLICAS)]
# Exits with 0 if a port of a pod can be reached, and with 1 if not within the time.
REACH = (
    "import socket, sys\n"
    "try: socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()\n"
    "except OSError: sys.exit(1)"
)
# Prints the checksum of the certificate that an address shows.
CERTIFICATE = (
    "import hashlib, socket, ssl, sys\n"
    "context = ssl._create_unverified_context()\n"
    "with socket.create_connection((sys.argv[1], 7400), 10) as plain:\n"
    "    with context.wrap_socket(plain) as secure:\n"
    "        print(hashlib.sha256(secure.getpeercert(binary_form=True)).hexdigest())"
)


@pytest.fixture(scope="module", name="deployment")
def _deployment(kubernetes: Kubernetes) -> Iterator[Deployment]:
    deployment = Deployment(kubernetes, "three", REPLICAS)
    deployment.wait_rollout()
    yield deployment
    deployment.delete()


@pytest.fixture(scope="module", name="password")
def _password(deployment: Deployment) -> str:
    return deployment.password()


@pytest.fixture(scope="module", name="client")
def _client(kubernetes: Kubernetes, deployment: Deployment, password: str) -> Iterator[ClientPod]:
    client = ClientPod(kubernetes, ",".join(ADDRESSES), deployment.authority())
    client.log_in(password)
    yield client
    client.delete()


def test_three_replicas_found_a_cluster(deployment: Deployment, client: ClientPod) -> None:
    """Each pod has a node of its own, and all three replicas are of one cluster."""
    replicas = json.loads(client.must("status", "--json"))["replicas"]

    assert len({pod["spec"]["nodeName"] for pod in deployment.pods().values()}) == REPLICAS
    assert sorted(one["role"] for one in replicas) == ["backup", "backup", "primary"]
    assert deployment.restarts() == 0


def test_a_rolling_restart_under_load_loses_nothing(
    deployment: Deployment, client: ClientPod, password: str
) -> None:
    """All pods are replaced, one by one, while a client creates streams."""
    before = _identities(deployment)

    with load(client, password, "restart") as told:
        deployment.kubectl("rollout", "restart", STATEFUL_SET)
        deployment.wait_rollout()

    told.assert_nothing_lost()
    assert not before & _identities(deployment)


def test_an_older_image_and_back_under_load_loses_nothing(
    deployment: Deployment, client: ClientPod, password: str
) -> None:
    """The replicas are downgraded to an earlier build and upgraded again, under load."""
    with load(client, password, "upgrade") as told:
        for image in (OLDER, CURRENT):
            deployment.set_image(image)
            deployment.wait_rollout()

    told.assert_nothing_lost()


def test_a_deleted_primary_comes_back(
    deployment: Deployment, client: ClientPod, password: str
) -> None:
    """The primary's pod is deleted, and another time killed without a word."""
    with load(client, password, "deleted") as told:
        for grace in ([], ["--grace-period=0", "--force"]):
            deployment.kubectl("delete", "pod", deployment.primary(client), *grace)
            deployment.wait_ready()

    told.assert_nothing_lost()


def test_a_node_is_drained_and_a_second_is_not(
    deployment: Deployment, client: ClientPod, password: str
) -> None:
    """A drained node's replica waits for it, and the budget keeps the others where they are."""
    first, second = NODES[0].name, NODES[1].name
    flags = ("--ignore-daemonsets", "--delete-emptydir-data", f"--pod-selector={SELECTOR}")

    with load(client, password, "drained") as told:
        deployment.kubernetes.kubectl("drain", first, *flags)
        with pytest.raises(KubernetesError, match="disruption budget"):
            deployment.kubernetes.kubectl("drain", second, *flags, "--timeout=15s")
        assert len(deployment.ready()) == REPLICAS - 1
        for node in (first, second):
            deployment.kubernetes.kubectl("uncordon", node)
        deployment.wait_ready()

    told.assert_nothing_lost()


def test_a_lost_volume_is_filled_again(
    deployment: Deployment, client: ClientPod, password: str
) -> None:
    """A replica whose volumes are gone starts with empty ones, and has its vote again."""
    lost = deployment.primary(client)
    claims = [f"{name}-{lost}" for name in ("data", "copy-1", "copy-2")]

    with load(client, password, "volume") as told:
        deployment.kubectl("delete", "pvc", *claims, "--wait=false")
        deployment.kubectl("delete", "pod", lost)
        deployment.wait_ready()

    told.assert_nothing_lost()
    assert {one["status"]["phase"] for one in deployment.get("pvc", *claims)["items"]} == {"Bound"}


@pytest.mark.parametrize(
    ("namespace", "port", "reached"),
    [("clients", 7400, True), ("clients", 7410, False), ("clients", 7430, False)],
)
def test_network_policies_hold(
    deployment: Deployment, client: ClientPod, namespace: str, port: int, reached: bool
) -> None:
    """Strangers reach the port of calls, and neither that of replicas nor that of metrics."""
    address = deployment.pods()["viewstamp-1"]["status"]["podIP"]

    assert _reaches(client, address, port) is reached


def test_monitoring_reaches_metrics(kubernetes: Kubernetes, deployment: Deployment) -> None:
    """A pod of the namespace `monitoring` reaches metrics, and not the port of replicas."""
    monitoring = ClientPod(kubernetes, ",".join(ADDRESSES), namespace="monitoring")
    address = deployment.pods()["viewstamp-1"]["status"]["podIP"]
    try:
        assert _reaches(monitoring, address, 7430)
        assert not _reaches(monitoring, address, 7410)
    finally:
        monitoring.delete()


def test_renewed_certificates_are_taken_without_a_restart(
    deployment: Deployment, client: ClientPod
) -> None:
    """cert-manager makes another certificate, and each replica shows it to its callers."""
    names = [address.partition(":")[0] for address in ADDRESSES]
    before = {client.python(CERTIFICATE, name) for name in names}
    restarts, identities = deployment.restarts(), _identities(deployment)

    deployment.kubectl("delete", "secret", "viewstamp-tls")
    deployment.kubernetes.wait(
        "another certificate",
        lambda: not before & {client.python(CERTIFICATE, name) for name in names},
    )

    assert (deployment.restarts(), _identities(deployment)) == (restarts, identities)
    assert client.must("stream", "list")


def _identities(deployment: Deployment) -> set[str]:
    return {pod["metadata"]["uid"] for pod in deployment.pods().values()}


def _reaches(client: ClientPod, address: str, port: int) -> bool:
    try:
        client.python(REACH, address, str(port))
    except KubernetesError as error:
        assert "exit code 1" in str(error), error
        return False
    return True
