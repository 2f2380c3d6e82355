"""Tests, testkit and benchmarks use no private name of another class or module."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

from tests.tidy.name_rules import TESTING
from tests.tidy.tree import PythonFile

# Public names of libraries, though they begin with an underscore.
OF_LIBRARIES: Final = {
    "_actions": "argparse has no other list of its flags",
    "_get_running_loop": "asyncio: made for whoever writes an event loop",
    "_log_destroy_pending": "asyncio: the only way to end a task in silence",
    "_max_workers": "concurrent.futures has no other way to ask for the size of a pool",
    "_run": "asyncio: how an event loop runs a handle",
    "_scheduled": "asyncio: how an event loop marks a timer that waits",
    "_set_running_loop": "asyncio: made for whoever writes an event loop",
    "_exit": "the way of `os` to end a process at once",
    "_jdf": "PySpark: the only way to the plan of a frame",
    "_jvm": "PySpark: the only way to the runtime of Java",
    "_replace": "the public method of named tuples",
}
# (file, private name of another file) -> why the file may use it.
ALLOWED: Final = {
    ("testkit/journal_builders.py", "_append"): "writes records that no public method would write",
    ("testkit/plants/core_bugs.py", "_write"): "the planted bug is in this method",
    ("tests/testkit/world/test_world_plants.py", "_append"): "the planted bug is in this method",
    ("testkit/plants/core_guards.py", "_register"): "the planted bug is in this method",
}
# Functions that take the name of an attribute.
BY_NAME: Final = ("delattr", "getattr", "hasattr", "setattr")


def private_uses(files: Iterable[PythonFile]) -> list[str]:
    """Return a complaint for each use of a private name of another class or module.

    A class may use its private names on its other objects, and a file may use those of its own
    classes.
    """
    uses = [
        (str(file.path), name, line)
        for file in files
        if any(map(file.within, TESTING))
        for line, name in _private_in(file.tree)
    ]
    unneeded = ALLOWED.keys() - {(path, name) for path, name, _ in uses}
    return [
        f"{path}:{line}: {name} is private: test what can be seen, or give it a public name"
        for path, name, line in uses
        if (path, name) not in ALLOWED
    ] + [f"{path} does not use {name}: take it out of ALLOWED" for path, name in sorted(unneeded)]


def _private_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each use."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    own = {
        id(node)
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef)
        for node in _own(each, each, {"self", "cls", *_locals(each)})
    }
    own |= {id(node) for name, each in classes.items() for node in _own(tree, each, {name})}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names = [] if id(node) in own or _is_receiver(node.value) else [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        else:
            names = _named(node) if isinstance(node, ast.Call) else []
        for name in filter(_is_private, names):
            yield getattr(node, "lineno", 0), name


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_LIBRARIES


def _is_receiver(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def _own(body: ast.AST, owner: ast.ClassDef, names: set[str]) -> Iterator[ast.Attribute]:
    """Yield the attributes that a class defines on the objects named, in a body."""
    defined = _defined(owner)
    for node in ast.walk(body):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        if node.value.id in names and node.attr in defined:
            yield node


def _defined(owner: ast.ClassDef) -> set[str]:
    """Return the methods of a class, and the attributes that it sets on itself."""
    found = {
        node.name for node in owner.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for node in ast.walk(owner):
        if isinstance(node, ast.Attribute) and _is_receiver(node.value):
            found |= {node.attr} if isinstance(node.ctx, ast.Store) else set()
    return found


def _locals(owner: ast.ClassDef) -> set[str]:
    """Return the names that mean a new object of a class, in its own methods."""
    return {
        target.id
        for node in ast.walk(owner)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if isinstance(node.value.func, ast.Name) and node.value.func.id in (owner.name, "cls")
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _named(call: ast.Call) -> list[str]:
    """Return the attribute that a call gets or sets by a string such as "_name" or "a.b._name"."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name not in BY_NAME:
        return []
    texts = [each.value for each in call.args[:2] if isinstance(each, ast.Constant)]
    return [text.rpartition(".")[2] for text in texts[:1] if isinstance(text, str)]
