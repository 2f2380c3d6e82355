"""The lines of `viewstamp log`: values for programs, and the same in words for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from viewstamp.cli.output import moment, timestamp
from viewstamp.format.record import RecordKind
from viewstamp.journals.journal_survey import EntryState, JournalSurvey
from viewstamp.journals.log_entries import LogEntryRecord, LogMarkRecord
from viewstamp.journals.log_findings import VERDICT_WORDS, LogFinding
from viewstamp.journals.log_reading import describe_finding
from viewstamp.journals.logged_commands import LoggedCommand
from viewstamp.limits import SYSTEM_USER_ID
from viewstamp.views import view_words

CHECKSUM_DIGITS: Final = 8
COMMANDS_SHOWN: Final = 16
KIND_CHARACTERS: Final = 16
TIME_CHARACTERS: Final = 20
BYTES_DIGITS: Final = 7
STATE_WORDS: Final = {
    EntryState.LIVE: "",
    EntryState.REPLACED: "replaced: a view change took it out of the log",
    EntryState.REWRITTEN: "written again later",
    EntryState.COVERED: "covered: a snapshot of the cluster took its place",
    EntryState.CUT_OFF: "behind torn records: a start cuts it off",
}


def entry_values(
    record: LogEntryRecord, kind: str, commands: list[LoggedCommand] | None
) -> dict[str, Any]:
    """Return an entry with the commands to show, None if they could not be decoded."""
    prepare, place = record.prepare, record.place
    has_commands = prepare.command_count > 0
    return {
        "record": "entry",
        "op": prepare.op,
        "view": prepare.view,
        "first_revision": prepare.first_revision if has_commands else None,
        "last_revision": prepare.last_revision if has_commands else None,
        "time": timestamp(prepare.timestamp),
        "checksum": prepare.checksum.hex(),
        "parent": prepare.parent.hex(),
        "commit": prepare.commit,
        "feature_level": prepare.header.feature_level,
        "kind": kind,
        "state": record.state.value,
        "size_bytes": prepare.header.size,
        "record_bytes": place.record_bytes,
        "sequence": place.sequence,
        "segment": place.segment,
        "offset": place.offset,
        "commands": None if commands is None else [_command_values(each) for each in commands],
    }


def _command_values(command: LoggedCommand) -> dict[str, Any]:
    is_system = command.user_id == SYSTEM_USER_ID
    return {
        "revision": command.revision,
        "method": command.method,
        "code": command.code,
        "user_id": None if is_system else command.user_id,
        "is_internal": is_system,
        "session_id": command.session_id or None,
        "request_number": command.request_number or None,
        "fields": command.fields,
        "refused": command.refused or None,
        "parts": [{"method": part.method, "fields": part.fields} for part in command.parts],
    }


def mark_values(record: LogMarkRecord) -> dict[str, Any]:
    """Return a record that says something of others."""
    place = record.place
    values: dict[str, Any] = {"record": record.kind.name.lower()}
    if record.kind is RecordKind.REPAIRED:
        values["sequences"] = [list(each) for each in record.ranges]
    else:
        values["op"] = record.op
    return {
        **values,
        "sequence": place.sequence,
        "segment": place.segment,
        "offset": place.offset,
    }


def finding_values(finding: LogFinding) -> dict[str, Any]:
    """Return something lost or damaged."""
    return {
        "record": "damage",
        "verdict": finding.verdict.value,
        "reason": finding.reason,
        "op": finding.op,
        "checksum": None if finding.checksum is None else finding.checksum.hex(),
        "first_sequence": finding.first_sequence or None,
        "last_sequence": finding.last_sequence or None,
        "segment": finding.segment,
        "offset": finding.offset,
    }


def missing_values(first_op: int, last_op: int) -> dict[str, Any]:
    """Return a range of ops that the log lacks."""
    return {"record": "missing", "first_op": first_op, "last_op": last_op}


class LogTable:
    """Lines for people: columns as wide as what the survey has seen."""

    def __init__(self, survey: JournalSurvey) -> None:
        self._op = max(len("op"), len(str(survey.ops.head)))
        self._view = max(len("view"), len(view_words(survey.view)))
        digits = len(str(survey.last_revision))
        self._revisions = max(len("revisions"), 2 * digits + 1)

    def title(self) -> str:
        """Return the line of titles."""
        return self._line("op", "view", "revisions", "time", "checksum", "kind", "bytes", "state")

    def entry(
        self, record: LogEntryRecord, kind: str, commands: list[LoggedCommand] | None
    ) -> Iterator[str]:
        """Yield the line of an entry, and one for each command, up to COMMANDS_SHOWN."""
        prepare = record.prepare
        yield self._line(
            str(prepare.op),
            view_words(prepare.view),
            _revisions(prepare.first_revision, prepare.command_count),
            moment(prepare.timestamp),
            prepare.checksum.hex()[:CHECKSUM_DIGITS],
            kind,
            str(prepare.header.size),
            STATE_WORDS[record.state],
        )
        shown = (commands or [])[:COMMANDS_SHOWN]
        yield from (_command_line(command) for command in shown)
        if commands and len(commands) > len(shown):
            yield f"    and {len(commands) - len(shown)} more commands: --json has all"

    def _line(self, *cells: str) -> str:
        op, view, revisions, time, checksum, kind, size, state = cells
        parts = (
            op.rjust(self._op),
            view.rjust(self._view),
            revisions.ljust(self._revisions),
            time.ljust(TIME_CHARACTERS),
            checksum.ljust(CHECKSUM_DIGITS),
            kind.ljust(KIND_CHARACTERS),
            size.rjust(BYTES_DIGITS),
            state,
        )
        return "  ".join(parts).rstrip()


def mark_line(record: LogMarkRecord) -> str:
    """Return a record that says something of others, in words."""
    what = f"    record {record.place.sequence}:"
    if record.kind is RecordKind.CUT:
        return f"{what} a view change took all entries above op {record.op} out of the log"
    if record.kind is RecordKind.RESTART:
        return f"{what} the log goes on behind op {record.op}, which a snapshot covers"
    return f"{what} the lost records {ranges_text(record.ranges)} were repaired"


def finding_line(finding: LogFinding) -> str:
    """Return something lost or damaged, in words."""
    place = f"segment {finding.segment}, offset {finding.offset}"
    return f"! {describe_finding(finding)} ({place}): {VERDICT_WORDS[finding.verdict]}"


def missing_line(first_op: int, last_op: int) -> str:
    """Return a range of ops that the log lacks, in words."""
    return f"! missing: op {ranges_text([(first_op, last_op)])}, unless a snapshot covers it"


def ranges_text(ranges: Iterable[tuple[int, int]]) -> str:
    """Return ranges as text: 3, 5-8."""
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _revisions(first: int, count: int) -> str:
    return ranges_text([(first, first + count - 1)]) if count else "-"


def _command_line(command: LoggedCommand) -> str:
    user = "internal" if command.user_id == SYSTEM_USER_ID else f"user {command.user_id}"
    session = (
        f" session {command.session_id} request {command.request_number}"
        if command.session_id
        else ""
    )
    what = f"    {command.revision} {command.method} {user}{session}"
    if command.refused:
        return f"{what} refused before the log: {command.refused}"
    parts = "".join(f"; {part.method} {_fields(part)}" for part in command.parts)
    return f"{what} {_fields(command)}{parts}"


def _fields(command: LoggedCommand) -> str:
    """Return fields on one line of ASCII: names may hold what a terminal would obey."""
    return "(not its message)" if command.fields is None else json.dumps(command.fields)
