"""The fields in which something declared differs from what was found. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from viewstamp.topology.changes import Declared, FieldChange, Found
from viewstamp.topology.found import FoundGroup, FoundTopic, FoundUser
from viewstamp.topology.model import Grant, UserGrants
from viewstamp.topology.shapes import RecordShape

# Keys of a document that are names, hold other entities, or are compared in another way.
_NOT_COMPARED: Final = frozenset({"name", "username", "prune", "topics", "groups", "permissions"})
_NO_GRANTS: Final = UserGrants()


def field_changes(
    record: RecordShape, old: Declared | None, new: Declared
) -> Iterator[FieldChange]:
    """Yield the fields that `new` declares and that differ from `old`; all without `old`."""
    for name, each in record.fields.items():
        attribute = each.attribute or name
        after = None if name in _NOT_COMPARED else getattr(new, attribute)
        before = None if old is None else getattr(old, attribute)
        if after is not None and after != before:
            written = None if before is None else each.shape.write(before)
            yield FieldChange(name, written, each.shape.write(after))


def grant_changes(old: UserGrants | None, new: UserGrants | None) -> Iterator[FieldChange]:
    """Yield the permissions that differ, by where they are; none if `new` declares none."""
    if new is None:
        return
    before, after = (old or _NO_GRANTS).flat(), new.flat()
    for stream, topic in sorted({(one.stream, one.topic) for one in before ^ after}):
        place = f"permissions on {stream}{topic and '/'}{topic}" if stream else "permissions"
        yield FieldChange(place, _at(before, stream, topic), _at(after, stream, topic))


def declared_of(found: Found | None) -> Declared | None:
    """Return what was found as something declared; None for a stream, which is only a name."""
    if isinstance(found, FoundTopic):
        return found.topic
    if isinstance(found, FoundGroup):
        return found.group
    return found.user if isinstance(found, FoundUser) else None


def _at(grants: Iterable[Grant], stream: str, topic: str) -> list[str]:
    return sorted(one.permission for one in grants if (one.stream, one.topic) == (stream, topic))
