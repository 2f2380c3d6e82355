"""Which addresses a service serves in clear text, and who may call it behind TLS."""

from __future__ import annotations

import argparse
import datetime
import logging
from pathlib import Path

import grpc
import pytest

from services.runtime import encryption
from services.runtime.encryption import LoggedAlarms, files_of, refusal_of
from tests.coordinator.peers.certificates import BEGIN, END, Authority
from tests.services.runtime.test_process import ready_line, refused, start, stopped
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1.domain_service_pb2_grpc import DomainServiceStub
from viewstamp.certificates.pem_files import Certificates, PemFiles
from viewstamp.certificates.proven_names import coordinator_name, service_name

TLS = ("--tls-certificate=c", "--tls-key=k", "--tls-ca=a")


def options(*arguments: str) -> argparse.Namespace:
    """Return the options of a service."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen")
    encryption.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "is_encrypted"),
    [
        (("--listen=unix:/run/users.sock",), False),
        (("--listen=127.0.0.1:7441",), False),
        (("--listen=[::1]:7441",), False),
        (("--listen=localhost:7441",), False),
        (("--listen=0.0.0.0:7441", "--plaintext"), False),
        (("--listen=0.0.0.0:7441", *TLS), True),
        (("--listen=127.0.0.1:7441", *TLS), True),
    ],
)
def test_what_serves(arguments: tuple[str, ...], is_encrypted: bool) -> None:
    """This machine needs no TLS, and a network has it unless the operator says otherwise."""
    assert (files_of(options(*arguments)) is not None) is is_encrypted


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--listen=0.0.0.0:7441",), "other machines can reach it"),
        (("--listen=[::]:7441",), "other machines can reach it"),
        (("--listen=users.example.com:7441",), "or --plaintext"),
        (("--listen=0.0.0.0:7441", *TLS[:2]), "go together"),
        (("--listen=0.0.0.0:7441", *TLS, "--plaintext"), "exclude each other"),
        (("--listen=unix:/run/users.sock", *TLS), "a unix socket has no TLS"),
    ],
)
def test_what_does_not(arguments: tuple[str, ...], complaint: str) -> None:
    """Clear text on a network, halves of a certificate, and contradictions are refused."""
    with pytest.raises(ValueError, match=complaint):
        files_of(options(*arguments))


@pytest.mark.parametrize(
    ("names", "replica", "may_call"),
    [
        (None, None, True),
        (None, 0, True),
        ({coordinator_name(0)}, None, True),
        ({coordinator_name(0)}, 0, True),
        ({coordinator_name(0), "other.example"}, 0, True),
        ({coordinator_name(1)}, 0, False),
        ({coordinator_name(10)}, 1, False),
        (set(), None, False),
        ({"replica-0.viewstamp"}, None, False),
        ({f"x{coordinator_name(0)}"}, None, False),
        ({f"{coordinator_name(0)}.example.com"}, None, False),
        ({"coordinator-*.viewstamp"}, None, False),
        ({service_name("users", 0)}, 0, False),
    ],
)
def test_who_may_call(names: set[str] | None, replica: int | None, may_call: bool) -> None:
    """Behind TLS a caller is a coordinator, and that of the service's own replica once it is
    known."""
    refusal = refusal_of(None if names is None else frozenset(names), replica)

    assert (refusal == "") is may_call


def test_alarms_are_written_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the beginning and the end of what is wrong, and not each look at it."""
    alarms, kind = LoggedAlarms(), cluster_pb2.ALARM_KIND_CERTIFICATE_EXPIRY
    with caplog.at_level(logging.WARNING):
        alarms.clear(kind, "--tls-ca")
        for left in ("2 days", "1 days"):
            alarms.tell(kind, f"--tls-ca expires in {left}", "--tls-ca")
        alarms.clear(kind, "--tls-ca")
        alarms.tell(kind, "--tls-ca expires in 1 days", "--tls-ca")

    written = [record.message for record in caplog.records]
    assert written == ["alarm raised", "alarm cleared", "alarm raised"]


def test_page_tells_when_certificates_expire(tmp_path: Path) -> None:
    """The page of metrics has the end of each file, and nothing where there is none."""
    end = datetime.datetime(2050, 1, 1, tzinfo=datetime.UTC)
    files = Authority.create(tmp_path / "authority").issue("users", valid=(BEGIN, end))
    certificates = Certificates(
        PemFiles("--tls-certificate", files.certificate, files.key, files.authority)
    )

    (family,) = encryption.families_of(certificates)
    told = {sample.labels["flag"]: sample.value for sample in family.samples}

    assert told == {"--tls-certificate": end.timestamp(), "--tls-ca": END.timestamp()}
    assert list(encryption.families_of(None)) == []


def test_process_refuses_a_network_without_tls() -> None:
    """A service that others could reach in clear text does not start, and says what to give."""
    assert "--tls-certificate" in refused("--listen", "0.0.0.0:0")


def test_process_serves_coordinators_alone(tmp_path: Path) -> None:
    """A process with a certificate answers a coordinator, and nobody in clear text."""
    authority = Authority.create(tmp_path / "authority")
    files = authority.issue(service_name("users", 0))
    process = start(
        *("--listen", "127.0.0.1:0", "--tls-certificate", str(files.certificate)),
        *("--tls-key", str(files.key), "--tls-ca", str(files.authority)),
    )
    try:
        address = ready_line(process)["listen"]
        own = authority.issue(coordinator_name(0))
        credentials = grpc.ssl_channel_credentials(
            own.authority.read_bytes(), own.key.read_bytes(), own.certificate.read_bytes()
        )
        named = [("grpc.ssl_target_name_override", service_name("users", 0))]
        with grpc.secure_channel(address, credentials, named) as channel:
            assert DomainServiceStub(channel).Describe(pb.DescribeRequest()).stage == 3
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
            DomainServiceStub(channel).Describe(pb.DescribeRequest())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        process.terminate()
        code, _ = stopped(process)
    assert code == 0
