"""`viewstamp log --summary`: what a journal holds, without its entries."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import typer

from viewstamp.cli.log_rows import finding_line, finding_values, missing_line, missing_values
from viewstamp.cli.output import moment, print_table, printed, timestamp
from viewstamp.cli.settings import Settings
from viewstamp.format.prepare import SealedPrepare
from viewstamp.journals.journal_survey import EntryState, SegmentUse
from viewstamp.journals.log_entries import LogEntryRecord, read_records
from viewstamp.journals.log_reading import LogReading
from viewstamp.journals.superblock_reading import SuperblockReading, superblock_words
from viewstamp.views import view_words

SEGMENT_COLUMNS: Final = ("segment", "records", "ops", "used_bytes", "segment_bytes")


@dataclass(slots=True)
class LogTotals:
    """Sums over the entries that belong to the log, and how many do not."""

    first: SealedPrepare | None = None
    last: SealedPrepare | None = None
    views: tuple[int, int] = (0, 0)
    body_bytes: int = 0
    commands: int = 0
    states: Counter[EntryState] = field(default_factory=Counter)

    def add(self, record: LogEntryRecord) -> None:
        """Take an entry."""
        prepare = record.prepare
        self.states[record.state] += 1
        if record.state is not EntryState.LIVE:
            return
        self.body_bytes += prepare.header.size
        self.commands += prepare.command_count
        lowest, highest = self.views if self.first else (prepare.view, prepare.view)
        self.views = min(lowest, prepare.view), max(highest, prepare.view)
        if self.first is None or prepare.op < self.first.op:
            self.first = _header_only(prepare)
        if self.last is None or prepare.op > self.last.op:
            self.last = _header_only(prepare)


def show_summary(settings: Settings, reading: LogReading) -> None:
    """Print the summary, as a document or for people."""
    totals = LogTotals()
    for record in read_records(reading.survey):
        if isinstance(record, LogEntryRecord):
            totals.add(record)
    if printed(settings, _values(reading, totals)):
        return
    for line in _lines(reading, totals):
        typer.echo(line)
    for sentence in superblock_words(reading.superblock):
        typer.echo(f"superblock: {sentence}")
    print_table(SEGMENT_COLUMNS, [_segment_row(use) for use in reading.survey.segments], "segments")
    for finding in reading.survey.findings:
        typer.echo(finding_line(finding))
    for missing in reading.missing_ops:
        typer.echo(missing_line(*missing))


def _header_only(prepare: SealedPrepare) -> SealedPrepare:
    """Return an entry without its body, which is not needed and may be large."""
    return SealedPrepare(prepare.header, b"")


def _lines(reading: LogReading, totals: LogTotals) -> list[str]:
    writer = reading.writer
    is_free = writer is None
    lines = ["not in use, as far as locks show" if is_free else f"in use by process {writer}"]
    first, last = totals.first, totals.last
    if first is None or last is None:
        return [*lines, "no entries"]
    live = totals.states[EntryState.LIVE]
    lowest, highest = map(view_words, totals.views)
    return [
        *lines,
        f"{live} entries, op {first.op} to {last.op}, of view {lowest} to {highest}",
        f"{totals.commands} commands, revision {first.first_revision} to {last.last_revision}",
        f"from {moment(first.timestamp)} to {moment(last.timestamp)}",
        *(
            f"{count} entries {state.value}"
            for state, count in sorted(totals.states.items(), key=lambda each: each[0].value)
            if state is not EntryState.LIVE
        ),
    ]


def _values(reading: LogReading, totals: LogTotals) -> dict[str, Any]:
    first, last, survey = totals.first, totals.last, reading.survey
    return {
        "directory": str(reading.data),
        "writer": reading.writer,
        "entries": totals.states[EntryState.LIVE],
        "entries_by_state": {each.value: totals.states[each] for each in EntryState},
        "commands": totals.commands,
        "body_bytes": totals.body_bytes,
        "first_op": first.op if first else None,
        "last_op": last.op if last else None,
        "first_view": totals.views[0] if first else None,
        "last_view": totals.views[1] if first else None,
        "first_revision": first.first_revision if first else None,
        "last_revision": last.last_revision if last else None,
        "first_time": timestamp(first.timestamp) if first else None,
        "last_time": timestamp(last.timestamp) if last else None,
        "superblock": _superblock_values(reading.superblock),
        "segments": [_segment_values(use) for use in survey.segments],
        "findings": [finding_values(finding) for finding in survey.findings],
        "findings_untold": survey.findings_untold,
        "superblock_findings": list(reading.superblock_findings),
        "missing": [missing_values(*missing) for missing in reading.missing_ops],
    }


def _superblock_values(superblock: SuperblockReading) -> dict[str, Any] | None:
    chosen = superblock.chosen
    if chosen is None:
        return None
    state = chosen.state
    return {
        "sequence": chosen.sequence,
        "copies_agreeing": superblock.copies.count(chosen),
        "cluster_id": state.cluster_id.hex(),
        "replica_id": state.replica_id,
        "replica_count": state.replica_count,
        "is_standby": state.is_standby,
        "view": state.view,
        "log_view": state.log_view,
        "voting_view": state.voting_view,
        "commit_max": state.commit_max,
        "generation": state.generation,
        "journal_sequence": state.journal_sequence,
        "damaged_start": state.damaged_start,
        "words": list(superblock_words(superblock)),
    }


def _segment_values(use: SegmentUse) -> dict[str, Any]:
    return {
        "segment": use.segment,
        "file": use.path.name,
        "records": use.records,
        "first_op": use.first_op or None,
        "last_op": use.last_op or None,
        "used_bytes": use.used_bytes,
        "segment_bytes": use.segment_bytes,
    }


def _segment_row(use: SegmentUse) -> dict[str, Any]:
    ops = f"{use.first_op}-{use.last_op}" if use.first_op else "-"
    return {**_segment_values(use), "ops": ops}
