"""TLS under our transport: ours and the library agree on it, and nobody gets in who may not.

Method: a server and a client in one process, over real sockets, with certificates made for the
test; strangers use Python's own `ssl`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives import serialization

from tests.coordinator.peers.certificates import Authority
from tests.viewstamp.wire.echo import ECHO, WHO, Echo
from tests.viewstamp.wire.tls_ends import (
    NAMED,
    PATIENCE_S,
    SERVER,
    asked,
    our_channel,
    texts_of,
    trusting,
)
from viewstamp import event_loop
from viewstamp.grpc_transport import Options, TlsTexts
from viewstamp.wire.server import WireServer
from viewstamp.wire.tls import ALPN, UnusableTexts


def library_channel(address: str, texts: TlsTexts, options: Options) -> Any:
    """Open a channel of the library."""
    credentials = grpc.ssl_channel_credentials(texts.authority, texts.key, texts.certificate)
    return grpc.aio.secure_channel(address, credentials, options)


def our_port(texts: TlsTexts) -> tuple[Any, int]:
    """Return a server of ours, and its port."""
    server = WireServer(())
    return server, server.add_tls_port("127.0.0.1:0", lambda: texts)


def library_port(texts: TlsTexts) -> tuple[Any, int]:
    """Return a server of the library, and its port."""
    server = grpc.aio.server()
    assert texts.key is not None and texts.certificate is not None, "a server has both"
    credentials = grpc.ssl_server_credentials(
        [(texts.key, texts.certificate)], texts.authority, texts.authority is not None
    )
    return server, server.add_secure_port("127.0.0.1:0", credentials)


Channels = Callable[[str, TlsTexts, Options], Any]
Ports = Callable[[TlsTexts], tuple[Any, int]]
CHANNELS: Final[dict[str, Channels]] = {"ours": our_channel, "library": library_channel}
PORTS: Final[dict[str, Ports]] = {"ours": our_port, "library": library_port}
PAIRS: Final = [
    pytest.param(channel, port, id=f"{client}-to-{server}")
    for client, channel in CHANNELS.items()
    for server, port in PORTS.items()
]


@asynccontextmanager
async def serving(server: Any) -> AsyncIterator[None]:
    """Let a server serve until the block ends."""
    server.add_generic_rpc_handlers((Echo().handlers(),))
    await server.start()
    yield
    await server.stop(None)


async def refused(channel: Any) -> str:
    """Call, and return why nobody is there."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asked(channel)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return str(caught.value.details())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Give who signs all certificates."""
    return Authority.create(tmp_path / "authority")


@pytest.mark.parametrize(("open_channel", "bind"), PAIRS)
async def test_both_ends_prove_who_they_are(
    authority: Authority, open_channel: Channels, bind: Ports
) -> None:
    """A message of a megabyte goes to and fro, and the server knows the names of its caller."""
    caller = texts_of(authority.issue("caller.test"))
    server, port = bind(texts_of(authority.issue(SERVER)))
    async with serving(server):
        address = f"127.0.0.1:{port}"
        message = bytes(range(256)) * 4096
        assert await asked(open_channel(address, caller, NAMED), ECHO, message) == message
        assert await asked(open_channel(address, caller, NAMED), WHO) == b"ssl caller.test"


@pytest.mark.parametrize(("open_channel", "bind"), PAIRS)
async def test_the_address_is_a_name(
    authority: Authority, open_channel: Channels, bind: Ports
) -> None:
    """Without another name the server's certificate has to name its address; nobody asks for one
    of the caller."""
    files = authority.issue("127.0.0.1")
    server, port = bind(TlsTexts(None, files.certificate.read_bytes(), files.key.read_bytes()))
    async with serving(server):
        address = f"127.0.0.1:{port}"
        assert await asked(open_channel(address, trusting(authority), ()), WHO) == b"ssl "
        assert await refused(open_channel(address, trusting(authority), NAMED))


@pytest.mark.parametrize("bind", PORTS.values(), ids=PORTS)
async def test_our_client_leaves_who_is_not_trusted(
    tmp_path: Path, authority: Authority, bind: Ports
) -> None:
    """A server whose authority is another one gets no call, and the caller is told why."""
    stranger = Authority.create(tmp_path / "stranger")
    files = stranger.issue(SERVER)
    server, port = bind(TlsTexts(None, files.certificate.read_bytes(), files.key.read_bytes()))
    async with serving(server):
        told = await refused(our_channel(f"127.0.0.1:{port}", trusting(authority), NAMED))
    assert "certificate verify failed" in told


@pytest.mark.parametrize("open_channel", CHANNELS.values(), ids=CHANNELS)
async def test_our_server_takes_no_caller_without_a_certificate(
    tmp_path: Path, authority: Authority, open_channel: Channels
) -> None:
    """Neither a caller without one nor one of another authority is served."""
    stranger = Authority.create(tmp_path / "stranger").issue("caller.test", trusted=authority)
    server, port = our_port(texts_of(authority.issue(SERVER)))
    async with serving(server):
        for texts in (trusting(authority), texts_of(stranger)):
            await refused(open_channel(f"127.0.0.1:{port}", texts, NAMED))
        assert server.connections == 0


async def test_each_handshake_takes_the_present_texts(tmp_path: Path, authority: Authority) -> None:
    """A renewed authority holds from the next connection on; one that is there stays."""
    later = Authority.create(tmp_path / "later")
    present = texts_of(authority.issue(SERVER))
    old, new = texts_of(authority.issue("old.test")), texts_of(later.issue("new.test"))
    server = WireServer(())
    address = f"127.0.0.1:{server.add_tls_port('127.0.0.1:0', lambda: present)}"
    async with serving(server), our_channel(address, old, NAMED) as kept:
        echo = kept.unary_unary(ECHO)
        assert await echo(b"before", timeout=PATIENCE_S) == b"before"
        present = texts_of(later.issue(SERVER))
        assert await asked(our_channel(address, new, NAMED), WHO) == b"ssl new.test"
        await refused(our_channel(address, old, NAMED))
        assert await echo(b"after", timeout=PATIENCE_S) == b"after"


async def test_a_unix_socket_is_encrypted_as_well(tmp_path: Path, authority: Authority) -> None:
    """A channel with an authority trusts no server without TLS, wherever it listens."""
    files = authority.issue("localhost")
    caller = texts_of(authority.issue("caller.test"))
    server = WireServer(())
    server.add_tls_port(f"unix:{tmp_path / 'tls'}", lambda: texts_of(files))
    server.add_insecure_port(f"unix:{tmp_path / 'plain'}")
    async with serving(server):
        assert await asked(our_channel(f"unix:{tmp_path / 'tls'}", caller, ()), WHO) == (
            b"ssl caller.test"
        )
        await refused(our_channel(f"unix:{tmp_path / 'plain'}", caller, ()))


async def test_a_session_is_not_resumed(authority: Authority) -> None:
    """Whoever was connected before proves his certificate again; TLS 1.2 is not spoken."""
    caller = authority.issue("caller.test")
    server, port = our_port(texts_of(authority.issue(SERVER)))
    context = ssl.create_default_context(cafile=str(authority.path))
    context.load_cert_chain(caller.certificate, caller.key)
    context.set_alpn_protocols([ALPN])

    def session_of(known: ssl.SSLSession | None) -> ssl.SSLSocket:
        connected = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        made = context.wrap_socket(connected, server_hostname=SERVER, session=known)
        made.recv(1)
        return made

    async with serving(server):
        first = await asyncio.to_thread(session_of, None)
        second = await asyncio.to_thread(session_of, first.session)
        assert (first.version(), second.session_reused) == ("TLSv1.3", False)
        first.close()
        second.close()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):
            await asyncio.to_thread(session_of, None)


async def test_who_agrees_on_no_http2_is_left(authority: Authority) -> None:
    """A caller that offers another protocol, or none, is told nothing."""
    files = authority.issue(SERVER)
    server, port = our_port(TlsTexts(None, files.certificate.read_bytes(), files.key.read_bytes()))
    async with serving(server):
        for offered in ([], ["http/1.1"]):
            context = ssl.create_default_context(cafile=str(authority.path))
            if offered:
                context.set_alpn_protocols(offered)
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname=SERVER
            )
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            writer.close()
        assert server.connections == 0


async def test_our_client_speaks_http2_alone(authority: Authority) -> None:
    """A server that does not agree on HTTP/2 gets no call."""
    files = authority.issue(SERVER)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(meet, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    told = await refused(our_channel(f"127.0.0.1:{port}", trusting(authority), NAMED))
    server.close()
    assert ALPN in told


def test_tls_runs_on_the_loop_of_the_processes(authority: Authority) -> None:
    """The event loop of the product carries it as that of Python does."""

    async def exchange() -> bytes:
        server, port = our_port(texts_of(authority.issue(SERVER)))
        async with serving(server):
            caller = texts_of(authority.issue("caller.test"))
            return await asked(our_channel(f"127.0.0.1:{port}", caller, NAMED), WHO)

    assert event_loop.run(exchange()) == b"ssl caller.test"


@pytest.mark.parametrize("text", [b"", b"no certificate", "kein Schl\u00fcssel".encode()])
def test_wrong_texts_are_refused(text: bytes) -> None:
    """Texts that are no certificates raise where a channel, or the port of a server, is made."""
    with pytest.raises(UnusableTexts, match="of no use for TLS"):
        our_channel("127.0.0.1:1", TlsTexts(text), ())
    with pytest.raises(UnusableTexts, match="of no use for TLS"):
        WireServer(()).add_tls_port("127.0.0.1:0", lambda: TlsTexts(None, text, text))


def test_half_of_a_pair_is_refused(authority: Authority) -> None:
    """A certificate without its key, and a server without either, are errors at once."""
    whole = texts_of(authority.issue(SERVER))
    for half in (replace(whole, key=None), replace(whole, certificate=None)):
        with pytest.raises(UnusableTexts, match="needs its"):
            our_channel("127.0.0.1:1", half, ())
    with pytest.raises(UnusableTexts, match="a server needs"):
        WireServer(()).add_tls_port("127.0.0.1:0", lambda: trusting(authority))


def test_an_encrypted_key_asks_nobody(authority: Authority) -> None:
    """A key whose password nobody gives is an error, and no question on the terminal."""
    files = authority.issue(SERVER)
    key = serialization.load_pem_private_key(files.key.read_bytes(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    with pytest.raises(UnusableTexts, match="nobody gives its password"):
        our_channel("127.0.0.1:1", TlsTexts(None, files.certificate.read_bytes(), key), ())


def test_nobody_prints_a_key(authority: Authority) -> None:
    """Whatever shows the texts leaves the key out."""
    assert "PRIVATE" not in repr(texts_of(authority.issue(SERVER)))
