"""There is no second way to write: the coordinator's files go through `coordinator/storage.py`."""

from __future__ import annotations

import ast
from typing import Final

from tests.tidy.tree import PythonFile

FOLDER: Final = "coordinator"
# Storage itself, and files that nothing depends on: one for tools, written anew at every start, and
# the SQLite view, which can be deleted at any time.
EXEMPT: Final = frozenset(
    {"coordinator/storage.py", "coordinator/app/outside.py", "coordinator/snapshot/store.py"}
)
_OF_OS: Final = frozenset(
    "fdatasync fsync ftruncate link mkdir open posix_fallocate pwrite remove rename replace rmdir"
    " truncate unlink write writev".split()
)
_OF_PATHS: Final = frozenset("mkdir rmdir touch unlink write_bytes write_text".split())
_STORAGE: Final = frozenset({"storage", "_storage"})


def second_ways_to_write(file: PythonFile) -> list[str]:
    """Return a line per call that changes a file system past the storage."""
    if not file.within(FOLDER) or str(file.path) in EXEMPT:
        return []
    calls = (node for node in ast.walk(file.tree) if isinstance(node, ast.Call))
    return [
        f"{file.path}:{call.lineno}: calls {ast.unparse(call.func)}; go through coordinator.storage"
        for call in calls
        if _writes(call)
    ]


def _writes(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id == "open"
    if not isinstance(function, ast.Attribute):
        return False
    owner = ast.unparse(function.value).rpartition(".")[2]
    if owner == "os":
        return function.attr in _OF_OS
    if owner == "shutil":
        return True
    return function.attr in _OF_PATHS and owner not in _STORAGE
