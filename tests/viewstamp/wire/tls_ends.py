"""Ends of TLS for tests of our transport: texts of certificates, a channel, and a call on it."""

from __future__ import annotations

from typing import Any, Final

from coordinator.peers.settings import PeerTls
from tests.coordinator.peers.certificates import Authority
from tests.viewstamp.wire.echo import ECHO
from viewstamp.grpc_transport import Options, TlsTexts
from viewstamp.wire.channel import WireChannel

PATIENCE_S: Final = 20
SERVER: Final = "server.test"
NAMED: Final = (("grpc.ssl_target_name_override", SERVER),)


def texts_of(files: PeerTls) -> TlsTexts:
    """Return the texts of an end that asks for certificates of the authority, and has one."""
    return TlsTexts(
        files.authority.read_bytes(), files.certificate.read_bytes(), files.key.read_bytes()
    )


def trusting(authority: Authority) -> TlsTexts:
    """Return the texts of a client without a certificate."""
    return TlsTexts(authority.path.read_bytes())


def our_channel(address: str, texts: TlsTexts, options: Options) -> Any:
    """Open a channel of ours."""
    return WireChannel(address, options, texts)


async def asked(channel: Any, path: str = ECHO, request: bytes = b"hello") -> bytes:
    """Call, close the channel, and return the answer."""
    async with channel:
        answer: bytes = await channel.unary_unary(path)(request, timeout=PATIENCE_S)
        return answer
