"""What a journal's bytes mean after a crash: pure analysis and a decision table.

A scan gives, in file order, every record whose frame verified (`Entry`) and every sector that
holds something else (`Stray`). Sequences count the records appended here without a gap, so what
is lost shows as a sequence without an intact record: a `Finding`. Six facts about a finding
decide what is done, by the table `DECISIONS` and nothing else:

`intact`
    The record verified in full.
`superseded`
    It no longer matters: a later record of the same op is intact, or an earlier one of the same
    op and checksum that still counts; a later cut or restart removed the op; or a repaired record
    names its sequence.
`above_durable`
    Its sequence is above the durable_sequence of every later record, so no record was ever
    written with the knowledge that this one was synced, and nothing rested on it.
`above_commit`
    The log reaches all that is known to be committed without it. For a single replica: its op is
    above the superblock's commit_max and every commit that a record mentions; an op that cannot
    be told counts as not above. For a member: the records before it reach the superblock's
    commit_max. What records mention says nothing there, since the others commit without it.
`torn`
    Units of it are still zeros that were not written so (see `viewstamp.format.record`): its write
    never reached the disk, so the sync of its group never returned, and it was never acknowledged.
`single`
    The cluster has one replica: nobody else can supply what is lost.

**Why members ask for `torn`.** A single replica cuts an unacknowledged tail on the word of
`above_durable` and `above_commit`. That includes rot in the very last group, which looks the same;
it has nobody to ask, and would otherwise not start after most crashes. A member has others to
ask, and must not forget what it acknowledged: the others may have committed it for that. So what
may have been there is faulty, it never says of it that it was not there. But if a power failure
takes the whole cluster in the middle of writing, every member has such a tail, nobody can say
that the op was not there, and none would ever serve again. Hence the proof: a tail that is torn
for sure is cut by members, too, and what only may be torn stays faulty.

**Doubt.** A lost record whose op is unknown may have been a cut, or a newer entry of any op. So
entries before it are in doubt (`live.in_doubt`): they may have been replaced. They count as missing
unless the chain of hashes ties them to an entry after it, or says that they were committed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from viewstamp.format.prepare import PrepareHeader
from viewstamp.format.record import SECTOR_BYTES, Frame, RecordKind


class Decision(Enum):
    """What recovery does about a record or a finding."""

    KEEP = "keep"
    IGNORE = "ignore"
    CUT = "cut"
    FAULTY_TORN = "faulty_torn"
    FAULTY_CORRUPT = "faulty_corrupt"
    REFUSE = "refuse"


FAULTY = frozenset({Decision.FAULTY_TORN, Decision.FAULTY_CORRUPT})


@dataclass(frozen=True, slots=True)
class Facts:
    """The six inputs of the decision table."""

    intact: bool
    superseded: bool
    above_durable: bool
    above_commit: bool
    torn: bool
    single: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: None matches either value."""

    intact: bool | None
    superseded: bool | None
    above_durable: bool | None
    above_commit: bool | None
    torn: bool | None
    single: bool | None
    decision: Decision

    def matches(self, facts: Facts) -> bool:
        """Whether these facts are this row's."""
        wanted = (
            (self.intact, facts.intact),
            (self.superseded, facts.superseded),
            (self.above_durable, facts.above_durable),
            (self.above_commit, facts.above_commit),
            (self.torn, facts.torn),
            (self.single, facts.single),
        )
        return all(want is None or want == fact for want, fact in wanted)


# A single replica writes every op once and cuts what tore, so nothing there is ever superseded:
# finding such a record damaged is corruption like any other.
DECISIONS: tuple[Row, ...] = (
    # intact, superseded, above_durable, above_commit, torn, single
    Row(True, None, None, None, None, None, Decision.KEEP),
    Row(False, True, None, None, None, False, Decision.IGNORE),
    Row(False, True, None, None, None, True, Decision.REFUSE),
    Row(False, False, True, True, None, True, Decision.CUT),
    Row(False, False, True, False, None, True, Decision.REFUSE),
    Row(False, False, False, None, None, True, Decision.REFUSE),
    Row(False, False, True, True, True, False, Decision.CUT),
    Row(False, False, True, True, False, False, Decision.FAULTY_TORN),
    Row(False, False, True, False, None, False, Decision.FAULTY_CORRUPT),
    Row(False, False, False, None, None, False, Decision.FAULTY_CORRUPT),
)


def decide(facts: Facts) -> Decision:
    """Look the facts up; a test proves that exactly one row matches whatever they are."""
    for row in DECISIONS:
        if row.matches(facts):
            return row.decision
    raise AssertionError(f"no row of the recovery table matches {facts}")


@dataclass(frozen=True, slots=True)
class Entry:
    """A record whose frame verified. `header` is known for intact prepares, `ranges` for intact
    repaired records; `reason` says what is wrong with a damaged one and is None otherwise; `torn`
    that units of a damaged one were never written."""

    segment: int
    offset: int
    extent_bytes: int
    frame: Frame
    header: PrepareHeader | None
    ranges: tuple[tuple[int, int], ...]
    reason: str | None
    torn: bool = False


@dataclass(frozen=True, slots=True)
class Stray:
    """A sector that is not zero and not part of a record whose frame verified.

    `torn` says that its first unit, where a frame would be, is zero all the same.
    """

    segment: int
    offset: int
    reason: str
    torn: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """Sequences without an intact record, and where they would have been.

    `op` and `checksum` are what the frame says; `inferred_op` is where counting from the record
    before leads, which is certain only for a single replica. `start` is the segment and offset
    where the first of them began: nothing from there on belongs to a record before it.
    """

    first_sequence: int
    last_sequence: int
    op: int | None
    checksum: bytes | None
    inferred_op: int | None
    segment: int
    offset: int
    reason: str
    torn: bool
    start: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Judged:
    """A finding and what is to be done about it."""

    finding: Finding
    decision: Decision


class Evidence:
    """What all records together say, asked by sequence and by op."""

    def __init__(self, entries: Sequence[Entry], commit_max: int, covered_op: int = 0) -> None:
        """`entries` are in file order; `commit_max` is the superblock's, and a snapshot covers
        everything up to `covered_op`."""
        by_sequence = sorted(entries, key=lambda entry: entry.frame.sequence)
        self._sequences = [entry.frame.sequence for entry in by_sequence]
        self._durable_after = _suffix_maxima([e.frame.durable_sequence for e in by_sequence])
        self._reach = _reach(by_sequence, covered_op)
        self._newest_of_op: dict[int, tuple[int, bytes]] = {}
        self._cuts: list[tuple[int, int]] = []
        self._repaired: list[tuple[int, int, int]] = []
        self._superblock_commit = commit_max
        self.commit = commit_max
        self.restart = (0, 0)
        """Sequence and op of the newest restart; zeros for none."""
        for entry in by_sequence:
            if entry.reason is None:
                self._count(entry)

    def _count(self, entry: Entry) -> None:
        sequence = entry.frame.sequence
        if entry.header is not None:
            self.commit = max(self.commit, entry.header.commit)
            self._newest_of_op[entry.header.op] = sequence, entry.header.checksum
        elif entry.frame.kind is RecordKind.CUT:
            self._cuts.append((sequence, entry.frame.op))
        elif entry.frame.kind is RecordKind.RESTART:
            self.restart = sequence, entry.frame.op
            self._newest_of_op.clear()
        self._repaired.extend((sequence, first, last) for first, last in entry.ranges)

    @property
    def durable_sequence(self) -> int:
        """The highest sequence that any record knows to be synced; 0 for none."""
        return self._durable_after[0]

    def above_durable(self, sequence: int) -> bool:
        """Whether no record after `sequence` was written knowing `sequence` to be synced."""
        return self._durable_after[bisect_right(self._sequences, sequence)] < sequence

    def above_commit(self, finding: Finding, *, single: bool) -> bool:
        """Whether the log reaches what is known to be committed without the finding."""
        if not single:
            reach = self._reach[bisect_left(self._sequences, finding.first_sequence)]
            return reach >= self._superblock_commit
        op = finding.inferred_op if finding.op is None else finding.op
        return op is not None and op > self.commit

    def superseded(self, finding: Finding) -> bool:
        """Whether other records make the finding irrelevant."""
        if any(
            sequence > finding.last_sequence
            and first <= finding.first_sequence
            and finding.last_sequence <= last
            for sequence, first, last in self._repaired
        ):
            return True
        if finding.op is None:
            return False
        newest, checksum = self._newest_of_op.get(finding.op, (0, b""))
        if newest and checksum == finding.checksum and not self.removed(finding.op, newest):
            return True
        if newest > finding.last_sequence or self._was_cut(finding.op, finding.last_sequence):
            return True
        # A restart forgets what a snapshot covers. Above that the loss of an entry stays a loss.
        restart_sequence, restart_op = self.restart
        return finding.last_sequence < restart_sequence and finding.op <= restart_op

    def removed(self, op: int, sequence: int) -> bool:
        """Whether a cut or a restart after `sequence` took `op` out of the log."""
        return sequence < self.restart[0] or self._was_cut(op, sequence)

    def _was_cut(self, op: int, sequence: int) -> bool:
        return any(at > sequence and op > remains for at, remains in self._cuts)

    def facts(self, finding: Finding, *, single: bool) -> Facts:
        """The inputs of the table for a finding."""
        return Facts(
            intact=False,
            superseded=self.superseded(finding),
            above_durable=self.above_durable(finding.first_sequence),
            above_commit=self.above_commit(finding, single=single),
            torn=finding.torn,
            single=single,
        )


def _reach(by_sequence: Sequence[Entry], covered_op: int) -> list[int]:
    """The highest op of the log before each record, and after the last; damaged ones count."""
    reach = [covered_op]
    for entry in by_sequence:
        op, kind = entry.frame.op, entry.frame.kind
        if kind is RecordKind.PREPARE:
            reach.append(max(reach[-1], op))
        elif kind is RecordKind.REPAIRED:
            reach.append(reach[-1])
        else:
            reach.append(max(covered_op, op if kind is RecordKind.RESTART else min(reach[-1], op)))
    return reach


def _suffix_maxima(values: Sequence[int]) -> list[int]:
    """For each position the maximum from there on, and 0 past the end."""
    maxima = [0] * (len(values) + 1)
    for index in range(len(values) - 1, -1, -1):
        maxima[index] = max(values[index], maxima[index + 1])
    return maxima


def judge(
    entries: Sequence[Entry],
    strays: Sequence[Stray],
    *,
    first_segment: int,
    commit_max: int,
    single: bool,
    covered_op: int = 0,
) -> tuple[list[Judged], Evidence]:
    """Find everything that is lost or damaged and decide about it, in file order."""
    evidence = Evidence(entries, commit_max, covered_op)
    findings = find(entries, strays, first_segment)
    judged = [
        Judged(finding, decide(evidence.facts(finding, single=single))) for finding in findings
    ]
    return judged, evidence


def find(
    entries: Sequence[Entry], strays: Sequence[Stray], first_segment: int
) -> Iterator[Finding]:
    """Every sequence without an intact record, in file order.

    Strays that no lost sequence accounts for lie in space that no record ever used: harmless.
    """
    previous: Entry | None = None
    for entry in entries:
        yield from _find_before(entry, previous, strays, first_segment)
        if entry.reason is not None:
            yield _damaged(entry, entry.reason, torn=entry.torn)
        if previous is None or entry.frame.sequence > previous.frame.sequence:
            previous = entry
    yield from _find_after(previous, strays, first_segment)


def _find_before(
    entry: Entry, previous: Entry | None, strays: Sequence[Stray], first_segment: int
) -> Iterator[Finding]:
    """The gap, or the step backward, between two neighbours."""
    sequence = entry.frame.sequence
    if previous is not None and sequence <= previous.frame.sequence:
        reason = f"sequence {sequence} follows sequence {previous.frame.sequence}"
        yield _damaged(entry, reason, torn=False)
        return
    expected = _expected(previous, entry, first_segment)
    if sequence > expected:
        yield _missing(expected, sequence - 1, previous, entry, strays, first_segment)


def _missing(
    first_sequence: int,
    last_sequence: int,
    previous: Entry | None,
    following: Entry | None,
    strays: Sequence[Stray],
    first_segment: int,
) -> Finding:
    """Records without as much as a frame, between two neighbours."""
    segment, offset, reason = _locate(previous, following, strays, first_segment)
    return Finding(
        first_sequence=first_sequence,
        last_sequence=last_sequence,
        op=None,
        checksum=None,
        inferred_op=_inferred_op(previous, first_segment),
        segment=segment,
        offset=offset,
        reason=reason,
        torn=_begins_blank(previous, following, strays, first_segment),
        start=_end(previous, first_segment),
    )


def _end(previous: Entry | None, first_segment: int) -> tuple[int, int]:
    """Where the record after `previous` begins, if it fits there."""
    if previous is None:
        return first_segment, SECTOR_BYTES
    return previous.segment, previous.offset + previous.extent_bytes


def _begins_blank(
    previous: Entry | None, following: Entry | None, strays: Sequence[Stray], first_segment: int
) -> bool:
    """Whether the frame of the record after `previous` was never written.

    The record began right behind `previous` or, if it did not fit there, with a later segment. An
    intact frame at one of these places is of a record after it. So if all others are blank, its
    own place is. Where the records before were dropped, there is no place to look at.
    """
    if previous is None and first_segment > 1:
        return False
    start = _end(previous, first_segment)
    return not any(
        not stray.torn
        and (stray.segment, stray.offset) >= start
        and (following is None or stray.segment <= following.segment)
        and ((stray.segment, stray.offset) == start or stray.offset == SECTOR_BYTES)
        for stray in strays
    )


def _expected(previous: Entry | None, entry: Entry, first_segment: int) -> int:
    """The sequence that should have come here."""
    if previous is not None:
        return previous.frame.sequence + 1
    if first_segment == 1:
        return 1
    # Segments before were dropped, so the count cannot start at 1; the place still tells.
    at_start = entry.segment == first_segment and entry.offset == SECTOR_BYTES
    return entry.frame.sequence - (0 if at_start else 1)


def _inferred_op(previous: Entry | None, first_segment: int) -> int | None:
    if previous is not None:
        return previous.frame.op + 1 if previous.frame.kind is RecordKind.PREPARE else None
    return 1 if first_segment == 1 else None


def _locate(
    previous: Entry | None, following: Entry | None, strays: Sequence[Stray], first_segment: int
) -> tuple[int, int, str]:
    """Where something is missing: the first stray between two records, or right after the first."""
    after = (first_segment, 0) if previous is None else (previous.segment, previous.offset)
    for stray in strays:
        place = (stray.segment, stray.offset)
        before_following = following is None or place < (following.segment, following.offset)
        if place > after and before_following:
            return stray.segment, stray.offset, stray.reason
    if previous is None:
        return first_segment, SECTOR_BYTES, "a record is missing"
    return previous.segment, previous.offset + previous.extent_bytes, "a record is missing"


def _damaged(entry: Entry, reason: str, *, torn: bool) -> Finding:
    frame = entry.frame
    is_prepare = frame.kind is RecordKind.PREPARE
    return Finding(
        first_sequence=frame.sequence,
        last_sequence=frame.sequence,
        op=frame.op if is_prepare else None,
        checksum=frame.content_checksum if is_prepare else None,
        inferred_op=None,
        segment=entry.segment,
        offset=entry.offset,
        reason=reason,
        torn=torn,
        start=(entry.segment, entry.offset),
    )


def _find_after(
    previous: Entry | None, strays: Sequence[Stray], first_segment: int
) -> Iterator[Finding]:
    """Damage that no record follows, or a truncated journal without any record."""
    last = (first_segment, 0) if previous is None else (previous.segment, previous.offset)
    followed = any((stray.segment, stray.offset) > last for stray in strays)
    emptied = previous is None and first_segment > 1
    if not followed and not emptied:
        return
    sequence = 1 if previous is None else previous.frame.sequence + 1
    yield _missing(sequence, sequence, previous, None, strays, first_segment)


def harmless_strays(entries: Sequence[Entry], strays: Sequence[Stray]) -> list[Stray]:
    """Strays between two records of neighbouring sequences: nothing can have been lost there."""
    places = [(entry.segment, entry.offset) for entry in entries]
    harmless = []
    for stray in strays:
        index = bisect_right(places, (stray.segment, stray.offset))
        if 0 < index < len(entries):
            before, after = entries[index - 1].frame.sequence, entries[index].frame.sequence
            if after == before + 1:
                harmless.append(stray)
    return harmless
