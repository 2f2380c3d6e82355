"""The live entries of a journal in the order of their ops, whatever order they were written in.

A member writes an entry again when it repairs it, behind later ones. So the places of all entries
are collected first, about a hundred bytes for each, and the entries are then read one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from viewstamp.format.prepare import SealedPrepare
from viewstamp.format.record import decode_record
from viewstamp.journals.journal_survey import EntryState, JournalSurvey
from viewstamp.journals.log_entries import LogEntryRecord, RecordPlace, read_records
from viewstamp.journals.segment_window import SegmentWindow, opened_segment


class LogPlaces:
    """Where the live entries of a survey lie, from an op on."""

    def __init__(self, survey: JournalSurvey, from_op: int) -> None:
        """Walk over the journal once. Raises NewerJournal, OSError."""
        self._journal_id = survey.journal_id
        self._paths = {use.segment: use.path for use in survey.segments}
        self._places: dict[int, RecordPlace] = {}
        for record in read_records(survey, from_op):
            if isinstance(record, LogEntryRecord) and record.state is EntryState.LIVE:
                self._places[record.prepare.op] = record.place

    def __contains__(self, op: int) -> bool:
        return op in self._places

    def __len__(self) -> int:
        return len(self._places)

    def missing_behind(self, op: int, committed_op: int) -> list[tuple[int, int]]:
        """Return the ranges of ops above `op` that are not here, up to the last known one."""
        missing: list[tuple[int, int]] = []
        expected = op + 1
        for found in sorted(self._places):
            if found > expected:
                missing.append((expected, found - 1))
            expected = found + 1
        if committed_op >= expected:
            missing.append((expected, committed_op))
        return missing

    def entries(self, first_op: int) -> Iterator[SealedPrepare]:
        """Yield the entries from an op on, up to the first one that is not here."""
        with ExitStack() as stack:
            opened: tuple[int, SegmentWindow] | None = None
            op = first_op
            while (place := self._places.get(op)) is not None:
                if opened is None or opened[0] != place.segment:
                    stack.close()
                    window = stack.enter_context(opened_segment(self._path(place)))
                    opened = place.segment, window
                yield self._decoded(place, opened[1])
                op += 1

    def _path(self, place: RecordPlace) -> Path:
        return self._paths[place.segment]

    def _decoded(self, place: RecordPlace, window: SegmentWindow) -> SealedPrepare:
        extent = window[place.offset : place.offset + place.record_bytes]
        record = decode_record(
            extent, journal_id=self._journal_id, segment=place.segment, offset=place.offset
        )
        assert isinstance(record.content, SealedPrepare)
        return record.content
