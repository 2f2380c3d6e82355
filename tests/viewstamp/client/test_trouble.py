"""Why no connection came about: derived from gRPC's errors, against real listeners."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

import viewstamp
from tests.deploy.certificates import self_signed
from tests.viewstamp.client.fake_gateway import PASSWORD, FakeGateway
from viewstamp import grpc_transport
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.client import CannotConnect, Endpoint, unary
from viewstamp.client.trouble import Trouble, cause_of, words_about
from viewstamp.grpc_transport import TlsTexts

HTTP = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
NO_HOST = "nowhere.invalid:7400"


@pytest.fixture
async def plain() -> AsyncIterator[str]:
    """The address of a gateway without TLS."""
    async with FakeGateway() as gateway:
        yield gateway.address


@pytest.fixture
async def encrypted(tmp_path: Path) -> AsyncIterator[tuple[str, Path]]:
    """The address of a gateway with TLS, and its authority."""
    authority = tmp_path / "ca.crt"
    key, certificate = self_signed(authority)
    async with FakeGateway(lambda: TlsTexts(None, certificate, key)) as gateway:
        yield gateway.address, authority


@asynccontextmanager
async def answering(words: bytes) -> AsyncIterator[str]:
    """Run a server that says the same to everybody and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(words)
        await writer.drain()
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def unused() -> str:
    """Return an address without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


async def failure(address: str, tls_ca: Path | None = None) -> grpc.aio.AioRpcError:
    """Return how a call fails there."""
    async with Endpoint(address, tls_ca).open() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, cluster_pb2.GetStatusRequest(), timeout_s=5)
    return caught.value


@pytest.mark.parametrize(
    ("address", "cause"),
    [(unused, Trouble.NOBODY_LISTENS), (lambda: NO_HOST, Trouble.NAME_UNKNOWN)],
)
async def test_where_nobody_is(address: Callable[[], str], cause: Trouble) -> None:
    """A port without a listener and a name without a host have different errors."""
    assert cause_of(await failure(address()), has_tls=False) is cause


async def test_a_listener_that_is_no_cluster(plain: str) -> None:
    """A server without gRPC, or without our methods, is named as such."""
    async with answering(HTTP) as address:
        assert cause_of(await failure(address), has_tls=False) is Trouble.NO_CLUSTER
    server = grpc_transport.make_server(())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    assert cause_of(await failure(f"127.0.0.1:{port}"), has_tls=False) is Trouble.NO_CLUSTER
    await server.stop(None)


async def test_encryption_on_one_side(
    plain: str, encrypted: tuple[str, Path], tmp_path: Path
) -> None:
    """A missing authority, one too many, a wrong one and a wrong host name are four causes."""
    address, authority = encrypted
    stranger = tmp_path / "stranger.crt"
    self_signed(stranger)
    port = address.rpartition(":")[2]
    assert cause_of(await failure(address), has_tls=False) is Trouble.CLOSED
    assert cause_of(await failure(plain, authority), has_tls=True) is Trouble.NO_TLS
    assert cause_of(await failure(address, stranger), has_tls=True) is Trouble.UNTRUSTED
    assert (
        cause_of(await failure(f"localhost:{port}", authority), has_tls=True) is Trouble.OTHER_NAME
    )


async def test_an_expired_certificate(tmp_path: Path) -> None:
    """An expired certificate is not taken for one of another authority."""
    authority = tmp_path / "old.crt"
    key, certificate = self_signed(authority, years=(2020, 2021))
    async with FakeGateway(lambda: TlsTexts(None, certificate, key)) as gateway:
        error = await failure(gateway.address, authority)
    assert cause_of(error, has_tls=True) is Trouble.EXPIRED


async def test_what_gives_no_cause_away_is_told_as_grpc_says_it() -> None:
    """A connection that breaks off with TLS in use says nothing about TLS."""
    async with answering(b"") as address:
        error = await failure(address)
    assert "UNAVAILABLE" in words_about(error, address, has_tls=True)
    assert words_about(await failure(NO_HOST), NO_HOST, has_tls=False).endswith("not known here")


async def test_the_library_names_the_cause(encrypted: tuple[str, Path]) -> None:
    """`connect` gives its findings, in words and as a value."""
    with pytest.raises(CannotConnect, match="may expect TLS") as caught:
        await viewstamp.connect(
            encrypted[0], username="root", password=PASSWORD, connect_timeout_s=0.5
        )
    assert caught.value.cause is Trouble.CLOSED


@pytest.mark.parametrize("content", [None, "hello"])
async def test_an_authority_of_no_use_is_not_tried(tmp_path: Path, content: str | None) -> None:
    """A file that is missing or holds no certificate fails at once, whatever the patience."""
    authority = tmp_path / "ca.crt"
    if content is not None:
        authority.write_text(content)
    async with asyncio.timeout(60):
        with pytest.raises(CannotConnect, match=f"tls_ca is of no use: {authority}"):
            await viewstamp.connect(
                NO_HOST, access_token="a", tls_ca=authority, connect_timeout_s=600
            )
