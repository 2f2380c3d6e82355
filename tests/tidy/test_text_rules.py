"""Each rule about text and layout is shown a planted violation and an innocent neighbour.

The planted words are assembled here, so that this file itself passes the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

import pytest

from tests.tidy import text_rules
from tests.tidy.tree import TextFile

Rule = Callable[[TextFile], list[str]]

CASES: list[tuple[Rule, str, str, bool]] = [
    (text_rules.leftovers, "a.py", "# TO" + "DO: later", True),
    (text_rules.leftovers, "a.md", "FIX" + "ME", True),
    (text_rules.leftovers, "Makefile", "# X" + "XX", True),
    (text_rules.leftovers, "a.py", "raise NotImplemented" + "Error", True),
    (text_rules.leftovers, "viewstamp/api/a_pb2_grpc.py", "NotImplemented" + "Error", False),
    (text_rules.leftovers, "a.sh", "mktemp name.XX" + "XXXX", False),
    (text_rules.leftovers, "a.py", "return NotImplemented", False),
    (text_rules.machine_paths, "a.py", "open('/ro" + "ot/x')", True),
    (text_rules.machine_paths, "a.md", "see /wo" + "rk/main", True),
    (text_rules.machine_paths, "a.yaml", "path: /ho" + "me/somebody/x", True),
    (text_rules.machine_paths, "a.md", "https://example.com/ho" + "me/x", False),
    (text_rules.machine_paths, "a.md", "framework/root and /var/lib/viewstamp", False),
    (text_rules.registry_hosts, "a.md", "https://files.pythonhos" + "ted.org/x", True),
    (text_rules.registry_hosts, "Makefile", "pip install --extra-index-" + "url x", True),
    (text_rules.registry_hosts, "Makefile", "uv pip compile --no-emit-index-" + "url", False),
    (text_rules.registry_hosts, "a.lock", "# from https://example.com", True),
    (text_rules.registry_hosts, "a.md", "https://example.com", False),
]


@pytest.mark.parametrize(("rule", "path", "text", "guilty"), CASES)
def test_rule_sees_text(rule: Rule, path: str, text: str, guilty: bool) -> None:
    """A rule reports the planted line by its number, and no innocent one."""
    lines = rule(TextFile(PurePosixPath(path), f"first\n{text}\n"))
    assert bool(lines) == guilty
    assert all(line.startswith(f"{path}:2: ") for line in lines)


@pytest.mark.parametrize(
    ("paths", "complaint"),
    [
        (["tests/coordinator/vsr/__init__.py"], "no packages"),
        (["tests/a/test_same.py", "tests/b/test_same.py"], "another test file"),
        (["tests/a/test_one.py", "tests/b/test_two.py", "tests/b/conftest.py"], None),
        (["tests/a/conftest.py", "tests/b/conftest.py", "services/a/__init__.py"], None),
    ],
)
def test_layout_sees_shadows(paths: list[str], complaint: str | None) -> None:
    """The layout rule reports folders that are packages, and names that stand twice."""
    lines = text_rules.layout_of_tests([PurePosixPath(path) for path in paths])
    assert bool(lines) == (complaint is not None)
    assert all(complaint is not None and complaint in line for line in lines)


RUNTIME_LOCK = (
    "# by make\na==1 \\\n    --hash=sha256:aa\n    # via x\nb==2 \\\n    --hash=sha256:bb\n"
)


@pytest.mark.parametrize(
    ("runtime", "dev", "count"),
    [
        (RUNTIME_LOCK, RUNTIME_LOCK + "c==3 \\\n    --hash=sha256:cc\n", 0),
        (RUNTIME_LOCK, RUNTIME_LOCK.replace("# via x", "# via y"), 0),
        (RUNTIME_LOCK, RUNTIME_LOCK.replace("b==2", "b==3"), 1),
        (RUNTIME_LOCK, RUNTIME_LOCK.replace("sha256:aa", "sha256:ab"), 1),
        (RUNTIME_LOCK, "", 2),
        ("", RUNTIME_LOCK, 1),
    ],
)
def test_lock_rule_sees_disagreement(runtime: str, dev: str, count: int) -> None:
    """A version or hash that the locks do not share is reported, once for each pin."""
    assert len(text_rules.lock_disagreements(runtime, dev)) == count


@pytest.mark.parametrize(
    ("requirement", "count"), [("a>=1", 0), ("a[x]>=1", 1), ("b[y,x]>=2 ; os_name != ''", 0)]
)
def test_lock_rule_sees_extras_that_are_not_pinned(requirement: str, count: int) -> None:
    """A package that another one requires with extras is reported if its pin lacks them."""
    lock = RUNTIME_LOCK.replace("b==2", "b[x,y]==2")
    assert len(text_rules.unlocked_extras(lock, [requirement])) == count
