"""Rules against tests that cannot fail: what a syntax tree shows of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tests.tidy.tree import PythonFile

Function = ast.FunctionDef | ast.AsyncFunctionDef

# A bug in the test itself raises one of these as well.
WIDE_ERRORS: Final = frozenset({"Exception", "BaseException"})


def early_returns(file: PythonFile) -> list[str]:
    """Return a line per `return` in a test: the code after it is not checked in every case."""
    return [
        f"{file.path}:{line.lineno}: {test.name} returns early; make two tests, or choose the cases"
        for test in _tests(file)
        for line in _own_nodes(test)
        if isinstance(line, ast.Return)
    ]


def wide_errors(file: PythonFile) -> list[str]:
    """Return a line per `pytest.raises` that any bug satisfies, even one of the test itself."""
    return [
        f"{file.path}:{call.lineno}: any bug raises {name}; name the error that is expected"
        for call in _nodes(file, ast.Call)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.raises"
        for name in map(ast.unparse, _alternatives(call.args[:1]))
        if name in WIDE_ERRORS
    ]


def tautologies(file: PythonFile) -> list[str]:
    """Return a line per assertion that holds whatever the product does."""
    return [
        f"{file.path}:{line.lineno}: this assertion cannot fail: {ast.unparse(line.test)}"
        for line in _nodes(file, ast.Assert)
        if isinstance(line, ast.Assert) and _is_always_true(line.test)
    ]


def _nodes(file: PythonFile, kind: type[ast.AST]) -> list[ast.AST]:
    """Return the nodes of a kind in a file of tests; none of any other file."""
    if not file.within("tests"):
        return []
    return [node for node in ast.walk(file.tree) if isinstance(node, kind)]


def _tests(file: PythonFile) -> Iterator[Function]:
    """Yield the tests of a file."""
    for node in _nodes(file, ast.AST):
        if isinstance(node, Function) and node.name.startswith("test_"):
            yield node


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without the functions and classes inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def _alternatives(arguments: list[ast.expr]) -> list[ast.expr]:
    """Return the names of the expected errors: one, or those of a tuple."""
    return [
        error
        for argument in arguments
        for error in (argument.elts if isinstance(argument, ast.Tuple) else [argument])
    ]


def _is_always_true(test: ast.expr) -> bool:
    """Return whether an expression is true for all values of its names.

    A comparison of two equal calls may fail, since the second call may return something else.
    """
    match test:
        case ast.Constant(value):
            return bool(value)
        case ast.Tuple(elts) | ast.List(elts):
            return bool(elts) and not any(isinstance(each, ast.Starred) for each in elts)
        case ast.GeneratorExp() | ast.Lambda():
            return True
        case ast.BoolOp(ast.Or(), values):
            return any(map(_is_always_true, values))
        case ast.Compare(left, [operator], [right]):
            return _holds_of_anything(left, operator, right)
        case _:
            return False


def _holds_of_anything(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> bool:
    """Return whether a comparison holds for any value."""
    of_length = isinstance(left, ast.Call) and ast.unparse(left.func) == "len"
    if of_length and isinstance(operator, ast.GtE) and ast.unparse(right) == "0":
        return True
    converted = isinstance(left, ast.Call) and ast.unparse(left.func) in {"float", "int", "str"}
    if converted and isinstance(operator, ast.IsNot) and ast.unparse(right) == "None":
        return True
    is_same = ast.unparse(left) == ast.unparse(right)
    has_call = any(isinstance(node, ast.Call | ast.Await) for node in ast.walk(left))
    return is_same and not has_call and isinstance(operator, ast.Eq | ast.Is | ast.LtE | ast.GtE)
