"""The ops of lost records, where counting sequences proves them.

A lost record without a frame does not show its op. It may have had any op, even one above all ops
that are left, and then recovery cannot know where the log ends. But the rules of appending let one
append make the log longer by one entry at most. So behind a gap of k sequences the next record can
be at most k + 1 ops beyond the end that the log had before the gap. If it is exactly k + 1 ops
beyond, then each lost record was the next entry of the log, which proves the lost ops.

The end of the log before the gap is an upper bound: earlier records may be lost, too, and dropped
segments held nothing above the cut of the snapshot. If the bound is too high, the count proves
nothing. So the count may prove less once segments are dropped. For this reason lost ops that were
proved and repaired are also noted as repaired.

Two kinds of gaps have an unreliable count of sequences, and such a gap never matches by accident. A
loss behind the last record counts as one sequence, or as misdirected writes and the superblock
show; the next append
continues from the log that is left. A first segment that does not begin with a record shows that
records are lost, not how many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from coordinator.journal.findings import JournalFinding, VerifiedRecord
from viewstamp.format.record import SECTOR_BYTES, RecordKind

# Above every op: nothing bounds how far the log reached.
ANY_OP: Final = 1 << 64


def tell_ops(
    findings: Sequence[JournalFinding],
    entries: Sequence[VerifiedRecord],
    first_segment: int,
    covered_op: int,
) -> list[JournalFinding]:
    """Return the findings, with a gap split into one finding per op where counting proves the ops.

    A snapshot covers everything up to `covered_op`.
    """
    told = _gaps(entries, first_segment, covered_op)
    return [each for finding in findings for each in _split(finding, told)]


def _split(finding: JournalFinding, told: dict[int, int]) -> list[JournalFinding]:
    """Return one finding for each sequence of a gap if its first op is proved."""
    first_op = told.get(finding.first_sequence)
    if first_op is None or finding.op is not None:
        return [finding]
    sequences = range(finding.first_sequence, finding.last_sequence + 1)
    return [
        replace(
            finding,
            first_sequence=sequence,
            last_sequence=sequence,
            op=first_op + index,
            is_counted=True,
            # Only of the first one is the intended place known.
            torn=finding.torn and index == 0,
        )
        for index, sequence in enumerate(sequences)
    ]


def _gaps(entries: Sequence[VerifiedRecord], first_segment: int, covered_op: int) -> dict[int, int]:
    """Return the op of the first record of each gap that proves it, by its sequence."""
    ordered = sorted(entries, key=lambda entry: entry.frame.sequence)
    told: dict[int, int] = {}
    bound = _Bound(entries, first_segment, covered_op)
    sequences = [0, *(entry.frame.sequence for entry in ordered)]
    if first_segment > 1 and ordered:
        sequences[0] = sequences[1] - 1
    for (before, sequence), entry in zip(pairwise(sequences), ordered, strict=True):
        lost = max(0, sequence - before - 1)
        is_prepare = entry.frame.kind is RecordKind.PREPARE
        if lost > 0 and is_prepare and entry.frame.op == bound.reach + lost + 1:
            told[before + 1] = bound.reach + 1
        bound.passed(entry, lost)
    return told


class _Bound:
    """An upper bound of the log's head, record by record in the order of sequences."""

    def __init__(
        self, entries: Sequence[VerifiedRecord], first_segment: int, covered_op: int
    ) -> None:
        """Begin before the first remaining record."""
        self._covered_op = covered_op
        first = (entries[0].segment, entries[0].offset) if entries else (0, 0)
        begins = first_segment == 1 or first == (first_segment, SECTOR_BYTES)
        # A restart also drops segments, which may have reached beyond its snapshot.
        forgot = any(entry.frame.kind is RecordKind.RESTART for entry in entries)
        self._is_whole = begins
        self.reach = 0 if first_segment == 1 else covered_op
        if not begins or (forgot and first_segment > 1):
            self.reach = ANY_OP

    def passed(self, entry: VerifiedRecord, lost: int) -> None:
        """Advance past a record that `lost` lost records precede."""
        self._is_whole = self._is_whole and lost == 0 and entry.reason is None
        self.reach += lost
        op, kind = entry.frame.op, entry.frame.kind
        if kind is RecordKind.PREPARE:
            self.reach = max(self.reach, op)
        elif kind is RecordKind.CUT:
            self.reach = max(self._covered_op, min(self.reach, op))
        elif kind is RecordKind.RESTART:
            # Ops then known to be lost stay lost above the snapshot, and may be appended.
            forgotten = 0 if self._is_whole else self.reach
            self.reach = max(self._covered_op, op, forgotten)
