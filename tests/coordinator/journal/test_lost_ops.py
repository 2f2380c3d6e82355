"""Counting tells the ops of lost records for certain, or nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.journal.findings import VerifiedRecord, find
from coordinator.journal.lost_op_bounds import tell_ops
from testkit.journal_builders import chain, filled, place, reopen
from testkit.memory_storage import MemoryStorage
from viewstamp.format.record import SECTOR_BYTES, Frame, RecordKind

Shown = tuple[int, int | str]
CUT, RESTART = "cut after ", "restart behind "


def entry(
    sequence: int, what: int | str, *, slot: int, segment: int, rotten: bool
) -> VerifiedRecord:
    """A record of one sector: a prepare of this op, or what the text says."""
    kind, op = RecordKind.PREPARE, what
    if isinstance(what, str):
        kind = RecordKind.CUT if what.startswith(CUT) else RecordKind.RESTART
        op = what.removeprefix(CUT).removeprefix(RESTART)
    frame = Frame(kind, sequence, 0, int(op), 0, b"identity")
    reason = "rot" if rotten else None
    return VerifiedRecord(segment, slot * SECTOR_BYTES, SECTOR_BYTES, frame, None, (), reason)


def told(
    shown: Sequence[Shown],
    *,
    first_segment: int = 1,
    first_slot: int = 1,
    covered_op: int = 0,
    rotten: Sequence[int] = (),
) -> list[tuple[int, int, int | None]]:
    """First and last sequence and op of each loss; `rotten` are sequences of damaged bodies."""
    entries = [
        entry(seq, what, slot=first_slot + i, segment=first_segment, rotten=seq in rotten)
        for i, (seq, what) in enumerate(shown)
    ]
    findings = list(find(entries, [], first_segment))
    return [
        (finding.first_sequence, finding.last_sequence, finding.op)
        for finding in tell_ops(findings, entries, first_segment, covered_op)
    ]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        # The record behind the gap continues the entries that would have been in it.
        ([(1, 1), (3, 3)], [(2, 2, 2)]),
        ([(1, 1), (5, 5)], [(2, 2, 2), (3, 3, 3), (4, 4, 4)]),
        ([(2, 2)], [(1, 1, 1)]),
        ([(1, 1), (3, 3), (4, 4), (6, 6)], [(2, 2, 2), (5, 5, 5)]),
        # The entry differs: the lost record may have been a repair, a cut, or an entry of a new
        # view.
        ([(1, 1), (3, 2)], [(2, 2, None)]),
        ([(1, 1), (2, 2), (4, 2)], [(3, 3, None)]),
        ([(1, 1), (2, 2), (3, 3), (5, 3), (6, 4)], [(4, 4, None)]),
        # An op that was written again does not take back how far the log had reached.
        ([(1, 1), (2, 2), (3, 3), (4, 1), (6, 3)], [(5, 5, None)]),
        ([(1, 1), (2, 2), (3, 3), (4, 1), (6, 5)], [(5, 5, 4)]),
        # What was lost earlier may have reached further than the entries that are left.
        ([(1, 1), (2, 2), (4, 2), (6, 4)], [(3, 3, None), (5, 5, None)]),
        # A cut tells how far the log reaches, whatever was lost before it.
        ([(1, 1), (2, 2), (4, 2), (5, CUT + "1"), (7, 3)], [(3, 3, None), (6, 6, 2)]),
        ([(1, 1), (2, 2), (3, CUT + "1"), (5, 3)], [(4, 4, 2)]),
        ([(1, 1), (3, CUT + "1")], [(2, 2, None)]),
    ],
)
def test_a_gap_tells_its_ops_if_the_log_grew_by_as_many(
    shown: list[Shown], expected: list[tuple[int, int, int | None]]
) -> None:
    """Each lost record was the next entry; otherwise nothing is said about any of the gap."""
    assert told(shown) == expected


@pytest.mark.parametrize(
    ("covered_op", "first_slot", "shown", "expected"),
    [
        (40, 1, [(90, 40), (92, 42)], [(91, 91, 41)]),
        # The dropped segments may have held everything that a snapshot covers.
        (41, 1, [(90, 40), (92, 42)], [(91, 91, None)]),
        (41, 1, [(90, 40), (93, 43)], [(91, 92, None)]),
        # The number of lost records is unknown where a segment does not begin with a record.
        (40, 2, [(90, 40), (92, 42)], [(89, 89, None), (91, 91, None)]),
        (40, 2, [(90, 40), (91, CUT + "40"), (93, 42)], [(89, 89, None), (92, 92, 41)]),
    ],
)
def test_what_was_dropped_counts(
    covered_op: int, first_slot: int, shown: list[Shown], expected: list[object]
) -> None:
    """Behind a truncated start the log may have reached as far as the snapshot."""
    assert told(shown, first_segment=5, first_slot=first_slot, covered_op=covered_op) == expected


@pytest.mark.parametrize(
    ("rotten", "expected"), [((), [(3, 3, 51)]), ((1,), [(1, 1, 7), (3, 3, None)])]
)
def test_a_restart_is_a_new_beginning(
    rotten: tuple[int, ...], expected: list[tuple[int, int, int | None]]
) -> None:
    """An entry that is known to be lost above the snapshot can still be appended behind it."""
    shown: list[Shown] = [(1, 7), (2, RESTART + "50"), (4, 52)]
    if rotten:
        shown = [(1, 7), (2, RESTART + "5"), (4, 7)]
    assert told(shown, covered_op=5 if rotten else 50, rotten=rotten) == expected


GROUPS = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@given(GROUPS, st.sets(st.integers(0, 22)))
def test_no_frame_that_rots_before_the_last_one_makes_the_head_uncertain(
    counts: list[int], rotten: set[int]
) -> None:
    """For any lost frames and any sync groups exactly these ops are missing."""
    log = chain(sum(counts))
    groups, begin = [], 0
    for count in counts:
        groups.append(log[begin : begin + count])
        begin += count
    storage = MemoryStorage()
    filled(storage, groups, replica_count=3)
    lost = sorted(index for index in rotten if index < len(log) - 1)
    for index in lost:
        path, offset = place(index)
        storage.flip(path, offset + 30)

    journal, recovery = reopen(storage, replica_count=3)

    assert recovery.holes == tuple(index + 1 for index in lost)
    assert (recovery.cut, recovery.doubtful, recovery.head_uncertain) == (None, (), False)
    assert recovery.head == log[-1].header
    journal.close()
