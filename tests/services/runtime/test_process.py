"""The process around a domain, as an operator and a supervisor see it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.services.runtime import echo
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1.domain_service_pb2_grpc import DomainServiceStub


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start an echo process."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.services.runtime.echo_process", *arguments],
        cwd=echo.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ready_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait until the process serves, and return its description."""
    assert process.stdout is not None
    line: dict[str, Any] = json.loads(process.stdout.readline())
    return line


def stopped(process: subprocess.Popen[str]) -> tuple[int, list[dict[str, Any]]]:
    """Wait for the end; return exit code and log lines."""
    _, errors = process.communicate(timeout=30)
    return process.returncode, [json.loads(line) for line in errors.splitlines()]


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="vs") as name:
        yield Path(name)


def test_serves_and_stops_when_told(directory: Path) -> None:
    """The process clears a dead socket, reports readiness, and leaves nothing behind on SIGTERM."""
    path = directory / "echo.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    process = start("--listen", f"unix:{path}")
    ready = ready_line(process)
    assert ready == {
        "ready": True,
        "service": "echo",
        "listen": f"unix:{path}",
        "pid": process.pid,
    }
    assert path.stat().st_mode & 0o077 == 0
    with grpc.insecure_channel(f"unix:{path}") as channel:
        assert DomainServiceStub(channel).Describe(pb.DescribeRequest()).stage == 3
    process.send_signal(signal.SIGTERM)
    code, lines = stopped(process)
    assert code == 0
    assert [line["message"] for line in lines] == ["serving", "stopped"]
    assert not path.exists()


def test_failed_machine_ends_the_process() -> None:
    """After a breach of the protocol the exit code is 3, and the log says why."""
    process = start("--listen", "127.0.0.1:0")
    address = ready_line(process)["listen"]
    hello = pb.ApplyRequest(hello=pb.Hello(cluster_id=b"c" * 16))
    gap = pb.ApplyRequest(batch=pb.Batch(sequence=2))
    with grpc.insecure_channel(address) as channel:
        stream = DomainServiceStub(channel).Apply(iter([hello, gap]))
        assert next(stream).HasField("hello")
        with pytest.raises(grpc.RpcError, match="batch 2 follows batch 0"):
            next(stream)
    code, lines = stopped(process)
    assert code == 3
    (critical,) = [line for line in lines if line["level"] == "critical"]
    assert critical["message"] == "the machine cannot go on"
    assert "batch 2 follows batch 0; 1 is due" in critical["exception"]


def refused(*arguments: str) -> str:
    """Return the one line of a process that does not start."""
    process = start(*arguments)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    (line,) = errors.splitlines()
    return line


def test_taken_addresses_are_not_shared(directory: Path) -> None:
    """A port or socket that something else serves is refused in one line."""
    path = directory / "echo.sock"
    with socket.create_server(("127.0.0.1", 0)) as port, socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        number = port.getsockname()[1]
        assert "cannot be bound" in refused("--listen", f"127.0.0.1:{number}")
        assert "another process serves there" in refused("--listen", f"unix:{path}")
    assert path.exists()


def test_bad_addresses_say_what_to_change(directory: Path) -> None:
    """Paths that cannot be sockets are refused in one line each."""
    plain = directory / "plain"
    plain.write_text("")
    too_long = directory / ("x" * (108 - len(str(directory)) - 1))
    assert "108 bytes are too long" in refused("--listen", f"unix:{too_long}")
    assert "is not a socket" in refused("--listen", f"unix:{plain}")
    assert "does not exist" in refused("--listen", f"unix:{directory}/none/echo.sock")
    assert "give unix:PATH or HOST:PORT" in refused("--listen", "7400")


def test_domain_that_cannot_be_built_says_why(directory: Path) -> None:
    """An error in `build` is reported in one line, for a missing file as for a bad one."""
    empty = directory / "key"
    empty.write_text("")
    listen = ("--listen", f"unix:{directory}/echo.sock")
    assert "must hold a key" in refused(*listen, "--key", str(empty))
    assert "No such file" in refused(*listen, "--key", f"{directory}/none")
