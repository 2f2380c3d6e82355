"""Cuts of a domain's state, with what its section adds up to.

The state digest of a cut is the digest of the generation released before it, minus the old values,
plus the new ones: it costs what changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.runtime.section import Section
from viewstamp.format.section import SectionTally
from viewstamp.machine.freezing import Freezer, Frozen, FrozenTable, State, folded
from viewstamp.machine.tables import ABSENT


@dataclass(frozen=True, slots=True)
class Base:
    """What deltas are against: a generation (0: the empty state), its digest, its counts by kind.

    `digest` is as `StateDigest.value`.
    """

    generation: int = 0
    digest: int = 0
    kinds: Mapping[int, int] = field(default_factory=dict)


class SectionFreezer(Freezer[State]):
    """Freezes the section of a domain, and knows the tally of its base."""

    def __init__(self, section: Section[State], state: State, base: Base | None = None) -> None:
        """Follow `state` from now on. Without `base`, all that is there counts as changed."""
        super().__init__(section.kinds, state, None if base is None else base.generation)
        self._base = base or Base()
        # A released cut whose digest was never asked for: it is behind the base.
        self._uncounted: Frozen[State] | None = None
        # What the section adds up to at cuts that were counted, by generation.
        self._totals: dict[int, Base] = {}

    def whole(self, revision: int) -> Frozen[State]:
        """Return the whole section as it is now, apart from all cuts. Copies references alone."""
        tables = tuple(
            FrozenTable(dict.fromkeys(table.rows, ABSENT), table.rows.copy(), is_whole=True)
            for table in self._tables
        )
        return Frozen(0, 0, revision, self._kinds, tables)

    def release(self, generation: int) -> Frozen[State] | None:
        """Make a frozen generation the base; what nobody has counted is counted with the next.

        Return what nobody needs any more: the caller may `forget` it.
        """
        released = super().release(generation)
        if released is None:
            return None
        total = self._totals.get(generation)
        self._totals = {each: base for each, base in self._totals.items() if each > generation}
        if total is not None:
            self._base, self._uncounted = total, None
            return released
        self._uncounted = folded(self._uncounted, released)
        return None

    def behind_base(self) -> Frozen[State] | None:
        """Return what must be counted before a cut is: a released one that nobody has read."""
        return self._uncounted

    def tally(self) -> SectionTally:
        """Return the tally of the base; it may be counted on from."""
        return SectionTally(self._base.digest, self._base.kinds)

    def counted(self, frozen: Frozen[State], tally: SectionTally) -> None:
        """Remember what a cut, or what is behind the base, adds up to."""
        base = Base(frozen.generation, tally.digest.value, tally.kinds)
        if frozen is self._uncounted:
            self._base, self._uncounted = base, None
        elif frozen is self.frozen:
            self._totals[frozen.generation] = base
