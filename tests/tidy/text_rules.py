"""Text that no file may contain, and places where no file may lie.

Patterns are joined from pieces, so that this file does not match itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

from packaging.requirements import Requirement

from tests.tidy.tree import GENERATED, TextFile

LEFTOVER = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK|NotImplemented" r"Error)\b")

# Folders that exist on one machine only: a home, a checkout, a local package folder.
MACHINE_PATH = re.compile(
    r"(?<![\w.$}/-])/(?:ro" r"ot|ho" r"me|wo" r"rk|Us" r"ers|opt/\w*(?:whl|wheels|pypi))/?\b"
)

# Locks say what to install, not where one machine found it.
REGISTRY = re.compile(
    r"pythonhos" r"ted\.org|py" r"pi\.org/simple|(?:extra-)?index-" r"url|trusted-" r"host"
)

# The Makefile must name the option that keeps addresses out of locks.
REGISTRY_EXEMPT = re.compile(r"--no-emit-index-" r"url")


def leftovers(file: TextFile) -> list[str]:
    """Return a line per note to self left behind; generated stubs have notes of their own."""
    if file.path.is_relative_to(GENERATED):
        return []
    return _matches(file, LEFTOVER, "is a leftover: do it or delete it")


def machine_paths(file: TextFile) -> list[str]:
    """Return a line per absolute path that exists on one machine only."""
    return _matches(file, MACHINE_PATH, "is a path of one machine: make it relative")


def registry_hosts(file: TextFile) -> list[str]:
    """Return a line per address of a package registry; in lock files, per address of any kind."""
    lines = _matches(file, REGISTRY, "names a package registry: leave that to the machine")
    if file.path.suffix == ".lock":
        lines += _matches(file, re.compile("://"), "is an address in a lock file")
    return lines


def layout_of_tests(paths: Iterable[PurePosixPath]) -> list[str]:
    """Return a line per test folder that is a package, and per test file with another's name."""
    tests = [path for path in paths if path.parts[0] == "tests" and path.suffix == ".py"]
    basenames = Counter(path.name for path in tests if path.name.startswith("test_"))
    lines = []
    for path in tests:
        if path.name == "__init__.py":
            lines.append(f"{path}: test folders are no packages: delete it")
        if basenames[path.name] > 1:
            lines.append(f"{path}: another test file has this name")
    return lines


def lock_disagreements(lock: str, larger: str, name: str = "requirements-dev.lock") -> list[str]:
    """Return a line per pin of a lock that the larger lock `name` lacks."""
    pinned = _pins(lock)
    if not pinned:
        return [f"the lock beside {name}: pins nothing"]
    missing = sorted(pinned - _pins(larger))
    return [f"{name}: lacks {pin.split()[0]}: run `make lock`" for pin in missing]


def unlocked_extras(lock: str, requirements: Iterable[str]) -> list[str]:
    """Return a line per requirement with extras that the lock pins without them.

    pip before 23.3, which Debian 12 installs, takes the newest version of such a package instead
    of the pinned one, and then refuses it because it has no hash.
    """
    names = {re.split(r"==|\s", pin, maxsplit=1)[0] for pin in _pins(lock)}
    lines = []
    for requirement in map(Requirement, requirements):
        wanted = f"{requirement.name}[{','.join(sorted(requirement.extras))}]"
        if requirement.extras and wanted not in names:
            lines.append(f"{wanted}: pinned without its extra: run `make lock`")
    return lines


def _pins(lock: str) -> set[str]:
    """Return the pins of a lock file's text: name, version and hashes.

    Comments and markers are left out: a larger lock may need a package on more platforms.
    """
    lines = [line for line in lock.splitlines() if line and not line.lstrip().startswith("#")]
    pins = "\n".join(lines).replace(" \\\n", "")
    return set(re.sub(r" ; .*?(?=\s+--hash)", "", pins).splitlines())


def _matches(file: TextFile, pattern: re.Pattern[str], complaint: str) -> list[str]:
    """Return a line per match of the pattern in the file."""
    lines = []
    for number, text in enumerate(file.text.splitlines(), start=1):
        match = pattern.search(REGISTRY_EXEMPT.sub("", text))
        if match is not None:
            lines.append(f"{file.path}:{number}: {match.group()!r} {complaint}")
    return lines
