"""A section and its changes: the entries of layers, and the running digest and counts.

A section is the state of one stage: entities, each of which has a kind (1, 2, 3 ...), a key that is
unique in its kind, and canonical bytes. A layer holds entries: the new bytes of an entity, or a
tombstone for a deleted one. Everything is ordered by (kind, key), keys as bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from viewstamp.format.digest import StateDigest

# Kind and key: the place of an entry in the order of its section.
Position: TypeAlias = tuple[int, bytes]
# Kind, key, old canonical bytes, new canonical bytes; None where there is no entity. A sequence of
# changes is strictly ascending by (kind, key).
Change: TypeAlias = tuple[int, bytes, bytes | None, bytes | None]


class SectionEntry(NamedTuple):
    """One entity as a layer holds it; without canonical bytes it is a tombstone."""

    kind: int
    key: bytes
    canonical: bytes | None


class SectionTally:
    """The state digest and the entity counts of a section, kept up to date by its changes."""

    __slots__ = ("_digest", "_kinds")

    def __init__(self, digest: int = 0, kinds: Mapping[int, int] | None = None) -> None:
        """Start from a base: its digest as `StateDigest.value`, and its entities by kind.

        Raises ValueError for a digest outside 256 bits or a count below 0.
        """
        self._digest = StateDigest(digest)
        self._kinds = {kind: count for kind, count in (kinds or {}).items() if count}
        if any(count < 0 for count in self._kinds.values()):
            raise ValueError(f"a section has 0 or more entities of each kind, not {self._kinds}")

    @property
    def digest(self) -> StateDigest:
        """The state digest; it changes with the next `add`."""
        return self._digest

    @property
    def kinds(self) -> dict[int, int]:
        """Entities by ascending kind, without kinds that have none; a copy."""
        return dict(sorted(self._kinds.items()))

    @property
    def entities(self) -> int:
        """Entities of all kinds."""
        return sum(self._kinds.values())

    def add(self, change: Change) -> SectionEntry | None:
        """Count a change; return its entry for a layer, or None if old and new are equal.

        Raises ValueError if it removes an entity of a kind that has none, because then the change
        does not belong to this base.
        """
        kind, key, old, new = change
        if old == new:
            return None
        if old is None:
            self._kinds[kind] = self._kinds.get(kind, 0) + 1
        else:
            self._digest.remove(kind, key, old)
        if new is None:
            self._take_one(kind, key)
        else:
            self._digest.add(kind, key, new)
        return SectionEntry(kind, key, new)

    def _take_one(self, kind: int, key: bytes) -> None:
        left = self._kinds.get(kind, 0) - 1
        if left < 0:
            raise ValueError(
                f"entity {key.hex()} of kind {kind} goes, but its section has none of that kind"
            )
        if left:
            self._kinds[kind] = left
        else:
            del self._kinds[kind]
