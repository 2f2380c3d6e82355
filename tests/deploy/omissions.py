"""A demand on rendered objects, and what can be taken out of them so that it must fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.deploy.manifest_checks import Objects
from tests.deploy.pod import OVERLAYS

# Kind and name of an object, and keys, positions and names of items that lead to what is taken out.
Omission = tuple[str | int, ...]
SET: Final = ("StatefulSet", "viewstamp", "spec")
POD: Final = (*SET, "template", "spec")
COORDINATOR: Final = (*POD, "containers", "coordinator")
POLICY: Final = "NetworkPolicy"


@dataclass(frozen=True, slots=True)
class Item:
    """A numbered demand, whether it holds, what breaks it if taken out, and the overlays."""

    number: int
    says: str
    holds: Callable[[Objects], bool]
    omissions: tuple[Omission, ...]
    overlays: tuple[str, ...] = OVERLAYS


def taken_out(objects: Objects, omission: Omission) -> None:
    """Take out of the objects what an omission names. Raises LookupError if it is not there."""
    kind, name, *path = omission
    key = str(kind), str(name)
    if not path:
        del objects[key]
        return
    place: Any = objects[key]
    for step in path[:-1]:
        place = place[_place(place, step)]
    del place[_place(place, path[-1])]


def _place(whole: Any, step: str | int) -> str | int:
    """Return the place of a key, or of the item of a list that begins so or has that name."""
    if not isinstance(whole, list) or isinstance(step, int):
        return step
    for place, item in enumerate(whole):
        text = item["name"] if isinstance(item, dict) else item
        if text.startswith(step):
            return place
    raise LookupError(f"{step} is not in {whole}")
