"""Clients for tests that apply topologies to a replica, and names that no other test uses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Final

import viewstamp
from tests.processes.processes import ReplicaProcesses
from viewstamp.client import Client
from viewstamp.topology.model import DeclaredStream, DeclaredTopic, Topology

PATIENT_S: Final = 300.0
_NUMBERS: Final = count()


@asynccontextmanager
async def connected(processes: ReplicaProcesses) -> AsyncIterator[Client]:
    """Yield a client of root that is patient."""
    async with await viewstamp.connect(
        processes.address,
        username="root",
        password=processes.root_password(),
        timeout_s=PATIENT_S,
        connect_timeout_s=PATIENT_S,
    ) as client:
        yield client


def new_name() -> str:
    """Return a name of a stream that no other test uses."""
    return f"stream{next(_NUMBERS)}"


def with_topics(stream: str, *declared: DeclaredTopic, prune: bool | None = None) -> Topology:
    """Return a topology of one stream."""
    return Topology((DeclaredStream(stream, prune, declared),))
