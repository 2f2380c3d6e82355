"""The gRPC server: one generic handler for every path, beside health and reflection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from coordinator.base.credentials import read_certificates
from coordinator.base.errors import ConfigError
from coordinator.gateway import forwarding
from coordinator.gateway.infrastructure import (
    channelz_handlers,
    health_handlers,
    reflection_handlers,
)
from coordinator.gateway.submit import SubmitStreams
from coordinator.gateway.unary import UnaryCalls
from viewstamp import grpc_transport
from viewstamp.api.cluster.v1 import cluster_service_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2
from viewstamp.api.history.v1 import history_service_pb2
from viewstamp.api.sessions.v1 import sessions_service_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2
from viewstamp.api.streams.v1 import streams_service_pb2
from viewstamp.api.submit.v1 import submit_service_pb2
from viewstamp.api.users.v1 import users_service_pb2
from viewstamp.api.watch.v1 import watch_service_pb2
from viewstamp.certificates.pem_files import Certificates, PemFiles
from viewstamp.health_port import HealthPort
from viewstamp.limits import (
    CONNECTION_IDLE_TIMEOUT_MS,
    CONNECTIONS_MAX,
    HANDSHAKE_TIMEOUT_MS,
    MESSAGE_BYTES_MAX,
    METADATA_BYTES_MAX,
    STREAMS_PER_CONNECTION_MAX,
)

LIVENESS: Final = "liveness"
READINESS: Final = "readiness"
SUBMIT_PATH: Final = "/viewstamp.api.submit.v1.SubmitService/Submit"
INFRASTRUCTURE_PREFIX: Final = "/grpc."
KEEPALIVE_MS: Final = 60_000
KEEPALIVE_TIMEOUT_MS: Final = 20_000
# Unary callers share a connection: as many as the budgets say, not gRPC's default of 100.
SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    # gRPC would count answered calls that are not yet torn down, and refuse callers that open as
    # many as were just answered together, although they keep to the limit.
    ("grpc.http.overload_protection", 0),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
    # Unused connections, and those that never complete a handshake, take room from others.
    ("grpc.max_connection_idle_ms", CONNECTION_IDLE_TIMEOUT_MS),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
    ("grpc.so_reuseport", 0),
    # A client whose machine vanished must not keep its session alive for ever.
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Backups that pass calls on send pings this often.
    ("grpc.http2.min_ping_interval_without_data_ms", forwarding.KEEPALIVE_MS // 2),
)

_MODULES: Final = (
    users_service_pb2,
    streams_service_pb2,
    consumer_groups_service_pb2,
    sessions_service_pb2,
    submit_service_pb2,
    cluster_service_pb2,
    snapshots_service_pb2,
    watch_service_pb2,
    history_service_pb2,
)


class _Handlers(grpc.GenericRpcHandler):
    """Finds the handler of a path. Methods are looked up at each call, because services may
    grow."""

    def __init__(
        self, unary: UnaryCalls, submit: SubmitStreams, streams: Mapping[str, Any]
    ) -> None:
        self._unary = unary
        self._handlers: dict[str, Any] = {SUBMIT_PATH: _submit_handler(submit), **streams}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a call, None for gRPC's own that are not served."""
        return self.of(handler_call_details.method)

    def of(self, path: str) -> Any:
        """Return the handler of a path, None for gRPC's own that are not served."""
        handler = self._handlers.get(path)
        if handler is None:
            if path.startswith(INFRASTRUCTURE_PREFIX):
                return None
            handler = _unary_handler(self._unary, path)
            if len(self._handlers) < _CACHED_HANDLERS_MAX:
                self._handlers[path] = handler
        return handler


# Callers choose paths; unknown ones must not fill the memory.
_CACHED_HANDLERS_MAX: Final = 1_000


def _unary_handler(unary: UnaryCalls, path: str) -> Any:
    async def serve(payload: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        return await unary.serve(path, payload, context)

    return grpc.unary_unary_rpc_method_handler(serve)


def _submit_handler(submit: SubmitStreams) -> Any:
    # Messages stay bytes until `submit` reads them, so that malformed ones get a proper refusal. It
    # also encodes the answers: while one is being written, which may take long, only bytes are
    # kept.
    async def serve(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await submit.serve(context)

    handler: Callable[[Any, Any], Awaitable[None]] = serve
    return grpc.stream_stream_rpc_method_handler(handler)


def _check_is_free(address: str) -> None:
    """Find out why an address cannot be bound: the gRPC library writes that only to its own log."""
    host, _, port = address.rpartition(":")
    try:
        grpc_transport.check_is_free(host.strip("[]"), int(port))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--listen {address}: cannot be bound ({error})") from error


def gateway_certificates(certificate: Path | None, key: Path | None) -> Certificates | None:
    """Return what two PEM files hold from time to time, None without them. Raises ConfigError."""
    if certificate is None or key is None:
        return None
    return read_certificates(PemFiles("--tls-certificate", certificate, key))


class GatewayServer:
    """The listening server of one replica."""

    def __init__(
        self,
        unary: UnaryCalls,
        submit: SubmitStreams,
        streams: Mapping[str, Any],
        *,
        reflection_is_open: bool = True,
        channelz_is_open: bool = False,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """Serve `streams`, handlers by path, beside the handler of every method.

        Reflection shows the methods, channelz the connections: both to anybody. Connections beyond
        `connections_max` are closed as soon as they are made.
        """
        most = ("grpc.max_allowed_incoming_connections", connections_max)
        self._server = grpc_transport.make_server((*SERVER_OPTIONS, most))
        self._health = HealthServicer()
        self._health_port: HealthPort | None = None
        self._leaves = False
        names = [s.full_name for m in _MODULES for s in m.DESCRIPTOR.services_by_name.values()]
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        handlers = {
            **streams,
            **health_handlers(self._health),
        }
        if channelz_is_open:
            handlers |= channelz_handlers()
        if reflection_is_open:
            handlers |= reflection_handlers([*names, health_name, reflection.SERVICE_NAME])
        found = _Handlers(unary, submit, handlers)
        self.handler_of: Final[Callable[[str], Any]] = found.of
        """Finds the handler of a path, as for a call from outside."""
        self._server.add_generic_rpc_handlers((found,))

    def listen(self, address: str, certificates: Certificates | None) -> int:
        """Bind `host:port`; return the port. Raises ConfigError if that fails."""
        _check_is_free(address)
        try:
            if certificates is None:
                return self._server.add_insecure_port(address)
            return grpc_transport.add_tls_port(self._server, address, lambda: certificates.texts)
        except RuntimeError as error:
            raise ConfigError(f"--listen {address}: cannot be bound ({error})") from error

    def listen_for_probes(self, address: str) -> None:
        """Bind another port for Health alone, in clear text. Raises ConfigError if that fails."""
        try:
            self._health_port = HealthPort(address, self._health)
        except (OSError, ValueError) as error:
            raise ConfigError(str(error)) from error

    async def start(self) -> None:
        """Begin to serve: alive, not yet ready."""
        await self._server.start()
        if self._health_port is not None:
            await self._health_port.start()
        await self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(False)

    async def set_ready(self, ready: bool) -> None:
        """Say whether commands and reads are served."""
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if ready and not self._leaves
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        await self._health.set(READINESS, status)
        await self._health.set("", status)

    async def leave(self) -> None:
        """Be not ready any more, whatever is said later: new callers go elsewhere."""
        self._leaves = True
        await self.set_ready(False)

    async def stop(self, grace_ms: int) -> None:
        """Finish what is under way, at most for `grace_ms`."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_ms / 1000)
        if self._health_port is not None:
            await self._health_port.stop()
