"""A change of an entity, or of what belongs to one, in words: a row of a table. Pure.

Changes are JSON values: those of an EntityChange, the entity `before` and `after`, and the fields
that `changed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from viewstamp.cli.output import moment_text

COLUMNS: Final = ("revision", "time", "who", "command", "what")
# A value in a table; documents have all of it.
VALUE_CHARACTERS_MAX: Final = 60
# Partitions that a row of a table names.
PARTITIONS_SHOWN_MAX: Final = 3
# What belongs to an entity, by the last word of its type: which one it is.
_SUBJECTS: Final[Mapping[str, Callable[[dict[str, Any]], str]]] = MappingProxyType(
    {
        "Member": lambda member: f"member with session {member['session_id']}",
        "PersonalAccessToken": lambda token: f"token {token['name']}",
    }
)
_PLACEMENTS: Final = "Placements"
_PLACED_FIELDS: Final = ("replicas", "in_sync")


def row_of(change: dict[str, Any], partition: int | None = None) -> dict[str, Any]:
    """Return a change as a row; of placements only what is about a partition, if one is given."""
    method = change["method"].rpartition("/")[2]
    return {
        "revision": change["revision"],
        "time": "-" if change["time"] is None else moment_text(change["time"]),
        "who": _who(change),
        "command": method,
        "what": _what(change, partition) + ("; and more" if change["has_more"] else ""),
    }


def _who(change: dict[str, Any]) -> str:
    if change["is_internal"]:
        return "the cluster"
    name = change["username"] or "(gone)"
    session = f", session {change['session_id']}" if change["session_id"] else ""
    return f"{name} (id {change['user_id']}{session})"


def _what(change: dict[str, Any], partition: int | None) -> str:
    kind = change["entity_type"].rpartition(".")[2]
    if kind == _PLACEMENTS:
        return "; ".join(_shown(list(_placed(change, partition)))) or change["kind"]
    fields = "; ".join(_fields(change)) or change["kind"]
    entity = change["after"] or change["before"]
    subject = _SUBJECTS.get(kind)
    return fields if subject is None or entity is None else f"{subject(entity)}: {fields}"


def _fields(change: dict[str, Any]) -> Iterable[str]:
    """Yield the fields that changed."""
    for name, each in change["changed"].items():
        yield from _field(name, each["before"], each["after"])


def _field(name: str, old: Any, new: Any) -> Iterable[str]:
    """Yield a changed field; of a nested one only what changed in it."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in new:
            if old.get(key) != new[key]:
                yield from _field(f"{name}.{key}", old.get(key), new[key])
    else:
        yield f"{name}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = "-" if value in (None, "", []) else str(value)
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}..."


def _placed(change: dict[str, Any], partition: int | None) -> Iterator[str]:
    """Yield what changed of each partition."""
    before, after = (_by_partition(change[side]) for side in ("before", "after"))
    for number in sorted(before.keys() | after.keys()):
        old, new = before.get(number, {}), after.get(number, {})
        if old == new or partition not in (None, number):
            continue
        fields = [
            f"{name} {_short(old.get(name))} -> {_short(new.get(name))}"
            for name in _PLACED_FIELDS
            if old.get(name) != new.get(name)
        ]
        # The same replicas, of which one was in sync with a storage that it has lost.
        yield f"partition {number}: {', '.join(fields) or 'in sync again'}"


def _by_partition(placements: dict[str, Any] | None) -> dict[int, dict[str, Any]]:
    return {each["partition"]: each for each in (placements or {}).get("placements", ())}


def _shown(told: list[str]) -> Iterator[str]:
    yield from islice(told, PARTITIONS_SHOWN_MAX)
    if len(told) > PARTITIONS_SHOWN_MAX:
        yield f"{len(told) - PARTITIONS_SHOWN_MAX} other partitions"
