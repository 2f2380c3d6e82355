"""The code that executors get is complete, needs no other files, and is always the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from analytics import package
from tests.analytics.standalone_cluster import bare_interpreter

# Imports the modules with which drivers and executors begin, and reads a file that is no module.
IMPORTS = """
import sys
from importlib import resources
import analytics.__main__, analytics.otlp.source, analytics.snapshots.source, analytics.traces.walk
from analytics import package
assert analytics.__file__.startswith(sys.argv[1]), analytics.__file__
assert package.is_packed()
assert (resources.files("analytics.report") / "assets" / "report.js").read_text()
"""


def test_code_runs_from_one_file(tmp_path: Path) -> None:
    """Where our packages are not installed, the file alone provides the code and its assets."""
    packed = package.write_zip(tmp_path / "code.zip")
    command = [str(bare_interpreter(tmp_path)), "-c", IMPORTS, str(packed)]
    environment = os.environ | {"PYTHONPATH": str(packed)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_same_code_is_the_same_file(tmp_path: Path) -> None:
    """Two packings, one by the command of the documentation, give the same bytes."""
    packed = package.write_zip(tmp_path / "one.zip")
    command = [sys.executable, "-m", "analytics.package", str(tmp_path / "two.zip")]
    subprocess.run(command, cwd=package.ROOT, check=True)
    assert packed.read_bytes() == (tmp_path / "two.zip").read_bytes()
