"""A replica whose services are reached over TCP, with TLS between all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.coordinator.peers.certificates import Authority
from tests.processes.processes import COORDINATOR, ReplicaProcesses, short_directory, unique
from viewstamp.certificates.proven_names import coordinator_name, service_name
from viewstamp.cluster.preflight import free_address
from viewstamp.routing import SERVICE_NAMES

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("processes-start")]


class ReplicaApart(ReplicaProcesses):
    """The processes of one replica, whose services listen on ports of loopback, behind TLS."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        self._listen = {name: free_address("127.0.0.1:0") for name in SERVICE_NAMES}
        self._files = {name: authority.issue(service_name(name, 0)) for name in SERVICE_NAMES}
        own = authority.issue(coordinator_name(0))
        targets = [f"--service={name}={self._listen[name]}" for name in SERVICE_NAMES]
        tls = [
            f"--service-tls-certificate={own.certificate}",
            f"--service-tls-key={own.key}",
            f"--service-tls-ca={own.authority}",
        ]
        super().__init__(directory, flags=[*targets, *tls])

    def command(self, name: str) -> list[str]:
        """Return the command line that starts a process."""
        if name == COORDINATOR:
            return super().command(name)
        files = self._files[name]
        key = ["--cluster-key", str(self.key)] if name == "users" else []
        tls = ["--tls-certificate", str(files.certificate), "--tls-key", str(files.key)]
        listen = ["--listen", self._listen[name], "--tls-ca", str(files.authority)]
        return [sys.executable, "-m", f"services.{name}", *listen, *tls, *key]


def test_replica_serves_and_gets_over_deaths() -> None:
    """Commands of all domains pass encrypted connections, and a killed service is told all of its
    state again, by the coordinator and by its successor."""
    with short_directory() as directory:
        replica = ReplicaApart(directory, Authority.create(directory / "authority"))
        try:
            replica.start()
            with replica.root() as root:
                first = root.create_stream(unique("apart")).header.revision
            replica.kill("streams")
            replica.start("streams")
            replica.kill(COORDINATOR)
            replica.start(COORDINATOR)
            with replica.root() as root:
                assert root.create_stream(unique("apart")).header.revision > first
        finally:
            replica.stop()


def test_coordinator_refuses_a_network_without_tls() -> None:
    """A coordinator whose service is on another machine does not start in clear text."""
    with short_directory() as directory:
        replica = ReplicaProcesses(directory, flags=["--service=users=users.example.com:7441"])

        assert "--service-tls-certificate" in replica.refusal()
