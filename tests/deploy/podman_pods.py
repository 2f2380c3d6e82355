"""The rendered pods of the replicated overlay as pods of podman.

podman plays pods of Kubernetes, but neither stateful sets, sidecars that start first, secrets, nor
claims of volumes: here these are containers of the same pod and directories of this machine.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from coordinator.peers.tls import certificate_name
from tests.deploy.certificates import self_signed
from tests.deploy.pod import (
    NAMESPACE,
    REPLICATED,
    Object,
    arguments,
    containers,
    mounts,
    overlay,
    pod_spec,
)
from tests.deploy.pod_processes import CLUSTER_KEY
from tests.deploy.podman_containers import SERVER, Podman, give, place

REPLICAS: Final = 3
NETWORK: Final = "viewstamp-test"
# A network of this machine alone, in namespaces that podman makes.
ADDRESSES: Final = [f"10.99.71.1{replica}" for replica in range(REPLICAS)]
SUBNET: Final = "10.99.71.0/24"
CLIENT_PORT: Final = 7400
# What podman knows of a container; probes are of Kubernetes alone.
_PLAYED: Final = ("name", "command", "securityContext", "volumeMounts", "resources")


def name_of(replica: int) -> str:
    """Return the name of a replica's pod."""
    return f"viewstamp-{replica}"


def host_names(replica: int) -> list[str]:
    """Return the names by which peers and clients find a replica."""
    headless = f"{name_of(replica)}.viewstamp-headless"
    return [headless, f"{headless}.{NAMESPACE}.svc"]


class PodmanReplicas:
    """Three pods on one network, each with a directory of this machine for its volumes."""

    def __init__(self, podman: Podman, directory: Path) -> None:
        """Prepare what the operator and Kubernetes would: secrets and volumes."""
        self._podman = podman
        self._directory = directory
        self._objects = overlay(REPLICATED)
        self._put_secrets()

    @property
    def authority(self) -> Path:
        """The certificate that clients trust."""
        return self.volume(0, "tls") / "ca.crt"

    def volume(self, replica: int, name: str) -> Path:
        """Return the place of a pod's volume."""
        return self._directory / name_of(replica) / name

    def play(self, replica: int) -> None:
        """Start a replica's pod."""
        file = self._directory / f"{name_of(replica)}.yaml"
        file.write_text(yaml.safe_dump(self.manifest(replica)))
        network = f"{NETWORK}:ip={ADDRESSES[replica]}"
        self._podman.must("kube", "play", "--network", network, str(file))

    def kill(self, replica: int) -> None:
        """End all processes of a pod with SIGKILL."""
        self._podman.must("pod", "kill", "--signal", "KILL", name_of(replica))

    def start(self, replica: int) -> None:
        """Start the containers of a pod that was killed."""
        self._podman.must("pod", "start", name_of(replica))

    def manifest(self, replica: int) -> Object:
        """Return the pod that the stateful set would make, in the words that podman knows."""
        spec = pod_spec(self._objects)
        used = {name for one in containers(self._objects) for name in mounts(one).values()}
        for name in used:
            place(self.volume(replica, name))
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name_of(replica)},
            "spec": {
                "restartPolicy": "Never",
                "securityContext": spec["securityContext"],
                "hostAliases": [
                    {"ip": address, "hostnames": host_names(number)}
                    for number, address in enumerate(ADDRESSES)
                ],
                "containers": [self._played(one, replica) for one in containers(self._objects)],
                "volumes": [
                    {"name": name, "hostPath": {"path": str(self.volume(replica, name))}}
                    for name in sorted(used)
                ],
            },
        }

    def _played(self, container: Object, replica: int) -> dict[str, Any]:
        """Return a container with its arguments expanded, as Kubernetes would start it."""
        played: dict[str, Any] = {
            key: copy.deepcopy(container[key]) for key in _PLAYED if key in container
        }
        return {**played, "image": SERVER, "args": arguments(container, replica)}

    def _put_secrets(self) -> None:
        """Write one key and the certificates that name every replica into all pods."""
        names = [name for replica in range(REPLICAS) for name in host_names(replica)]
        peers = [certificate_name(replica) for replica in range(REPLICAS)]
        scratch = self._directory / "authority.crt"
        made = {
            "tls": self_signed(scratch, *names),
            "peer-tls": self_signed(scratch, *peers),
        }
        for replica in range(REPLICAS):
            give(self.volume(replica, "cluster-key") / "cluster.key", CLUSTER_KEY.encode())
            for volume, (private, certificate) in made.items():
                give(self.volume(replica, volume) / "tls.key", private)
                give(self.volume(replica, volume) / "tls.crt", certificate)
                give(self.volume(replica, volume) / "ca.crt", certificate)


@contextmanager
def three_pods(podman: Podman, directory: Path) -> Iterator[PodmanReplicas]:
    """Yield three pods that have been started; they and their network end with the block."""
    # Containers of the images' user pass through it to their volumes.
    directory.chmod(0o755)
    podman.must("network", "create", "--subnet", SUBNET, NETWORK)
    try:
        replicas = PodmanReplicas(podman, directory)
        for replica in range(REPLICAS):
            replicas.play(replica)
        yield replicas
    finally:
        for replica in range(REPLICAS):
            podman("pod", "rm", "--force", "--time", "0", name_of(replica))
        podman("network", "rm", "--force", NETWORK)
        shutil.rmtree(directory, ignore_errors=True)
