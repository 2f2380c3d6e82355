"""The authority of a cluster, the certificates that it signs, and files for its clients."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from testkit.kubernetes.layout import API_PORT, CONTROL_PLANE_ADDRESS

# Clocks of test machines are set back at times.
_VALID_BEFORE: Final = datetime.timedelta(days=1)
_VALID_AFTER: Final = datetime.timedelta(days=30)
_USES: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


class Credentials:
    """A directory with an authority and what it signed: NAME.crt, NAME.key, NAME.kubeconfig."""

    def __init__(self, directory: Path) -> None:
        """Make the authority, and the keys that sign the tokens of service accounts."""
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("viewstamp-test-authority")
        unsigned = _certificate(self._name, self._name, self._key.public_key())
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        signed = unsigned.add_extension(constraints, critical=True).sign(self._key, hashes.SHA256())
        self.authority.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        accounts = ec.generate_private_key(ec.SECP256R1())
        _write_key(self.path("accounts.key"), accounts)
        self.path("accounts.pub").write_bytes(
            accounts.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    @property
    def authority(self) -> Path:
        """The certificate that signed all others."""
        return self.path("authority.crt")

    def path(self, file: str) -> Path:
        """Return the path of a file among them."""
        return self._directory / file

    def sign(self, file: str, user: str, group: str = "", names: Sequence[str] = ()) -> None:
        """Write FILE.crt and FILE.key for a user in a group, or for a server with names."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(_name(user, group), self._name, key.public_key())
        certificate = certificate.add_extension(x509.ExtendedKeyUsage(_USES), critical=False)
        if names:
            alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
            certificate = certificate.add_extension(alternatives, critical=False)
        signed = certificate.sign(self._key, hashes.SHA256())
        self.path(f"{file}.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        _write_key(self.path(f"{file}.key"), key)

    def client(self, file: str, user: str, group: str = "") -> Path:
        """Sign a certificate for a client; return the file by which it finds the API server."""
        self.sign(file, user, group)
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "viewstamp-test",
                    "cluster": {
                        "server": f"https://{CONTROL_PLANE_ADDRESS}:{API_PORT}",
                        "certificate-authority": str(self.authority),
                    },
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate": str(self.path(f"{file}.crt")),
                        "client-key": str(self.path(f"{file}.key")),
                    },
                }
            ],
            "contexts": [{"name": "test", "context": {"cluster": "viewstamp-test", "user": user}}],
            "current-context": "test",
        }
        path = self.path(f"{file}.kubeconfig")
        path.write_text(yaml.safe_dump(document))
        return path


def _name(user: str, group: str = "") -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    if group:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(attributes)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID_BEFORE)
        .not_valid_after(now + _VALID_AFTER)
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
