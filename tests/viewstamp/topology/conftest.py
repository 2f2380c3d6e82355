"""A replica for each file of tests that applies topologies, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.processes.patient_clients import connected
from tests.processes.processes import ReplicaProcesses, replica
from viewstamp import topology
from viewstamp.client import Client


@pytest.fixture(scope="module")
def processes() -> Iterator[ReplicaProcesses]:
    """A running replica."""
    with replica() as running:
        yield running


@pytest.fixture
async def client(processes: ReplicaProcesses) -> AsyncIterator[Client]:
    """A connected client."""
    async with connected(processes) as connection:
        yield connection


@pytest.fixture
def passwords(tmp_path: Path) -> topology.PasswordFile:
    """A file for passwords."""
    return topology.PasswordFile(tmp_path / "passwords.json")
