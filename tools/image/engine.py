"""The program that builds images: whichever of three this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# In order of preference: buildah needs neither a daemon nor a network of its own.
PROGRAMS: Final = ("buildah", "podman", "docker")
# Those that mount a file into the build, and set the times of all layers.
DAEMONLESS: Final = frozenset({"buildah", "podman"})
# pip's own name for the file of authorities, and the name for all programs.
AUTHORITIES: Final = ("PIP_CERT", "SSL_CERT_FILE")
MOUNTED_AUTHORITIES: Final = "/run/authorities.pem"
BUILD_TIMEOUT_S: Final = 3_600


class ImageError(Exception):
    """An image cannot be built or is not as it should be; the message says what to do."""


def run(*command: str, directory: Path | None = None, timeout_s: int = BUILD_TIMEOUT_S) -> None:
    """Run a program whose output the user sees. Raises ImageError if it fails or hangs."""
    try:
        subprocess.run(command, cwd=directory, check=True, timeout=timeout_s)
    except FileNotFoundError as error:
        raise ImageError(f"{command[0]} is not there: install the package that has it") from error
    except subprocess.CalledProcessError as error:
        raise ImageError(
            f"{' '.join(command[:2])} ended with {error.returncode}, see above"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ImageError(f"{' '.join(command[:2])} did not end in {timeout_s} s") from error


@dataclass(frozen=True, slots=True)
class Build:
    """What to build: a target of a Dockerfile, and its arguments."""

    context: Path
    dockerfile: Path
    tag: str
    target: str | None
    arguments: Mapping[str, str]
    seconds: int  # since 1970: the time of the image and of its layers


def find_program(wanted: str | None = None) -> str:
    """Return the engine to use. Raises ImageError if there is none."""
    for program in PROGRAMS if wanted is None else (wanted,):
        if shutil.which(program):
            return program
    named = wanted or ", ".join(PROGRAMS)
    raise ImageError(f"nothing builds images here, looked for {named}: install Debian's `buildah`")


def authorities(environment: Mapping[str, str]) -> str | None:
    """Return the file of authorities that this machine was told to trust, if any."""
    return next((environment[name] for name in AUTHORITIES if environment.get(name)), None)


def build_command(program: str, build: Build, trusted: str | None) -> list[str]:
    """Return the command that builds; `trusted` is a file that replaces the base's authorities."""
    arguments = {**build.arguments, "SOURCE_DATE_EPOCH": str(build.seconds)}
    command = [program, "build", "--network", "host", "--tag", build.tag]
    command += ["--file", str(build.dockerfile)]
    if build.target is not None:
        command += ["--target", build.target]
    if program in DAEMONLESS:
        command += ["--layers", "--timestamp", str(build.seconds)]
        if trusted is not None:
            command += ["--volume", f"{trusted}:{MOUNTED_AUTHORITIES}:ro"]
            arguments["PIP_CERT"] = MOUNTED_AUTHORITIES
    for name, value in sorted(arguments.items()):
        command += ["--build-arg", f"{name}={value}"]
    return [*command, str(build.context)]


def save_command(program: str, tag: str, archive: Path) -> list[str]:
    """Return the command that writes an image as an archive in the OCI's layout."""
    written = ["--output", str(archive), tag]
    return {
        "buildah": ["buildah", "push", "--quiet", tag, f"oci-archive:{archive}:{tag}"],
        "podman": ["podman", "save", "--quiet", "--format", "oci-archive", *written],
        "docker": ["docker", "save", *written],
    }[program]


def build_image(program: str, build: Build) -> None:
    """Build an image under its tag. Raises ImageError."""
    run(*build_command(program, build, authorities(os.environ)))


def save_image(program: str, tag: str, archive: Path) -> None:
    """Write an image as an archive, in place of an earlier one. Raises ImageError."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)
    run(*save_command(program, tag, archive))


def exists(program: str, tag: str) -> bool:
    """Return whether an engine has an image."""
    inspect: Sequence[str] = (program, "inspect", "--type", "image", tag)
    return subprocess.run(inspect, capture_output=True, check=False).returncode == 0
