"""The connection to a service: its settings, when to give it up, and TLS where there is a network.

A channel keeps the certificate with which it was made. So once a stream has ended and the files
were renewed, the next one begins on a new channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio

from viewstamp import grpc_transport, limits
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.domain.v1 import domain_service_pb2_grpc as domain_grpc
from viewstamp.certificates.clear_text import UNIX_PREFIX
from viewstamp.certificates.pem_files import Certificates
from viewstamp.grpc_transport import TlsTexts

RECONNECT_DELAY_MIN_MS: Final = 20
RECONNECT_DELAY_MAX_MS: Final = 500
# How long one attempt to connect may take: on a network it has a handshake of TLS in it.
CONNECT_NETWORK_MS: Final = 2_000
# Calls on a channel that is left may end within this time.
LEAVE_GRACE_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ServiceCredentials:
    """How this coordinator proves who it is, and the name that the service has to prove."""

    certificates: Certificates
    name: str


def ping_timeout_ms(target: str) -> int:
    """Return how long the connection to a service may be silent, in milliseconds.

    A sign of life waits behind everything sent before it. On one machine that is nothing; on a
    network it may be `STAGE_UNANSWERED_BYTES_MAX`, or one message of any size.
    """
    if target.startswith(UNIX_PREFIX):
        return limits.STAGE_PING_TIMEOUT_MS
    return limits.STAGE_NETWORK_PING_TIMEOUT_MS


def channel_options(target: str) -> list[tuple[str, int | str]]:
    """Return gRPC's options for the channel to a service."""
    timeout_ms = ping_timeout_ms(target)
    is_near = target.startswith(UNIX_PREFIX)
    return [
        ("grpc.max_send_message_length", limits.APPLY_MESSAGE_BYTES_MAX),
        ("grpc.max_receive_message_length", limits.APPLY_MESSAGE_BYTES_MAX),
        ("grpc.initial_reconnect_backoff_ms", RECONNECT_DELAY_MIN_MS),
        (
            "grpc.min_reconnect_backoff_ms",
            RECONNECT_DELAY_MIN_MS if is_near else CONNECT_NETWORK_MS,
        ),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_DELAY_MAX_MS),
        # Whether the service lives: gRPC's own threads send and answer, so no handler delays that.
        ("grpc.keepalive_time_ms", limits.STAGE_PING_MS),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        # Without this the library still waits a minute for the answer to a ping.
        ("grpc.http2.ping_timeout_ms", timeout_ms),
        ("grpc.http2.max_pings_without_data", 0),
    ]


class ServiceChannel:
    """The channel to one service, made when it is first needed."""

    def __init__(self, target: str, credentials: ServiceCredentials | None = None) -> None:
        """Connect to a target; a unix socket takes no credentials."""
        self.target = target
        self._credentials = None if target.startswith(UNIX_PREFIX) else credentials
        self._channel: grpc.aio.Channel | None = None
        self._texts: TlsTexts | None = None

    def present(self) -> grpc.aio.Channel:
        """Return the channel."""
        if self._channel is None:
            options = channel_options(self.target)
            self._texts = self._newest()
            if self._credentials is not None:
                options.append(("grpc.ssl_target_name_override", self._credentials.name))
            self._channel = grpc_transport.open_channel(self.target, options, self._texts)
        return self._channel

    async def renew(self) -> None:
        """Leave a channel whose certificate is not the present one any more."""
        if self._channel is not None and self._texts != self._newest():
            old, self._channel = self._channel, None
            await old.close(LEAVE_GRACE_MS / 1000)

    async def explained(self, reason: str) -> str:
        """Return why an encrypted stream does not come about; empty without TLS.

        A call that waits for a connection ends without its cause, so that another one asks for it:
        a certificate that is refused is refused until somebody renews it.
        """
        if self._credentials is None:
            return ""
        if not reason.startswith(grpc.StatusCode.DEADLINE_EXCEEDED.name):
            return reason
        stub = domain_grpc.DomainServiceStub(self.present())
        try:
            await stub.Describe(
                domain_pb2.DescribeRequest(), timeout=limits.STAGE_TIMEOUT_MS / 1000
            )
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
        return reason

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close()

    def _newest(self) -> TlsTexts | None:
        return None if self._credentials is None else self._credentials.certificates.texts
