"""The replicated overlay in a real Kubernetes of three nodes, with what happens to it in a year.

Each test leaves the cluster whole, and finds it whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from testkit.kubernetes.cluster import Kubernetes
from testkit.kubernetes.layout import NODES, KubernetesError
from tests.kubernetes.background_load import load
from tests.kubernetes.deployment import (
    CURRENT,
    HEADLESS,
    OLDER,
    STATEFUL_SET,
    ClientPod,
    Deployment,
)

pytestmark = pytest.mark.kubernetes
REPLICAS = 3
SELECTOR = "app.kubernetes.io/component=replica"
CALLS, PEERS, METRICS = 7400, 7410, 7430
# Prints which ports of an address can be reached within a time.
REACHED = """\
import json, socket, sys
reached = []
for port in map(int, sys.argv[2:]):
    try:
        socket.create_connection((sys.argv[1], port), 5).close()
        reached.append(port)
    except TimeoutError:
        pass
print(json.dumps(reached))
"""
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
    client = ClientPod(kubernetes, HEADLESS, deployment.authority())
    client.log_in(password)
    yield client
    client.delete()


def test_three_replicas_found_a_cluster(deployment: Deployment, client: ClientPod) -> None:
    """Each pod has a node of its own, and all three replicas are of one cluster."""
    replicas = json.loads(client.must("status", "--json"))["replicas"]

    assert len({pod["spec"]["nodeName"] for pod in deployment.pods().values()}) == REPLICAS
    assert sorted(one["role"] for one in replicas) == ["backup", "backup", "primary"]
    assert deployment.restarts() == 0


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_another_number_of_replicas_is_refused(deployment: Deployment, count: int) -> None:
    """Nobody scales a cluster that exists, by a command or by a patch; its pods stay."""
    patch = json.dumps({"spec": {"replicas": count}})
    for words in (
        ("scale", STATEFUL_SET, f"--replicas={count}"),
        ("patch", STATEFUL_SET, "--type=merge", f"--patch={patch}"),
    ):
        with pytest.raises(KubernetesError, match=f"3 replicas cannot have {count}"):
            deployment.kubectl(*words)
    assert len(deployment.ready()) == REPLICAS


def test_all_replicas_are_stopped_and_started(deployment: Deployment, client: ClientPod) -> None:
    """A cluster of none is one that is stopped: nothing is lost, and it serves again."""
    client.must("stream", "create", "kept")
    deployment.kubectl("scale", STATEFUL_SET, "--replicas=0")
    deployment.kubernetes.wait("no replica is left", lambda: not deployment.pods())
    deployment.kubectl("scale", STATEFUL_SET, f"--replicas={REPLICAS}")
    deployment.wait_ready()
    assert "kept" in client.wait("stream", "list")


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


def test_strangers_reach_the_port_of_calls_alone(deployment: Deployment, client: ClientPod) -> None:
    """Policies close the ports of replicas and of metrics on every node, also beside them."""
    for name in deployment.pods():
        assert _reached(client, deployment, name) == {CALLS}, name


def test_monitoring_reaches_metrics(kubernetes: Kubernetes, deployment: Deployment) -> None:
    """A pod of the namespace `monitoring` reaches metrics, and not the port of replicas."""
    monitoring = ClientPod(kubernetes, HEADLESS, namespace="monitoring")
    for name in deployment.pods():
        assert _reached(monitoring, deployment, name) == {CALLS, METRICS}, name
    monitoring.delete()


def test_renewed_certificates_are_taken_without_a_restart(
    deployment: Deployment, client: ClientPod
) -> None:
    """cert-manager makes another certificate, and each replica shows it to its callers."""
    names = [address.partition(":")[0] for address in HEADLESS.split(",")]
    before = {client.python(CERTIFICATE, name) for name in names}
    restarts, identities = deployment.restarts(), _identities(deployment)

    deployment.kubectl("delete", "secret", "viewstamp-tls")
    deployment.kubernetes.wait(
        "another certificate",
        lambda: not before & {client.python(CERTIFICATE, name) for name in names},
    )

    assert (deployment.restarts(), _identities(deployment)) == (restarts, identities)
    assert client.must("stream", "list")


@pytest.mark.usefixtures("analytics_image")
def test_a_night_archives_and_analyses_snapshots(deployment: Deployment, client: ClientPod) -> None:
    """The nightly jobs download a snapshot through TLS, and make a report of it, with Spark."""
    token = json.loads(client.must("token", "create", "archive", "--json"))["token"]
    secret = ("secret", "generic", "viewstamp-archive", f"--from-literal=token={token}")
    deployment.kubectl("create", *secret)
    client.must("snapshot", "create")

    for schedule in ("viewstamp-archive", "viewstamp-analysis"):
        deployment.run_job(schedule)

    tables = deployment.directory("viewstamp-analysis") / "tables"
    assert (tables / "report.html").stat().st_size > 0
    assert [path for path in tables.rglob("*.parquet") if path.stat().st_size]


def _identities(deployment: Deployment) -> set[str]:
    return {pod["metadata"]["uid"] for pod in deployment.pods().values()}


def _reached(client: ClientPod, deployment: Deployment, name: str) -> set[int]:
    """Return which ports of a replica's pod a client reaches."""
    address = deployment.pods()[name]["status"]["podIP"]
    return set(json.loads(client.python(REACHED, address, str(CALLS), str(PEERS), str(METRICS))))
