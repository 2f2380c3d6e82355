"""Names of real replicas get other addresses, or none for a while; nobody restarts anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.replicas.changed_names import SCENARIOS, can_replace_hosts, in_own_hosts_file

pytestmark = pytest.mark.long

TIMEOUT_S: Final = 400


# One of them is for `make test-long`; `make test-replicas` runs all.
OFTEN: Final = "primary_moves"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == OFTEN else pytest.mark.exhaustive)
        for name in SCENARIOS
    ],
)
def test_changed_names(tmp_path: Path, name: str) -> None:
    """Replicas and clients find a replica under its name, wherever it is, and wait until it is
    known."""
    assert can_replace_hosts(tmp_path), (
        "this test needs an /etc/hosts of its own: run it as root, or where users may make"
        " namespaces (`unshare --map-root-user --mount`)"
    )
    command = [sys.executable, "-m", "tests.replicas.changed_names", name, str(tmp_path)]
    done = subprocess.run(
        in_own_hosts_file(tmp_path / "hosts", *command),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr
