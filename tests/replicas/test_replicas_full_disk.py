"""A full disk of one of three real replicas costs callers nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.long

TIMEOUT_S: Final = 200


def test_a_backup_whose_disk_is_full(tmp_path: Path) -> None:
    """The others go on without it, and it catches up once there is room again."""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = ["unshare", *as_root, "--mount", sys.executable, "-m", "tests.replicas.full_disk"]
    done = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
