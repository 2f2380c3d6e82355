"""Each rule about Python files is shown a planted violation and an innocent neighbour.

The cases are a table of (rule, path, source, part of the complaint); None means that the rule is
silent.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.tidy import (
    import_rules,
    purity_rules,
    shape_rules,
    storage_rules,
    transport_rules,
    words_rules,
)
from tests.tidy.tree import PythonFile, python_file

Rule = Callable[[PythonFile], list[str]]

IMPORTS: list[tuple[Rule, str, str, str | None]] = [
    (import_rules.arrows, "viewstamp/client.py", "import coordinator.mux", "coordinator.mux"),
    (import_rules.arrows, "viewstamp/client.py", "from services import users", "services.users"),
    (import_rules.arrows, "viewstamp/a/b.py", "from ...services import users", "services.users"),
    (import_rules.arrows, "viewstamp/a/b.py", "from ..format import layer", None),
    (import_rules.arrows, "viewstamp/a/b.py", "def f():\n    import services", "services"),
    (import_rules.arrows, "services/users/model.py", "import coordinator", "coordinator"),
    (import_rules.arrows, "services/users/model.py", "from viewstamp import limits", None),
    (import_rules.arrows, "coordinator/gateway/a.py", "from services.users import b", "services"),
    (import_rules.arrows, "coordinator/gateway/a.py", "from coordinator.mux import b", None),
    (import_rules.arrows, "coordinator/vsr/a.py", "from coordinator.mux import b", "mux"),
    (import_rules.arrows, "coordinator/vsr/a.py", "from viewstamp import errors", "errors"),
    (import_rules.arrows, "coordinator/vsr/a.py", "from viewstamp import limits", None),
    (import_rules.arrows, "coordinator/vsr/a.py", "from viewstamp.limits import X", None),
    (import_rules.arrows, "analytics/job.py", "from viewstamp.client import C", "client"),
    (import_rules.arrows, "analytics/job.py", "from viewstamp.format import layer", None),
    (import_rules.arrows, "analytics/job.py", "import viewstamp.formatter", "formatter"),
    (import_rules.arrows, "examples/demo.py", "import services.users", "services.users"),
    (import_rules.arrows, "tests/domains/test_a.py", "import services.users", None),
    (import_rules.arrows, "testkit/load/a.py", "import services.users", None),
    (
        import_rules.arrows,
        "testkit/load/a.py",
        "import tests.coordinator.mux.fakes",
        "tests.coordinator.mux.fakes",
    ),
    (import_rules.arrows, "viewstamp/client/a.py", "import testkit.load", "testkit.load"),
    (import_rules.standard_library_only, "coordinator/vsr/a.py", "import blake3", "blake3"),
    (import_rules.standard_library_only, "coordinator/mux/a.py", "import enum", None),
    (import_rules.standard_library_only, "coordinator/gateway/a.py", "import grpc", None),
]

WRITES: list[tuple[Rule, str, str, str | None]] = [
    (storage_rules.second_ways_to_write, path, source, complaint)
    for path, source, complaint in (
        ("coordinator/snapshot/a.py", "path.write_bytes(b'')", "path.write_bytes"),
        ("coordinator/snapshot/a.py", "os.open(path, os.O_RDWR)", "os.open"),
        ("coordinator/a.py", "open(path, 'ab')", "calls open"),
        ("coordinator/a.py", "shutil.rmtree(path)", "shutil.rmtree"),
        ("coordinator/a.py", "self._storage.unlink(path)", None),
        ("coordinator/a.py", "storage.open(path)", None),
        ("coordinator/storage.py", "os.open(path, os.O_RDWR)", None),
        ("services/a.py", "path.write_bytes(b'')", None),
    )
]

TRANSPORT: list[tuple[Rule, str, str, str | None]] = [
    (transport_rules.second_ways_to_grpc, path, source, complaint)
    for path, source, complaint in (
        ("coordinator/peers/a.py", "grpc.aio.insecure_channel(a)", "grpc.aio.insecure_channel"),
        ("viewstamp/client/a.py", "grpc.aio.secure_channel(a, b)", "grpc.aio.secure_channel"),
        ("services/runtime/a.py", "grpc.aio.server(options=())", "grpc.aio.server"),
        ("services/runtime/a.py", "grpc_transport.make_server(())", None),
        ("viewstamp/grpc_transport.py", "grpc.aio.server(options=())", None),
        ("tests/abuse/a.py", "grpc.aio.insecure_channel(a)", None),
    )
]

WORDS: list[tuple[Rule, str, str, str | None]] = [
    *(
        (words_rules.no_prose, path, "raise Refusal(Reason.REASON_INTERNAL, f'no {x}')", complaint)
        for path, complaint in (
            ("services/users/commands.py", "Refusal.of"),
            ("services/runtime/spans.py", "Refusal.of"),
            ("coordinator/mux/sessions.py", "Refusal.of"),
            ("coordinator/stages/codec.py", "Refusal.of"),
            ("coordinator/gateway/unary.py", None),
        )
    ),
    (words_rules.no_prose, "services/a.py", "pb.Error(reason=1, message='no')", "no message"),
    (
        words_rules.no_prose,
        "services/a.py",
        "Refusal.of(Reason.REASON_INTERNAL, 'Not so')",
        "snake",
    ),
    (words_rules.no_prose, "services/a.py", "malformed(f'no {x}')", "snake"),
    (words_rules.no_prose, "services/a.py", "malformed('no way')", "snake"),
    (
        words_rules.no_prose,
        "coordinator/mux/a.py",
        "c.encode_refusal('INTERNAL', {}, 'a b')",
        "snake",
    ),
    (words_rules.has_text, "services/a.py", "Refusal.of(Reason.REASON_INTERNAL, 'new')", "no text"),
    (words_rules.has_text, "services/a.py", "Refusal.of(Reason.REASON_INTERNAL)", "['where']"),
    (words_rules.has_text, "services/a.py", "Refusal.of(Reason.REASON_INTERNAL, where=1)", None),
    (words_rules.has_text, "services/a.py", "Refusal.of(Reason.REASON_INTERNAL, **words)", None),
    (words_rules.has_text, "services/a.py", "self.malformed('unnamed')", "['field']"),
    (words_rules.has_text, "coordinator/mux/a.py", "c.encode_refusal('INTERNAL', {})", "['where']"),
    (
        words_rules.has_text,
        "coordinator/mux/a.py",
        "c.encode_refusal('INTERNAL', x, 'y')",
        "no text",
    ),
    (
        words_rules.has_text,
        "coordinator/mux/a.py",
        "c.encode_refusal('INTERNAL', {'where': 1})",
        None,
    ),
]

MACHINE = "services/users/model.py"
PURITY: list[tuple[Rule, str, str, str | None]] = [
    *(
        (purity_rules.banned_imports, MACHINE, f"import {name}", name)
        for name in ("asyncio", "grpc", "time", "random", "datetime", "os", "socket", "threading")
    ),
    (purity_rules.banned_imports, MACHINE, "from os import path", "os.path"),
    (purity_rules.banned_imports, "coordinator/vsr/a.py", "import time", "time"),
    (purity_rules.banned_imports, "coordinator/mux/a.py", "import asyncio", "asyncio"),
    (purity_rules.banned_imports, "viewstamp/format/a.py", "import pathlib", "pathlib"),
    (purity_rules.banned_imports, "viewstamp/format/a.py", "import struct, zstandard", None),
    (purity_rules.banned_imports, "services/users/__main__.py", "import asyncio", None),
    (purity_rules.banned_imports, "services/runtime/shell.py", "import asyncio", None),
    (purity_rules.banned_calls, MACHINE, "x = hash(y)", "hash()"),
    (purity_rules.banned_calls, MACHINE, "x = id(y)", "id()"),
    (purity_rules.banned_calls, "viewstamp/format/a.py", "open('x')", "open()"),
    (purity_rules.banned_calls, MACHINE, "x = journal.open(y)", None),
    (purity_rules.floats, MACHINE, "x = 0.5", "float"),
    (purity_rules.floats, MACHINE, "x = 1e3", "float"),
    (purity_rules.floats, MACHINE, "x: float = y", "float"),
    (purity_rules.floats, MACHINE, "x = y / 2", "float"),
    (purity_rules.floats, MACHINE, "x /= 2", "float"),
    (purity_rules.floats, MACHINE, "x = y // 2", None),
    (purity_rules.floats, "services/runtime/shell.py", "x = 0.5", None),
    (purity_rules.unordered_iteration, MACHINE, "for x in {1, 2}: pass", "set"),
    (purity_rules.unordered_iteration, MACHINE, "x = [y for y in set(z)]", "set"),
    (purity_rules.unordered_iteration, MACHINE, "for x in sorted({1, 2}): pass", None),
]


MODULE = '"""Module."""\n'


def function(lines: int) -> str:
    """Return a documented function of exactly so many lines."""
    return f'{MODULE}def f():\n    """Doc."""\n' + "    x = 1\n" * (lines - 2)


LONGEST = shape_rules.FUNCTION_LINES_MAX
SHAPES: list[tuple[Rule, str, str, str | None]] = [
    (shape_rules.function_length, "tools/a.py", function(LONGEST + 1), "71 lines"),
    (shape_rules.function_length, "tools/a.py", function(LONGEST), None),
    (
        shape_rules.function_length,
        "tools/a.py",
        f"async {function(LONGEST + 1)[len(MODULE) :]}",
        "71 lines",
    ),
    (shape_rules.function_length, "tests/x/a.py", function(9) * 9, None),
    (shape_rules.file_length, "tools/a.py", "\n" * 501, "501 lines"),
    (shape_rules.file_length, "tools/a.py", "\n" * 500, None),
    (shape_rules.public_docstrings, "services/a.py", "x = 1", "module"),
    (shape_rules.public_docstrings, "services/a.py", '"""M."""\ndef f(): pass', "f has no"),
    (shape_rules.public_docstrings, "services/a.py", '"""M."""\nasync def f(): pass', "f has no"),
    (shape_rules.public_docstrings, "services/a.py", '"""M."""\nclass C: pass', "C has no"),
    (
        shape_rules.public_docstrings,
        "services/a.py",
        '"""M."""\nclass C:\n    """C."""\n    def m(self): pass',
        "m has no",
    ),
    (shape_rules.public_docstrings, "services/a.py", '"""M."""\ndef _f(): pass', None),
    (
        shape_rules.public_docstrings,
        "services/a.py",
        '"""M."""\n@typing.overload\ndef f(): ...',
        None,
    ),
    (
        shape_rules.public_docstrings,
        "services/a.py",
        '"""M."""\n@property\ndef f(): ...',
        None,
    ),
    (
        shape_rules.public_docstrings,
        "services/a.py",
        '"""M."""\n@property\ndef f(): return 1',
        "f has no",
    ),
    (shape_rules.public_docstrings, "services/__init__.py", "", None),
    (shape_rules.public_docstrings, "benchmarks/a.py", "def f(): pass", None),
    (shape_rules.docstrings_of_tests, "tests/x/test_a.py", "def test_b(): pass", "test_b"),
    (
        shape_rules.docstrings_of_tests,
        "tests/x/test_a.py",
        "class TestC:\n    async def test_b(self): pass",
        "test_b",
    ),
    (shape_rules.docstrings_of_tests, "tests/x/test_a.py", "def helper(): pass", None),
]


@pytest.mark.parametrize(
    ("rule", "path", "source", "complaint"), IMPORTS + PURITY + WRITES + TRANSPORT + WORDS + SHAPES
)
def test_rule_sees_violation(rule: Rule, path: str, source: str, complaint: str | None) -> None:
    """A rule reports exactly the planted violation, and nothing in innocent code."""
    lines = rule(python_file(path, source))
    if complaint is None:
        assert lines == []
    else:
        assert len(lines) == 1
        assert complaint in lines[0]
        assert lines[0].startswith(path)
