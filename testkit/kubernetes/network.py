"""One bridge, and a network namespace for each node with routes to the pods of the others."""

from __future__ import annotations

import contextlib
import ipaddress
import json

from testkit.kubernetes.commands import run
from testkit.kubernetes.layout import (
    BRIDGE,
    CONTROL_PLANE_ADDRESS,
    NODE_PREFIX_BITS,
    NODES,
    POD_SUBNET,
    POLICY_QUEUE,
    KubernetesError,
    Node,
)


def inside(node: Node, *words: str) -> tuple[str, ...]:
    """Return a command that runs in a node's network, and sees all files of this machine."""
    return ("nsenter", f"--net=/run/netns/{node.name}", *words)


def create() -> None:
    """Make the bridge and connect the nodes to it. Raises KubernetesError."""
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{CONTROL_PLANE_ADDRESS}/{NODE_PREFIX_BITS}", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    for node in NODES:
        _connect(node)
    for node in NODES:
        run("ip", "route", "add", node.pod_subnet, "via", node.address)


def _connect(node: Node) -> None:
    run("ip", "netns", "add", node.name)
    run(
        *("ip", "link", "add", node.link, "type", "veth"),
        *("peer", "name", "eth0", "netns", node.name),
    )
    run("ip", "link", "set", node.link, "master", BRIDGE, "up")
    address = f"{node.address}/{NODE_PREFIX_BITS}"
    run(*inside(node, "ip", "address", "add", address, "dev", "eth0"))
    for link in ("lo", "eth0"):
        run(*inside(node, "ip", "link", "set", link, "up"))
    run(*inside(node, "ip", "route", "add", "default", "via", CONTROL_PLANE_ADDRESS))
    for other in NODES:
        if other != node:
            run(*inside(node, "ip", "route", "add", other.pod_subnet, "via", other.address))
    run(*inside(node, "sysctl", "--quiet", "--write", "net.ipv4.ip_forward=1"))
    _have_policies_asked(node)


def _have_policies_asked(node: Node) -> None:
    """Have the node's policies decide each new connection of its pods; without them none is made.

    kube-network-policies makes such a rule for itself by nftables, where the kernel has its queues.
    """
    words = ("iptables", "--append", "FORWARD", "--match", "conntrack", "--ctstate", "NEW")
    run(*inside(node, *words, "--jump", "NFQUEUE", "--queue-num", str(POLICY_QUEUE)))


def delete() -> None:
    """Remove what `create` made, or as much of it as is there, and networks of pods."""
    for name in _pod_networks():
        run("ip", "netns", "delete", name)
    for node in NODES:
        with contextlib.suppress(KubernetesError):
            run("ip", "netns", "delete", node.name)
    with contextlib.suppress(KubernetesError):
        run("ip", "link", "delete", BRIDGE)


def _pod_networks() -> list[str]:
    """Return the networks with an address of our pods; containerd leaves them when it is killed."""
    found = []
    pods = ipaddress.ip_network(POD_SUBNET)
    for network in json.loads(run("ip", "-json", "netns", "list") or "[]"):
        links = json.loads(run("ip", "-netns", network["name"], "-json", "address", "show"))
        addresses = [one["local"] for link in links for one in link["addr_info"]]
        named = network["name"] in {node.name for node in NODES}
        if not named and any(ipaddress.ip_address(one) in pods for one in addresses):
            found.append(network["name"])
    return found
