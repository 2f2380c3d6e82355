"""Control groups of nodes: what a node's containers are counted under, and how all of them end.

Both layouts of Linux are met: one tree, or a tree for each controller.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from testkit.kubernetes.layout import KubernetesError, Node

_TREE: Final = Path("/sys/fs/cgroup")
_END_TIMEOUT_S: Final = 20
_PAUSE_S: Final = 0.1
# A new group of processors begins without any; it takes those of the tree.
_INHERITED: Final = ("cpuset.cpus", "cpuset.mems")


def _trees() -> list[Path]:
    if (_TREE / "cgroup.controllers").exists():
        return [_TREE]
    return [path for path in sorted(_TREE.iterdir()) if (path / "cgroup.procs").exists()]


def create(node: Node) -> None:
    """Make a node's group in every tree."""
    for tree in _trees():
        group = tree / node.name
        group.mkdir(exist_ok=True)
        for name in _INHERITED:
            if (tree / name).exists():
                (group / name).write_text((tree / name).read_text())


def end(node: Node) -> None:
    """Kill every process in a node's groups and remove them. Raises KubernetesError."""
    deadline = time.monotonic() + _END_TIMEOUT_S
    while processes := set(_processes(node)):
        if time.monotonic() > deadline:
            raise KubernetesError(f"processes of {node.name} do not end: {sorted(processes)}")
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_PAUSE_S)
    for tree in _trees():
        for group in _groups(tree / node.name):
            with contextlib.suppress(OSError):
                group.rmdir()


def _processes(node: Node) -> Iterator[int]:
    for tree in _trees():
        for group in _groups(tree / node.name):
            with contextlib.suppress(OSError):
                yield from map(int, (group / "cgroup.procs").read_text().split())


def _groups(top: Path) -> list[Path]:
    """Return a group and those below it, the deepest first."""
    return [Path(path) for path, _, _ in os.walk(top, topdown=False)]
