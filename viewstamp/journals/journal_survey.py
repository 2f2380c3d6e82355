"""One walk over all segments: what there is, what is damaged, and what later records change.

The survey keeps no entry. Memory grows with what is unusual: cuts, restarts, ops found twice, gaps
and damage, of which at most FINDINGS_MAX places are told.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Final

from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.prepare import SealedPrepare
from viewstamp.format.record import (
    FRAME_BYTES,
    SECTOR_BYTES,
    Frame,
    IntactRecord,
    RecordKind,
    SegmentHeader,
    claimed_sequence,
    decode_ranges,
    decode_segment_header,
)
from viewstamp.format.removals import Removals, reach_after
from viewstamp.format.scan import BlankSectors, DamagedRecord, scan_segment
from viewstamp.journals.journal_errors import NewerJournal
from viewstamp.journals.log_findings import (
    KnownOutside,
    LogEvidence,
    LogFinding,
    LogVerdict,
)
from viewstamp.journals.op_bound import OpBound
from viewstamp.journals.op_ranges import OpRanges
from viewstamp.journals.segment_window import SegmentWindow, opened_segment, segments_of

FINDINGS_MAX: Final = 1_000
NO_PLACE: Final = (0, 0)
# Above every sequence.
NEVER: Final = 1 << 64


class EntryState(Enum):
    """Whether an entry belongs to the log."""

    LIVE = "live"
    REPLACED = "replaced"
    REWRITTEN = "rewritten"
    COVERED = "covered"
    CUT_OFF = "cut off"


@dataclass(slots=True)
class SegmentUse:
    """What a segment holds. Ops are 0 without an entry."""

    segment: int
    path: Path
    segment_bytes: int
    records: int = 0
    used_bytes: int = 0
    first_op: int = 0
    last_op: int = 0

    def note(self, frame: Frame, extent_bytes: int) -> None:
        """Count a record."""
        self.records += 1
        self.used_bytes += extent_bytes
        if frame.kind is RecordKind.PREPARE:
            self.first_op = min(self.first_op or frame.op, frame.op)
            self.last_op = max(self.last_op, frame.op)


@dataclass(slots=True)
class JournalSurvey:
    """What a walk over all segments has found. `end` is where the last record ends."""

    journal_id: bytes
    known: KnownOutside
    segments: list[SegmentUse] = field(default_factory=list)
    findings: list[LogFinding] = field(default_factory=list)
    findings_untold: int = 0
    dropped_segments: list[int] = field(default_factory=list)
    ops: OpRanges = field(default_factory=OpRanges)
    removals: Removals = field(default_factory=Removals)
    rewritten: dict[int, int] = field(default_factory=dict)
    last_sequence: int = 0
    superblock_sequence: int = 0
    view: int = 0
    commit: int = 0
    last_revision: int = 0
    end: tuple[int, int] = NO_PLACE
    cut_sequence: int = NEVER
    """The sequence from which on a start cuts records off."""

    def state_of(self, op: int, sequence: int) -> EntryState:
        """Return whether the entry of an op in the record of a sequence belongs to the log."""
        if sequence < self.removals.restart[0]:
            return EntryState.COVERED
        if self.removals.was_cut(op, sequence):
            return EntryState.REPLACED
        if self.rewritten.get(op, 0) > sequence:
            return EntryState.REWRITTEN
        if sequence >= self.cut_sequence:
            return EntryState.CUT_OFF
        return EntryState.LIVE

    @property
    def open_findings(self) -> list[LogFinding]:
        """The findings that somebody has to do something about."""
        return [finding for finding in self.findings if finding.is_open]

    def missing_ops(self) -> list[tuple[int, int]]:
        """Return ranges of ops that a log up to the head, or the known commit, lacks."""
        known, head = self.known, self.ops.head
        missing = self.ops.gaps()
        # The snapshot to restart from may cover what lies behind a member's journal.
        if known.commit_max > head and (known.is_single or not known.has_snapshot):
            missing.append((head + 1, known.commit_max))
        return missing

    def tell(self, finding: LogFinding) -> None:
        """Note a finding, or only count it if there are too many."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.findings_untold += 1


def survey_journal(data: Path, known: KnownOutside, archive: Path | None = None) -> JournalSurvey:
    """Walk over the journal of a data directory. Raises NoJournal, NewerJournal, OSError."""
    paths = segments_of(data, archive)
    headers, unread = _headers(paths)
    journal_id = next((each.journal_id for each in headers.values() if each), b"")
    survey = JournalSurvey(journal_id, known, dropped_segments=unread)
    for before, after in pairwise(paths):
        if after != before + 1:
            reason = f"segments {before + 1} to {after - 1} are missing"
            survey.tell(LogFinding(before + 1, 0, reason, verdict=LogVerdict.FATAL))
    walk = _Walk(survey, min(paths))
    for number, header in headers.items():
        if _is_ours(survey, number, header):
            _walk_segment(walk, number, paths[number])
    walk.finish()
    return survey


def _headers(paths: dict[int, Path]) -> tuple[dict[int, SegmentHeader | None], list[int]]:
    """Return each segment's header, None for a damaged one, and the segments that are gone."""
    headers: dict[int, SegmentHeader | None] = {}
    gone = []
    for number, path in paths.items():
        try:
            with opened_segment(path) as window:
                headers[number] = decode_segment_header(window[0:SECTOR_BYTES])
        except FileNotFoundError:
            gone.append(number)
        except FormatVersionError as error:
            raise newer(path, error) from error
        except FormatError:
            headers[number] = None
    return headers, gone


def newer(path: Path, error: FormatVersionError) -> NewerJournal:
    """Return the error for intact bytes of a later format."""
    return NewerJournal(f"{path}: {error}", "use the build that wrote it")


def _is_ours(survey: JournalSurvey, number: int, header: SegmentHeader | None) -> bool:
    """Return whether a segment belongs to the journal; note what is wrong with its header."""
    if not survey.journal_id:
        reason = "no segment has an intact header"
        survey.tell(LogFinding(number, 0, reason, verdict=LogVerdict.FATAL))
        return False
    if header is None:
        reason = "the segment's header is damaged"
        survey.tell(LogFinding(number, 0, reason, verdict=LogVerdict.MENDED))
        return True
    if (header.journal_id, header.segment) == (survey.journal_id, number):
        return True
    reason = f"the header is that of segment {header.segment} of another place or journal"
    survey.tell(LogFinding(number, 0, reason, verdict=LogVerdict.FATAL))
    return False


def _walk_segment(walk: _Walk, number: int, path: Path) -> None:
    try:
        with opened_segment(path) as window:
            walk.begin(number, path, window)
            for item in scan_segment(window, journal_id=walk.survey.journal_id, segment=number):
                if isinstance(item, IntactRecord):
                    walk.intact(item)
                elif isinstance(item, DamagedRecord):
                    walk.damaged(item)
                else:
                    assert isinstance(item, BlankSectors)
    except FileNotFoundError:
        walk.survey.dropped_segments.append(number)
    except FormatVersionError as error:
        raise newer(path, error) from error


@dataclass(slots=True)
class _Strays:
    """The sectors since the last record that are neither blank nor part of a record."""

    place: tuple[int, int]
    reason: str
    begins_written: bool = False
    """Whether one lies where the next record would begin, and its first unit was written."""


class _Walk:
    """Takes what lies in the segments, in file order."""

    def __init__(self, survey: JournalSurvey, first_segment: int) -> None:
        self.survey = survey
        self._first_segment = first_segment
        self._use = SegmentUse(0, Path(), 0)
        self._window: SegmentWindow | None = None
        self._strays: _Strays | None = None
        self._reach_op = 0
        """How far intact records say that the log reached."""
        self._framed_op = 0
        """The same of all records whose frame verified, as a start counts for what was torn."""
        self._bound = OpBound(is_whole=first_segment == 1)
        self._durable_sequence = 0
        self._has_record = False
        self._last_kind: RecordKind | None = None
        self._last_op = 0
        self._parent: tuple[int, bytes] | None = None
        """Op and checksum of the entry before, if nothing lies between."""

    def begin(self, number: int, path: Path, window: SegmentWindow) -> None:
        """Take a segment."""
        self._window = window
        self._use = SegmentUse(number, path, len(window))
        self.survey.segments.append(self._use)
        if len(window) < 2 * SECTOR_BYTES or len(window) % SECTOR_BYTES:
            reason = f"the file has been cut to {len(window)} bytes"
            self.survey.tell(LogFinding(number, 0, reason, verdict=LogVerdict.FATAL))

    def intact(self, record: IntactRecord) -> None:
        """Take a record that verified in full."""
        if not self._take(record.frame, record.offset, record.extent_bytes, is_intact=True):
            return
        frame, content = record.frame, record.content
        self._framed_op = reach_after(self._framed_op, frame)
        if isinstance(content, SealedPrepare):
            self._entry(record.offset, frame, content)
            return
        removals, self._parent = self.survey.removals, None
        if frame.kind is RecordKind.CUT:
            removals.cut(frame.sequence, frame.op)
            self.survey.ops.cut_above(frame.op)
            self._reach_op = min(self._reach_op, frame.op)
        elif frame.kind is RecordKind.RESTART:
            removals.restart = frame.sequence, frame.op
            self.survey.ops = OpRanges()
            self._reach_op = frame.op
        else:
            removals.repaired(frame.sequence, decode_ranges(content))

    def damaged(self, item: DamagedRecord) -> None:
        """Take a damaged record, or a sector of unknown content."""
        if item.frame is None:
            self._stray(item)
            return
        frame = item.frame
        if not self._take(frame, item.offset, item.extent_bytes, is_intact=False):
            return
        is_prepare = frame.kind is RecordKind.PREPARE
        op = frame.op if is_prepare else None
        checksum = frame.content_checksum if is_prepare else None
        self._tell_damage(item.offset, frame, item.reason, op, checksum, torn=item.torn)
        self._parent = None
        if op is not None:
            self._reach_op = max(self._reach_op, op)
        self._framed_op = reach_after(self._framed_op, frame)

    def finish(self) -> None:
        """Judge what no record follows, and then all findings."""
        survey = self.survey
        sequence = survey.last_sequence + 1
        known_sequence = survey.known.journal_sequence
        is_emptied = not self._has_record and self._first_segment > 1
        if self._strays or is_emptied or known_sequence >= sequence:
            self._tell_gap(sequence, max(sequence, known_sequence))
        survey.removals.settle()
        evidence = LogEvidence(
            survey.removals, survey.rewritten, self._durable_sequence, survey.commit, survey.known
        )
        told = [evidence.judged(each) if each.first_sequence else each for each in survey.findings]
        torn = (each.first_sequence for each in told if each.verdict is LogVerdict.TORN)
        survey.cut_sequence = min(torn, default=NEVER)
        survey.findings = sorted(
            (_cut_along(each, survey.cut_sequence) for each in told),
            key=lambda each: (each.segment, each.offset),
        )
        for finding in survey.findings:
            if finding.verdict in (LogVerdict.TORN, LogVerdict.UNFINISHED):
                survey.ops.cut_above(finding.reached_op)

    def _take(self, frame: Frame, offset: int, extent_bytes: int, *, is_intact: bool) -> bool:
        """Note a frame that verified; return whether it follows the record before."""
        survey = self.survey
        before = survey.last_sequence
        self._use.note(frame, extent_bytes)
        survey.superblock_sequence = max(survey.superblock_sequence, frame.superblock_sequence)
        self._durable_sequence = max(self._durable_sequence, frame.durable_sequence)
        if self._has_record and frame.sequence <= before:
            reason = f"sequence {frame.sequence} follows sequence {before}"
            self._tell_damage(offset, frame, reason, None, None, torn=False)
            return False
        expected = before + 1
        if not self._has_record and self._first_segment > 1:
            at_start = (self._use.segment, offset) == (self._first_segment, SECTOR_BYTES)
            expected = frame.sequence - (0 if at_start else 1)
        lost = frame.sequence - expected
        if lost > 0:
            self._tell_gap(expected, frame.sequence - 1, frame)
            self._parent = None
        self._bound.passed(frame, lost, is_intact=is_intact)
        self._strays = None
        self._has_record = True
        self._last_kind, self._last_op = frame.kind, frame.op
        survey.last_sequence = frame.sequence
        survey.end = self._use.segment, offset + extent_bytes
        return True

    def _entry(self, offset: int, frame: Frame, prepare: SealedPrepare) -> None:
        survey, op = self.survey, prepare.op
        if op <= self._reach_op:
            survey.rewritten[op] = frame.sequence
        if self._parent is not None and self._parent[0] == op - 1:
            self._check_parent(offset, frame, prepare)
        self._parent = op, prepare.checksum
        self._reach_op = max(self._reach_op, op)
        survey.ops.add(op)
        survey.view = max(survey.view, prepare.view)
        survey.commit = max(survey.commit, prepare.commit)
        survey.last_revision = max(survey.last_revision, prepare.last_revision)

    def _check_parent(self, offset: int, frame: Frame, prepare: SealedPrepare) -> None:
        assert self._parent is not None
        if prepare.parent != self._parent[1]:
            reason = f"op {prepare.op} is intact, but is not the child of op {prepare.op - 1}"
            found = LogFinding(self._use.segment, offset, reason, verdict=LogVerdict.FATAL)
            self.survey.tell(replace(found, op=prepare.op, checksum=prepare.checksum))

    def _stray(self, item: DamagedRecord) -> None:
        assert self._window is not None
        place = self._use.segment, item.offset
        if self._strays is None:
            head = self._window[item.offset : item.offset + FRAME_BYTES]
            claimed = claimed_sequence(head)
            hint = "" if claimed is None else f"; it looks like record {claimed} of another place"
            self._strays = _Strays(place, item.reason + hint)
        is_at_start = item.offset == SECTOR_BYTES or place == self.survey.end
        if is_at_start and not item.torn:
            self._strays.begins_written = True

    def _tell_gap(
        self, first_sequence: int, last_sequence: int, following: Frame | None = None
    ) -> None:
        """Note records that left no frame in their place, one by one if their ops are known."""
        gap = self._gap(first_sequence, last_sequence)
        lost = last_sequence - first_sequence + 1
        first_op = self._bound.first_lost_op(following, lost) if following else None
        self._strays = None
        if first_op is None or lost > FINDINGS_MAX:
            self.survey.tell(gap)
            return
        for index in range(lost):
            sequence, is_torn = first_sequence + index, gap.torn and index == 0
            one = replace(gap, first_sequence=sequence, last_sequence=sequence, torn=is_torn)
            self.survey.tell(replace(one, op=first_op + index))

    def _gap(self, first_sequence: int, last_sequence: int) -> LogFinding:
        end = self.survey.end if self._has_record else (self._first_segment, SECTOR_BYTES)
        strays = self._strays or _Strays(end, "a record is missing")
        is_known_place = self._has_record or self._first_segment == 1
        follows_entry = (
            self._last_kind is RecordKind.PREPARE if self._has_record else is_known_place
        )
        return LogFinding(
            segment=strays.place[0],
            offset=strays.place[1],
            reason=strays.reason,
            first_sequence=first_sequence,
            last_sequence=last_sequence,
            inferred_op=self._last_op + 1 if follows_entry else None,
            reached_op=self._framed_op,
            torn=is_known_place and not strays.begins_written,
        )

    def _tell_damage(
        self,
        offset: int,
        frame: Frame,
        reason: str,
        op: int | None,
        checksum: bytes | None,
        *,
        torn: bool,
    ) -> None:
        self.survey.tell(
            LogFinding(
                segment=self._use.segment,
                offset=offset,
                reason=reason,
                first_sequence=frame.sequence,
                last_sequence=frame.sequence,
                op=op,
                checksum=checksum,
                reached_op=self._framed_op,
                torn=torn,
            )
        )


def _cut_along(finding: LogFinding, cut_sequence: int) -> LogFinding:
    """Return a finding behind torn records as torn: a start cuts it off with them."""
    is_behind = finding.verdict is LogVerdict.LOST and finding.first_sequence >= cut_sequence
    return replace(finding, verdict=LogVerdict.TORN) if is_behind else finding
