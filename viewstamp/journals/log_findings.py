"""What is lost or damaged in a journal, and what a start would make of it.

The table is that of a start (`viewstamp.format.recovery_table`); the facts are those that follow
from the journal and the superblock alone. A start also knows its snapshot, so it may prove more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from viewstamp.format.recovery_table import Facts, RecoveryDecision, decide, is_above_commit
from viewstamp.format.removals import Removals


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
# What a start decides about something lost, in the words of this reader.
VERDICTS: Final = {
    RecoveryDecision.IGNORE: LogVerdict.SETTLED,
    RecoveryDecision.CUT: LogVerdict.TORN,
    RecoveryDecision.FAULTY_TORN: LogVerdict.LOST,
    RecoveryDecision.FAULTY_CORRUPT: LogVerdict.LOST,
    RecoveryDecision.REFUSE: LogVerdict.FATAL,
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
        return VERDICTS[decide(self._facts(finding, above_durable=is_last))]

    def _facts(self, finding: LogFinding, *, above_durable: bool) -> Facts:
        """Return the inputs of the table for a finding."""
        return Facts(
            intact=False,
            superseded=self._is_settled(finding),
            above_durable=above_durable,
            above_commit=self._is_above_commit(finding),
            torn=finding.torn,
            single=self.known.is_single,
        )

    def _is_above_commit(self, finding: LogFinding) -> bool:
        if not self.known.is_single:
            return finding.reached_op >= self.known.commit_max
        commit = max(self.commit, self.known.commit_max)
        return is_above_commit(finding.op, finding.inferred_op, commit)

    def _is_settled(self, finding: LogFinding) -> bool:
        op = finding.op
        newest = 0 if op is None else self.rewritten.get(op, 0)
        return self.removals.is_replaced(finding.first_sequence, finding.last_sequence, op, newest)
