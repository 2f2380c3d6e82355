"""Which transport a process runs on: by flag, by the environment, or by default."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from viewstamp import grpc_transport, transports
from viewstamp.configuration import layered
from viewstamp.configuration.program import SECTIONS
from viewstamp.grpc_transport import GrpcTransport
from viewstamp.routing import SERVICE_NAMES
from viewstamp.wire.transport import WireTransport

COMMAND_LINE: Final = "from viewstamp.cli import main; main()"
SERVICES: Final = [f"--service={name}=unix:nowhere" for name in SERVICE_NAMES]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave the transport of the tests as it was."""
    monkeypatch.setattr(grpc_transport, "transport", grpc_transport.transport)
    yield


@pytest.mark.parametrize(
    ("variable", "arguments", "kind"),
    [
        (None, [], WireTransport),
        ("", [], WireTransport),
        ("wire", [], WireTransport),
        ("grpcio", [], GrpcTransport),
        ("wire", ["--transport", "grpcio"], GrpcTransport),
        ("grpcio", ["--transport", "wire"], WireTransport),
    ],
)
def test_a_flag_decides_before_the_environment(
    variable: str | None, arguments: list[str], kind: type
) -> None:
    """Without a flag the environment decides, and without either ours carries calls."""
    parser = argparse.ArgumentParser()
    transports.add_argument(parser)
    environment = {} if variable is None else {transports.VARIABLE: variable}
    found = layered(parser, ("users",), SECTIONS, arguments, environment)

    transports.use(parser.parse_args(found.arguments).transport)

    assert type(grpc_transport.transport) is kind


@pytest.mark.parametrize(
    ("variable", "kind"), [("", WireTransport), ("wire", WireTransport), ("grpcio", GrpcTransport)]
)
def test_the_first_channel_of_an_application_decides(
    monkeypatch: pytest.MonkeyPatch, variable: str, kind: type
) -> None:
    """A program that only uses the client library has no flag: its environment decides."""
    monkeypatch.setenv(transports.VARIABLE, variable)
    monkeypatch.setattr(grpc_transport, "transport", None)
    assert type(grpc_transport.present()) is kind


@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "services.streams", "--listen", "127.0.0.1:0", "--transport", "pigeon"],
        ["-m", "coordinator", "--data-directory", "nowhere", *SERVICES],
        ["-c", COMMAND_LINE, "status"],
    ],
    ids=["service", "coordinator", "command line"],
)
def test_an_unknown_transport_is_told(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """Each kind of process names the transports that there are, and ends with status 2."""
    monkeypatch.setenv(transports.VARIABLE, "pigeon")
    ended = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "wire, grpcio" in ended.stderr
