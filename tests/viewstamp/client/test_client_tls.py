"""The client over TLS: a certificate is believed if the given authority signed it."""

from __future__ import annotations

import asyncio
import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import viewstamp
from tests.coordinator.peers.certificates import BEGIN, Authority
from tests.viewstamp.client.fake_gateway import PASSWORD, FakeGateway
from viewstamp.certificates.pem_files import Certificates, PemFiles
from viewstamp.client import CannotConnect, Endpoint
from viewstamp.client.trouble import Trouble, cause_of
from viewstamp.grpc_transport import TlsTexts


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
    async with FakeGateway(lambda: TlsTexts(None, pair[1], pair[0])) as gateway:
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


async def test_an_authority_that_is_being_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that was connected waits while the file of its authority is missing, and its command
    takes effect once the file is back."""
    missed, opened = asyncio.Event(), Endpoint.open

    def noted(endpoint: Endpoint) -> grpc.aio.Channel:
        try:
            return opened(endpoint)
        except OSError:
            missed.set()
            raise

    monkeypatch.setattr(Endpoint, "open", noted)
    pair = certificate()
    path, away = tmp_path / "ca.crt", tmp_path / "away"
    path.write_bytes(pair[1])
    async with FakeGateway(lambda: TlsTexts(None, pair[1], pair[0])) as gateway:
        async with await viewstamp.connect(
            gateway.address, username="root", password=PASSWORD, tls_ca=path
        ) as client:
            await client.streams.create("before")
            path.rename(away)
            gateway.break_streams()
            async with asyncio.timeout(20):
                await missed.wait()
            waiting = asyncio.create_task(client.streams.create("meanwhile"))
            away.rename(path)
            assert (await waiting).stream_id == 2
        assert len(gateway.sessions) == 1


async def test_a_gateway_whose_certificate_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connected client goes on past the end of the gateway's certificate. Cut off then, it waits,
    and its command takes effect once the certificate is renewed."""
    told: asyncio.Queue[Trouble] = asyncio.Queue()

    def noted(error: grpc.aio.AioRpcError, *, has_tls: bool) -> Trouble:
        cause = cause_of(error, has_tls=has_tls)
        told.put_nowait(cause)
        return cause

    monkeypatch.setattr("viewstamp.client.submitter.cause_of", noted)
    authority = Authority.create(tmp_path / "authority")
    pair = authority.issue("127.0.0.1")
    certificates = Certificates(PemFiles("--tls-certificate", pair.certificate, pair.key))
    async with FakeGateway(lambda: certificates.texts) as gateway:
        async with await viewstamp.connect(
            gateway.address, username="root", password=PASSWORD, tls_ca=authority.path
        ) as client:
            authority.issue("127.0.0.1", valid=(BEGIN, BEGIN + timedelta(days=1)))
            certificates.take(certificates.look())
            assert (await client.streams.create("before")).stream_id == 1
            gateway.break_streams()
            waiting = asyncio.create_task(client.streams.create("meanwhile"))
            async with asyncio.timeout(20):
                while await told.get() is not Trouble.EXPIRED:
                    pass
            authority.issue("127.0.0.1")
            certificates.take(certificates.look())
            assert (await waiting).stream_id == 2
        assert len(gateway.sessions) == 1
