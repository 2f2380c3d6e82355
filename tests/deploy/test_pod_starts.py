"""The pod's own commands, run as processes on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.runtime import probe
from tests.deploy.certificates import self_signed
from tests.deploy.kustomize import Object, containers
from tests.deploy.pod import OVERLAYS, ROOT, mounts, overlay

CLUSTER_KEY = "5a" * 32


class Pod:
    """Containers as processes: what a path of the pod is here, and what runs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[str]] = []
        self._address = ""

    def start(self, container: Object) -> dict[str, object]:
        """Start a container's process and return the line with which it says that it serves."""
        for path in mounts(container):
            self.path(path).mkdir(parents=True, exist_ok=True)
        command = [sys.executable, *container["command"][1:], *map(self._local, container["args"])]
        # Byte code and temporary files have no place in a read-only image.
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )
        self._processes.append(process)
        assert process.stdout is not None
        ready: dict[str, object] = json.loads(process.stdout.readline())
        self._address = str(ready.get("address", ""))
        return ready

    def probe(self, settings: Object) -> int:
        """Do what the kubelet does for a probe, and return the exit code."""
        if "grpc" in settings:
            return probe.main([self._address, settings["grpc"]["service"]])
        words = [self._local(word) for word in settings["exec"]["command"][3:]]
        return probe.main([self._address if word == "127.0.0.1:7400" else word for word in words])

    def path(self, path: str) -> Path:
        """Return where a path of the pod is on this machine."""
        return self._directory / path.lstrip("/")

    def stop(self) -> list[int]:
        """Stop the processes as the kubelet does, the last one first; return their exit codes."""
        exit_codes = []
        while self._processes:
            process = self._processes.pop()
            process.terminate()
            exit_codes.append(process.wait())
            assert process.stdout is not None
            process.stdout.close()
        return exit_codes

    def _local(self, argument: str) -> str:
        """Put the pod's paths under the test's directory, and its port to a free one."""
        for root in ("/run/viewstamp", "/etc/viewstamp", "/var/lib/viewstamp"):
            argument = argument.replace(root, str(self.path(root)))
        return argument.replace("0.0.0.0:7400", "127.0.0.1:0")


@pytest.fixture
def pod() -> Iterator[Pod]:
    """A pod in which nothing runs yet, with its secrets."""
    # Not pytest's directory, whose path may be too long for a socket below it.
    with tempfile.TemporaryDirectory(prefix="viewstamp-pod-") as directory:
        pod = Pod(Path(directory))
        _put_secrets(pod)
        yield pod
        pod.stop()


def _put_secrets(pod: Pod) -> None:
    key = pod.path("/etc/viewstamp/cluster-key/cluster.key")
    key.parent.mkdir(parents=True)
    key.write_text(CLUSTER_KEY)
    # As the kubelet leaves a secret of mode 0400 in a pod with an fsGroup.
    key.chmod(0o440)
    authority = pod.path("/etc/viewstamp/tls/ca.crt")
    authority.parent.mkdir()
    private, certificate = self_signed(authority)
    authority.with_name("tls.key").write_bytes(private)
    authority.with_name("tls.crt").write_bytes(certificate)


@pytest.mark.parametrize("name", OVERLAYS)
def test_pod_starts_in_order_and_stops(pod: Pod, name: str) -> None:
    """Each process takes its arguments, passes its startup probe alone, and ends with 0."""
    *sidecars, coordinator = containers(overlay(name))
    for container in sidecars:
        pod.start(container)

        assert pod.probe(container["startupProbe"]) == probe.EXIT_SERVING, container["name"]
        assert pod.probe(container["readinessProbe"]) == probe.EXIT_NOT_SERVING, container["name"]

    pod.start(coordinator)
    for container in (*sidecars, coordinator):
        for settings in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert pod.probe(container[settings]) == probe.EXIT_SERVING, container["name"]

    assert pod.path("/var/lib/viewstamp/data/root_password").stat().st_mode & 0o777 == 0o600
    assert pod.stop() == [0, 0, 0, 0]
