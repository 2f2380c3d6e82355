"""The client over TLS: a certificate is believed if the given authority signed it."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import viewstamp
from tests.viewstamp.client.fake_gateway import PASSWORD, FakeGateway
from viewstamp.client import CannotConnect


def certificate() -> tuple[bytes, bytes]:
    """Return a key and a certificate for 127.0.0.1 that it signed itself, both in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoded_key = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return encoded_key, signed.public_bytes(serialization.Encoding.PEM)


async def test_certificate_of_the_given_authority_is_believed(tmp_path: Path) -> None:
    """With the right authority calls work; with another one, or none, no secret is sent."""
    pair, other = certificate(), certificate()
    (tmp_path / "ca.crt").write_bytes(pair[1])
    (tmp_path / "other.crt").write_bytes(other[1])
    async with FakeGateway(grpc.ssl_server_credentials([pair])) as gateway:
        async with await viewstamp.connect(
            gateway.address, username="root", password=PASSWORD, tls_ca=tmp_path / "ca.crt"
        ) as client:
            assert (await client.streams.create("orders")).stream_id == 1
        for authority in (tmp_path / "other.crt", None):
            with pytest.raises(CannotConnect):
                await viewstamp.connect(
                    gateway.address,
                    username="root",
                    password=PASSWORD,
                    tls_ca=authority,
                    connect_timeout_s=0.3,
                )
        with pytest.raises(CannotConnect, match="missing"):
            await viewstamp.connect(
                gateway.address, username="root", password=PASSWORD, tls_ca=tmp_path / "missing"
            )
        assert gateway.logins == 1
