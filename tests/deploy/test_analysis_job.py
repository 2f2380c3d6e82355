"""The analysis as its CronJob starts it, run as a process on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.pod import REPLICATED, ROOT, Object, mounts, overlay
from tests.viewstamp.snapshots.generations import two_generations

pytestmark = pytest.mark.long
TIMEOUT_S = 500


def container_of(name: str) -> Object:
    """Return the one container of a CronJob."""
    job = overlay(REPLICATED)["CronJob", name]["spec"]["jobTemplate"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    found: Object = container
    return found


def test_job_analyses_what_the_archive_holds(tmp_path: Path) -> None:
    """The analysis takes its arguments, reads an archive that nobody may change, and writes tables
    and a report to its own volume, also where those of the day before are."""
    container = container_of("viewstamp-analysis")
    downloaded = container_of("viewstamp-archive")["args"][-1].removeprefix("--output=")
    replica = two_generations(tmp_path / "replica")
    for path in mounts(container):
        (tmp_path / path.lstrip("/")).mkdir()
    archive = tmp_path / downloaded.lstrip("/")
    shutil.copytree(replica.copies[0], archive)
    before = {path: path.stat().st_mtime_ns for path in archive.rglob("*")}

    for _ in range(2):
        assert run(container, tmp_path) == 0

    tables = tmp_path / "analysis" / "tables"
    assert (tables / "report.html").stat().st_size > 0
    assert list(tables.glob("*/_SUCCESS"))
    assert {path: path.stat().st_mtime_ns for path in archive.rglob("*")} == before


def run(container: Object, root: Path) -> int:
    """Run a container's command with its volumes below a directory; return the exit code."""
    paths = "|".join(mounts(container))
    arguments = [re.sub(rf"=({paths})/", rf"={root}\1/", word) for word in container["args"]]
    command = [sys.executable, *container["command"][1:], *arguments]
    environment = {**os.environ, "HOME": str(root / "tmp"), "TMPDIR": str(root / "tmp")}
    return subprocess.run(
        command, cwd=ROOT, env=environment, timeout=TIMEOUT_S, check=False
    ).returncode
