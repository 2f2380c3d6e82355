"""What a seed's outcome depends on: the code that a run imports, and what it is run by.

A seed that was good says nothing of other code. Text, reports and tests are not part of it, so that
a better table does not cost a campaign.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
# The versions of everything that is not in this repository.
REQUIREMENTS: Final = "requirements-dev.lock"


@cache
def fingerprint(*entries: str) -> str:
    """What tells the code of some modules from any other; computed once, as code is loaded once."""
    digest = hashlib.sha256(repr(sys.version_info[:3]).encode())
    digest.update((ROOT / REQUIREMENTS).read_bytes())
    paths = set().union(*(closure(ROOT, entry) for entry in entries))
    for path in sorted(paths):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def closure(root: Path, entry: str) -> set[Path]:
    """The files below `root` that module `entry` imports, directly or not, wherever it does so."""
    found: set[Path] = set()
    waiting = [entry]
    while waiting:
        path = _file_of(root, waiting.pop())
        if path is None or path in found:
            continue
        found.add(path)
        waiting.extend(_imported(path))
    return found


def _file_of(root: Path, module: str) -> Path | None:
    """Where a module is; None for one from elsewhere, and for a name inside of a module."""
    place = root.joinpath(*module.split("."))
    candidates = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((path for path in candidates if path.is_file()), None)


def _imported(path: Path) -> Iterator[str]:
    """Every module that a file may import, and the packages that come with it.

    In `from a import b`, b may be a module; all imports of this repository are absolute.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
