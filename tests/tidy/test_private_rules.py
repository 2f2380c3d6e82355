"""The rule about private names is shown planted violations and innocent neighbours."""

from __future__ import annotations

import pytest

from tests.tidy import private_rules
from tests.tidy.tree import python_file

OWN_CLASS = """
class Disk:
    def __init__(self):
        self._files = {}
    def copy(self):
        other = Disk()
        other._files = dict(self._files)
        return other
    def _rot(self): ...
TABLE = {1: Disk._rot}
"""


@pytest.fixture(autouse=True)
def nothing_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file has a permission."""
    monkeypatch.setattr(private_rules, "ALLOWED", {})


def found(source: str, path: str = "tests/a.py") -> list[str]:
    """Return what the rule says of a file."""
    return private_rules.private_uses([python_file(path, source)])


@pytest.mark.parametrize(
    "source",
    [
        "assert journal._kept == 1",
        "journal._kept = 1",
        "make()._kept()",
        "from coordinator.app.main import _kept",
        "patch.setattr(journal, '_kept', 1)",
        "patch.setattr('coordinator.journal._kept', 1)",
        "getattr(journal, '_kept', {})",
        "class Other(Disk):\n    def _kept(self):\n        super()._kept()",
        "class Other:\n    def __init__(self, disk):\n        self.disk._kept = 1",
        "class Other:\n    def _kept(self, disk):\n        disk._kept()",
    ],
)
@pytest.mark.parametrize("folder", ["tests", "testkit", "benchmarks"])
def test_a_use_of_what_is_private_is_found(folder: str, source: str) -> None:
    """A private name is reported if it is read, set, called, imported, replaced or inherited."""
    (complaint,) = found(source, f"{folder}/a.py")
    assert "_kept is private" in complaint


@pytest.mark.parametrize(
    "source",
    [
        "assert journal.kept == 1",
        "journal.__class__",
        "os._exit(1)",
        "row._replace(a=1)",
        "patch.setattr(journal, 'kept', '_value')",
        "name.endswith('_bytes')",
        "from a import kept as _kept",
        "def real(self): self._kept = 1",
        OWN_CLASS,
    ],
)
def test_what_is_no_other_class_is_innocent(source: str) -> None:
    """The rule allows public names, names of libraries, and a class's names on its own objects."""
    assert found(source) == []


def test_the_product_is_not_looked_at() -> None:
    """The rule applies only to code that tests the product."""
    assert found("journal._kept", "coordinator/a.py") == []


def test_a_permission_is_of_one_file_and_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A permission holds in one file only, and one that nothing needs is reported."""
    monkeypatch.setattr(private_rules, "ALLOWED", {("tests/a.py", "_kept"): "it must"})
    assert found("journal._kept") == []
    complaints = found("journal._kept", "tests/b.py")
    assert [line.split(":")[0] for line in complaints] == [
        "tests/b.py",
        "tests/a.py does not use _kept",
    ]
