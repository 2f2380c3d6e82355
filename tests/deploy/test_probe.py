"""The client that Kubernetes runs to ask a process for its health."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services.runtime import probe
from tests.deploy.certificates import CERTIFICATE_NAME, self_signed

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class SilentServer(health_pb2_grpc.HealthServicer):
    """A process that takes calls and never answers them, like one whose event loop is stuck."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def Check(  # noqa: N802 - the RPC's name
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Hold the call until the test is over."""
        self.released.wait()
        return health_pb2.HealthCheckResponse(status=SERVING)


def _server(servicer: health_pb2_grpc.HealthServicer) -> grpc.Server:
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    return server


@pytest.fixture
def alive_not_ready(tmp_path: Path) -> Iterator[str]:
    """A service that lives and waits for its coordinator, on a unix socket."""
    servicer = health.HealthServicer()
    servicer.set("liveness", SERVING)
    servicer.set("readiness", NOT_SERVING)
    server = _server(servicer)
    target = f"unix:{tmp_path}/users.sock"
    server.add_insecure_port(target)
    server.start()
    yield target
    server.stop(None).wait()


@pytest.mark.parametrize(
    ("service", "exit_code", "reason"),
    [
        ("liveness", probe.EXIT_SERVING, ""),
        ("readiness", probe.EXIT_NOT_SERVING, "readiness is NOT_SERVING"),
    ],
)
def test_exit_code_tells_liveness_from_readiness(
    alive_not_ready: str,
    service: str,
    exit_code: int,
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A service that lives but has no coordinator yet is alive and not ready."""
    actual = probe.main([alive_not_ready, service])

    assert actual == exit_code
    assert reason in capsys.readouterr().err


def test_nobody_there_is_not_serving(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A probe of a socket without a listener fails, and names the socket."""
    target = f"unix:{tmp_path}/users.sock"

    actual = probe.main([target, "liveness"])

    assert actual == probe.EXIT_NOT_SERVING
    assert f"{target}: no answer (UNAVAILABLE" in capsys.readouterr().err


def test_process_without_health_names_is_not_serving(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A probe fails if the process has no such health name, whatever else it serves."""
    server = _server(health.HealthServicer())
    target = f"unix:{tmp_path}/other.sock"
    server.add_insecure_port(target)
    server.start()

    actual = probe.main([target, "readiness"])

    server.stop(None).wait()
    assert actual == probe.EXIT_NOT_SERVING
    assert "NOT_FOUND" in capsys.readouterr().err


def test_silence_ends_at_the_timeout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A process that takes the call and never answers fails the probe."""
    servicer = SilentServer()
    server = _server(servicer)
    target = f"unix:{tmp_path}/stuck.sock"
    server.add_insecure_port(target)
    server.start()

    actual = probe.main([target, "liveness", "--timeout-ms", "50"])

    servicer.released.set()
    server.stop(None).wait()
    assert actual == probe.EXIT_NOT_SERVING
    assert "DEADLINE_EXCEEDED" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (["--ca-certificate", "ca.crt", "--server-name", CERTIFICATE_NAME], probe.EXIT_SERVING),
        (["--ca-certificate", "ca.crt", "--server-name", "other"], probe.EXIT_NOT_SERVING),
        (["--ca-certificate", "stranger.crt"], probe.EXIT_NOT_SERVING),
        ([], probe.EXIT_NOT_SERVING),
    ],
)
def test_tls_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], exit_code: int
) -> None:
    """A TLS port is asked only if the given certificate has signed its own, for that name."""
    monkeypatch.chdir(tmp_path)
    key, certificate = self_signed(Path("ca.crt"))
    self_signed(Path("stranger.crt"))
    servicer = health.HealthServicer()
    servicer.set("liveness", SERVING)
    server = _server(servicer)
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
    server.start()

    actual = probe.main([f"127.0.0.1:{port}", "liveness", *arguments])

    server.stop(None).wait()
    assert actual == exit_code


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["unix:/run/users.sock"],
        ["unix:/run/users.sock", "health"],
        ["unix:/run/users.sock", "liveness", "--timeout-ms", "0"],
        ["unix:/run/users.sock", "liveness", "--server-name", "viewstamp"],
    ],
)
def test_wrong_arguments_exit_with_two(arguments: list[str]) -> None:
    """Wrong arguments have another exit code than a process that does not serve."""
    with pytest.raises(SystemExit) as ended:
        probe.main(arguments)

    assert ended.value.code == probe.EXIT_WRONG_ARGUMENTS


def test_unreadable_certificate_is_a_wrong_argument(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing certificate file is named, and is not reported as a dead process."""
    missing = str(tmp_path / "ca.crt")

    actual = probe.main(["127.0.0.1:1", "liveness", "--ca-certificate", missing])

    assert actual == probe.EXIT_WRONG_ARGUMENTS
    assert missing in capsys.readouterr().err
