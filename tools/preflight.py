"""Print a line for each thing that this machine lacks; runs before any environment exists.

Standard library only. Each line names the Debian package, or the step, that helps.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import socket
import subprocess
import sys
from pathlib import Path

# What the tests run, and the Debian package of each.
TEST_PROGRAMS = {"chromium": "chromium", "promtool": "prometheus"}
PYTHON_MIN = (3, 11)
JAVA_MIN = 17

# The environment plus what a build and a run write; pip unpacks Spark twice on its way in.
DISK_FREE_MIN_BYTES = {"runtime": 1 * 1024**3, "analytics": 3 * 1024**3, "dev": 4 * 1024**3}


def check_python(version: tuple[int, int], missing_modules: list[str]) -> list[str]:
    """Return what is wrong with the interpreter, given its version and absent modules."""
    misses = []
    if version < PYTHON_MIN:
        need = ".".join(map(str, PYTHON_MIN))
        have = ".".join(map(str, version))
        misses.append(f"Python {have} is too old, {need} is needed: install Debian 12's `python3`")
    if missing_modules:
        names = ", ".join(missing_modules)
        misses.append(f"Python lacks {names}: install the Debian package `python3-venv`")
    return misses


def check_disk(free_bytes: int, need_bytes: int, directory: Path) -> list[str]:
    """Return a miss if the directory's file system has less room than needed."""
    if free_bytes >= need_bytes:
        return []
    return [
        f"{directory} has {free_bytes:,} bytes free, {need_bytes:,} are needed:"
        " free some space or clone elsewhere"
    ]


def check_port(port: int) -> list[str]:
    """Return a miss if something on this machine already listens on the TCP port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return [f"port {port} of 127.0.0.1 cannot be used ({error.strerror}): free it"]
    return []


def check_java(version_text: str | None) -> list[str]:
    """Return a miss unless `java -version` reported a new enough Java; None means no Java."""
    remedy = "install the Debian package `openjdk-17-jre-headless`"
    if version_text is None:
        return [f"Java is missing: {remedy}"]
    try:
        major = int(version_text.split('"')[1].split(".")[0])
    except (IndexError, ValueError):
        return [f"Java's version cannot be read from {version_text!r}: {remedy}"]
    return [] if major >= JAVA_MIN else [f"Java {major} is too old, {JAVA_MIN} is needed: {remedy}"]


def java_version() -> str | None:
    """Return the output of `java -version`, or None if there is no Java."""
    java = shutil.which("java")
    if java is None:
        return None
    return subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr


def check_programs(found: dict[str, str | None]) -> list[str]:
    """Return a miss for each program of the tests without a path."""
    return [
        f"{program} is missing: install the Debian package `{package}`"
        for program, package in TEST_PROGRAMS.items()
        if found[program] is None
    ]


def programs() -> dict[str, str | None]:
    """Return the path of each program that the tests run, None for one that is not there."""
    return {program: shutil.which(program) for program in TEST_PROGRAMS}


def missing_modules() -> list[str]:
    """Return the modules that creating an environment needs and this interpreter lacks."""
    return [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]


def main(arguments: list[str]) -> int:
    """Print each miss on one line to standard error; return 1 if there was any, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("purpose", choices=sorted(DISK_FREE_MIN_BYTES))
    parser.add_argument("--port", type=int, action="append", default=[], help="must be free")
    parser.add_argument("--java", action="store_true", help="the target runs Spark")
    parser.add_argument("--tests", action="store_true", help="the target runs all tests")
    options = parser.parse_args(arguments)
    here = Path.cwd()
    misses = check_python(sys.version_info[:2], missing_modules())
    misses += check_disk(shutil.disk_usage(here).free, DISK_FREE_MIN_BYTES[options.purpose], here)
    for port in options.port:
        misses += check_port(port)
    if options.java or options.tests:
        misses += check_java(java_version())
    if options.tests:
        misses += check_programs(programs())
    for miss in misses:
        print(f"preflight: {miss}", file=sys.stderr)
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
