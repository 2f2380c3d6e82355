"""One class name means one thing, across everything that is installed."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from tests.tidy.tree import PythonFile

PRODUCT: Final = ("analytics", "coordinator", "services", "viewstamp")
# Names that may stand more than once, and why.
REPEATED: Final = {
    "Freezer": "the machine kits of mux and services are still two",
    "Table": "the machine kits of mux and services are still two",
    "UndoLog": "the machine kits of mux and services are still two",
}


def repeated_classes(files: Iterable[PythonFile]) -> list[str]:
    """Return a complaint for each public class name that several modules define."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        if any(map(file.within, PRODUCT)):
            for name in _public_classes(file):
                places[name].append(str(file.path))
    complaints = [
        f"class {name} is defined in {', '.join(found)}: give each a name of its own"
        for name, found in sorted(places.items())
        if len(found) > 1 and name not in REPEATED
    ]
    unused = [name for name in REPEATED if len(places[name]) < 2]
    return complaints + [f"{name} stands once: take it out of REPEATED" for name in unused]


def _public_classes(file: PythonFile) -> list[str]:
    nodes = (node for node in file.tree.body if isinstance(node, ast.ClassDef))
    return [node.name for node in nodes if not node.name.startswith("_")]
