"""`viewstamp doctor` beside real processes."""

from __future__ import annotations

import json
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.processes.processes import (
    CLUSTER_KEY,
    COORDINATOR,
    ReplicaProcesses,
    eventually,
    replica,
)
from tests.viewstamp.cli.conftest import CommandLine, Said

TOKEN: Final = "vspat_" + "abcd2345" * 6
# What only the machine decides: where its disk is nearly full, the doctor rightly says so.
OF_THE_MACHINE: Final = frozenset({"disk-filling"})


@pytest.fixture(scope="module")
def sick() -> Iterator[ReplicaProcesses]:
    """A replica with a metrics page, which tests hurt and mend."""
    with replica(flags=["--metrics-listen=127.0.0.1:0"]) as running:
        yield running


@pytest.fixture
def line(sick: ReplicaProcesses, tmp_path: Path) -> CommandLine:
    """Root's command line at that replica, which is well."""
    sick.mend()
    made = CommandLine(sick.address, tmp_path, sick.root_password())
    assert made.log_in().code == 0
    return made


def page_of(sick: ReplicaProcesses) -> str:
    """Return the address of the metrics page."""
    lines = sick.errors(COORDINATOR).splitlines()
    told = [json.loads(each) for each in lines if "metrics are served" in each]
    return str(told[-1]["fields"]["address"])


def found_by(said: Said) -> set[str]:
    """Return the checks that found something."""
    return {finding["check"] for finding in said.data["findings"]}


def test_a_well_replica_is_told_as_that(line: CommandLine, sick: ReplicaProcesses) -> None:
    """With a snapshot there, no source of a running replica gives a finding about it."""
    assert line("snapshot", "create").code == 0
    asked = line("doctor")
    assert (asked.code, asked.out) == (0, "nothing is wrong with what was looked at\n")
    said = line("doctor", "--json", "--data", str(sick.data), "--metrics", page_of(sick))
    assert found_by(said) <= OF_THE_MACHINE


def test_a_service_that_hangs_is_found(line: CommandLine, sick: ReplicaProcesses) -> None:
    """A service that does not answer is found, and the next step names its runbook."""
    sick.signal("streams", signal.SIGSTOP)
    found = eventually(
        lambda: said if "service-away" in found_by(said := line("doctor", "--json")) else None
    )
    assert found.code == 5
    (away,) = (each for each in found.data["findings"] if each["check"] == "service-away")
    assert away["place"] == sick.address
    assert "docs/runbooks/service-away.md" in away["next_step"]


def test_a_replica_that_is_down_is_found(line: CommandLine, sick: ReplicaProcesses) -> None:
    """Without an answer the data directory still says that nothing runs on it."""
    page = page_of(sick)
    sick.kill(COORDINATOR)
    said = line("doctor", "--json", "--data", str(sick.data), "--metrics", page)
    assert said.code == 5
    places = {each["place"] for each in said.data["findings"] if each["check"] == "source-failed"}
    assert places == {sick.address, page}
    assert {"no-process", "source-failed"} <= found_by(said)


def test_sources_without_a_cluster(line: CommandLine, tmp_path: Path) -> None:
    """Wrong paths are findings, and so is a login that is not there; none ends the command."""
    (tmp_path / "v.yaml").write_text("coordinator: {lissten: a}\n")
    given = ("--data", str(tmp_path / "no"), "--log", str(tmp_path / "none.log"))
    more = ("--config", str(tmp_path / "v.yaml"), "--metrics", "127.0.0.1:1")
    offline = line("doctor", "--json", "--offline", *given, *more)
    assert found_by(offline) == {"source-failed", "configuration-wrong"}
    assert len(offline.data["findings"]) == 4
    elsewhere = line("--address", "127.0.0.1:1", "doctor")
    assert "no login is stored for 127.0.0.1:1" in elsewhere.out
    assert elsewhere.code == 5


def test_a_bundle_has_no_secret(line: CommandLine, sick: ReplicaProcesses, tmp_path: Path) -> None:
    """Key, password and tokens that stand in logs and flags of a replica are not in its bundle."""
    password = sick.root_password()
    log = tmp_path / "told.log"
    log.write_text(f"key {CLUSTER_KEY} password is {password} token {TOKEN}\n")
    (sick.data / "cluster.key").write_text(CLUSTER_KEY + "\n")
    bundle = tmp_path / "bundle.tar.gz"
    given = ("--data", str(sick.data), "--log", str(log), "--metrics", page_of(sick))
    said = line("doctor", *given, "--bundle", str(bundle))
    assert f"wrote {bundle}" in said.out
    with tarfile.open(bundle) as archive:
        archive.extractall(tmp_path, filter="data")
    files = [path for path in (tmp_path / "bundle").rglob("*") if path.is_file()]
    texts = {path.name: path.read_text() for path in files}
    access = json.loads((tmp_path / "viewstamp" / "tokens.json").read_text())
    for secret in (CLUSTER_KEY, password, TOKEN, *tokens_in(access)):
        assert [name for name, text in texts.items() if secret in text] == []
    directories = json.loads(texts["directories.json"])
    process = directories[str(sick.data)]["process"]
    assert f"--data-directory={sick.data}" in process["arguments"]
    assert json.loads(texts["status.json"])[sick.address]["replicas"][0]["status"] == "normal"
    assert any("viewstamp_build_info" in text for text in texts.values())
    again = line("doctor", "--offline", "--bundle", str(bundle))
    assert (again.code, "CANNOT_WRITE" in again.err) == (2, True)


def test_a_login_whose_authority_is_gone(line: CommandLine, tmp_path: Path) -> None:
    """A login that cannot be used is a finding, and the rest is still looked at and kept."""
    kept = tmp_path / "viewstamp" / "tokens.json"
    document = json.loads(kept.read_text())
    (login,) = document["logins"].values()
    login["tls_ca"] = str(tmp_path / "gone.pem")
    kept.write_text(json.dumps(document))
    bundle = tmp_path / "kept"
    said = line("doctor", "--json", "--bundle", str(bundle))
    assert (said.code, found_by(said)) == (5, {"source-failed"})
    assert (bundle / "findings.json").exists()


def tokens_in(document: object) -> list[str]:
    """Return the access tokens in a file of logins."""
    if isinstance(document, dict):
        return [each for value in document.values() for each in tokens_in(value)]
    return [document] if isinstance(document, str) and document.startswith("vsa2.") else []
