"""The records of a journal, one at a time, with what later records make of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from viewstamp.format import FormatVersionError
from viewstamp.format.prepare import SealedPrepare
from viewstamp.format.record import Frame, IntactRecord, RecordKind, decode_ranges
from viewstamp.format.scan import scan_segment
from viewstamp.journals.journal_survey import (
    EntryState,
    JournalSurvey,
    SegmentUse,
    newer,
)
from viewstamp.journals.log_findings import LogVerdict
from viewstamp.journals.segment_window import opened_segment


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Where a record lies. `record_bytes` are whole sectors."""

    segment: int
    offset: int
    record_bytes: int
    sequence: int


@dataclass(frozen=True, slots=True)
class LogEntryRecord:
    """An intact entry, and whether it still belongs to the log."""

    place: RecordPlace
    prepare: SealedPrepare
    state: EntryState


@dataclass(frozen=True, slots=True)
class LogMarkRecord:
    """An intact record that says something of others.

    `op` is that of a cut or a restart, `ranges` are the sequences that were repaired.
    """

    place: RecordPlace
    kind: RecordKind
    op: int
    ranges: tuple[tuple[int, int], ...]


LogRecord: TypeAlias = LogEntryRecord | LogMarkRecord


def read_records(
    survey: JournalSurvey, from_op: int = 1, to_op: int | None = None
) -> Iterator[LogRecord]:
    """Yield the intact records up to where the survey ended, in the order of appending.

    Entries outside the ops are left out, and so are cuts and restarts at other ops. What a writer
    has appended since is left out. Raises NewerJournal, OSError.
    """
    for use in survey.segments:
        if not _may_hold(use, from_op, to_op):
            continue
        try:
            with opened_segment(use.path) as window:
                items = scan_segment(window, journal_id=survey.journal_id, segment=use.segment)
                for item in items:
                    if (use.segment, item.offset) >= survey.end:
                        return
                    if isinstance(item, IntactRecord):
                        record = _record(survey, use.segment, item)
                        if _is_within(record, from_op, to_op):
                            yield record
        except FileNotFoundError:
            survey.dropped_segments.append(use.segment)
        except FormatVersionError as error:
            raise newer(use.path, error) from error


def settle_copies(survey: JournalSurvey) -> None:
    """Settle damaged records of whose entry an earlier record is intact and still counts.

    Walks again only if there may be one. Raises NewerJournal, OSError.
    """
    wanted: set[int] = {
        each.op
        for each in survey.findings
        if each.verdict is LogVerdict.LOST and each.checksum and each.op and each.op in survey.ops
    }
    if not wanted:
        return
    held = {
        (record.prepare.op, record.prepare.checksum)
        for record in read_records(survey, min(wanted), max(wanted))
        if isinstance(record, LogEntryRecord)
        and record.state is EntryState.LIVE
        and record.prepare.op in wanted
    }
    survey.findings = [
        replace(each, verdict=LogVerdict.SETTLED)
        if each.op in wanted and (each.op, each.checksum) in held
        else each
        for each in survey.findings
    ]


def _may_hold(use: SegmentUse, from_op: int, to_op: int | None) -> bool:
    """Return whether a segment may have records of the ops; cuts are told with all ops alone."""
    if from_op <= 1 and to_op is None:
        return True
    return use.last_op >= from_op and (to_op is None or 0 < use.first_op <= to_op)


def _record(survey: JournalSurvey, segment: int, item: IntactRecord) -> LogRecord:
    frame = item.frame
    place = RecordPlace(segment, item.offset, item.extent_bytes, frame.sequence)
    if isinstance(item.content, SealedPrepare):
        return LogEntryRecord(place, item.content, survey.state_of(frame.op, frame.sequence))
    return LogMarkRecord(place, frame.kind, frame.op, _ranges(frame, item.content))


def _ranges(frame: Frame, content: bytes) -> tuple[tuple[int, int], ...]:
    return decode_ranges(content) if frame.kind is RecordKind.REPAIRED else ()


def _is_within(record: LogRecord, from_op: int, to_op: int | None) -> bool:
    if from_op <= 1 and to_op is None:
        return True
    op = record.prepare.op if isinstance(record, LogEntryRecord) else record.op
    return from_op <= op and (to_op is None or op <= to_op)
