"""The rules against tests that cannot fail are shown such tests, and innocent neighbours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tidy import weak_test_rules
from tests.tidy.tree import ROOT, PythonFile, python_file

pytest_plugins = "pytester"

PATH = "tests/a/test_a.py"
TAUTOLOGIES = [
    "assert True",
    "assert 'message'",
    "assert (x == 1, 'message')",
    "assert [x == 1]",
    "assert (each for each in x)",
    "assert lambda: x",
    "assert x or True",
    "assert x == x",
    "assert x.y is x.y",
    "assert len(x) >= 0",
    "assert float(x) is not None",
]
SOUND = [
    "assert x",
    "assert x == y, 'message'",
    "assert x() == x()",
    "assert x < x",
    "assert False",
    "assert [each for each in x]",
    "assert [*x]",
    "assert x or y",
    "assert len(x) >= 1",
    "assert find(x) is not None",
    "assert 0 <= x >= 0",
]
RETURNS = "def test_b():\n    if x:\n        return\n    assert y"
RETURNS_INSIDE = "def test_b():\n    def of(x):\n        return x\n    assert of(1)"


@pytest.mark.parametrize(
    ("rule", "source", "complaint"),
    [
        *((weak_test_rules.tautologies, source, "cannot fail") for source in TAUTOLOGIES),
        *((weak_test_rules.tautologies, source, None) for source in SOUND),
        (weak_test_rules.early_returns, RETURNS, "test_b returns early"),
        (weak_test_rules.early_returns, "async " + RETURNS, "test_b returns early"),
        (weak_test_rules.early_returns, RETURNS_INSIDE, None),
        (weak_test_rules.early_returns, RETURNS.replace("test_b", "helper"), None),
        (weak_test_rules.wide_errors, "pytest.raises(Exception)", "raises Exception"),
        (weak_test_rules.wide_errors, "pytest.raises((A, BaseException))", "BaseException"),
        (weak_test_rules.wide_errors, "pytest.raises(Refusal)", None),
        (weak_test_rules.wide_errors, "pytest.raises(ExceptionGroup)", None),
    ],
)
def test_rule_sees_a_weak_test(
    rule: Callable[[PythonFile], list[str]], source: str, complaint: str | None
) -> None:
    """A rule reports a test that cannot fail once, and reports no other test and no other code."""
    lines = rule(python_file(PATH, source))
    assert [line.startswith(f"{PATH}:") for line in lines] == [True] * (complaint is not None)
    assert complaint is None or complaint in lines[0]
    assert rule(python_file("coordinator/a.py", source)) == []


def test_an_empty_table_of_cases_is_an_error(pytester: pytest.Pytester) -> None:
    """A test without any case fails the run, and is not skipped."""
    (pytester.path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    Path(pytester.path, "tests").mkdir()
    source = "import pytest\n@pytest.mark.parametrize('x', [])\ndef test_x(x): pass\n"
    Path(pytester.path, "tests", "test_x.py").write_text(source)
    done = pytester.runpytest_subprocess("tests")
    assert done.ret == pytest.ExitCode.INTERRUPTED
    done.stdout.fnmatch_lines(["*Empty parameter set in 'test_x'*"])
