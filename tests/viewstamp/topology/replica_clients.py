"""Clients for tests that apply topologies to a replica, and names that no other test uses."""

from __future__ import annotations

from itertools import count
from typing import Final

from viewstamp.topology.model import DeclaredStream, DeclaredTopic, Topology

PATIENT_S: Final = 300.0
_NUMBERS: Final = count()


def new_name() -> str:
    """Return a name of a stream that no other test uses."""
    return f"stream{next(_NUMBERS)}"


def with_topics(stream: str, *declared: DeclaredTopic, prune: bool | None = None) -> Topology:
    """Return a topology of one stream."""
    return Topology((DeclaredStream(stream, prune, declared),))
