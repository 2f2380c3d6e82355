"""What recovery decides about what it finds lost."""

from __future__ import annotations

import pytest

from coordinator.journal.findings import Stray, VerifiedRecord, harmless_strays
from coordinator.journal.recovery import judge
from viewstamp.format.record import SECTOR_BYTES, Frame, RecordKind
from viewstamp.format.recovery_table import RecoveryDecision


def entry(
    sequence: int,
    durable: int,
    op: int,
    *,
    segment: int = 1,
    slot: int = 1,
    reason: str | None = None,
    kind: RecordKind = RecordKind.PREPARE,
    ranges: tuple[tuple[int, int], ...] = (),
) -> VerifiedRecord:
    """An entry of one sector without a header, which the gap analysis does not need."""
    frame = Frame(kind, sequence, durable, op, 0, b"identity")
    return VerifiedRecord(segment, slot * SECTOR_BYTES, SECTOR_BYTES, frame, None, ranges, reason)


def decisions(
    entries: list[VerifiedRecord],
    strays: list[Stray] | None = None,
    *,
    first_segment: int = 1,
    commit_max: int = 0,
    single: bool = True,
) -> list[tuple[int, int, int | None, RecoveryDecision]]:
    """First and last sequence, slot and decision of everything found."""
    judged, _ = judge(
        entries, strays or [], first_segment=first_segment, commit_max=commit_max, single=single
    )
    return [
        (v.finding.first_sequence, v.finding.last_sequence, v.finding.offset // SECTOR_BYTES,
         v.decision)
        for v in judged
    ]  # fmt: skip


def test_a_complete_log_has_no_findings() -> None:
    """Records of neighbouring sequences across segments give nothing to decide about."""
    entries = [entry(1, 0, 1), entry(2, 1, 2, slot=2), entry(3, 2, 3, segment=2)]
    assert decisions(entries) == []


@pytest.mark.parametrize(
    ("durable", "commit_max", "single", "expected"),
    [
        (1, 0, True, RecoveryDecision.CUT),
        (1, 1, True, RecoveryDecision.CUT),
        (1, 2, True, RecoveryDecision.REFUSE),
        (2, 0, True, RecoveryDecision.REFUSE),
        (1, 0, False, RecoveryDecision.CUT),
        (1, 1, False, RecoveryDecision.CUT),
        (1, 2, False, RecoveryDecision.FAULTY_CORRUPT),
        (2, 0, False, RecoveryDecision.FAULTY_CORRUPT),
    ],
)
def test_a_hole_is_judged_by_what_follows(
    durable: int, commit_max: int, single: bool, expected: RecoveryDecision
) -> None:
    """A missing sequence is torn only if it is uncommitted and no later record knows it synced."""
    entries = [entry(1, 0, 1), entry(3, durable, 3, slot=3)]
    assert decisions(entries, commit_max=commit_max, single=single) == [(2, 2, 2, expected)]


def test_a_range_is_judged_by_its_lowest_sequence() -> None:
    """A later group that knows that the first lost sequence was synced condemns the whole range."""
    entries = [entry(1, 0, 1), entry(5, 2, 5, slot=5)]
    assert decisions(entries) == [(2, 4, 2, RecoveryDecision.REFUSE)]


def test_a_damaged_record_is_judged_where_it_lies() -> None:
    """A record with a frame and a damaged body has its own sequence and op."""
    entries = [entry(1, 0, 1), entry(2, 1, 2, slot=2, reason="rot")]
    assert decisions(entries) == [(2, 2, 2, RecoveryDecision.CUT)]
    assert decisions(entries, commit_max=2) == [(2, 2, 2, RecoveryDecision.REFUSE)]


def test_strays_at_the_end_are_a_lost_record() -> None:
    """Garbage behind the last record is a torn record, located at its first sector."""
    strays = [Stray(1, 2 * SECTOR_BYTES, "garbage"), Stray(1, 3 * SECTOR_BYTES, "garbage")]
    assert decisions([entry(1, 0, 1)], strays) == [(2, 2, 2, RecoveryDecision.CUT)]
    assert decisions([], strays) == [(1, 1, 2, RecoveryDecision.CUT)]


def test_strays_in_unused_space_are_harmless() -> None:
    """Garbage between neighbouring sequences lost nothing and needs no decision."""
    entries = [entry(1, 0, 1), entry(2, 1, 2, segment=2)]
    strays = [Stray(1, 2 * SECTOR_BYTES, "garbage")]
    assert decisions(entries, strays) == []
    assert harmless_strays(entries, strays) == strays
    assert harmless_strays(entries[:1], strays) == []


def test_a_truncated_log_may_start_anywhere_but_at_its_start() -> None:
    """After truncation the first record must be the first of its segment; else one is missing."""
    first = entry(40, 39, 40, segment=5)
    assert decisions([first], first_segment=5) == []
    later = entry(40, 39, 40, segment=5, slot=2)
    assert decisions([later], first_segment=5) == [(39, 39, 1, RecoveryDecision.REFUSE)]
    assert decisions([], first_segment=5) == [(1, 1, 1, RecoveryDecision.REFUSE)]


def test_sequences_never_go_back() -> None:
    """A record whose sequence is not above its predecessor's does not belong to this log."""
    entries = [entry(1, 0, 1), entry(2, 1, 2, slot=2), entry(2, 1, 2, slot=3)]
    assert decisions(entries, commit_max=2) == [(2, 2, 3, RecoveryDecision.REFUSE)]


def test_repaired_ranges_supersede_exactly_what_they_name() -> None:
    """A repaired record forgives the sequences it lists, and no later damage to others."""
    mark = entry(5, 4, 0, slot=5, kind=RecordKind.REPAIRED, ranges=((2, 2),))
    entries = [entry(1, 0, 1), entry(3, 2, 3, slot=3), entry(4, 3, 4, slot=4), mark]
    assert decisions(entries, single=False) == [(2, 2, 2, RecoveryDecision.IGNORE)]
    without_third = [entries[0], *entries[2:]]
    assert decisions(without_third, single=False) == [
        (2, 2, 2, RecoveryDecision.IGNORE),
        (3, 3, 2, RecoveryDecision.FAULTY_CORRUPT),
    ]


@pytest.mark.parametrize(
    ("named", "is_forgiven"),
    [
        ([(2, 3)], True),
        ([(2, 2), (3, 3)], True),
        ([(3, 3), (1, 2)], True),
        ([(2, 2)], False),
        ([(3, 3)], False),
        ([(1, 1), (3, 4)], False),
    ],
)
def test_repaired_ranges_add_up(named: list[tuple[int, int]], is_forgiven: bool) -> None:
    """Ranges lost and repaired at different times form one gap, which is forgiven as a whole."""
    marks = [
        entry(5 + i, 4, 0, slot=5 + i, kind=RecordKind.REPAIRED, ranges=(each,))
        for i, each in enumerate(named)
    ]
    # Counting does not tell the op behind the gap, so the gap is judged as a whole.
    entries = [entry(1, 0, 7), entry(4, 3, 3, slot=4), *marks]
    expected = RecoveryDecision.IGNORE if is_forgiven else RecoveryDecision.FAULTY_CORRUPT
    assert decisions(entries, single=False) == [(2, 3, 2, expected)]


def test_a_cut_supersedes_damage_above_it() -> None:
    """A damaged record no longer matters once a later view change removed its op."""
    damaged = entry(2, 1, 2, slot=2, reason="rot")
    cut = entry(3, 2, 1, slot=3, kind=RecordKind.CUT)
    assert decisions([entry(1, 0, 1), damaged, cut], single=False) == [
        (2, 2, 2, RecoveryDecision.IGNORE)
    ]
    kept = entry(3, 2, 2, slot=3, kind=RecordKind.CUT)
    assert decisions([entry(1, 0, 1), damaged, kept], single=False) == [
        (2, 2, 2, RecoveryDecision.FAULTY_CORRUPT)
    ]
