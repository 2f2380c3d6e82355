"""One node that runs pods: containerd, kubelet and kube-proxy in a network of their own."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from testkit.kubernetes import control_groups, node_files
from testkit.kubernetes.commands import Daemon, run
from testkit.kubernetes.credentials import Credentials
from testkit.kubernetes.layout import KubernetesError, Layout, Node, program
from testkit.kubernetes.network import inside

_NAMESPACE = "k8s.io"


class WorkerNode:
    """The daemons of one node."""

    def __init__(self, layout: Layout, node: Node, credentials: Credentials) -> None:
        """Prepare files; nothing runs yet."""
        self.node = node
        self._layout = layout
        self._credentials = credentials
        self._directory = layout.of(node.name)
        self._socket = layout.socket(node)
        self._daemons: list[Daemon] = []

    def start_containerd(self) -> None:
        """Start the engine of the node's containers."""
        node_files.pod_network(self._directory, self.node)
        file = node_files.containerd(self._directory, self._socket)
        self._start("containerd", "containerd", "--config", str(file))

    def answers(self) -> bool:
        """Return whether the engine takes commands."""
        try:
            run(*self._ctr("version"))
        except KubernetesError:
            return False
        return True

    def load(self, archive: Path) -> None:
        """Give the node the images of an archive. Raises KubernetesError."""
        run(*self._ctr("images", "import", "--all-platforms", str(archive)))

    def name_image(self, image: str, other: str) -> None:
        """Give an image of the node another name. Raises KubernetesError."""
        run(*self._ctr("images", "tag", "--force", image, other))

    def start_kubelet(self) -> None:
        """Register the node, and run what is scheduled to it."""
        control_groups.create(self.node)
        user = f"system:node:{self.node.name}"
        kubeconfig = self._credentials.client(self.node.name, user, "system:nodes")
        file = node_files.kubelet(
            self._directory, self.node, self._socket, self._credentials.authority
        )
        self._start(
            "kubelet",
            program("kubelet"),
            f"--config={file}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.node.name}",
            f"--node-ip={self.node.address}",
            f"--root-dir={self._directory / 'kubelet'}",
            f"--cert-dir={self._directory / 'kubelet-certificates'}",
            f"--node-labels=topology.kubernetes.io/zone=zone-{self.node.number}",
        )

    def start_proxy(self) -> None:
        """Make services reachable from the node and its pods."""
        kubeconfig = self._credentials.client(f"{self.node.name}-proxy", "system:kube-proxy")
        file = node_files.kube_proxy(self._directory, self.node, kubeconfig)
        self._start("kube-proxy", program("kube-proxy"), f"--config={file}")

    def check(self) -> None:
        """Raise KubernetesError if a daemon of the node has ended."""
        for daemon in self._daemons:
            daemon.check()

    def stop(self) -> None:
        """End the daemons, then all containers, and remove what they mounted."""
        for daemon in reversed(self._daemons):
            daemon.stop()
        self._daemons.clear()
        _end_shims(self._socket)
        control_groups.end(self.node)
        for directory in (self._directory, self._socket.parent):
            _unmount_below(directory)
        shutil.rmtree(self._socket.parent, ignore_errors=True)

    def _start(self, name: str, *words: str) -> None:
        log = self._layout.logs / f"{name}-{self.node.number}.log"
        self._daemons.append(Daemon(log, *inside(self.node, *words)))

    def _ctr(self, *words: str) -> tuple[str, ...]:
        return ("ctr", "--address", str(self._socket), "--namespace", _NAMESPACE, *words)


def _end_shims(socket: Path) -> None:
    """End the processes that hold the node's containers; they outlive their containerd."""
    with contextlib.suppress(KubernetesError):  # pkill fails where it finds none
        run("pkill", "--signal", "KILL", "--full", f"containerd-shim.*{socket}")


def _unmount_below(directory: Path) -> None:
    """Unmount all below a directory, the newest mount first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    points = [line.split()[1] for line in lines]
    for point in reversed(points):
        if point.startswith(f"{directory}/"):
            run("umount", "--lazy", point)
