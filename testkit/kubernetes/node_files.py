"""The configuration files of one node's containerd, network plugins, kubelet and kube-proxy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml

from testkit.kubernetes.layout import (
    CLUSTER_DOMAIN,
    CONTROL_PLANE_ADDRESS,
    POD_SUBNET,
    Node,
)

# The image of the process that holds the namespaces of a pod.
PAUSE_IMAGE: Final = "viewstamp.test/busybox:1"
# Debian's package of network plugins.
_PLUGINS: Final = "/usr/lib/cni"


def containerd(directory: Path, socket: Path) -> Path:
    """Write the configuration of a node's containerd; return its path."""
    path = directory / "containerd.toml"
    path.write_text(
        f"""\
version = 2
root = "{directory}/containerd"
state = "{socket.parent}/state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # The root of a container on this machine may not lower what the kernel spares it.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{_PLUGINS}"
    conf_dir = "{directory}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""
    )
    return path


def pod_network(directory: Path, node: Node) -> None:
    """Write the network of a node's pods: a link to each, and addresses from the node's share."""
    # Each pod has a link of its own to the node, so that the node's policies see every packet, also
    # between two of its pods; a bridge would pass those on without a look.
    link = {
        "type": "ptp",
        "ipam": {
            "type": "host-local",
            "dataDir": str(directory / "addresses"),
            "ranges": [[{"subnet": node.pod_subnet}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    document = {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [link, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }
    path = directory / "cni" / "10-pods.conflist"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document))


def kubelet(directory: Path, node: Node, socket: Path, authority: Path) -> Path:
    """Write the configuration of a node's kubelet; return its path."""
    return _write(
        directory / "kubelet.yaml",
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": node.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(authority)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{node.name}",
            "enforceNodeAllocatable": ["none"],
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDomain": CLUSTER_DOMAIN,
            "clusterDNS": [CONTROL_PLANE_ADDRESS],
            "podLogsDir": str(directory / "pod-logs"),
            "volumePluginDir": str(directory / "volume-plugins"),
            # The disk is this machine's, and tests of a full one have no business here.
            "evictionHard": {"memory.available": "100Mi"},
            "imageGCHighThresholdPercent": 100,
            # Without it a kubelet ends where it may not change settings of the kernel.
            "featureGates": {"KubeletInUserNamespace": True},
        },
    )


def kube_proxy(directory: Path, node: Node, kubeconfig: Path) -> Path:
    """Write the configuration of a node's kube-proxy; return its path."""
    return _write(
        directory / "kube-proxy.yaml",
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": node.name,
            "clusterCIDR": POD_SUBNET,
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            # Zero leaves the tables of connections, which nodes share here, as they are.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        },
    )


def _write(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(document))
    return path
