"""Session policy and coverage gate can fail: each is run on a small planted case."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.tidy.tree import ROOT
from tools import coverage_gate
from viewstamp.routing import SERVICE_NAMES

SKIPS = {
    "mark": "import pytest\n@pytest.mark.skip\ndef test_a(): pass\n",
    "call": "import pytest\ndef test_a(): pytest.skip('no')\n",
    "module": "import pytest\npytest.skip('no', allow_module_level=True)\n",
    "expected failure": "import pytest\n@pytest.mark.xfail\ndef test_a(): assert False\n",
}


def run_pytest(directory: Path, source: str, *, ci: bool, options: tuple[str, ...] = ()) -> int:
    """Return pytest's exit status for one test file under our conftest."""
    shutil.copyfile(ROOT / "tests" / "conftest.py", directory / "conftest.py")
    (directory / "test_planted.py").write_text(source)
    environment = {**os.environ, "CI": "true" if ci else "false"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
    command += [f"--rootdir={directory}", *options, str(directory)]
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode


@pytest.mark.parametrize("kind", SKIPS)
def test_skips_fail_under_ci(tmp_path: Path, kind: str) -> None:
    """A test that skips itself, in whichever way, makes the run under CI red."""
    assert run_pytest(tmp_path, SKIPS[kind], ci=True) in {1, 2}


def test_skips_pass_elsewhere(tmp_path: Path) -> None:
    """Outside CI a developer may skip a test."""
    assert run_pytest(tmp_path, SKIPS["mark"], ci=False) == 0


@pytest.mark.parametrize("options", [("-k", "nothing"), ("-k", "nothing", "-n", "1")])
def test_no_test_is_a_failure(tmp_path: Path, options: tuple[str, ...]) -> None:
    """A run that executed no test is red, even when spread over processes."""
    status = run_pytest(tmp_path, "def test_a(): pass\n", ci=True, options=options)
    assert status == pytest.ExitCode.NO_TESTS_COLLECTED


def summary(branches: int, covered: int) -> dict[str, Any]:
    """Return a file's entry of a coverage report with all lines and some branches tested."""
    return {
        "summary": {
            "num_statements": 100,
            "covered_lines": 100,
            "num_branches": branches,
            "covered_branches": covered,
        }
    }


def report(**changed: dict[str, Any]) -> dict[str, Any]:
    """Return a coverage report in which all packages are perfect except the changed ones."""
    files = {f"{package}/a.py": summary(20, 20) for package in coverage_gate.PURE_PACKAGES}
    files.update({f"{package.replace('__', '/')}/a.py": e for package, e in changed.items()})
    return {"meta": {"branch_coverage": True}, "files": files}


@pytest.mark.parametrize(
    ("planted", "status"),
    [
        (report(), 0),
        (report(coordinator__vsr=summary(20, 19)), 0),
        (report(coordinator__vsr=summary(100, 94)), 1),
        (report(services__users=summary(20, 0)), 1),
        ({"meta": {"branch_coverage": True}, "files": {}}, 1),
        ({"meta": {"branch_coverage": False}, "files": {}}, 1),
    ],
    ids=["perfect", "exactly enough", "one short", "no branch", "not measured", "lines alone"],
)
def test_coverage_gate(tmp_path: Path, planted: dict[str, Any], status: int) -> None:
    """The gate passes at exactly its share, and fails below it or without measurements."""
    path = tmp_path / "coverage.json"
    path.write_text(json.dumps(planted))
    assert coverage_gate.main([str(path)]) == status


def test_every_domain_is_measured() -> None:
    """The gate judges each domain, including new ones."""
    domains = {f"services/{name}" for name in SERVICE_NAMES}
    assert domains - set(coverage_gate.PURE_PACKAGES) == set()


def test_branches_are_measured() -> None:
    """Coverage measures branches: without them the gate has nothing to judge."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"]
    assert settings["branch"] is True
