"""The client library: exactly-once commands and consistent reads over one Submit stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from viewstamp.client.client import Client, connect
from viewstamp.client.consistency import LINEARIZABLE, STALE, Consistency, at_least
from viewstamp.client.errors import (
    CannotConnect,
    ClientClosed,
    ClientError,
    OutcomeUnknown,
    ProtocolError,
    StreamBroken,
    TimedOut,
)
from viewstamp.client.session import RawReply, RawSession
from viewstamp.client.transport import Endpoint, unary
from viewstamp.errors import Refusal

if TYPE_CHECKING:
    from viewstamp.client.blocking import BlockingClient, connect_blocking

# Loaded at their first use: they need every domain.
_BLOCKING = frozenset({"connect_blocking", "BlockingClient"})

__all__ = [
    "connect",
    "connect_blocking",
    "Client",
    "BlockingClient",
    "Consistency",
    "LINEARIZABLE",
    "STALE",
    "at_least",
    "Refusal",
    "ClientError",
    "CannotConnect",
    "TimedOut",
    "OutcomeUnknown",
    "ClientClosed",
    "StreamBroken",
    "ProtocolError",
    "RawSession",
    "RawReply",
    "Endpoint",
    "unary",
]


def __getattr__(name: str) -> Any:
    """Return what is loaded on first use."""
    if name in _BLOCKING:
        from viewstamp.client import blocking

        return getattr(blocking, name)
    raise AttributeError(f"module 'viewstamp.client' has no attribute {name!r}")
