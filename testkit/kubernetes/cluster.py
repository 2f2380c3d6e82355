"""The whole cluster: it starts in order, and removes all that it made on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from testkit.kubernetes import addons, control_plane, kernel_settings, machine, network
from testkit.kubernetes.commands import COMMAND_TIMEOUT_S, Daemon, run
from testkit.kubernetes.credentials import Credentials
from testkit.kubernetes.layout import (
    NODE_COUNT,
    NODES,
    KubernetesError,
    Layout,
    program,
)
from testkit.kubernetes.worker_node import WorkerNode

START_TIMEOUT_S: Final = 300
_PAUSE_S: Final = 0.5


class Kubernetes:
    """A running cluster."""

    def __init__(self, layout: Layout, credentials: Credentials) -> None:
        """Keep where things are; `running` starts them."""
        self._layout = layout
        self._kubeconfig = credentials.client("admin", "admin", "system:masters")
        self.nodes = [WorkerNode(layout, node, credentials) for node in NODES]
        self.daemons: list[Daemon] = []

    @property
    def kubeconfig(self) -> Path:
        """The file by which an administrator finds the cluster."""
        return self._kubeconfig

    def kubectl(
        self, *words: str, stdin: str | None = None, timeout_s: float = COMMAND_TIMEOUT_S
    ) -> str:
        """Run kubectl as an administrator. Raises KubernetesError if it fails."""
        command = (program("kubectl"), "--kubeconfig", str(self._kubeconfig), *words)
        return run(*command, stdin=stdin, timeout_s=timeout_s)

    def get(self, *words: str) -> Any:
        """Return what `kubectl get` says, as a document."""
        return json.loads(self.kubectl("get", *words, "--output=json"))

    def apply(self, manifest: str) -> None:
        """Create or change objects. Raises KubernetesError."""
        self.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", stdin=manifest)

    def load(self, archives: Sequence[Path]) -> None:
        """Give every node the images of archives. Raises KubernetesError."""
        for node in self.nodes:
            for archive in archives:
                node.load(archive)

    def keep(self, daemon: Daemon, stack: ExitStack) -> None:
        """Watch over a daemon, which ends with the stack."""
        stack.callback(daemon.stop)
        self.daemons.append(daemon)

    def check(self) -> None:
        """Raise KubernetesError if any daemon has ended."""
        for daemon in self.daemons:
            daemon.check()
        for node in self.nodes:
            node.check()

    def wait(self, what: str, done: Callable[[], bool], timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until `done`, in which kubectl may fail. Raises KubernetesError after a time."""
        deadline = time.monotonic() + timeout_s
        last = "it never was"
        while time.monotonic() < deadline:
            self.check()
            try:
                if done():
                    return
            except KubernetesError as error:
                last = str(error)
            time.sleep(_PAUSE_S)
        raise KubernetesError(f"{what}: not within {timeout_s} s; {last}")

    def ready_nodes(self) -> int:
        """Return how many nodes are ready for pods."""
        return sum(is_ready(node) for node in self.get("nodes")["items"])


def is_ready(item: Any) -> bool:
    """Return whether a node or a pod says that it is ready."""
    conditions = {one["type"]: one["status"] for one in item["status"].get("conditions", [])}
    return conditions.get("Ready") == "True"


@contextmanager
def running(directory: Path) -> Iterator[Kubernetes]:
    """Start a cluster below a directory and yield it; afterwards nothing of it is left running.

    It needs root and some programs; `machine.check` names what is missing. A directory serves one
    cluster.
    """
    machine.check()
    layout = Layout(directory)
    credentials = Credentials(layout.credentials)
    cluster = Kubernetes(layout, credentials)
    with ExitStack() as stack:
        _remove_remains(cluster)
        stack.enter_context(kernel_settings.kept())
        stack.callback(network.delete)
        network.create()
        _start_control_plane(cluster, layout, credentials, stack)
        _start_nodes(cluster, layout, stack)
        _start_addons(cluster, layout, credentials, stack)
        yield cluster


def _remove_remains(cluster: Kubernetes) -> None:
    """Take down what a run that was killed has left: pods outlive their daemons."""
    for node in cluster.nodes:
        node.stop()
    network.delete()


def _start_control_plane(
    cluster: Kubernetes, layout: Layout, credentials: Credentials, stack: ExitStack
) -> None:
    cluster.keep(control_plane.start_etcd(layout), stack)
    cluster.keep(control_plane.start_api_server(layout, credentials), stack)
    cluster.wait("the API server answers", lambda: cluster.kubectl("get", "--raw=/readyz") == "ok")
    cluster.keep(control_plane.start_controller_manager(layout, credentials), stack)
    cluster.keep(control_plane.start_scheduler(layout, credentials), stack)
    cluster.keep(addons.start_names(layout, credentials), stack)
    cluster.keep(addons.start_storage(layout, credentials), stack)


def _start_nodes(cluster: Kubernetes, layout: Layout, stack: ExitStack) -> None:
    images = addons.write_images(layout.of("images"))
    for node in cluster.nodes:
        stack.callback(node.stop)
        node.start_containerd()
    cluster.wait("every containerd answers", lambda: all(one.answers() for one in cluster.nodes))
    cluster.load(images)
    for node in cluster.nodes:
        node.start_kubelet()
        node.start_proxy()
    cluster.wait("all nodes are ready", lambda: cluster.ready_nodes() == NODE_COUNT)


def _start_addons(
    cluster: Kubernetes, layout: Layout, credentials: Credentials, stack: ExitStack
) -> None:
    directory = str(addons.definitions())
    cluster.kubectl("apply", "--server-side", f"--filename={directory}")
    cluster.kubectl("wait", "--for=condition=Established", f"--filename={directory}")
    cluster.keep(addons.start_certificates(layout, credentials), stack)
    cluster.apply(addons.manifest())
    status = ("rollout", "status", "--namespace=kube-system", "daemonset/kube-network-policies")
    cluster.kubectl(*status, f"--timeout={START_TIMEOUT_S}s")
