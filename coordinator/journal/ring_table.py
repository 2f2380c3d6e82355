"""What a slot and a place of a ring say together of one record: a decision table.

The slot is written after the sync of its record. So there are three states of a slot, and three of
the place where the record belongs, and what they mean together is in `RING_DECISIONS`, and nowhere
else. What becomes of records that are lost is decided by `viewstamp.format.recovery_table` then, as
in the other kind of journal.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class SlotState(Enum):
    """What the slot of a sequence holds."""

    NAMES = "names"  # the record of this sequence
    EARLIER = "earlier"  # nothing, or a record that was there before: no slot was written
    DAMAGED = "damaged"


class PlaceState(Enum):
    """What lies where the record belongs; without a slot that names it, anywhere."""

    INTACT = "intact"
    DAMAGED = "damaged"  # its frame is intact
    ABSENT = "absent"


class RingVerdict(Enum):
    """What a record is."""

    WHOLE = "whole"
    UNNAMED = "unnamed"  # whole, but its slot is not: record and slot are written again
    RESTORED = "restored"  # the slot says all of it, and the record is written again
    ROTTEN = "rotten"  # it was durable once
    TORN = "torn"  # its sync never returned
    UNSURE = "unsure"  # torn, or two parts of it have rotted


@dataclass(frozen=True, slots=True)
class RingRow:
    """One row: `is_mark` says that the slot holds a whole mark; None matches either value."""

    slot: SlotState
    place: PlaceState
    is_mark: bool | None
    verdict: RingVerdict

    def matches(self, slot: SlotState, place: PlaceState, is_mark: bool) -> bool:
        """Return whether these facts match this row."""
        return (self.slot, self.place) == (slot, place) and self.is_mark in (None, is_mark)


RING_DECISIONS: Final[tuple[RingRow, ...]] = (
    RingRow(SlotState.NAMES, PlaceState.INTACT, None, RingVerdict.WHOLE),
    RingRow(SlotState.NAMES, PlaceState.DAMAGED, True, RingVerdict.RESTORED),
    RingRow(SlotState.NAMES, PlaceState.DAMAGED, False, RingVerdict.ROTTEN),
    RingRow(SlotState.NAMES, PlaceState.ABSENT, True, RingVerdict.RESTORED),
    RingRow(SlotState.NAMES, PlaceState.ABSENT, False, RingVerdict.ROTTEN),
    RingRow(SlotState.EARLIER, PlaceState.INTACT, None, RingVerdict.UNNAMED),
    RingRow(SlotState.EARLIER, PlaceState.DAMAGED, None, RingVerdict.TORN),
    RingRow(SlotState.EARLIER, PlaceState.ABSENT, None, RingVerdict.TORN),
    RingRow(SlotState.DAMAGED, PlaceState.INTACT, None, RingVerdict.UNNAMED),
    RingRow(SlotState.DAMAGED, PlaceState.DAMAGED, None, RingVerdict.UNSURE),
    RingRow(SlotState.DAMAGED, PlaceState.ABSENT, None, RingVerdict.UNSURE),
)


def ring_verdict(slot: SlotState, place: PlaceState, *, is_mark: bool) -> RingVerdict:
    """Look the facts up; a test proves that exactly one row matches any facts."""
    for row in RING_DECISIONS:
        if row.matches(slot, place, is_mark):
            return row.verdict
    raise AssertionError(f"no row of the ring's table matches {slot} and {place}")
