"""Certificates for tests: an authority, and the certificates that it signs."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coordinator.peers.settings import PeerTls

# This period covers any clock of a test machine.
BEGIN = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
END = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Authority:
    """Signs certificates, and keeps its files in a directory of its own."""

    directory: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @staticmethod
    def create(directory: Path) -> Authority:
        """Make the directory, and return a new authority with its certificate there."""
        directory.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder("authority", key.public_key(), "authority")
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        authority = Authority(directory, key, certificate)
        _write(authority.path, certificate.public_bytes(serialization.Encoding.PEM))
        return authority

    @property
    def path(self) -> Path:
        """The file with the authority's certificate."""
        return self.directory / "authority.pem"

    def issue(
        self, name: str, trusted: Authority | None = None, *, is_named: bool = True
    ) -> PeerTls:
        """Return files of a certificate for a DNS name, and of the authority that it trusts.

        An unnamed certificate has the name in its subject alone.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = _builder(name, key.public_key(), "authority").add_extension(
            x509.ExtendedKeyUsage(uses), critical=False
        )
        if is_named:
            names = x509.SubjectAlternativeName([x509.DNSName(name)])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        files = PeerTls(
            self.directory / f"{name}.pem",
            self.directory / f"{name}.key",
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
    name: str, public_key: ec.EllipticCurvePublicKey, issuer: str
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(BEGIN)
        .not_valid_after(END)
    )


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o600)
