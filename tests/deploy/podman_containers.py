"""Containers and pods of podman, for tests that run the images: root, and no daemon."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.deploy.pod import ROOT
from tools.image.__main__ import NAMESPACE, version

ARCHIVES: Final = ROOT / "var" / "images"
USER: Final = 10001
SERVER: Final = f"{NAMESPACE}/viewstamp:{version()}"
CLIENT: Final = f"{NAMESPACE}/viewstamp-client:{version()}"
ANALYTICS: Final = f"{NAMESPACE}/viewstamp-analytics:{version()}"
# What a pod of ours may do, beyond its user: nothing.
CONFINED: Final = ("--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges")
# crun refuses hybrid control groups, and a container's root may not raise the limits of files.
_CONFIGURATION: Final = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
COMMAND_TIMEOUT_S: Final = 300
# Ends what hangs, and not what is slow on a busy machine.
WAIT_S: Final = 900
PAUSE_S: Final = 1


class Podman:
    """podman with settings of its own, and the names of what it has to remove in the end."""

    def __init__(self, directory: Path) -> None:
        """Write the settings into a directory."""
        file = directory / "containers.conf"
        file.write_text(_CONFIGURATION)
        self._environment = {**os.environ, "CONTAINERS_CONF": str(file)}

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run podman; the caller judges its exit code."""
        return subprocess.run(
            ["podman", *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    def must(self, *words: str) -> str:
        """Run podman and return what it printed. Raises AssertionError if it fails."""
        done = self(*words)
        assert done.returncode == 0, f"podman {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def logs(self, container: str) -> str:
        """Return all that a container has printed."""
        done = self("logs", container)
        return done.stdout + done.stderr


class ImageClient:
    """The command line of the client image, whose logins stay in a directory."""

    def __init__(self, podman: Podman, home: Path, *flags: str) -> None:
        """Keep the home of the user; `flags` are podman's, for the network and for mounts."""
        home.mkdir(exist_ok=True)
        os.chown(home, USER, USER)
        self._podman = podman
        self._flags = (*flags, "--volume", f"{home}:/var/lib/viewstamp")

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a container of its own."""
        home = ("--env", "HOME=/var/lib/viewstamp")
        start = ("run", "--rm", *CONFINED, *home, *self._flags, CLIENT, "viewstamp")
        return self._podman(*start, *words)

    def must(self, *words: str) -> str:
        """Return what a command prints. Raises AssertionError if it fails."""
        done = self(*words)
        assert done.returncode == 0, f"viewstamp {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def wait(self, *words: str) -> str:
        """Repeat a command until it succeeds. Raises AssertionError after WAIT_S."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            done = self(*words)
            if done.returncode == 0:
                return done.stdout
            time.sleep(PAUSE_S)
        return self.must(*words)


def place(directory: Path, mode: int = 0o750) -> Path:
    """Make a directory that the images' user may write to; return it."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(mode)
    os.chown(directory, USER, USER)
    return directory


def give(file: Path, content: bytes) -> None:
    """Write a secret as a pod sees it: root's, and readable for the pod's group."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    os.chown(file, 0, USER)
    file.chmod(0o440)


def facts(podman: Podman, container: str) -> dict[str, Any]:
    """Return what the first process of a container is allowed, as the kernel tells."""
    program = (
        "import json, pathlib\n"
        "lines = pathlib.Path('/proc/1/status').read_text().splitlines()\n"
        "print(json.dumps(dict(line.split(':\\t', 1) for line in lines if ':\\t' in line)))"
    )
    found: dict[str, Any] = json.loads(podman.must("exec", container, "python", "-c", program))
    return found


def mounts(volumes: Mapping[Path, str]) -> Sequence[str]:
    """Return podman's flags for directories by their places in a container."""
    return [word for here, there in volumes.items() for word in ("--volume", f"{here}:{there}")]
