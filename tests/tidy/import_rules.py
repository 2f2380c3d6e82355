"""The allowed imports between folders: import statements make the architecture."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from tests.tidy.tree import PythonFile

# Folder, and the first-party modules that its files may import. The first folder that holds a file
# decides. Folders not named (tests, benchmarks) may import anything.
ARROWS = (
    ("viewstamp/machine", ("viewstamp.machine",)),
    ("viewstamp", ("viewstamp",)),
    ("coordinator/vsr", ("coordinator.vsr", "viewstamp.limits")),
    ("coordinator/mux", ("coordinator.mux", "viewstamp.limits", "viewstamp.machine")),
    ("coordinator", ("coordinator", "viewstamp")),
    ("services", ("services", "viewstamp")),
    # The one package that runs machines behind a mux; nobody imports it.
    ("past", ("past", "coordinator", "services", "viewstamp")),
    (
        "analytics",
        (
            *("analytics", "viewstamp.api", "viewstamp.format", "viewstamp.limits"),
            *("viewstamp.telemetry.program", "viewstamp.telemetry.work"),
        ),
    ),
    ("testkit", ("testkit", "viewstamp", "coordinator", "services", "past", "analytics")),
    ("examples", ("examples", "testkit", "viewstamp")),
    # It asks every program for its flags.
    ("tools/configuration_reference.py", ("tools", "viewstamp", "coordinator", "services")),
    ("tools", ("tools", "viewstamp")),
)
FIRST_PARTY = frozenset(
    {
        "viewstamp",
        "coordinator",
        "services",
        "past",
        "analytics",
        "examples",
        "tools",
        "testkit",
        "tests",
        "benchmarks",
    }
)

# These folders import no third-party library either: the core must run in the simulator.
STANDARD_LIBRARY_ONLY = ("coordinator/vsr", "coordinator/mux", "viewstamp/machine")


def imported(file: PythonFile) -> Iterator[tuple[int, str]]:
    """Yield line and full dotted name of each import; relative ones are made absolute."""
    package = file.path.parent.parts
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def arrows(file: PythonFile) -> list[str]:
    """Return a line per first-party import that the table does not allow."""
    allowed = next((names for folder, names in ARROWS if file.within(folder)), None)
    if allowed is None:
        return []
    return [
        f"{file.path}:{line}: imports {name}; allowed here: {', '.join(allowed)}"
        for line, name in imported(file)
        if name.split(".")[0] in FIRST_PARTY and not _is_below(name, allowed)
    ]


def standard_library_only(file: PythonFile) -> list[str]:
    """Return a line per third-party import in the packages that may have none."""
    if not any(file.within(folder) for folder in STANDARD_LIBRARY_ONLY):
        return []
    known = FIRST_PARTY | sys.stdlib_module_names
    return [
        f"{file.path}:{line}: imports {name}; only the standard library may be used here"
        for line, name in imported(file)
        if name.split(".")[0] not in known
    ]


def _is_below(name: str, allowed: tuple[str, ...]) -> bool:
    """Return whether the dotted name is one of the allowed modules or lies inside one."""
    return any(name == module or name.startswith(f"{module}.") for module in allowed)
