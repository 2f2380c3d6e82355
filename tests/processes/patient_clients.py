"""Clients of a real replica for tests that judge answers, and not how soon they come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import viewstamp
from tests.processes.processes import ReplicaProcesses
from viewstamp.client import Client

PATIENT_S: Final = 300.0


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
