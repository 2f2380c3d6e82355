"""Certificates of replicas: each side proves by its certificate which replica it is.

A replica's certificate names it by the DNS subject alternative name `replica-<id>.viewstamp`, and
is valid for server and client authentication. One authority signs the certificates of one cluster,
and nothing else. Files are read when the process starts; new ones need a restart.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any, Final

import grpc

from coordinator.base.errors import ConfigError
from coordinator.peers.settings import PeerTls

SUBJECT_NAMES_KEY: Final = "x509_subject_alternative_name"


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """The TLS credentials of a replica, for both directions."""

    server: grpc.ServerCredentials
    channel: grpc.ChannelCredentials


def certificate_name(replica: int) -> str:
    """Return the name that a replica's certificate must have."""
    return f"replica-{replica}.viewstamp"


def load_credentials(files: PeerTls) -> PeerCredentials:
    """Return the credentials of this replica. Raises ConfigError."""
    try:
        # Checks that the files belong together; gRPC would only fail to connect.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        context.load_verify_locations(files.authority)
        certificate, key, authority = (
            path.read_bytes() for path in (files.certificate, files.key, files.authority)
        )
    except OSError as error:
        raise ConfigError(
            f"--peer-tls-certificate {files.certificate}, --peer-tls-key {files.key} and"
            f" --peer-tls-ca {files.authority} cannot be used: {error}; give a PEM chain, the PEM"
            " key that belongs to it, and the PEM certificate of the replicas' authority"
        ) from error
    return PeerCredentials(
        grpc.ssl_server_credentials(
            [(key, certificate)], root_certificates=authority, require_client_auth=True
        ),
        grpc.ssl_channel_credentials(authority, key, certificate),
    )


def names_of(context: Any) -> frozenset[str] | None:
    """Return the names that the caller's certificate proves, None where TLS is off."""
    properties = context.auth_context()
    if SUBJECT_NAMES_KEY not in properties:
        # With TLS, a caller without names has a certificate that proves nothing.
        is_secure = properties.get("transport_security_type", [b"insecure"]) != [b"insecure"]
        return frozenset() if is_secure else None
    return frozenset(name.decode() for name in properties[SUBJECT_NAMES_KEY])
