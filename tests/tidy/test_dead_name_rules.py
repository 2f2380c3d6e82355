"""The rule about dead names is shown planted violations and innocent neighbours."""

from __future__ import annotations

import pytest

from tests.tidy import dead_name_rules
from tests.tidy.tree import python_file


@pytest.fixture(autouse=True)
def _no_exemptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_name_rules, "EXEMPT", {})


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def plan(): ...", "plan"),
        ("async def plan(): ...", "plan"),
        ("class Plan: ...", "Plan"),
        ("class _Plan:\n    def make(self): ...", "_Plan.make"),
        ("LIMIT = 3", "LIMIT"),
        ("LIMIT: int = 3", "LIMIT"),
        ("def _plan(): ...", None),
        ("@app.command('plan')\ndef plan(): ...", None),
        ("def used(): ...", None),
    ],
)
@pytest.mark.parametrize(
    ("user", "is_product"),
    [
        ("coordinator/b.py", True),
        ("tests/coordinator/mux/b.py", False),
        ("testkit/b.py", False),
    ],
)
def test_what_nothing_uses_is_found(
    source: str, name: str | None, user: str, is_product: bool
) -> None:
    """A public definition without a use in the product is found, even if tests use it."""
    uses = f"use(used, {(name or 'used').rpartition('.')[2]})"
    own = [python_file("coordinator/a.py", source), python_file("coordinator/c.py", "use(used)")]
    assert len(dead_name_rules.dead_names(own)) == (1 if name else 0)
    found = dead_name_rules.dead_names([*own, python_file(user, uses)])
    assert len(found) == (1 if name and not is_product else 0)


def test_passing_a_name_on_is_no_use() -> None:
    """A package's re-export alone is no use of a name."""
    files = [
        python_file("coordinator/a.py", "def plan(): ..."),
        python_file(
            "coordinator/__init__.py", "from coordinator.a import plan\n__all__ = ['plan']"
        ),
    ]
    assert len(dead_name_rules.dead_names(files)) == 1


def test_an_exemption_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exemption is found if its name is used, or no longer exists."""
    monkeypatch.setattr(dead_name_rules, "EXEMPT", {"plan": "why"})
    files = [
        python_file("coordinator/a.py", "def plan(): ..."),
        python_file("coordinator/b.py", ""),
    ]
    assert dead_name_rules.dead_names(files) == []
    files.append(python_file("coordinator/c.py", "plan()"))
    assert dead_name_rules.dead_names(files) == ["plan is used, or gone: take it out of EXEMPT"]


@pytest.mark.parametrize(
    ("source", "documentation", "complaints"),
    [
        ("raise_alarm(pb.ALARM_KIND_STUCK)", "\n| `STUCK` | why | what to do |", 0),
        ("raise_alarm(pb.ALARM_KIND_UNFIT)", "\n| `STUCK` | why | what to do |", 1),
        ("raise_alarm(pb.ALARM_KIND_STUCK)", "\nSTUCK is not in the table", 1),
    ],
)
def test_dead_alarms_are_found(source: str, documentation: str, complaints: int) -> None:
    """A kind of alarm needs code that raises it, and a row that explains it."""
    files = [python_file("coordinator/a.py", source)]
    kinds = ["ALARM_KIND_UNSPECIFIED", "ALARM_KIND_STUCK"]
    assert len(dead_name_rules.dead_alarms(kinds, files, documentation)) == complaints
