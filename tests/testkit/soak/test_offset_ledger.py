"""The judge of offsets finds one that was lost and one that nobody sent."""

from __future__ import annotations

import pytest

from testkit.soak.offset_ledger import OffsetLedger


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        ({0: 2, 1: 1}, []),
        ({0: 3}, ["partition 1 had the offset 1, and a read showed 0"]),
        ({0: 1, 1: 1}, ["partition 0 had the offset 2, and a read showed 1"]),
        ({0: 4, 1: 1}, ["a read showed the offset 4 of partition 0, and at most 3 was sent"]),
        ({0: 3, 1: 1}, []),
    ],
    ids=["as told", "gone", "set back", "invented", "answer lost"],
)
def test_offsets_are_judged(read: dict[int, int], expected: list[str]) -> None:
    """A read shows at least what a member was told of, and at most what was sent."""
    ledger = OffsetLedger()
    for partition in (0, 0, 0, 1):
        ledger.next_offset(partition)
    ledger.told(0, 2)
    ledger.told(1, 1)
    ledger.told(0, 1)  # an answer that came late
    assert ledger.contradictions(ledger.known(), read) == expected
