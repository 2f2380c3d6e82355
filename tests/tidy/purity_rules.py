"""Forbidden names in the pure packages, since replicas and replays must agree to the byte."""

from __future__ import annotations

import ast

from tests.tidy.import_rules import imported
from tests.tidy.tree import PythonFile
from viewstamp.routing import SERVICE_NAMES

PURE_FOLDERS = (
    "coordinator/vsr",
    "coordinator/mux",
    "viewstamp/format",
    *(f"services/{name}" for name in SERVICE_NAMES),
)

# These files of the domain folders are no machines: each starts the process around one.
SHELL_NAMES = frozenset({"__main__.py"})

# Clocks, randomness, input and output, concurrency: each would make two replays differ.
BANNED_MODULES = frozenset(
    """
    aiosqlite asyncio calendar concurrent ctypes datetime fcntl glob grpc http locale logging mmap
    multiprocessing opentelemetry os pathlib psutil queue random sched secrets select selectors
    shutil signal socket socketserver sqlite3 ssl subprocess tempfile threading time urllib uuid
    weakref
    """.split()
)

# `hash` is salted per process, `id` is an address, the others reach outside.
BANNED_CALLS = frozenset({"breakpoint", "eval", "exec", "hash", "id", "input", "open", "print"})
UNORDERED_CALLS = frozenset({"set", "frozenset"})


def is_pure(file: PythonFile) -> bool:
    """Return whether the file must not use clock, randomness, input and output."""
    in_folder = any(file.within(folder) for folder in PURE_FOLDERS)
    return in_folder and file.path.name not in SHELL_NAMES


def banned_imports(file: PythonFile) -> list[str]:
    """Return a line per import of a module that reaches outside."""
    if not is_pure(file):
        return []
    return [
        f"{file.path}:{line}: imports {name}; pass what is needed in as an argument"
        for line, name in imported(file)
        if name.split(".")[0] in BANNED_MODULES
    ]


def banned_calls(file: PythonFile) -> list[str]:
    """Return a line per call of a builtin whose answer differs between processes."""
    if not is_pure(file):
        return []
    return [
        f"{file.path}:{node.lineno}: calls {node.func.id}(), which is not deterministic"
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in BANNED_CALLS
    ]


def floats(file: PythonFile) -> list[str]:
    """Return a line per float: a literal, the name `float`, or a true division."""
    if not is_pure(file):
        return []
    return [
        f"{file.path}:{node.lineno}: uses a float; count in integers of a named unit"
        for node in ast.walk(file.tree)
        if isinstance(node, ast.expr | ast.AugAssign) and _is_float(node)
    ]


def unordered_iteration(file: PythonFile) -> list[str]:
    """Return a line per loop directly over a set, whose order differs between replicas."""
    if not is_pure(file):
        return []
    loops = (n for n in ast.walk(file.tree) if isinstance(n, ast.For | ast.comprehension))
    return [
        f"{file.path}:{loop.iter.lineno}: iterates over a set; wrap it in sorted()"
        for loop in loops
        if _is_set(loop.iter)
    ]


def _is_float(node: ast.expr | ast.AugAssign) -> bool:
    """Return whether the node makes or names a float."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float)
    if isinstance(node, ast.Name):
        return node.id == "float"
    return isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div)


def _is_set(node: ast.expr) -> bool:
    """Return whether the expression is visibly a set."""
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    return node.func.id in UNORDERED_CALLS
