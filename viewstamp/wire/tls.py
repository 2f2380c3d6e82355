"""TLS under HTTP/2: contexts from PEM texts, and what a connection proves of its other end.

HTTP/2 over TLS asks for its own name in ALPN, and for neither compression nor renegotiation (RFC
9113, section 9.2). TLS 1.3 has neither. Version 1.2 is not spoken, because Python cannot keep
OpenSSL from resuming its sessions, and each connection has to prove its certificate anew.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from typing import Any, Final

from viewstamp.grpc_transport import SECURITY_TYPE_KEY, SUBJECT_NAMES_KEY, TlsTexts

ALPN: Final = "h2"


class UnusableTexts(ValueError):  # noqa: N818 - reads as the sentence it is
    """PEM texts with which no handshake can be done."""


def client_context(texts: TlsTexts) -> ssl.SSLContext:
    """Return the context of a client. Raises UnusableTexts."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, texts)
    if texts.authority is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def server_context(texts: TlsTexts) -> ssl.SSLContext:
    """Return the context of a server; clients must have a certificate if there is an authority.

    Raises UnusableTexts.
    """
    if texts.certificate is None:
        raise UnusableTexts("a server needs a certificate and its key for TLS")
    context = _context(ssl.PROTOCOL_TLS_SERVER, texts)
    if texts.authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0
    return context


def _context(protocol: int, texts: TlsTexts) -> ssl.SSLContext:
    if (texts.certificate is None) is not (texts.key is None):
        raise UnusableTexts("for TLS a certificate needs its key, and a key its certificate")
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # An authority that another one has signed is trusted as well, as by the library.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols([ALPN])
    try:
        if texts.authority is not None:
            context.load_verify_locations(cadata=texts.authority.decode())
        if texts.certificate is not None and texts.key is not None:
            _load(context, texts.certificate, texts.key)
    except (ssl.SSLError, ValueError, TypeError) as error:
        raise UnusableTexts(f"these PEM texts are of no use for TLS: {error}") from error
    return context


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a chain and its key, which OpenSSL takes from files only: of memory, not of a disk."""
    descriptor = os.memfd_create("viewstamp-tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(certificate.rstrip() + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=_no_password)
    finally:
        os.close(descriptor)


def _no_password() -> str:
    """Keep OpenSSL from asking whoever sits before the terminal."""
    raise ValueError("the key is encrypted, and nobody gives its password")


def speaks_http2(transport: asyncio.Transport) -> bool:
    """Return whether both ends agreed on HTTP/2, as they always do without TLS."""
    encrypted = transport.get_extra_info("ssl_object")
    return encrypted is None or encrypted.selected_alpn_protocol() == ALPN


def proven_by(transport: asyncio.Transport) -> Mapping[str, list[bytes]]:
    """Return what the certificate of the other end proves, in the shape of the library."""
    encrypted = transport.get_extra_info("ssl_object")
    if encrypted is None:
        return {SECURITY_TYPE_KEY: [b"insecure"]}
    proven = {SECURITY_TYPE_KEY: [b"ssl"]}
    certificate: Mapping[str, Any] = encrypted.getpeercert() or {}
    names = [str(value).encode() for _, value in certificate.get("subjectAltName", ())]
    if names:
        proven[SUBJECT_NAMES_KEY] = names
    return proven
