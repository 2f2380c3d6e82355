"""Certificates of replicas: each side proves by its certificate which replica it is.

A replica's certificate names it by the DNS subject alternative name `replica-<id>.viewstamp`, and
is valid for server and client authentication. One authority signs the certificates of one cluster,
and nothing else. Renewed files are taken without a restart (`viewstamp.certificates`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coordinator.base.credentials import read_certificates
from coordinator.peers.settings import PeerTls
from viewstamp.certificates.pem_files import Certificates, Expiry, PemFiles, printable

US_PER_S: Final = 1_000_000
# How gRPC tells of the other side's certificate, and of a connection that the other side closed.
_TOLD_OF_PEER: Final = ("certificate has expired", "certificate is not yet valid")
_TOLD_BY_SILENCE: Final = ("Socket closed", "Connection reset by peer", "Broken pipe")


def certificate_name(replica: int) -> str:
    """Return the name that a replica's certificate must have."""
    return f"replica-{replica}.viewstamp"


def load_credentials(files: PeerTls) -> Certificates:
    """Return the credentials of this replica, for both directions. Raises ConfigError."""
    return read_certificates(
        PemFiles("--peer-tls-certificate", files.certificate, files.key, files.authority)
    )


def expiry_that_refuses(told: str, own: Sequence[Expiry], now_us: int) -> str:
    """Return which end of a certificate explains what gRPC told of a connection, if one does.

    A server whose client has no valid certificate closes the connection without a word, so the own
    files are looked at.
    """
    if any(words in told for words in _TOLD_OF_PEER):
        return (
            "its certificate, or that of its authority, is not valid at this time: renew it there,"
            " or correct the clock here"
        )
    bad = [each for each in own if not each.is_good(now_us // US_PER_S)]
    if bad and any(words in told for words in _TOLD_BY_SILENCE):
        path = printable(str(bad[0].path))
        return f"{bad[0].flag} {path} of this replica is not valid at this time: renew it"
    return ""
