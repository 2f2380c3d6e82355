"""`viewstamp config` and the file of `viewstamp up`, with the real programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
from typer.testing import CliRunner

from viewstamp.cli import config_commands
from viewstamp.cli.app import app
from viewstamp.cli.up_configuration import certificate_elsewhere, check_elsewhere
from viewstamp.cluster import LocalCluster, PreflightError

GOOD: Final = """\
up:
  data-directory: {directory}
  listen: 127.0.0.1:0
coordinator:
  snapshot-commands: 77
services:
  log-level: warning
users:
  log-level: debug
"""


def run(*arguments: str, **variables: str) -> Any:
    """Run a command; return its result."""
    plain = {"TYPER_USE_RICH": "0", "COLUMNS": "400", **variables}
    return CliRunner().invoke(app, list(arguments), env=plain, prog_name="viewstamp")


def written(directory: Path, text: str = GOOD) -> Path:
    """Write a configuration file and return its path."""
    path = directory / "viewstamp.yaml"
    path.write_text(text.replace("{directory}", str(directory / "data")))
    return path


def test_check_tells_values_and_origins(tmp_path: Path) -> None:
    """Each program tells its effective settings: the service's own section before that of all."""
    path = written(tmp_path)
    result = run("config", "check", str(path), "--json", VIEWSTAMP_STREAMS_LOG_LEVEL="error")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["settings"]
    told = {(row["section"], row["name"]): (row["value"], row["from"]) for row in rows}
    assert told["coordinator", "snapshot-commands"] == (77, f"{path}:5")
    assert told["users", "log-level"] == ("debug", f"{path}:9")
    assert told["streams", "log-level"] == ("error", "VIEWSTAMP_STREAMS_LOG_LEVEL")
    assert told["consumer_groups", "log-level"] == ("warning", f"{path}:7")
    assert told["up", "listen"] == ("127.0.0.1:0", f"{path}:3")


WRONG: Final = {
    "range": ("up:\n  replicas: 9\n", ":2: --replicas: 9 is not in the range 1<=x<=6"),
    "chosen": ("up: {}\ncoordinator:\n  cluster-key: k\n", ":3: coordinator.cluster-key: "),
    "for up": ("up: {}\nservices:\n  trace-ratio: 1\n", "write it in the section `up`"),
    "of one replica": (
        "up: {replicas: 3}\ncoordinator:\n  advertise: a:1\n",
        "would be the same for all 3 replicas",
    ),
    "service": ("users:\n  lissten: a\n", ":2: users.lissten: there is no setting of this name"),
    "ratio": ("services: {trace-ratio: 7}\n", "--trace-ratio is 7.0: give a number from 0 to 1"),
    "section": ("uup: {}\n", "did you mean 'up'?"),
}


@pytest.mark.parametrize("case", WRONG)
def test_check_tells_what_is_wrong(tmp_path: Path, case: str) -> None:
    """A wrong file has exit code 2 and a line with its place and with what would be right."""
    text, says = WRONG[case]
    result = run("config", "check", str(written(tmp_path, text)))
    assert result.exit_code == 2
    assert says in result.stderr


def test_a_check_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that gives no answer in time is a problem of the check, which ends."""
    monkeypatch.setattr(config_commands, "CHECK_TIMEOUT_S", 0.01)
    result = run("config", "check", str(written(tmp_path, "users: {}\n")))
    assert result.exit_code == 2
    assert "services.users could not check the file: it gave no answer" in result.stderr


def test_check_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A path without a file is told as that."""
    result = run("config", "check", str(tmp_path / "none.yaml"))
    assert (result.exit_code, "CANNOT_READ" in result.stderr) == (2, True)


def test_up_refuses_a_wrong_file(tmp_path: Path) -> None:
    """`viewstamp up` names file and line of a wrong option, and starts nothing."""
    path = written(tmp_path, "up:\n  data-directory: {directory}\n  replicas: 9\n")
    result = run("up", "--config", str(path))
    assert result.exit_code == 2
    assert f"{path}:3: --replicas: 9 is not in" in result.stderr
    assert not (tmp_path / "data").exists()


def test_up_refuses_variables_that_do_not_exist(tmp_path: Path) -> None:
    """A variable of `viewstamp up` that names no option is refused, with the nearest name."""
    directory = str(tmp_path / "data")
    result = run("up", "--data-directory", directory, VIEWSTAMP_UP_REPLICA="3")
    assert (result.exit_code, "did you mean 'VIEWSTAMP_UP_REPLICAS'?" in result.stderr) == (2, True)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("text", "variables", "certificate"),
    [
        ("coordinator: {tls-certificate: a.pem}", {}, Path("a.pem")),
        (
            "coordinator: {tls-certificate: a.pem}",
            {"VIEWSTAMP_COORDINATOR_TLS_CERTIFICATE": "b.pem"},
            Path("b.pem"),
        ),
        ("coordinator: {}", {}, None),
    ],
)
def test_up_knows_the_certificate(
    tmp_path: Path, text: str, variables: dict[str, str], certificate: Path | None
) -> None:
    """The line that says how to log in knows of TLS wherever it was configured."""
    assert certificate_elsewhere(written(tmp_path, text), variables) == certificate


def test_up_refuses_variables_of_what_it_chooses() -> None:
    """A variable cannot set for all coordinators what the supervisor chooses for each."""
    with pytest.raises(PreflightError, match="VIEWSTAMP_COORDINATOR_REPLICA_ID: --replica-id"):
        check_elsewhere(None, {"VIEWSTAMP_COORDINATOR_REPLICA_ID": "0"}, 1)
    check_elsewhere(None, {"VIEWSTAMP_COORDINATOR_REPLICA_ID": ""}, 1)  # it sets nothing


def test_schema_is_one() -> None:
    """`viewstamp config schema` prints a valid JSON schema."""
    jsonschema.Draft202012Validator.check_schema(json.loads(run("config", "schema").stdout))


@pytest.mark.long
async def test_processes_read_the_file(tmp_path: Path) -> None:
    """Coordinator and services of a cluster take their sections of the file."""
    path = written(tmp_path, "coordinator: {log-level: debug}\nservices: {log-level: debug}\n")
    flags = [f"--config={path}"]
    cluster = LocalCluster(
        tmp_path / "data", "127.0.0.1:0", coordinator_arguments=flags, service_arguments=flags
    )
    async with cluster:
        pass
    coordinator, streams = cluster.log_path("coordinator"), cluster.log_path("streams")
    assert '"level": "debug"' in coordinator.read_text()
    assert '"level": "info"' in streams.read_text()
