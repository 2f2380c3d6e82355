"""The client library: exactly-once commands and consistent reads over one Submit stream."""

from __future__ import annotations

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

__all__ = [
    "connect",
    "Client",
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
