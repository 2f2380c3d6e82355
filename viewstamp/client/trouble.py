"""The cause of a failed connection in plain words, derived from the error of the transport."""

from __future__ import annotations

from enum import Enum
from typing import Final

import grpc.aio


class Trouble(Enum):
    """Why a connection failed."""

    NOBODY_LISTENS = "nothing listens at {address}"
    NAME_UNKNOWN = "the name in {address} is not known here"
    PRIMARY_UNKNOWN = "the primary is at {address}, and that name is not known here"
    NO_TLS = "what listens at {address} does not speak TLS, and a certificate authority was given"
    UNTRUSTED = "the certificate of {address} does not come from the authority that was given"
    EXPIRED = "the certificate of {address} has expired"
    OTHER_NAME = "the certificate of {address} names other hosts"
    CLOSED = "{address} closed the connection: it may expect TLS, and no authority was given"
    NO_CLUSTER = "what listens at {address} is no Viewstamp cluster"
    OTHER = "{address} cannot be reached"


# The first text that the transport's text contains decides: some are the library's, some are ours.
# A server with TLS closes a connection without TLS, and so does a server that stops; the error does
# not tell which of them it was.
_SEEN: Final = (
    ("WRONG_VERSION_NUMBER", Trouble.NO_TLS),
    ("is not in peer certificate", Trouble.OTHER_NAME),
    ("mismatch, certificate is not valid for", Trouble.OTHER_NAME),
    ("Hostname Verification", Trouble.OTHER_NAME),
    ("certificate has expired", Trouble.EXPIRED),
    ("CERTIFICATE_VERIFY_FAILED", Trouble.UNTRUSTED),
    ("Failed parsing HTTP/2", Trouble.NO_CLUSTER),
    ("the peer broke the protocol", Trouble.NO_CLUSTER),
    ("Connection refused", Trouble.NOBODY_LISTENS),
    ("[Errno 111]", Trouble.NOBODY_LISTENS),
    ("errors resolving", Trouble.NAME_UNKNOWN),
    ("DNS resolution failed", Trouble.NAME_UNKNOWN),
    ("Socket closed", Trouble.CLOSED),
    ("Connection reset by peer", Trouble.CLOSED),
)
# gRPC's own text says more than these.
_UNCERTAIN: Final = frozenset({Trouble.OTHER, Trouble.UNTRUSTED, Trouble.OTHER_NAME})


def cause_of(error: grpc.aio.AioRpcError, *, has_tls: bool) -> Trouble:
    """Return what a failed call says about the connection."""
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return Trouble.NO_CLUSTER
    details = error.details() or ""
    cause = next((cause for seen, cause in _SEEN if seen in details), Trouble.OTHER)
    return Trouble.OTHER if cause is Trouble.CLOSED and has_tls else cause


def words_about(error: grpc.aio.AioRpcError, address: str, *, has_tls: bool) -> str:
    """Return the cause in words, and gRPC's own text where that says more."""
    cause = cause_of(error, has_tls=has_tls)
    text = cause.value.format(address=address)
    if cause in _UNCERTAIN:
        return f"{text} ({error.code().name}: {error.details()})"
    return text
