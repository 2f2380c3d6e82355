"""One Kubernetes for all tests here: to start it takes longer than most of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testkit.kubernetes.cluster import Kubernetes, running
from tests.deploy.podman_containers import ANALYTICS as BUILT_ANALYTICS
from tests.deploy.podman_containers import ARCHIVES
from tests.deploy.podman_containers import CLIENT as BUILT_CLIENT
from tests.deploy.podman_containers import SERVER as BUILT_SERVER
from tests.kubernetes.deployment import ANALYTICS, CLIENT, CURRENT, OLDER


@pytest.fixture(scope="session", name="kubernetes")
def _kubernetes() -> Iterator[Kubernetes]:
    """A cluster whose nodes have our images: the current ones, and the replicas' older one."""
    with tempfile.TemporaryDirectory(prefix="viewstamp-k8s-") as directory:
        # Pods, which are not root, pass through it to their volumes.
        Path(directory).chmod(0o755)
        with running(Path(directory)) as cluster:
            _load_images(cluster)
            yield cluster


def _load_images(cluster: Kubernetes) -> None:
    """Give the nodes both builds; their archives bear one name, so the later one takes it over."""
    older = Path(os.environ["KUBERNETES_OLDER_IMAGE"])
    for node in cluster.nodes:
        node.load(older)
        node.name_image(BUILT_SERVER, OLDER)
        node.load(ARCHIVES / "viewstamp.tar")
        node.name_image(BUILT_SERVER, CURRENT)
        node.load(ARCHIVES / "viewstamp-client.tar")
        node.name_image(BUILT_CLIENT, CLIENT)


@pytest.fixture(scope="session", name="analytics_image")
def _analytics_image(kubernetes: Kubernetes) -> str:
    """The image of the analysis, on every node: it has Java, and takes minutes to unpack."""
    for node in kubernetes.nodes:
        node.load(ARCHIVES / "viewstamp-analytics.tar")
        node.name_image(BUILT_ANALYTICS, ANALYTICS)
    return ANALYTICS
