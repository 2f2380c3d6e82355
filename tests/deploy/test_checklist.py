"""The rendered manifests meet each demand of the checklist, until what meets it is taken out."""

from __future__ import annotations

import pytest

from coordinator.base.errors import ConfigError
from tests.deploy.checklist import CHECKLIST
from tests.deploy.omissions import Item, Omission, taken_out
from tests.deploy.pod import overlay

_CASES = [(item, name) for item in CHECKLIST for name in item.overlays]
_OMISSIONS = [(item, name, omission) for item, name in _CASES for omission in item.omissions]


def _id(value: object) -> str:
    if isinstance(value, Item):
        return f"{value.number}-{value.says}"
    return ".".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize(("item", "name"), _CASES, ids=_id)
def test_item_holds(item: Item, name: str) -> None:
    """An overlay meets a demand."""
    assert item.holds(overlay(name)), item.says


@pytest.mark.parametrize(("item", "name", "omission"), _OMISSIONS, ids=_id)
def test_omission_is_caught(item: Item, name: str, omission: Omission) -> None:
    """The check of a demand fails once what meets it is taken out."""
    objects = overlay(name)
    taken_out(objects, omission)

    try:
        holds = item.holds(objects)
    except (LookupError, ValueError, AssertionError, ConfigError):
        holds = False
    assert not holds, f"{item.says}: it still holds without {_id(omission)}"


def test_every_number_of_the_checklist_has_an_item() -> None:
    """No demand is left out."""
    assert {item.number for item in CHECKLIST} == set(range(1, 17))
    assert all(item.omissions for item in CHECKLIST)
