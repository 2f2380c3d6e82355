"""`viewstamp log`: the entries in the journal of a replica, decoded without the replica."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from viewstamp.cli.log_rows import (
    LogTable,
    entry_values,
    finding_line,
    finding_values,
    mark_line,
    mark_values,
    missing_line,
    missing_values,
)
from viewstamp.cli.log_summary import show_summary
from viewstamp.cli.output import printed_lines
from viewstamp.cli.settings import (
    EXIT_CHANGES,
    Settings,
    settings_of,
)
from viewstamp.cli.snapshot_options import telling, warn
from viewstamp.journals.log_entries import LogEntryRecord, LogMarkRecord, read_records
from viewstamp.journals.log_findings import LogFinding
from viewstamp.journals.log_reading import LogReading, read_log
from viewstamp.journals.logged_commands import checked_method, commands_of, kind_of

OWNER_STEP: Final = "run it as the user who owns the data directory"


def log(
    context: typer.Context,
    data: Annotated[
        Path,
        typer.Option(
            metavar="DIRECTORY", help="Data directory of one replica, which may be running."
        ),
    ] = Path("data"),
    archive: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY", help="Read older segments, too: the replica's --journal-archive."
        ),
    ] = None,
    from_op: Annotated[
        int, typer.Option("--from", metavar="OP", min=1, help="Only entries from this op on.")
    ] = 1,
    to_op: Annotated[
        int | None, typer.Option("--to", metavar="OP", min=1, help="Only entries up to this op.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only commands of this method, for example CreateTopic."),
    ] = None,
    count: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="No more than this number of entries.")
    ] = None,
    summary: Annotated[
        bool,
        typer.Option(
            "--summary", help="Show ranges, segments and superblock in place of the entries."
        ),
    ] = False,
) -> None:
    """Show the entries in the journal of a replica, as its disk holds them, without secrets.

    Needs neither a cluster nor a login: it reads files, also beside a running replica, and locks,
    repairs and changes nothing. An entry on one disk may never have been committed. With --json
    there is a line for each record. Exits with 5 if anything is lost, torn or damaged.
    """
    settings = settings_of(context)
    if to_op is not None and to_op < from_op:
        raise typer.BadParameter(f"--to {to_op} lies before --from {from_op}")
    if summary and (from_op, to_op, method, count) != (1, None, None, None):
        raise typer.BadParameter("--summary is of the whole journal: give it alone")
    with telling(settings, OWNER_STEP):
        wanted = None if method is None else checked_method(method)
        reading = read_log(data, archive)
        if summary:
            show_summary(settings, reading)
        else:
            _Listing(settings, reading, wanted).show(from_op, to_op, count)
    _warn(settings, reading)
    if not reading.is_whole:
        raise typer.Exit(EXIT_CHANGES)


def _warn(settings: Settings, reading: LogReading) -> None:
    """Report on stderr what concerns the whole listing."""
    survey = reading.survey
    if reading.writer is not None:
        text = f"process {reading.writer} uses the directory: later entries are not shown"
        warn(settings, "ACTIVE_WRITER", text)
    if survey.dropped_segments:
        numbers = ", ".join(map(str, sorted(set(survey.dropped_segments))))
        warn(settings, "SEGMENTS_DROPPED", f"segment {numbers} was dropped while it was read")
    for text in reading.superblock_findings:
        warn(settings, "SUPERBLOCK", text)
    if survey.findings_untold:
        warn(settings, "MORE_DAMAGE", f"{survey.findings_untold} more places are damaged")


class _Listing:
    """Prints records in the order of appending, with damage at its place."""

    def __init__(self, settings: Settings, reading: LogReading, method: str | None) -> None:
        self._settings = settings
        self._reading = reading
        self._method = method
        self._table = LogTable(reading.survey)
        self._findings = iter(reading.survey.findings)
        self._finding = next(self._findings, None)

    def show(self, from_op: int, to_op: int | None, count: int | None) -> None:
        """Print entries of a range of ops, and all findings."""
        if not self._settings.for_programs:
            typer.echo(self._table.title())
        shown = 0
        for record in read_records(self._reading.survey, from_op, to_op):
            if count is not None and shown == count:
                break
            self._show_findings((record.place.segment, record.place.offset))
            if isinstance(record, LogEntryRecord):
                shown += self._show_entry(record)
            else:
                self._show_mark(record)
        self._show_findings(None)
        for missing in self._reading.missing_ops:
            if not printed_lines(self._settings, [missing_values(*missing)]):
                typer.echo(missing_line(*missing))

    def _show_entry(self, record: LogEntryRecord) -> bool:
        """Print an entry if it has a wanted command; return whether it has."""
        commands = commands_of(record.prepare)
        kind = kind_of(commands)
        if self._method is not None:
            commands = [each for each in commands or [] if self._method in each.names()]
            if not commands:
                return False
        if not printed_lines(self._settings, [entry_values(record, kind, commands)]):
            for line in self._table.entry(record, kind, commands):
                typer.echo(line)
        return True

    def _show_mark(self, record: LogMarkRecord) -> None:
        if self._method is not None:
            return
        if not printed_lines(self._settings, [mark_values(record)]):
            typer.echo(mark_line(record))

    def _show_findings(self, before: tuple[int, int] | None) -> None:
        """Print the findings that lie before a place, or all that are left."""
        while (finding := self._finding) is not None:
            if before is not None and (finding.segment, finding.offset) >= before:
                return
            self._show_finding(finding)
            self._finding = next(self._findings, None)

    def _show_finding(self, finding: LogFinding) -> None:
        if not printed_lines(self._settings, [finding_values(finding)]):
            typer.echo(finding_line(finding))
