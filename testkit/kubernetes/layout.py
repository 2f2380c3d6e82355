"""Where the cluster lives on this machine: addresses, names, directories and programs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NODE_COUNT: Final = 3
# Namespaces of the kernel whose names no other program of this machine uses.
BRIDGE: Final = "viewstamp-k8s"
CONTROL_PLANE_ADDRESS: Final = "10.98.0.1"
NODE_PREFIX_BITS: Final = 24
API_PORT: Final = 6443
ETCD_PORT: Final = 12379
SERVICE_SUBNET: Final = "10.96.0.0/16"
# The first address of the subnet of services: `kubernetes.default`.
API_SERVICE_ADDRESS: Final = "10.96.0.1"
POD_SUBNET: Final = "10.97.0.0/16"
# The queue of the kernel from which a node's policies take connections.
POLICY_QUEUE: Final = 100
CLUSTER_DOMAIN: Final = "cluster.local"


class KubernetesError(Exception):
    """The cluster, or a command to it, failed; the text says which and why."""


@dataclass(frozen=True)
class Node:
    """One node by its number from 0."""

    number: int

    @property
    def name(self) -> str:
        """The name under which the node registers, which is that of its network, too."""
        return f"viewstamp-node-{self.number}"

    @property
    def address(self) -> str:
        """The address of the node on the bridge."""
        return f"10.98.0.{10 + self.number}"

    @property
    def pod_subnet(self) -> str:
        """The addresses of the node's pods."""
        return f"10.97.{self.number}.0/24"

    @property
    def link(self) -> str:
        """The end of the node's link at the bridge; the kernel allows 15 characters."""
        return f"vs-k8s-{self.number}"


NODES: Final = tuple(Node(number) for number in range(NODE_COUNT))


@dataclass(frozen=True)
class Layout:
    """The directories of one cluster."""

    directory: Path

    def of(self, name: str) -> Path:
        """Return the directory of a part, which exists afterwards."""
        path = self.directory / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def credentials(self) -> Path:
        """Keys, certificates and files for clients of the API server."""
        return self.of("credentials")

    @property
    def logs(self) -> Path:
        """What each program printed."""
        return self.of("logs")

    def socket(self, node: Node) -> Path:
        """Return the address of a node's containerd; unix sockets allow 107 characters."""
        directory = Path("/run/viewstamp-kubernetes") / node.name
        directory.mkdir(parents=True, exist_ok=True)
        return directory / "containerd.sock"


def program(name: str) -> str:
    """Return the path of a program that `make kubernetes` built. Raises KubernetesError."""
    directory = os.environ.get("KUBERNETES_PROGRAMS", "")
    path = Path(directory) / name
    if not directory or not path.exists():
        raise KubernetesError(
            f"KUBERNETES_PROGRAMS must name the directory with {name}: run `make test-kubernetes`"
        )
    return str(path)
