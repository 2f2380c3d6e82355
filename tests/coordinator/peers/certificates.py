"""Certificates for tests: an authority, and the certificates that it signs."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import (
    CertificateIssuerPrivateKeyTypes,
    CertificatePublicKeyTypes,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coordinator.peers.settings import PeerTls

# From when to when a certificate is valid.
Period: TypeAlias = tuple[datetime.datetime, datetime.datetime]
# This period covers any clock of a test machine.
BEGIN = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
END = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)
ALWAYS = (BEGIN, END)


@dataclass(frozen=True)
class Authority:
    """Signs certificates, and keeps its files in a directory of its own."""

    directory: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    name: str = "authority"

    @staticmethod
    def create(directory: Path, valid: Period = ALWAYS, name: str = "authority") -> Authority:
        """Make the directory, and return a new authority with its certificate there."""
        directory.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        # By the identifier of its key another authority of the same name is told from this one.
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = (
            _builder(name, key.public_key(), valid, name)
            .add_extension(identifier, critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        authority = Authority(directory, key, certificate, name)
        _write(authority.path, certificate.public_bytes(serialization.Encoding.PEM))
        return authority

    @property
    def path(self) -> Path:
        """The file with the authority's certificate."""
        return self.directory / "authority.pem"

    def issue(
        self,
        name: str,
        trusted: Authority | None = None,
        *,
        is_named: bool = True,
        valid: Period = ALWAYS,
        directory: Path | None = None,
        key: CertificateIssuerPrivateKeyTypes | None = None,
    ) -> PeerTls:
        """Return files of a certificate for a name, and of the authority that it trusts.

        The name is one of DNS, or an address. An unnamed certificate has it in its subject alone.
        The files are in the authority's directory, or in another one. Without a key a new one is
        made.
        """
        directory = directory or self.directory
        key = key or ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = (
            _builder(name, key.public_key(), valid, self.name)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(signer, critical=False)
        )
        if is_named:
            names = x509.SubjectAlternativeName([_general_name(name)])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        files = PeerTls(
            directory / f"{name}.pem",
            directory / f"{name}.key",
            (trusted or self).path,
        )
        _write(files.certificate, certificate.public_bytes(serialization.Encoding.PEM))
        _write(
            files.key,
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )
        return files


def _builder(
    name: str, public_key: CertificatePublicKeyTypes, valid: Period, issuer: str
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid[0])
        .not_valid_after(valid[1])
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o600)
