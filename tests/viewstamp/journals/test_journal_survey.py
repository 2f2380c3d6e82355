"""The offline reader of journals against the recovery that a start makes of the same bytes."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from coordinator.journal import Fault, Journal, Recovery
from coordinator.replica.start import SnapshotCut
from testkit.journal_builders import reopen
from tests.coordinator.journal.test_member_life import LIVES_PER_SEED, JournalMember
from tests.viewstamp.journals.dumped_journals import dump, live_entries_of
from viewstamp.journals.journal_survey import JournalSurvey, survey_journal
from viewstamp.journals.log_entries import settle_copies
from viewstamp.journals.log_findings import KnownOutside, LogFinding, LogVerdict
from viewstamp.journals.log_reading import read_log
from viewstamp.journals.op_ranges import OpRanges

SEEDS = 16
OPS = 40


def surveyed(member: JournalMember, path: Path) -> JournalSurvey:
    """Survey what is on the disk of a member."""
    shutil.rmtree(path, ignore_errors=True)
    data = dump(member.storage, path, state=None)
    base_op = member.model.base[0]
    known = KnownOutside(True, False, base_op > 0, commit_max=base_op)
    survey = survey_journal(data, known)
    settle_copies(survey)
    return survey


def recovered(member: JournalMember) -> tuple[Journal, Recovery]:
    """Open a copy of the disk as a start does."""
    op, checksum = member.model.base
    cut = SnapshotCut(1, op, checksum)
    return reopen(
        member.storage.copy(), replica_count=3, replay_op=cut.op + 1, base_checksum=checksum
    )


def sequences(ranges: list[tuple[int, int]]) -> set[int]:
    """Return the sequences in ranges."""
    return {each for first, last in ranges for each in range(first, last + 1)}


def spans_of(lost: Sequence[Fault | LogFinding]) -> set[int]:
    """Return the sequences of records that are lost."""
    return sequences([(each.first_sequence, each.last_sequence) for each in lost])


@pytest.mark.parametrize("rotting", [False, True])
def test_every_entry_that_recovery_accepts_is_shown(tmp_path: Path, rotting: bool) -> None:
    """In random lives with crashes, view changes, repairs and rot, the reader shows each entry of
    the recovered log with its checksum, without damage no other one, and judges damage alike."""
    accepted = damaged = torn = 0
    for seed in range(SEEDS):
        member = JournalMember(seed)
        for _ in range(LIVES_PER_SEED):
            survey = surveyed(member, tmp_path / "disk")
            journal, recovery = recovered(member)
            held = {op: header.checksum for op in range(1, 400) if (header := journal.header(op))}
            shown = live_entries_of(survey)
            assert held.items() <= shown.items()
            if not recovery.faults:
                base_op = member.model.base[0]
                assert {op for op in shown if op > base_op} == {op for op in held if op > base_op}
            lost = [each for each in survey.findings if each.verdict is LogVerdict.LOST]
            mine, theirs = spans_of(lost), spans_of(recovery.faults)
            # A start that knows of a snapshot counts the ops of lost records from its cut on.
            assert theirs == mine or member.model.base[0] > 0
            is_cut = any(each.verdict is LogVerdict.TORN for each in survey.findings)
            assert is_cut == (recovery.cut is not None) or member.model.base[0] > 0
            accepted, damaged, torn = accepted + len(held), damaged + len(lost), torn + is_cut
            journal.close()
            live_on(member, rotting=rotting)
    assert accepted > 500 and torn > 3
    assert (damaged > 20) == rotting


def live_on(member: JournalMember, *, rotting: bool) -> None:
    """Start, repair what is missing, and do a few things until the next stop or crash."""
    member.open()
    member.check()
    if member.faults and not member.repaired():
        return
    member.live()
    if rotting and member.random.random() < 0.5:
        for _ in range(member.random.randint(1, 3)):
            member.rot()


def test_damage_that_is_only_counted_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal with more findings than are kept is not whole, even if all of these are settled."""
    monkeypatch.setattr("viewstamp.journals.journal_survey.FINDINGS_MAX", 1)
    member = JournalMember(1)
    reading = read_log(dump(member.storage, tmp_path))
    assert reading.is_whole
    for place in 1, 2:
        reading.survey.tell(LogFinding(place, 0, "rot", verdict=LogVerdict.SETTLED))
    assert reading.survey.open_findings == [] and not reading.is_whole


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_the_ops_that_were_added(seed: int) -> None:
    """Ranges hold what a set of the same ops holds, in as few ranges as there are gaps."""
    source = random.Random(seed)
    ranges, model = OpRanges(), set[int]()
    for _ in range(200):
        op = source.randint(1, OPS)
        if source.random() < 0.05:
            ranges.cut_above(op)
            model = {each for each in model if each <= op}
        else:
            ranges.add(op)
            model.add(op)
        assert [each for each in range(OPS + 2) if each in ranges] == sorted(model)
        assert (ranges.first, ranges.head) == (min(model, default=0), max(model, default=0))
        between = set(range(ranges.first, ranges.head)) - model
        assert sequences(ranges.gaps()) == between
        assert all(last + 1 in model and first - 1 in model for first, last in ranges.gaps())
