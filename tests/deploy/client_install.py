"""The wheel in an environment of its own, with the libraries it needs without any extra.

The libraries are links to those of this environment: no index is asked, and nothing is fetched.
"""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


class ClientInstall(NamedTuple):
    """A wheel, the environment that holds it, and the names of the libraries beside it."""

    wheel: Path
    environment: Path
    libraries: frozenset[str]

    def run(
        self, program: str, *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, with only these variables."""
        binary = self.environment / "bin" / program
        home = {"HOME": str(self.environment), "XDG_CONFIG_HOME": str(self.environment / "config")}
        return subprocess.run(
            [binary, *arguments],
            env={**home, **variables},
            cwd=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )


def install_client(directory: Path) -> ClientInstall:
    """Build the wheel and install it, without extras."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = directory.glob("*.whl")
    environment = directory / "environment"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    libraries = needed_by(requirements_of(wheel))
    for name in libraries:
        link(metadata.distribution(name), packages)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    quiet = ["install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run([*pip, *quiet], capture_output=True, check=True)
    return ClientInstall(wheel, environment, frozenset(libraries))


def requirements_of(wheel: Path) -> list[str]:
    """Return the requirements of the wheel."""
    return metadata_of(wheel).get_all("Requires-Dist") or []


def metadata_of(wheel: Path) -> metadata.PackageMetadata:
    """Return the metadata of the wheel."""
    (place,) = [path for path in zipfile.Path(wheel).iterdir() if path.name.endswith(".dist-info")]
    return metadata.PathDistribution(place).metadata


def needed_by(requirements: list[str]) -> set[str]:
    """Return the libraries that these requirements mean here, with their own ones; no extras."""
    found: set[str] = set()
    waiting = list(requirements)
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and name not in found:
            found.add(name)
            waiting += metadata.requires(name) or []
    return found


def link(distribution: metadata.Distribution, packages: Path) -> None:
    """Put the files of a library into an environment's packages."""
    for file in distribution.files or ():
        source = Path(str(distribution.locate_file(file)))
        if file.parts[0] != ".." and source.suffix != ".pyc":
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            (packages / file).symlink_to(source)
