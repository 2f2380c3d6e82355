"""The gateway behind TLS, with a certificate of the test's own making."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.processes.callers import Caller
from tests.processes.processes import ReplicaProcesses, eventually, short_directory, unique

EXPIRED = -datetime.timedelta(minutes=1)
pytestmark = pytest.mark.xdist_group("processes-start")


def write_certificate(
    directory: Path, lasts: datetime.timedelta = datetime.timedelta(hours=1)
) -> tuple[Path, Path]:
    """Write a self-signed certificate for 127.0.0.1 and its key; return both paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "viewstamp test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + lasts)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_path, key_path = directory / "tls.crt", directory / "tls.key"
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate_path, key_path


def test_tls() -> None:
    """Callers who trust the certificate are served; plain callers and others are not."""
    with short_directory() as directory:
        certificate, key = write_certificate(directory)
        flags = (f"--tls-certificate={certificate}", f"--tls-key={key}")
        running = ReplicaProcesses(directory, flags=flags)
        try:
            running.start()
            trusting = grpc.ssl_channel_credentials(certificate.read_bytes())
            with grpc.secure_channel(running.address, trusting) as channel:
                root = Caller(channel).logged_in("root", running.root_password())
                assert root.create_stream(unique("tls")).header.revision
            for channel in (
                grpc.insecure_channel(running.address),
                grpc.secure_channel(running.address, grpc.ssl_channel_credentials()),
            ):
                with channel, pytest.raises(grpc.RpcError) as caught:
                    Caller(channel).logged_in("root", running.root_password())
                code = caught.value.code()
                assert code is grpc.StatusCode.UNAVAILABLE
        finally:
            running.stop()


@pytest.mark.long
def test_a_certificate_that_expires_and_is_renewed() -> None:
    """A client that is connected goes on, a new one is refused with the reason, and renewed files
    serve new clients, all by the same process."""
    with short_directory() as directory:
        certificate, key = write_certificate(directory)
        running = ReplicaProcesses(
            directory, flags=(f"--tls-certificate={certificate}", f"--tls-key={key}")
        )
        try:
            running.start()
            with connected(running.address, certificate) as channel:
                root = Caller(channel).logged_in("root", running.root_password())
                write_certificate(directory, EXPIRED)
                eventually(lambda: root.alarms() == ["ALARM_KIND_CERTIFICATE_EXPIRY"])
                with connected(running.address, certificate) as late:
                    with pytest.raises(grpc.RpcError) as caught:
                        Caller(late, root.token).status()
                    assert "certificate has expired" in str(caught.value.details())
                assert root.create_stream(unique("tls")).header.revision
                write_certificate(directory)
                eventually(lambda: root.alarms() == [])
                with connected(running.address, certificate) as late:
                    assert Caller(late, root.token).status().replicas
        finally:
            running.stop()


def connected(address: str, authority: Path) -> grpc.Channel:
    """Return a channel of its own connection to a gateway, whose certificate signed itself."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    return grpc.secure_channel(
        address, grpc.ssl_channel_credentials(authority.read_bytes()), options
    )


@pytest.mark.long
def test_tls_files_that_cannot_be_used() -> None:
    """A certificate that is missing, unreadable or without its key is refused at the start."""
    with short_directory() as directory:
        certificate, key = write_certificate(directory)
        nonsense = directory / "nonsense"
        nonsense.write_text("no certificate")
        pairs = {
            (directory / "none", key): "No such file",
            (nonsense, key): "give a PEM chain",
            (certificate, nonsense): "give a PEM chain",
        }
        for (certificate_path, key_path), why in pairs.items():
            flags = (f"--tls-certificate={certificate_path}", f"--tls-key={key_path}")
            assert why in ReplicaProcesses(directory, flags=flags).refusal()
        lone = ReplicaProcesses(directory, flags=(f"--tls-certificate={certificate}",))
        assert "go together" in lone.refusal()
