"""How long, and how well explained: rules that keep each piece of code readable at one sitting."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeAlias

from tests.tidy.tree import PythonFile

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500

# Path, or path and function as `path::name`, and why it may be longer. This should stay empty.
LENGTH_EXEMPTIONS: dict[str, str] = {}

DOCUMENTED_FOLDERS = (
    *("viewstamp", "coordinator", "services", "past", "analytics"),
    *("testkit/load", "tools"),
)
# The property or the function explains its setters and overloads.
EXPLAINED_ELSEWHERE = frozenset({"setter", "deleter", "overload", "override"})


def function_length(file: PythonFile) -> list[str]:
    """Return a line per function that is too long to be read at one sitting."""
    return [
        f"{file.path}:{node.lineno}: {node.name} has {lines} lines, {FUNCTION_LINES_MAX} allowed"
        for node in _functions(file.tree)
        if (lines := _line_count(node)) > FUNCTION_LINES_MAX
        and f"{file.path}::{node.name}" not in LENGTH_EXEMPTIONS
    ]


def file_length(file: PythonFile) -> list[str]:
    """Return a line if the file is too long."""
    lines = len(file.text.splitlines())
    if lines <= FILE_LINES_MAX or str(file.path) in LENGTH_EXEMPTIONS:
        return []
    return [f"{file.path}: has {lines} lines, {FILE_LINES_MAX} allowed; split it by concern"]


def public_docstrings(file: PythonFile) -> list[str]:
    """Return a line per public module, class or function of the packages without a docstring."""
    if not any(file.within(folder) for folder in DOCUMENTED_FOLDERS):
        return []
    lines = []
    if file.tree.body and ast.get_docstring(file.tree) is None:
        lines.append(f"{file.path}:1: the module has no docstring")
    for node in _public(file.tree):
        if ast.get_docstring(node) is None and not _explained_elsewhere(node):
            lines.append(f"{file.path}:{node.lineno}: {node.name} has no docstring")
    return lines


def docstrings_of_tests(file: PythonFile) -> list[str]:
    """Return a line per test that does not say what it proves."""
    if not file.within("tests") or not file.path.name.startswith("test_"):
        return []
    return [
        f"{file.path}:{node.lineno}: {node.name} does not say what it proves"
        for node in _functions(file.tree)
        if node.name.startswith("test_") and ast.get_docstring(node) is None
    ]


def _functions(tree: ast.AST) -> Iterator[Function]:
    """Yield every function and method, nested ones too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _line_count(node: Function) -> int:
    """Return the number of lines from `def` to the last statement."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _public(parent: ast.Module | ast.ClassDef) -> Iterator[Function | ast.ClassDef]:
    """Yield the public classes and functions of a module or class, and those inside them."""
    for node in parent.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if node.name.startswith("_"):
            continue
        yield node
        if isinstance(node, ast.ClassDef):
            yield from _public(node)


def _explained_elsewhere(node: Function | ast.ClassDef) -> bool:
    """Return whether the explanation stands elsewhere: at another definition, or at the class.

    A property that is only declared (`...`, in a protocol) is a field, which its class explains.
    """
    names = {
        decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")
        for decorator in node.decorator_list
    }
    declared = "property" in names and [ast.unparse(line) for line in node.body] == ["..."]
    return declared or bool(names & EXPLAINED_ELSEWHERE)
