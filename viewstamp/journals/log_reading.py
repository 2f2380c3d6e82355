"""A journal and all that says something of it, read beside whoever writes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from viewstamp.journals.directory_writers import writer_of
from viewstamp.journals.journal_survey import JournalSurvey, survey_journal
from viewstamp.journals.log_entries import settle_copies
from viewstamp.journals.log_findings import KnownOutside, LogFinding, LogVerdict
from viewstamp.journals.superblock_reading import SuperblockReading, read_superblock

# Beside a writer a record may be read while it is written. It is whole the next time.
SURVEYS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class LogReading:
    """What a data directory holds. `writer` is the process that has it in use, if one shows."""

    data: Path
    superblock: SuperblockReading
    survey: JournalSurvey
    writer: int | None
    superblock_findings: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is lost or damaged that somebody would have to look at."""
        survey = self.survey
        # Nobody has judged what was only counted.
        damage = survey.open_findings or survey.findings_untold
        return not (damage or self.missing_ops or self.superblock_findings)

    @property
    def missing_ops(self) -> list[tuple[int, int]]:
        """The ranges of ops that the log lacks; a snapshot may cover them."""
        return self.survey.missing_ops()


def read_log(data: Path, archive: Path | None = None) -> LogReading:
    """Walk over a data directory once, or again while a writer is at work and damage shows.

    `archive` is where the replica moves segments that snapshots made superfluous.

    Raises NoJournal, NewerJournal, OSError.
    """
    for _ in range(SURVEYS_MAX):
        reading = _read_once(data, archive)
        if reading.writer is None or reading.is_whole:
            break
    return reading


def _read_once(data: Path, archive: Path | None) -> LogReading:
    # The superblock before the journal names no record that is written later, and the one behind
    # it is no older than what the records name.
    writer = writer_of(data)
    before = read_superblock(data)
    known = replace(_known(before), has_writer=writer is not None)
    survey = survey_journal(data, known, archive)
    settle_copies(survey)
    after = before if writer is None else read_superblock(data)
    return LogReading(data, after, survey, writer, _superblock_findings(after, survey, writer))


def _known(superblock: SuperblockReading) -> KnownOutside:
    state = superblock.state
    if state is None:
        return KnownOutside()
    return KnownOutside(
        has_superblock=True,
        is_single=state.is_alone,
        has_snapshot=state.generation > 0,
        commit_max=state.commit_max,
        journal_sequence=state.journal_sequence,
    )


def _superblock_findings(
    superblock: SuperblockReading, survey: JournalSurvey, writer: int | None
) -> tuple[str, ...]:
    found = []
    chosen = superblock.chosen
    if superblock.copies and chosen is None:
        found.append("no two copies of the superblock agree: a start refuses the directory")
    elif superblock.damaged_copies and writer is None:
        numbers = ", ".join(map(str, superblock.damaged_copies))
        found.append(f"copy {numbers} of the superblock is damaged: a start writes it anew")
    if not superblock.copies and survey.last_sequence > 1:
        found.append("there is a log without a superblock: it was lost, and a start needs it")
    if chosen is not None and survey.superblock_sequence > chosen.sequence:
        found.append(
            f"a record was written under superblock {survey.superblock_sequence}, and this one is"
            f" number {chosen.sequence}: it is an older copy, which a start refuses"
        )
    return tuple(found)


def describe_finding(finding: LogFinding) -> str:
    """Return what lies at the place of a finding, in words."""
    what = "torn" if finding.verdict is LogVerdict.TORN else "damaged"
    if not finding.first_sequence:
        return finding.reason
    if finding.op is not None:
        return f"{what} record {finding.first_sequence}, op {finding.op}: {finding.reason}"
    if finding.first_sequence == finding.last_sequence:
        return f"{what} or lost record {finding.first_sequence}: {finding.reason}"
    span = f"{finding.first_sequence} to {finding.last_sequence}"
    return f"{what} or lost records {span}: {finding.reason}"
