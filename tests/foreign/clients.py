"""Clients of gRPC in other languages: how each is built, and how it is run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent / "clients"
BUILD_S: Final = 600


@dataclass(frozen=True, slots=True)
class ForeignClient:
    """A client in another language: what builds it in a copy of its sources, and what runs it."""

    language: str
    tools: tuple[str, ...]
    build: tuple[str, ...]
    command: Callable[[Path], tuple[str, ...]]

    def built_in(self, directory: Path) -> tuple[str, ...]:
        """Build it in a directory, and return its command. Raises AssertionError."""
        missing = [tool for tool in self.tools if shutil.which(tool) is None]
        assert not missing, f"{', '.join(missing)} must be installed for the {self.language} client"
        copy = directory / self.language
        shutil.copytree(SOURCES / self.language, copy)
        run(self.build, copy)
        return self.command(copy)


def run(command: Sequence[str], directory: Path, variables: Mapping[str, str] | None = None) -> str:
    """Run a command, and return what it printed. Raises AssertionError if it failed."""
    done = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | dict(variables or {}),
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


CLIENTS: Final = (
    ForeignClient(
        "go",
        ("go",),
        ("go", "build", "-o", "client", "."),
        lambda at: (str(at / "client"),),
    ),
    ForeignClient(
        "js",
        ("node", "npm"),
        ("npm", "ci", "--silent"),
        lambda at: ("node", str(at / "client.js")),
    ),
    ForeignClient(
        "java",
        ("mvn", "java"),
        ("mvn", "--quiet", "--batch-mode", "package"),
        lambda at: ("java", "-cp", f"{at}/target/classes:{at}/target/dependency/*", "Client"),
    ),
)
