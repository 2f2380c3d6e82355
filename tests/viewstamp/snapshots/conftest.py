"""Fixtures of the snapshot tools' tests: generations on disk, the command line, a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.viewstamp.cli.conftest import CommandLine
from tests.viewstamp.snapshots.generations import SnapshotDirectory, two_generations


@pytest.fixture
def replica(tmp_path: Path) -> SnapshotDirectory:
    """A data directory with generations 1 and 2."""
    return two_generations(tmp_path / "data")


@pytest.fixture
def offline(tmp_path: Path) -> CommandLine:
    """The command line of a user who can reach no cluster."""
    return CommandLine("127.0.0.1:1", tmp_path)


@pytest.fixture
def cluster(replica: SnapshotDirectory) -> Iterator[str]:
    """The address of a cluster with these generations, in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.viewstamp.snapshots.fake_cluster", str(replica.path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        text=True,
    )
    assert process.stdout is not None
    yield f"127.0.0.1:{process.stdout.readline().strip()}"
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def online(cluster: str, tmp_path: Path) -> CommandLine:
    """The command line of root at that cluster."""
    line = CommandLine(cluster, tmp_path)
    assert line.log_in().code == 0
    return line
