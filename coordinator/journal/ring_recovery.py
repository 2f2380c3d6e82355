"""What a ring's bytes mean after a crash: pure analysis.

Every sequence from the floor on is looked up in the table of `ring_table`. What is lost becomes a
finding, and the shared table (`viewstamp.format.recovery_table`) decides about it. Entries that the
snapshot covers, from which the replica restarts, are not needed, so damage to them is no finding.

**The end.** Behind the last record there may have been another one of which nothing is left: its
slot and its frame have both rotted. That needs two damages, and is told only where it is possible:
where the next slot is damaged, and the next place holds something that no earlier record left. One
damaged byte of the slot is no doubt: the checksum tells what the slot held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from mmap import mmap

from coordinator.journal.findings import JournalFinding, VerifiedRecord
from coordinator.journal.plan import JournalIdentity
from coordinator.journal.recovery import Evidence, Judged
from coordinator.journal.ring_file import FIRST_FLOOR
from coordinator.journal.ring_scan import JudgedRecord, RingContents, is_unwritten
from coordinator.journal.ring_table import RingVerdict
from coordinator.journal.slot_bytes import held_before
from viewstamp.format.record import RecordKind
from viewstamp.format.recovery_table import decide
from viewstamp.format.ring import RING_SEGMENT, SLOT_BYTES

_GOOD = frozenset({RingVerdict.WHOLE, RingVerdict.UNNAMED, RingVerdict.RESTORED})


@dataclass(frozen=True, slots=True)
class RingJudgement:
    """All sequences from the floor on, what was decided, and what all records prove."""

    records: list[JudgedRecord]
    entries: list[VerifiedRecord]
    judged: list[Judged]
    evidence: Evidence


def judge_ring(contents: RingContents, data: mmap, identity: JournalIdentity) -> RingJudgement:
    """Decide about every sequence, in their order."""
    floor = contents.floor.floor
    # A floor is that of a record, and rose when that was durable.
    risen = floor if floor > FIRST_FLOOR else 0
    known = max(identity.superblock.journal_sequence, contents.named_sequence, risen)
    last = max(contents.last_sequence, known)
    records = [contents.record(sequence) for sequence in range(floor, last + 1)]
    entries = [each.entry for each in records if each.entry is not None]
    evidence = Evidence(entries, identity.commit_max, identity.reached_op, (), known)
    findings = list(_findings(records, identity.replay_op - 1))
    beyond = _beyond(records, contents, data)
    if beyond is not None:
        findings.append(beyond)
    judged = [
        Judged(finding, decide(evidence.facts(finding, single=identity.single)))
        for finding in findings
    ]
    return RingJudgement(records, entries, judged, evidence)


def _findings(records: Sequence[JudgedRecord], covered_op: int) -> Iterator[JournalFinding]:
    """Yield one finding for each damaged record, and one for each run of which nothing is left."""
    before: VerifiedRecord | None = None
    for _, together in groupby(records, key=_run_of):
        run = list(together)
        first = run[0]
        if first.verdict not in _GOOD and not _is_covered(first.entry, covered_op):
            yield _finding(run, before)
        before = run[-1].entry or before


def _run_of(record: JudgedRecord) -> object:
    """Return what is the same for records that are told together: a verdict, if nothing is left."""
    return record.verdict if record.entry is None else record.sequence


def _is_covered(entry: VerifiedRecord | None, covered_op: int) -> bool:
    if entry is None or entry.frame.kind is not RecordKind.PREPARE:
        return False
    return entry.frame.op <= covered_op


def _finding(run: Sequence[JudgedRecord], before: VerifiedRecord | None) -> JournalFinding:
    """Return what is lost. `shown_from` is the sequence that has to stay to show it."""
    first, entry = run[0], run[0].entry
    frame = None if entry is None else entry.frame
    is_prepare = frame is not None and frame.kind is RecordKind.PREPARE
    end = 0 if before is None else before.offset + before.extent_bytes
    offset = end if entry is None else entry.offset
    reason = "a record is missing" if entry is None else entry.reason or "its slot is missing"
    return JournalFinding(
        first_sequence=first.sequence,
        last_sequence=run[-1].sequence,
        op=frame.op if frame is not None and is_prepare else None,
        checksum=frame.content_checksum if frame is not None and is_prepare else None,
        inferred_op=_inferred_op(before) if frame is None else None,
        segment=RING_SEGMENT,
        offset=offset,
        reason=reason,
        torn=first.verdict is RingVerdict.TORN,
        start=(RING_SEGMENT, offset),
        shown_from=first.sequence,
    )


def _inferred_op(before: VerifiedRecord | None) -> int | None:
    if before is None:
        return None
    return before.frame.op + 1 if before.frame.kind is RecordKind.PREPARE else None


def _beyond(
    records: Sequence[JudgedRecord], contents: RingContents, data: mmap
) -> JournalFinding | None:
    """Return the finding for one more record behind all others, if there may have been one."""
    if len(records) >= contents.layout.slots:
        return None  # no slot is left for another one
    sequence = contents.floor.floor + len(records)
    last = next((each.entry for each in reversed(records) if each.entry is not None), None)
    if not _may_have_been(sequence, last, contents, data):
        return None
    return _finding([JudgedRecord(sequence, RingVerdict.UNSURE, None, None)], last)


def _may_have_been(
    sequence: int, last: VerifiedRecord | None, contents: RingContents, data: mmap
) -> bool:
    layout = contents.layout
    number = layout.slot_of(sequence)
    if number not in contents.damaged_slots:
        return False
    at = layout.slots_start + number * SLOT_BYTES
    raw = data[at : at + SLOT_BYTES]
    for slot in held_before(raw, journal_id=contents.floor.journal_id, number=number):
        return slot is not None and slot.frame.sequence == sequence
    end = layout.start if last is None else last.offset + last.extent_bytes
    places = {layout.start, *(() if end == layout.end else (end,))}
    return not all(is_unwritten(data, place, contents.floor) for place in places)
