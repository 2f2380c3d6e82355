"""Fixtures of the command line's tests: a gateway in another process, and a private home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from tests.processes.processes import ReplicaProcesses, replica
from tests.viewstamp.client.fake_gateway import PASSWORD
from viewstamp.cli.app import app

NO_VARIABLES: Final[Mapping[str, str | None]] = MappingProxyType({})


@dataclass(frozen=True)
class Said:
    """The outputs of a command."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The JSON document on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The JSON error on stderr."""
        return json.loads(self.err)["error"]


class CommandLine:
    """Runs commands against one gateway."""

    def __init__(self, address: str, home: Path, password: str = PASSWORD) -> None:
        self.address = address
        self.home = home
        self.password_file = home / "password"
        self.password_file.write_text(password + "\n")
        self._runner = CliRunner()

    def __call__(
        self,
        *arguments: str,
        answer: str | None = None,
        variables: Mapping[str, str | None] = NO_VARIABLES,
    ) -> Said:
        """Run a command, perhaps with other variables of the environment; return its outputs."""
        environment: dict[str, str | None] = {
            "XDG_CONFIG_HOME": str(self.home),
            "VIEWSTAMP_ADDRESS": self.address,
            "VIEWSTAMP_ACCESS_TOKEN": None,
            "VIEWSTAMP_PERSONAL_ACCESS_TOKEN": None,
            "VIEWSTAMP_CONTEXT": None,
            "VIEWSTAMP_OUTPUT": None,
            **variables,
            "COLUMNS": "200",
        }
        result = self._runner.invoke(
            app, list(arguments), input=answer, env=environment, prog_name="viewstamp"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Said(result.exit_code, result.stdout, result.stderr)

    def log_in(self) -> Said:
        """Log in as root."""
        return self("login", "--password-file", str(self.password_file))


@contextmanager
def gateway(module: str = "fake_gateway") -> Iterator[str]:
    """Run a gateway in a process of its own; return where it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.viewstamp.client.{module}"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        text=True,
    )
    assert process.stdout is not None
    try:
        yield f"127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def address() -> Iterator[str]:
    """The address of a gateway of this test alone."""
    with gateway() as address:
        yield address


@pytest.fixture
def stranger(address: str, tmp_path: Path) -> CommandLine:
    """The command line of a user who has not logged in."""
    return CommandLine(address, tmp_path)


@pytest.fixture
def viewstamp(stranger: CommandLine) -> CommandLine:
    """The command line of root."""
    assert stranger.log_in().code == 0
    return stranger


@pytest.fixture(scope="session")
def processes() -> Iterator[ReplicaProcesses]:
    """A real replica, which tests share: each uses names of its own."""
    with replica() as running:
        yield running


@pytest.fixture
def real(processes: ReplicaProcesses, tmp_path: Path) -> CommandLine:
    """The command line of root at a real replica."""
    line = CommandLine(processes.address, tmp_path, processes.root_password())
    assert line.log_in().code == 0
    return line
