"""The rule about class names is shown a planted violation and innocent neighbours."""

from __future__ import annotations

import pytest

from tests.tidy import name_rules
from tests.tidy.tree import python_file


@pytest.mark.parametrize(
    ("second", "source", "complaint"),
    [
        ("services/users/b.py", "class Plan: ...", "class Plan is defined in"),
        ("services/users/b.py", "class _Plan: ...", None),
        ("services/users/b.py", "def f():\n    class Plan: ...", None),
        ("tests/coordinator/mux/b.py", "class Plan: ...", None),
    ],
)
def test_a_name_stands_once(second: str, source: str, complaint: str | None) -> None:
    """A public class name that two modules of the product define is found."""
    files = [python_file("coordinator/a.py", "class Plan: ..."), python_file(second, source)]
    found = name_rules.repeated_classes(files)
    assert [complaint in line for line in found] == [True] if complaint else found == []


def test_a_name_stands_once_in_tests() -> None:
    """Two fixtures with one name are found, even if benchmarks share one of them."""
    files = [python_file(path, "class World: ...") for path in ("tests/a.py", "testkit/b.py")]
    (found,) = name_rules.repeated_classes(files)
    assert "class World is defined in tests/a.py, testkit/b.py" in found
