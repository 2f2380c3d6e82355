"""Certificates for tests."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

CERTIFICATE_NAME = "viewstamp"


def self_signed(
    path: Path, *others: str, years: tuple[int, int] = (2020, 2120)
) -> tuple[bytes, bytes]:
    """Write a certificate, valid between two years; return its key and the certificate, in PEM.

    It names CERTIFICATE_NAME, 127.0.0.1 and other names.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, CERTIFICATE_NAME)])
    names: list[x509.GeneralName] = [
        x509.DNSName(CERTIFICATE_NAME),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        *map(x509.DNSName, others),
    ]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(years[0], 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(years[1], 1, 1, tzinfo=datetime.UTC))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    path.write_bytes(pem)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private, pem
