"""Health alone, in clear text, on a port of its own: what the probes of Kubernetes can ask.

Kubernetes probes gRPC on a TCP port only, and without TLS; a probe that is a process instead costs
processor time on every machine that has none to spare. The port says whether the process lives and
serves, and nothing else: it may be open to a machine's own probes, and to nobody else.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any, Final, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from viewstamp import grpc_transport
from viewstamp.limits import HANDSHAKE_TIMEOUT_MS, KIB
from viewstamp.telemetry import fields

SERVICE: Final = "grpc.health.v1.Health"
METHOD: Final = "Check"
# A request is the name of a service.
REQUEST_BYTES_MAX: Final = 1 * KIB
# Probes open a connection each and close it again; what stays open and silent makes room for them.
IDLE_TIMEOUT_MS: Final = 10_000
# A call that its caller never finishes, or whose answer it never takes, keeps a connection from
# being idle. This is longer than any probe waits.
AGE_MS: Final = 30_000
CONNECTIONS_MAX: Final = 1_000
CALLS_PER_CONNECTION_MAX: Final = 16
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
    ("grpc.max_concurrent_streams", CALLS_PER_CONNECTION_MAX),
    ("grpc.max_connection_idle_ms", IDLE_TIMEOUT_MS),
    ("grpc.max_connection_age_grace_ms", 0),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
    ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
    ("grpc.so_reuseport", 0),
)
_Context = grpc.aio.ServicerContext[Any, Any]
_log = logging.getLogger(__name__)


class Health(Protocol):
    """Who knows the health of the process: gRPC's own servicer."""

    def Check(  # noqa: N802 - the RPC's name
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> Awaitable[health_pb2.HealthCheckResponse]:
        """Return the status of the name that the request has."""
        ...


class HealthPort:
    """Serves what `health` knows at `address`, HOST:PORT."""

    def __init__(self, listen: str, health: Health, age_ms: int = AGE_MS) -> None:
        """Bind; no connection lasts longer than `age_ms`.

        Raises ValueError for a malformed address, OSError if it cannot be bound.
        """
        host, separator, port = listen.rpartition(":")
        if not (separator and host and port.isdecimal()):
            raise ValueError(f"--health-listen is {listen!r}: give HOST:PORT; port 0 takes any")
        self._health = health
        self._server = grpc_transport.make_server(
            (*_OPTIONS, ("grpc.max_connection_age_ms", age_ms))
        )
        handler: Any = grpc.unary_unary_rpc_method_handler(
            self._check, response_serializer=health_pb2.HealthCheckResponse.SerializeToString
        )
        handlers = grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})
        self._server.add_generic_rpc_handlers((handlers,))
        try:
            # The gRPC library tells its own log alone why it cannot bind.
            grpc_transport.check_is_free(host.strip("[]"), int(port))
            self.address: Final = f"{host}:{self._server.add_insecure_port(listen)}"
        except (OSError, OverflowError, RuntimeError) as error:
            raise OSError(f"--health-listen {listen}: cannot be bound ({error})") from error

    async def start(self) -> None:
        """Begin to answer."""
        await self._server.start()
        _log.info("health is served", extra=fields(address=self.address))

    async def stop(self) -> None:
        """Answer nobody any more."""
        await self._server.stop(None)

    async def _check(self, data: bytes, context: _Context) -> health_pb2.HealthCheckResponse:
        try:
            request = health_pb2.HealthCheckRequest.FromString(data)
        except DecodeError:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the bytes are not the message of this method"
            )
            raise AssertionError("abort always raises") from None
        return await self._health.Check(request, context)
