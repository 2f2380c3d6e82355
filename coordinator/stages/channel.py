"""The settings of the connection to a service: when to retry it, and when to give it up."""

from __future__ import annotations

from typing import Final

from viewstamp import limits

RECONNECT_DELAY_MIN_MS: Final = 20
RECONNECT_DELAY_MAX_MS: Final = 500
_UNIX_PREFIX: Final = "unix:"


def ping_timeout_ms(target: str) -> int:
    """Return how long the connection to a service may be silent, in milliseconds.

    A sign of life waits behind everything sent before it. On one machine that is nothing; on a
    network it may be `STAGE_UNANSWERED_BYTES_MAX`, or one message of any size.
    """
    if target.startswith(_UNIX_PREFIX):
        return limits.STAGE_PING_TIMEOUT_MS
    return limits.STAGE_NETWORK_PING_TIMEOUT_MS


def channel_options(target: str) -> list[tuple[str, int]]:
    """Return gRPC's options for the channel to a service."""
    timeout_ms = ping_timeout_ms(target)
    return [
        ("grpc.max_send_message_length", limits.APPLY_MESSAGE_BYTES_MAX),
        ("grpc.max_receive_message_length", limits.APPLY_MESSAGE_BYTES_MAX),
        ("grpc.initial_reconnect_backoff_ms", RECONNECT_DELAY_MIN_MS),
        ("grpc.min_reconnect_backoff_ms", RECONNECT_DELAY_MIN_MS),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_DELAY_MAX_MS),
        # Whether the service lives: gRPC's own threads send and answer, so no handler delays that.
        ("grpc.keepalive_time_ms", limits.STAGE_PING_MS),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        # Without this the library still waits a minute for the answer to a ping.
        ("grpc.http2.ping_timeout_ms", timeout_ms),
        ("grpc.http2.max_pings_without_data", 0),
    ]
