"""Refusals that machines decide are data: a reason, a case, details. A table has their texts.

The rules read refusals from the syntax: `Refusal.of(Reason.REASON_X, "case", key=value)`, the mux's
`encode_refusal("X", {"key": value}, "case")`, and helpers named `malformed`. Where a reason, a case
or details are variables, the rules see nothing, and the tests of that code must check them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from string import Formatter
from typing import Final

from tests.tidy.tree import PythonFile
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.texts import table

# In these files refusals enter the log, snapshots or the answer of a service.
WORDLESS_FOLDERS: Final = ("services", "coordinator/mux", "coordinator/stages")
# Functions that make a refusal, and which argument is the case. The last three are for refusals of
# MALFORMED_REQUEST.
CASE_POSITIONS: Final = {
    "of": 1,
    "encode_refusal": 2,
    "malformed": 0,
    "_malformed": 0,
    "Malformed": 0,
}
CASE: Final = re.compile(r"[a-z]+(_[a-z]+)*")


@dataclass(frozen=True, slots=True)
class Raised:
    """A refusal as the syntax shows it; None for parts that it does not show."""

    line: int
    reason: int | None
    case: str | None
    keys: frozenset[str] | None


def is_wordless(file: PythonFile) -> bool:
    """Return whether refusals made in a file must have no text."""
    return any(file.within(folder) for folder in WORDLESS_FOLDERS)


def no_prose(file: PythonFile) -> list[str]:
    """Return a line per refusal with a message, or with prose in place of a case."""
    if not is_wordless(file):
        return []
    found = []
    for call in _calls(file):
        name = _called(call)
        if name == "Refusal":
            found.append(f"{file.path}:{call.lineno}: write Refusal.of(reason, case, key=value)")
        if name.endswith("Error") and any(word.arg == "message" for word in call.keywords):
            found.append(f"{file.path}:{call.lineno}: an Error has no message before the edge")
        case = _case_of(call)
        if not isinstance(case, ast.Constant | ast.Name | ast.Attribute | None) or (
            isinstance(case, ast.Constant) and case.value and not CASE.fullmatch(str(case.value))
        ):
            written = ast.unparse(case)
            found.append(f"{file.path}:{call.lineno}: the case {written} is not one in snake_case")
    return found


def has_text(file: PythonFile) -> list[str]:
    """Return a line per refusal without a text, or without a detail that its text names."""
    found = []
    for raised in raised_in(file) if is_wordless(file) else ():
        if raised.reason is None or raised.case is None:
            continue
        name = f"{Reason.Name(raised.reason)}, {raised.case!r}"  # type: ignore[arg-type]
        text = table.TEXTS.get((raised.reason, raised.case))
        if text is None:
            found.append(f"{file.path}:{raised.line}: viewstamp.texts.table has no text for {name}")
        elif raised.keys is not None and (missing := _keys_of(text) - raised.keys):
            found.append(f"{file.path}:{raised.line}: {name} is raised without {sorted(missing)}")
    return found


def _keys_of(template: str) -> frozenset[str]:
    return frozenset(key for _, key, _, _ in Formatter().parse(template) if key is not None)


def raised_in(file: PythonFile) -> Iterator[Raised]:
    """Yield the refusals that a file makes."""
    for call in _calls(file):
        kind = _kind(call)
        if kind is None:
            continue
        node = _case_of(call)
        case = "" if node is None else _text(node)
        if kind == "of":
            yield Raised(call.lineno, _reason(call.args[0]), case, _keywords(call))
        elif kind == "encode_refusal":
            yield Raised(call.lineno, _named(_text(call.args[0])), case, _keys(call.args[1]))
        else:
            keys = None if kind == "Malformed" else _keywords(call)
            yield Raised(call.lineno, Reason.REASON_MALFORMED_REQUEST, case, keys)


def _kind(call: ast.Call) -> str | None:
    """Return the pattern by which a call makes a refusal; None if it makes none."""
    name = _called(call)
    last = name.rpartition(".")[2]
    if name == "Refusal.of":
        return "of"
    return last if last in CASE_POSITIONS and call.args else None


def _case_of(call: ast.Call) -> ast.expr | None:
    """Return the case of a refusal as it is written; None if there is none."""
    kind = _kind(call)
    at = None if kind is None else CASE_POSITIONS[kind]
    return None if at is None or len(call.args) <= at else call.args[at]


def _calls(file: PythonFile) -> Iterator[ast.Call]:
    return (node for node in ast.walk(file.tree) if isinstance(node, ast.Call))


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func)


def _reason(node: ast.expr) -> int | None:
    written = ast.unparse(node)
    return Reason.Value(written[7:]) if written.startswith("Reason.REASON_") else None


def _named(name: str | None) -> int | None:
    return None if name is None else Reason.Value("REASON_" + name)


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _keywords(call: ast.Call) -> frozenset[str] | None:
    names = [word.arg for word in call.keywords]
    return None if None in names else frozenset(name for name in names if name is not None)


def _keys(node: ast.expr) -> frozenset[str] | None:
    if not isinstance(node, ast.Dict):
        return None
    names = [_text(key) if key is not None else None for key in node.keys]
    return None if None in names else frozenset(name for name in names if name is not None)
