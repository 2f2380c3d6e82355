"""A replica that many tests share: they do not harm it, and use names of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes.callers import Caller
from tests.processes.processes import ReplicaProcesses, replica


@pytest.fixture(scope="session")
def shared() -> Iterator[ReplicaProcesses]:
    """A running replica."""
    with replica() as running:
        yield running


@pytest.fixture
def root(shared: ReplicaProcesses) -> Iterator[Caller]:
    """Root, logged in at the shared replica."""
    with shared.root() as caller:
        yield caller
