"""The first of the kept generations in which a condition holds, by binary search.

The search assumes that the condition, once true, stays true. It looks at both ends first, so a
condition that holds at the first, or at neither, is known for what it is; so is one that holds at
the first and not at the last. Between the ends nothing shows that the assumption is wrong.
N generations cost 2 + log2(N) readings; a condition says which sections it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.snapshots.copies import Copies
from viewstamp.snapshots.errors import NoSuchGeneration
from viewstamp.snapshots.explore.expressions import Condition, Progress
from viewstamp.snapshots.explore.open_generation import OpenGeneration


class BisectOutcome(Enum):
    """What a search came to."""

    BEGINS = "begins"
    """There is a generation in which it holds, and it does not in the one before."""
    HOLDS_AT_FIRST = "holds_at_first"
    HOLDS_NOWHERE = "holds_nowhere"
    ENDS = "ends"
    """It holds at the first and not at the last: the assumption is wrong."""


@dataclass(frozen=True, slots=True)
class Bisected:
    """The outcome; `before` and `since` are the neighbours between which the condition began.

    Where it did not begin, they are the first and the last generation, which were both looked at.
    """

    outcome: BisectOutcome
    before: SnapshotManifest
    since: SnapshotManifest
    generations: int
    looked_at: tuple[int, ...]


def kept_between(copies: Copies, first: int, last: int) -> list[int]:
    """Return the kept generations from one to another, ascending; 0 is the oldest, or the newest.

    Raises NoSuchGeneration for an end that is not kept, or in the wrong order.
    """
    last = copies.resolve(last)
    kept = copies.generations()
    first = copies.resolve(first) if first else kept[0]
    if first > last:
        raise NoSuchGeneration(
            f"generation {first} comes after {last}", "give the older one to --from"
        )
    return [number for number in kept if first <= number <= last]


def bisected(
    copies: Copies,
    numbers: Sequence[int],
    condition: Condition,
    progress: Callable[[int], Progress],
) -> Bisected:
    """Search among generations that are kept, ascending. Raises SnapshotFilesError.

    `progress` is called with each generation that is looked at, and what it returns with the
    number of entities that were read since.
    """
    looked_at: list[int] = []

    def holds(place: int) -> bool:
        number = numbers[place]
        looked_at.append(number)
        with OpenGeneration(copies, number) as generation:
            return condition(generation, progress(number))

    def told(outcome: BisectOutcome, before: int, since: int) -> Bisected:
        ends = (copies.manifest(numbers[before]), copies.manifest(numbers[since]))
        return Bisected(outcome, *ends, len(numbers), tuple(looked_at))

    low, high = 0, len(numbers) - 1
    at_low = holds(low)
    at_high = holds(high) if high else at_low
    if at_low:
        outcome = BisectOutcome.HOLDS_AT_FIRST if at_high else BisectOutcome.ENDS
        return told(outcome, low, high)
    if not at_high:
        return told(BisectOutcome.HOLDS_NOWHERE, low, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return told(BisectOutcome.BEGINS, low, high)
