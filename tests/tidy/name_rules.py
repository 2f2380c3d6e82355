"""One class name means one thing: in the installed packages, and in the code that tests them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from tests.tidy.tree import PythonFile

PRODUCT: Final = ("analytics", "coordinator", "past", "services", "viewstamp")
TESTING: Final = ("tests", "testkit", "benchmarks")


def repeated_classes(files: Iterable[PythonFile]) -> list[str]:
    """Return a complaint for each public class name that several modules define."""
    known = list(files)
    return [*_repeated(known, PRODUCT), *_repeated(known, TESTING)]


def _repeated(files: Iterable[PythonFile], folders: Iterable[str]) -> list[str]:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        if any(map(file.within, folders)):
            for name in _public_classes(file):
                places[name].append(str(file.path))
    return [
        f"class {name} is defined in {', '.join(found)}: give each a name of its own"
        for name, found in sorted(places.items())
        if len(found) > 1
    ]


def _public_classes(file: PythonFile) -> list[str]:
    nodes = (node for node in file.tree.body if isinstance(node, ast.ClassDef))
    return [node.name for node in nodes if not node.name.startswith("_")]
