"""gRPC in other languages: how a client and a server are built, and how each is run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent / "ends"
BUILD_S: Final = 600


@dataclass(frozen=True, slots=True)
class ForeignEnds:
    """The commands of a client and of a server."""

    client: tuple[str, ...]
    server: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForeignLanguage:
    """Another language: what builds both ends in a copy of their sources, and what runs them."""

    name: str
    tools: tuple[str, ...]
    build: tuple[str, ...]
    ends: Callable[[Path], ForeignEnds]

    def built_in(self, directory: Path) -> ForeignEnds:
        """Build both ends in a directory. Raises AssertionError."""
        check_tools(self.tools, self.name)
        copy = directory / self.name
        shutil.copytree(SOURCES / self.name, copy)
        run(self.build, copy)
        return self.ends(copy)


def check_tools(tools: Sequence[str], language: str) -> None:
    """Check that the tools of a language are installed. Raises AssertionError."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    assert not missing, f"{', '.join(missing)} must be installed for {language}"


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


def _of_java(at: Path) -> ForeignEnds:
    java = ("java", "-cp", f"{at}/target/classes:{at}/target/dependency/*")
    return ForeignEnds((*java, "Client"), (*java, "Server"))


LANGUAGES: Final = (
    ForeignLanguage(
        "go",
        ("go",),
        ("go", "build", "-o", "built/", "./client", "./server"),
        lambda at: ForeignEnds((f"{at}/built/client",), (f"{at}/built/server",)),
    ),
    ForeignLanguage(
        "js",
        ("node", "npm"),
        ("npm", "ci", "--silent"),
        lambda at: ForeignEnds(("node", f"{at}/client.js"), ("node", f"{at}/server.js")),
    ),
    ForeignLanguage(
        "java", ("mvn", "java"), ("mvn", "--quiet", "--batch-mode", "package"), _of_java
    ),
)
