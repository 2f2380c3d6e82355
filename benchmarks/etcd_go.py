"""etcd's own client, in Go: 256 callers that put new keys. Built where it is asked for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

PUT_BY_GO: Final = "etcd_put_by_go"
_SOURCES: Final = Path(__file__).parent / "etcd_go"
_BUILD_S: Final = 600


def built_in(directory: Path) -> Path:
    """Build the load generator in a directory, and return it. Raises RuntimeError."""
    if shutil.which("go") is None:
        raise RuntimeError(f"{PUT_BY_GO} needs Go: install it, or leave that workload out")
    program = directory / "etcd-load"
    command = ["go", "build", "-o", str(program), "."]
    done = subprocess.run(
        command, cwd=_SOURCES, capture_output=True, text=True, timeout=_BUILD_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"etcd's client in Go could not be built: {done.stderr}")
    return program


def command(program: Path, address: str, seconds: float) -> list[str]:
    """Return the command line of a measurement."""
    return [str(program), "-address", address, "-seconds", str(seconds)]
