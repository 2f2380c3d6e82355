"""What this machine must have before a cluster starts on it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from testkit.kubernetes.layout import KubernetesError

# A program, or a file -> the package of Debian that has it.
_NEEDED: Final = {
    "containerd": "containerd",
    "conntrack": "conntrack",
    "etcd": "etcd-server",
    "ip": "iproute2",
    "iptables": "iptables",
    "nft": "nftables",
    "nsenter": "util-linux",
    "pkill": "procps",
    "runc": "runc",
    "setpriv": "util-linux",
    "/bin/busybox": "busybox-static",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
}


def check() -> None:
    """Raise KubernetesError if this process is not root, or a program is missing."""
    if os.geteuid() != 0:
        raise KubernetesError("a cluster needs networks and mounts of its own: run it as root")
    missing = {package for name, package in _NEEDED.items() if not _is_there(name)}
    if missing:
        packages = " ".join(sorted(missing))
        raise KubernetesError(f"programs are missing: apt-get install --yes {packages}")


def _is_there(name: str) -> bool:
    return Path(name).exists() if name.startswith("/") else shutil.which(name) is not None
