"""The rule about packages of the coordinator is shown planted violations of each kind."""

from __future__ import annotations

import pytest

from tests.tidy.package_rules import loose_modules, package_arrows
from tests.tidy.tree import python_file


@pytest.mark.parametrize(
    ("source", "allowed", "complaint"),
    [
        ("import coordinator.b.x", {"a": frozenset({"b"})}, None),
        ("from coordinator import b", {"a": frozenset({"b"})}, None),
        ("import coordinator.a.y", {}, None),
        ("import coordinator.b.x", {}, "a imports b: not among"),
        ("import os", {"a": frozenset({"b"})}, "a imports b no more"),
        ("import coordinator.b.x", {"a": frozenset("b"), "b": frozenset("a")}, "a cycle"),
    ],
)
def test_an_arrow_is_listed_used_and_in_no_knot(
    source: str, allowed: dict[str, frozenset[str]], complaint: str | None
) -> None:
    """Every used arrow is listed, every listed one is used, and none leads back."""
    back = "import coordinator.a.x" if "b" in allowed else ""
    files = [python_file("coordinator/a/x.py", source), python_file("coordinator/b/y.py", back)]
    found = package_arrows(files, allowed)
    assert bool(found) == (complaint is not None)
    assert [line for line in found if complaint is None or complaint not in line] == []


def test_a_loose_module_is_named() -> None:
    """A module outside the packages is refused unless the list names it."""
    assert loose_modules([python_file("coordinator/odd.py", "")])
    assert not loose_modules([python_file("coordinator/storage.py", "")])
