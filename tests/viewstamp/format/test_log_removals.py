"""What later records take out of a log, and how far it reaches."""

from __future__ import annotations

import random

import pytest

from viewstamp.format.record import Frame, RecordKind
from viewstamp.format.removals import Removals, reach_after

NUMBERS = range(12)


@pytest.mark.parametrize("seed", range(20))
def test_an_op_is_cut_as_if_each_cut_were_looked_at(seed: int) -> None:
    """An op is out of the log if, and only if, any later cut leaves less than it."""
    source = random.Random(seed)
    cuts = [(source.choice(NUMBERS), source.choice(NUMBERS)) for _ in range(source.randint(0, 6))]
    removals = Removals()
    for sequence, op in cuts:
        removals.cut(sequence, op)
    removals.settle()
    for op in NUMBERS:
        for sequence in NUMBERS:
            expected = any(at > sequence and op > remains for at, remains in cuts)
            assert removals.was_cut(op, sequence) == expected


@pytest.mark.parametrize("seed", range(20))
def test_sequences_are_repaired_if_later_records_name_each(seed: int) -> None:
    """Lost sequences are repaired if, and only if, later records together name all of them."""
    source = random.Random(seed)
    removals, named = Removals(), list[tuple[int, int, int]]()
    for _ in range(source.randint(0, 6)):
        first = source.choice(NUMBERS)
        named.append((source.choice(NUMBERS), first, first + source.randint(0, 3)))
        removals.repaired(named[-1][0], [named[-1][1:]])
    for first in NUMBERS:
        for last in range(first, 12):
            later = [each[1:] for each in named if each[0] > last]
            expected = all(any(a <= one <= b for a, b in later) for one in range(first, last + 1))
            assert removals.is_repaired(first, last) == expected


@pytest.mark.parametrize(
    ("op", "newest", "expected"),
    [
        (None, 9, False),
        (3, 6, True),
        (3, 5, False),
        (4, 0, True),
        (1, 0, True),
        (2, 0, False),
    ],
)
def test_lost_records_are_replaced_by_what_follows(
    op: int | None, newest: int, expected: bool
) -> None:
    """A newer entry, a later cut below the op and a later restart at or above it replace record 5;
    nothing replaces a record whose op nobody knows."""
    removals = Removals()
    removals.cut(6, 3)
    removals.restart = 7, 1
    removals.settle()
    assert removals.is_replaced(5, 5, op, newest) is expected


def test_a_repair_needs_no_op_and_a_restart_before_removes_nothing() -> None:
    """A repair settles a record of unknown op; a restart only settles what was before it."""
    removals = Removals()
    removals.restart = 5, 9
    removals.repaired(8, [(6, 7)])
    removals.settle()
    assert removals.is_replaced(6, 7, None, 0)
    assert not removals.is_replaced(5, 5, 9, 0)
    assert removals.is_replaced(4, 4, 9, 0)


@pytest.mark.parametrize(
    ("kind", "op", "base_op", "expected"),
    [
        (RecordKind.PREPARE, 9, 0, 9),
        (RecordKind.PREPARE, 3, 0, 5),
        (RecordKind.CUT, 3, 0, 3),
        (RecordKind.CUT, 9, 0, 5),
        (RecordKind.CUT, 3, 4, 4),
        (RecordKind.RESTART, 3, 0, 3),
        (RecordKind.RESTART, 9, 0, 9),
        (RecordKind.RESTART, 3, 4, 4),
        (RecordKind.REPAIRED, 9, 0, 5),
    ],
)
def test_each_kind_of_record_moves_the_reach(
    kind: RecordKind, op: int, base_op: int, expected: int
) -> None:
    """A log that reached op 5 grows by entries, shrinks by cuts, and begins anew by restarts, but
    never falls below its base."""
    assert reach_after(5, Frame(kind, 1, 0, op, 0, b""), base_op) == expected
