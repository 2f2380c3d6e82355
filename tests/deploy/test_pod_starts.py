"""The pod's own commands, run as processes on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.runtime import probe
from tests.deploy.pod import LONE, REPLICATED, containers, overlay
from tests.deploy.pod_processes import Pod, put_secrets, share_peer_certificate
from viewstamp.cluster.preflight import free_address

REPLICAS = 3
PEER_PORT = 7410


@pytest.fixture
def pod() -> Iterator[Pod]:
    """A pod in which nothing runs yet, with its secrets."""
    # pytest's own directory may have a path too long for a socket in it.
    with tempfile.TemporaryDirectory(prefix="viewstamp-pod-") as directory:
        pod = Pod(Path(directory))
        put_secrets(pod)
        yield pod
        pod.stop()


@pytest.mark.parametrize("name", LONE)
def test_pod_starts_in_order_and_stops(pod: Pod, name: str) -> None:
    """Each process takes its arguments, passes its startup probe alone, and ends with 0."""
    *sidecars, coordinator = containers(overlay(name))
    for container in sidecars:
        pod.start(container)

        assert pod.probe(container["startupProbe"]) == probe.EXIT_SERVING, container["name"]

    pod.start(coordinator)
    for container in (*sidecars, coordinator):
        for settings in (one for name, one in container.items() if name.endswith("Probe")):
            assert pod.probe(settings) == probe.EXIT_SERVING, container["name"]

    assert pod.path("/var/lib/viewstamp/data/root_password").stat().st_mode & 0o777 == 0o600
    assert pod.stop() == [0] * len((*sidecars, coordinator))


@pytest.fixture
def three() -> Iterator[list[Pod]]:
    """Three pods in which nothing runs yet, on one network, with their secrets."""
    with tempfile.TemporaryDirectory(prefix="viewstamp-pods-") as directory:
        peers = [free_address("127.0.0.1:0") for _ in range(REPLICAS)]
        names = [
            (f"viewstamp-{replica}.viewstamp-headless:{PEER_PORT}", address)
            for replica, address in enumerate(peers)
        ]
        pods = []
        for replica, address in enumerate(peers):
            own = (f"0.0.0.0:{PEER_PORT}", address)
            pods.append(Pod(Path(directory) / str(replica), replica, [own, *names]))
            put_secrets(pods[-1])
        share_peer_certificate(pods)
        yield pods
        for pod in pods:
            pod.stop()


@pytest.mark.long
def test_three_pods_found_a_cluster(three: list[Pod]) -> None:
    """Three pods with the flags of one template and TLS between them become one cluster."""
    *sidecars, coordinator = containers(overlay(REPLICATED))
    for pod in three:
        for container in sidecars:
            pod.start(container)
    for pod in three:
        pod.spawn(coordinator)
    for pod in three:
        pod.wait()

        for settings in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert pod.probe(coordinator[settings]) == probe.EXIT_SERVING

    passwords = [pod.path("/var/lib/viewstamp/data/root_password").exists() for pod in three]
    assert passwords == [True, False, False]
    assert [pod.stop() for pod in three] == [[0, 0, 0, 0]] * REPLICAS
