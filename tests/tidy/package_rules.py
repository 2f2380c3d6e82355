"""The allowed imports between packages of the coordinator: arrows in one direction only.

A package is a folder of `coordinator/`, or one of the modules there that lie in no folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Final

from tests.tidy.import_rules import imported
from tests.tidy.tree import PythonFile

# The modules that lie in no folder. All other modules lie in one.
LOOSE_MODULES: Final = frozenset({"__init__", "__main__", "storage"})
ARROWS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        package: frozenset(below.split())
        for package, below in {
            "journal": "storage",
            "stages": "base mux",
            "snapshot": "storage base vsr mux stages",
            "replica": "storage base vsr mux journal stages snapshot",
            "scrub": "storage journal snapshot",
            "telemetry": "base mux snapshot replica",
            "history": "mux snapshot replica",
            "peers": "base vsr mux stages snapshot",
            "gateway": "base vsr mux stages snapshot replica telemetry history",
            "console": "base gateway",
            "app": (
                "storage base vsr mux journal stages snapshot replica telemetry history peers"
                " gateway console scrub"
            ),
            "__main__": "app",
        }.items()
    }
)


def package_of(module: str) -> str | None:
    """Return the package of the coordinator that a module or a name of it lies in, if any."""
    parts = module.split(".")
    return parts[1] if parts[0] == "coordinator" and len(parts) > 1 else None


def found_arrows(files: Iterable[PythonFile]) -> dict[str, set[str]]:
    """Return the arrows that follow from import statements of the coordinator."""
    arrows: dict[str, set[str]] = {}
    for file in files:
        source = package_of(".".join(file.path.with_suffix("").parts))
        if source is None or source == "__init__":
            continue
        targets = {package_of(name) for _, name in imported(file)} - {None, source}
        arrows.setdefault(source, set()).update(target for target in targets if target)
    return arrows


def package_arrows(
    files: Iterable[PythonFile], allowed: Mapping[str, frozenset[str]] = ARROWS
) -> list[str]:
    """Return a line per arrow that is not listed, or listed and unused, and one per cycle."""
    found = found_arrows(files)
    pairs = {(source, target) for source, targets in found.items() for target in targets}
    listed = {(source, target) for source, targets in allowed.items() for target in targets}
    return [
        *(f"{a} imports {b}: not among the arrows" for a, b in sorted(pairs - listed)),
        *(f"{a} imports {b} no more: take the arrow out" for a, b in sorted(listed - pairs)),
        *_knots(allowed),
    ]


def _knots(arrows: Mapping[str, frozenset[str]]) -> list[str]:
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return [f"the arrows have a cycle: {' -> '.join(error.args[1])}"]
    return []


def loose_modules(files: Iterable[PythonFile]) -> list[str]:
    """Return a line per module that lies in no folder of the coordinator and is not named."""
    return [
        f"{file.path}: give it a package; loose are only {', '.join(sorted(LOOSE_MODULES))}"
        for file in files
        if file.path.parent.as_posix() == "coordinator" and file.path.stem not in LOOSE_MODULES
    ]
