"""What callers ask of a channel or a server, by the names that the gRPC library has for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

from viewstamp.grpc_transport import Options
from viewstamp.http2 import Limits
from viewstamp.limits import MIB

MESSAGE_BYTES_MAX: Final = 4 * MIB

# The library takes -1 for a limit that nothing reaches.
_MINUS_ONE: Final = -1
_UNLIMITED: Final = 2**31 - 1
# What names of the library mean here.
_FIELDS: Final = {
    "grpc.max_receive_message_length": "received_bytes_max",
    "grpc.max_send_message_length": "sent_bytes_max",
    "grpc.max_concurrent_streams": "streams_max",
    "grpc.absolute_max_metadata_size": "fields_bytes_max",
    "grpc.max_allowed_incoming_connections": "connections_max",
    "grpc.max_connection_idle_ms": "idle_ms",
    "grpc.max_connection_age_ms": "age_ms",
    "grpc.server_handshake_timeout_ms": "handshake_ms",
    "grpc.keepalive_time_ms": "keepalive_ms",
    "grpc.keepalive_timeout_ms": "keepalive_timeout_ms",
    "grpc.http2.ping_timeout_ms": "ping_timeout_ms",
    "grpc.initial_reconnect_backoff_ms": "backoff_ms",
    "grpc.max_reconnect_backoff_ms": "backoff_ms_max",
    "grpc.min_reconnect_backoff_ms": "connect_ms",
    "grpc.ssl_target_name_override": "server_name",
}
MEANINGLESS: Final = {
    "grpc.max_metadata_size": "there is one limit, the absolute one",
    "grpc.max_connection_age_grace_ms": "a connection of its full age ends at once",
    "grpc.http.overload_protection": "no call is counted after its end",
    "grpc.so_reuseport": "an address has one server",
    "grpc.http2.max_pings_without_data": "pings are sent for every silence",
    "grpc.http2.min_ping_interval_without_data_ms": "an allowance bounds the pings of a peer",
    "grpc.keepalive_permit_without_calls": "pings are sent for every silence",
    "grpc.use_local_subchannel_pool": "no two channels share a connection",
    "grpc.dns_min_time_between_resolutions_ms": "each attempt to connect resolves the name",
    "grpc.enable_http_proxy": "no proxy is used",
}
"""Names of the library that change nothing here, each with its reason."""


class UnknownOption(ValueError):  # noqa: N818 - reads as the sentence it is
    """An option that would be lost without a word."""


@dataclass(frozen=True, slots=True)
class WireOptions:
    """Options of one channel or one server; times are in milliseconds, None is without a limit."""

    received_bytes_max: int = MESSAGE_BYTES_MAX
    sent_bytes_max: int | None = None
    streams_max: int = Limits().streams_max
    fields_bytes_max: int = Limits().section_bytes_max
    connections_max: int | None = None
    idle_ms: int | None = None
    """After so long without a call a server closes a connection."""
    age_ms: int | None = None
    """After so long a server closes a connection, also amid calls."""
    handshake_ms: int = 120_000
    """How long a client has to become one: for TLS, and then for its first settings."""
    keepalive_ms: int | None = None
    """After so long without a byte a sign of life is asked for."""
    keepalive_timeout_ms: int = 20_000
    ping_timeout_ms: int = _UNLIMITED
    backoff_ms: int = 1_000
    backoff_ms_max: int = 120_000
    connect_ms: int = 20_000
    """How long one attempt to connect may take."""
    server_name: str = ""
    """The name that the server's certificate has to have, if it is not that of the address."""

    @property
    def silence_ms(self) -> int:
        """How long a peer that was asked for a sign of life may be silent."""
        return min(self.keepalive_timeout_ms, self.ping_timeout_ms)

    @classmethod
    def of(cls, options: Options) -> Self:
        """Return what is asked for. Raises UnknownOption."""
        given: dict[str, Any] = {}
        for name, value in options:
            if name in _FIELDS:
                given[_FIELDS[name]] = _UNLIMITED if value == _MINUS_ONE else value
            elif name not in MEANINGLESS:
                known = ", ".join(sorted((*_FIELDS, *MEANINGLESS)))
                raise UnknownOption(f"option {name!r} is not known here; known are {known}")
        return cls(**given)
