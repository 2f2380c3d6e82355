"""The rows of brokers, the processes of the data plane.

A broker acts under its epoch, which each registration raises. It is *fenced* once it was silent for
too long or has resigned: its epoch is over, and it leads nothing until it registers again.
"""

from __future__ import annotations

from typing import NamedTuple


class BrokerEndpoint(NamedTuple):
    """Where a broker serves one kind of caller."""

    listener: str
    host: str
    port: int


class Broker(NamedTuple):
    """One broker; fields as in brokers.v1.Broker."""

    id: int
    name: str
    rack: str
    endpoints: tuple[BrokerEndpoint, ...]
    broker_epoch: int
    fenced: bool
    draining: bool
    timeout_ms: int
    storage_id: str
    storage_revision: int
    user_id: int
    created_at: int
    created_revision: int
    modified_revision: int

    @property
    def key(self) -> int:
        """Where it is in the table."""
        return self.id

    @property
    def joined_revision(self) -> int:
        """The revision that tells its epochs apart."""
        return self.broker_epoch

    @property
    def is_away(self) -> bool:
        """Whether it shows no life, and need not."""
        return self.fenced
