"""The containers of a pod as processes on this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from coordinator.peers.tls import certificate_name
from services.runtime import probe
from tests.deploy.certificates import self_signed
from tests.deploy.pod import ROOT, Object, arguments, mounts
from viewstamp.cluster.preflight import free_address

CLUSTER_KEY = "5a" * 32
# Addresses in the pods' network, each with its address here.
Names: TypeAlias = Sequence[tuple[str, str]]


class Pod:
    """Containers as processes: the place of each path of the pod here, and what runs."""

    def __init__(self, directory: Path, replica: int = 0, names: Names = ()) -> None:
        """Place the pod with this number; `names` are replaced in its arguments."""
        self._directory = directory
        self._replica = replica
        self._names = names
        self._processes: list[subprocess.Popen[str]] = []
        self._ports: dict[str, str] = {}

    def start(self, container: Object) -> dict[str, object]:
        """Start a container's process and return the line with which it says that it serves."""
        self.spawn(container)
        return self.wait()

    def spawn(self, container: Object) -> None:
        """Start a container's process, without waiting for it."""
        for path in mounts(container):
            self.path(path).mkdir(parents=True, exist_ok=True)
        expanded = arguments(container, self._replica)
        command = [sys.executable, *container["command"][1:], *map(self._local, expanded)]
        # Byte code and temporary files have no place in a read-only image.
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )
        self._processes.append(process)

    def wait(self) -> dict[str, object]:
        """Return the line with which the process that was started last says that it serves."""
        process = self._processes[-1]
        assert process.stdout is not None
        ready: dict[str, object] = {}
        while "ready" not in ready:  # a coordinator first says how far it has come
            ready = json.loads(process.stdout.readline())
        return ready

    def probe(self, settings: Object) -> int:
        """Probe as the kubelet does, and return the exit code of a probe."""
        asked = settings["grpc"]
        return probe.main([self._port(f"0.0.0.0:{asked['port']}"), asked["service"]])

    def path(self, path: str) -> Path:
        """Return the place of a path of the pod on this machine."""
        return self._directory / path.lstrip("/")

    def stop(self) -> list[int]:
        """Stop the processes as the kubelet does, in reverse order; return their exit codes."""
        exit_codes = []
        while self._processes:
            process = self._processes.pop()
            process.terminate()
            exit_codes.append(process.wait())
            assert process.stdout is not None
            process.stdout.close()
        return exit_codes

    def _local(self, argument: str) -> str:
        """Place the pod's paths under the test's directory, and its port on a free one."""
        for root in ("/run/viewstamp", "/etc/viewstamp", "/var/lib/viewstamp"):
            argument = argument.replace(root, str(self.path(root)))
        for name, address in self._names:
            argument = argument.replace(name, address)
        return re.sub(r"0\.0\.0\.0:\d+", lambda found: self._port(found[0]), argument)

    def _port(self, address: str) -> str:
        """Return a free address that stands for one of the pod's."""
        if address not in self._ports:
            self._ports[address] = free_address("127.0.0.1:0")
        return self._ports[address]


def put_secrets(pod: Pod) -> None:
    """Write the secrets of all overlays where the kubelet would mount them."""
    key = pod.path("/etc/viewstamp/cluster-key/cluster.key")
    key.parent.mkdir(parents=True)
    key.write_text(CLUSTER_KEY)
    # A secret of mode 0400 looks like this in a pod with an fsGroup.
    key.chmod(0o440)
    authority = pod.path("/etc/viewstamp/tls/ca.crt")
    authority.parent.mkdir()
    private, certificate = self_signed(authority)
    authority.with_name("tls.key").write_bytes(private)
    authority.with_name("tls.crt").write_bytes(certificate)


def share_peer_certificate(pods: Sequence[Pod]) -> None:
    """Put one certificate that names every replica into all pods, as the secret does."""
    with tempfile.TemporaryDirectory() as directory:
        names = [certificate_name(replica) for replica in range(len(pods))]
        private, certificate = self_signed(Path(directory) / "ca.crt", *names)
    files = {"tls.key": private, "tls.crt": certificate, "ca.crt": certificate}
    for pod in pods:
        target = pod.path("/etc/viewstamp/peer-tls")
        target.mkdir()
        for name, content in files.items():
            (target / name).write_bytes(content)
