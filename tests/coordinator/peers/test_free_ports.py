"""Which ports a local cluster takes if nobody chose any."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from viewstamp.cluster import preflight
from viewstamp.cluster.errors import PreflightError
from viewstamp.cluster.preflight import FREE_PORTS, free_address

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_no_connection_is_given_a_port_that_was_chosen() -> None:
    """Between the choice and the server's start the system gives other ports to others."""
    first_of_connections = int(EPHEMERAL.read_text().split()[0])
    ports = {int(free_address("127.0.0.1:0").rpartition(":")[2]) for _ in range(20)}
    assert ports <= set(FREE_PORTS)
    assert max(FREE_PORTS) < first_of_connections


def test_a_taken_port_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A taken port is passed over; when none is left, the system chooses a free one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        monkeypatch.setattr(preflight, "FREE_PORTS", range(taken, taken + 1))
        monkeypatch.setattr(preflight, "FREE_PORTS_TRIED", 1)
        assert free_address("127.0.0.1:0") != f"127.0.0.1:{taken}"
        with pytest.raises(PreflightError, match="is taken by another process"):
            free_address(f"127.0.0.1:{taken}")
