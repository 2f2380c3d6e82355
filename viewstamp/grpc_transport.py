"""The only maker of gRPC channels and servers: all that are asynchronous are made here.

What makes them is chosen by `viewstamp.transports`, at the latest when the first one is made. Tests
may replace `transport`, below everything that opens channels or serves. Each transport raises
`grpc.aio.AioRpcError` as the library does.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import grpc
import grpc.aio

Options: TypeAlias = Sequence[tuple[str, Any]]


# By these keys a call tells its handler what the other end has proven.
SECURITY_TYPE_KEY: Final = "transport_security_type"
SUBJECT_NAMES_KEY: Final = "x509_subject_alternative_name"


@dataclass(frozen=True, slots=True)
class TlsTexts:
    """PEM texts of one end: who signs the certificates of the other end, and its own certificate.

    Without an authority a client trusts whom the system does, and a server asks for no certificate.
    """

    authority: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


class Transport(Protocol):
    """What makes channels and servers, in the shape of `grpc.aio`."""

    def channel(self, address: str, options: Options, texts: TlsTexts | None) -> grpc.aio.Channel:
        """Return a new channel to an address, encrypted if there are texts."""
        ...

    def server(self, options: Options) -> grpc.aio.Server:
        """Return a new server, which is bound to no address yet."""
        ...

    def add_tls_port(
        self, server: grpc.aio.Server, address: str, texts: Callable[[], TlsTexts]
    ) -> int:
        """Bind a server to an address, encrypted; each handshake takes the present texts.

        Return the port. Raises RuntimeError if the address is taken.
        """
        ...

    def check_is_free(self, host: str, port: int) -> None:
        """Raise OSError or OverflowError, with the cause, if a server cannot be bound there."""
        ...

    def channelz(self) -> Any:
        """Return a Channelz service that knows the channels and servers made here."""
        ...


class GrpcTransport:
    """The library itself."""

    def __init__(self) -> None:
        # The library has only pointers to them.
        self._credentials: list[grpc.ServerCredentials] = []

    def channel(self, address: str, options: Options, texts: TlsTexts | None) -> grpc.aio.Channel:
        """Return a new channel."""
        if texts is None:
            return grpc.aio.insecure_channel(address, options=options)
        credentials = grpc.ssl_channel_credentials(texts.authority, texts.key, texts.certificate)
        return grpc.aio.secure_channel(address, credentials, options=options)

    def server(self, options: Options) -> grpc.aio.Server:
        """Return a new server."""
        return grpc.aio.server(options=options)

    def add_tls_port(
        self, server: grpc.aio.Server, address: str, texts: Callable[[], TlsTexts]
    ) -> int:
        """Bind a server to an address."""
        first = texts()
        credentials = grpc.dynamic_ssl_server_credentials(
            _configuration(first),
            _fetcher(first, texts),  # type: ignore[arg-type]  # the stubs know no None, gRPC's text does
            first.authority is not None,
        )
        self._credentials.append(credentials)
        return server.add_secure_port(address, credentials)

    def check_is_free(self, host: str, port: int) -> None:
        """Bind the port for a moment: the library writes the cause only to its own log."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()

    def channelz(self) -> Any:
        """Return the library's service."""
        from grpc_channelz.v1._async import ChannelzServicer  # clients need not have it

        return ChannelzServicer()


def _configuration(texts: TlsTexts) -> grpc.ServerCertificateConfiguration:
    assert texts.key is not None and texts.certificate is not None, "a server has both"
    return grpc.ssl_server_certificate_configuration(
        [(texts.key, texts.certificate)], root_certificates=texts.authority
    )


def _fetcher(
    given: TlsTexts, texts: Callable[[], TlsTexts]
) -> Callable[[], grpc.ServerCertificateConfiguration | None]:
    """Return what the library asks before each handshake, on threads of its own. None is no news,
    and spares it to parse everything again."""

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        newest = texts()
        if newest == given:
            return None
        given = newest
        return _configuration(newest)

    return fetch


transport: Transport | None = None
"""What makes all channels and servers of this process; None until it is chosen."""


def present() -> Transport:
    """Return what makes channels and servers. Raises UnknownTransport for a wrong variable."""
    if transport is None:
        from viewstamp import transports  # it knows all of them, and so it loads this module

        transports.use(transports.chosen())
    assert transport is not None, "one was chosen"
    return transport


def open_channel(address: str, options: Options, texts: TlsTexts | None = None) -> grpc.aio.Channel:
    """Return a new channel to an address, encrypted if there are texts."""
    return present().channel(address, options, texts)


def make_server(options: Options) -> grpc.aio.Server:
    """Return a new server, which is bound to no address yet."""
    return present().server(options)


def add_tls_port(server: grpc.aio.Server, address: str, texts: Callable[[], TlsTexts]) -> int:
    """Bind a server to an address, encrypted; each handshake takes the present texts.

    Return the port. Raises RuntimeError if the address is taken.
    """
    return present().add_tls_port(server, address, texts)


def check_is_free(host: str, port: int) -> None:
    """Raise OSError or OverflowError, with the cause, if a server cannot be bound there."""
    present().check_is_free(host, port)


def make_channelz() -> Any:
    """Return a Channelz service that knows the channels and servers of this process."""
    return present().channelz()
