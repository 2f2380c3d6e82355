"""What is lost or damaged in a journal, and what a start would make of it.

The rules are those of a start (`coordinator.journal.recovery`), as far as they follow from the
journal and the superblock alone. A start also knows its snapshot, so it may prove more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate
from typing import Final


class LogVerdict(Enum):
    """What a start would make of a finding."""

    SETTLED = "settled"
    UNFINISHED = "unfinished"
    TORN = "torn"
    LOST = "lost"
    FATAL = "fatal"
    MENDED = "mended"
    UNKNOWN = "unknown"


VERDICT_WORDS: Final = {
    LogVerdict.SETTLED: "later records repaired or replaced it",
    LogVerdict.UNFINISHED: "a writer may be at work on it",
    LogVerdict.TORN: "it was never acknowledged, and a start cuts it off",
    LogVerdict.LOST: "a start keeps its place and fetches what is missing from other replicas",
    LogVerdict.FATAL: "a start refuses the directory",
    LogVerdict.MENDED: "a start writes it anew",
    LogVerdict.UNKNOWN: "without a superblock nobody knows what a start makes of it",
}
# They ask for nothing.
HARMLESS: Final = frozenset({LogVerdict.SETTLED, LogVerdict.UNFINISHED})


@dataclass(frozen=True, slots=True)
class LogFinding:
    """Something lost or damaged at a place of the journal.

    The sequences are those of the records concerned, 0 where it concerns none. `op` and `checksum`
    are what a frame says, `inferred_op` the op after that of the record before. `reached_op` is how
    far the log came before it. `torn` says that units of it were never written.
    """

    segment: int
    offset: int
    reason: str
    first_sequence: int = 0
    last_sequence: int = 0
    op: int | None = None
    checksum: bytes | None = None
    inferred_op: int | None = None
    reached_op: int = 0
    torn: bool = False
    verdict: LogVerdict = LogVerdict.UNKNOWN

    @property
    def is_open(self) -> bool:
        """Whether somebody has to do something about it, be it a start."""
        return self.verdict not in HARMLESS


@dataclass(frozen=True, slots=True)
class KnownOutside:
    """What is known beside the journal's records. The numbers are 0 without a superblock."""

    has_superblock: bool = False
    is_single: bool = False
    has_snapshot: bool = False
    commit_max: int = 0
    journal_sequence: int = 0
    has_writer: bool = False


class Removals:
    """Which records the later ones took out of the log."""

    def __init__(self) -> None:
        self.restart = (0, 0)
        """Sequence and op of the newest restart; zeros for none."""
        self._cuts: list[tuple[int, int]] = []
        self._repaired: list[tuple[int, int, int]] = []
        self._cut_sequences: list[int] = []
        self._lowest_remaining: list[int] = []

    def cut(self, sequence: int, op: int) -> None:
        """Note that a record took all ops above `op` out of the log."""
        self._cuts.append((sequence, op))

    def repaired(self, sequence: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Note that a record says that these sequences are repaired."""
        self._repaired.extend((sequence, first, last) for first, last in ranges)

    def settle(self) -> None:
        """Make `was_cut` quick, once all records are noted."""
        cuts = sorted(self._cuts)
        self._cut_sequences = [sequence for sequence, _ in cuts]
        self._lowest_remaining = list(accumulate((op for _, op in reversed(cuts)), min))[::-1]

    def was_cut(self, op: int, sequence: int) -> bool:
        """Return whether a later cut took an entry out of the log."""
        index = bisect_right(self._cut_sequences, sequence)
        return index < len(self._cut_sequences) and op > self._lowest_remaining[index]

    def is_repaired(self, finding: LogFinding) -> bool:
        """Return whether later records, one or several together, name its sequences."""
        unnamed = finding.first_sequence
        later = (each for each in self._repaired if each[0] > finding.last_sequence)
        for _, first, last in sorted(later, key=lambda each: each[1:]):
            if first > unnamed:
                break
            unnamed = max(unnamed, last + 1)
        return unnamed > finding.last_sequence


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """What all records together prove; `rewritten` has the newest sequence of ops found twice."""

    removals: Removals
    rewritten: dict[int, int]
    durable_sequence: int
    commit: int
    known: KnownOutside

    def judged(self, finding: LogFinding) -> LogFinding:
        """Return a finding about records with what a start would make of it."""
        return replace(finding, verdict=self._verdict(finding))

    def _verdict(self, finding: LogFinding) -> LogVerdict:
        known = self.known
        is_last = max(self.durable_sequence, known.journal_sequence) < finding.first_sequence
        if known.has_writer and is_last:
            return LogVerdict.UNFINISHED
        if not known.has_superblock:
            return LogVerdict.UNKNOWN
        if known.is_single:
            is_cut = is_last and self._is_above_commit(finding)
            return LogVerdict.TORN if is_cut else LogVerdict.FATAL
        if self._is_settled(finding):
            return LogVerdict.SETTLED
        is_cut = is_last and finding.torn and finding.reached_op >= known.commit_max
        return LogVerdict.TORN if is_cut else LogVerdict.LOST

    def _is_above_commit(self, finding: LogFinding) -> bool:
        op = finding.inferred_op if finding.op is None else finding.op
        return op is not None and op > max(self.commit, self.known.commit_max)

    def _is_settled(self, finding: LogFinding) -> bool:
        if self.removals.is_repaired(finding):
            return True
        op, sequence = finding.op, finding.last_sequence
        if op is None:
            return False
        restart_sequence, restart_op = self.removals.restart
        return (
            self.rewritten.get(op, 0) > sequence
            or self.removals.was_cut(op, sequence)
            or (sequence < restart_sequence and op <= restart_op)
        )
