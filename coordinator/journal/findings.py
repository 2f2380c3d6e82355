"""Finding lost records: sequences without an intact record in what a scan found.

A scan yields, in file order, every record whose frame verified (`VerifiedRecord`) and every sector
that holds something else (`Stray`). Sequences count the records appended here without a gap, so a
lost record shows as a sequence without an intact record: a `JournalFinding`. `recovery` decides
what to do about it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from viewstamp.format.prepare import SealedHeader
from viewstamp.format.record import SECTOR_BYTES, Frame, RecordKind


@dataclass(frozen=True, slots=True)
class VerifiedRecord:
    """A record whose frame verified. `header` is known for intact prepares, `ranges` for intact
    repaired records. `reason` says what is wrong with a damaged one, otherwise None. `torn` says
    that units of a damaged one were never written."""

    segment: int
    offset: int
    extent_bytes: int
    frame: Frame
    header: SealedHeader | None
    ranges: tuple[tuple[int, int], ...]
    reason: str | None
    torn: bool = False


@dataclass(frozen=True, slots=True)
class Stray:
    """A sector that is not zero and not part of a record whose frame verified.

    `torn` says that its first unit, where a frame would be, is nevertheless zero. `head` is its
    first bytes. `misdirected` is the frame there if its record belongs elsewhere
    (`misdirected_writes`).
    """

    segment: int
    offset: int
    reason: str
    torn: bool = False
    head: bytes = b""
    misdirected: Frame | None = None


@dataclass(frozen=True, slots=True)
class JournalFinding:
    """Sequences without an intact record, and where they would have been.

    `op` and `checksum` are what the frame says. Where there is no frame, counting may prove `op`
    (`lost_op_bounds`); then `is_counted` is true. `inferred_op` is the op after that of the
    preceding record, which is certain only for a single replica. `start` is the segment and offset
    where the first of them began: nothing from there on belongs to an earlier record. `shown_from`
    is the first segment that shows the loss: where the record was to be, or was misdirected.
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
    shown_from: int
    is_counted: bool = False


def find(
    entries: Sequence[VerifiedRecord],
    strays: Sequence[Stray],
    first_segment: int,
    known_sequence: int = 0,
) -> Iterator[JournalFinding]:
    """Yield every run of sequences without an intact record, in file order.

    The superblock knows that the record `known_sequence` was durable. Strays that no lost sequence
    accounts for lie in space that no record ever used: harmless.
    """
    previous: VerifiedRecord | None = None
    for entry in entries:
        yield from _find_before(entry, previous, strays, first_segment)
        if entry.reason is not None:
            yield _damaged(entry, entry.reason, torn=entry.torn)
        if previous is None or entry.frame.sequence > previous.frame.sequence:
            previous = entry
    yield from _find_after(previous, strays, first_segment, known_sequence)


def _find_before(
    entry: VerifiedRecord,
    previous: VerifiedRecord | None,
    strays: Sequence[Stray],
    first_segment: int,
) -> Iterator[JournalFinding]:
    """Yield the gap, or the step backward, between two neighbours."""
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
    previous: VerifiedRecord | None,
    following: VerifiedRecord | None,
    strays: Sequence[Stray],
    first_segment: int,
) -> JournalFinding:
    """Return the finding for records between two neighbours that left no frame in their place."""
    segment, offset, reason = _locate(previous, following, strays, first_segment)
    elsewhere = _misdirected(strays, first_sequence, last_sequence)
    if elsewhere:
        reason = f"the record was written to segment {elsewhere[0].segment}, {elsewhere[0].offset}"
    start = _end(previous, first_segment)
    return JournalFinding(
        first_sequence=first_sequence,
        last_sequence=last_sequence,
        op=None,
        checksum=None,
        inferred_op=_inferred_op(previous, first_segment),
        segment=segment,
        offset=offset,
        reason=reason,
        torn=not elsewhere and _begins_blank(previous, following, strays, first_segment),
        start=start,
        shown_from=min((start[0], *(stray.segment for stray in elsewhere))),
    )


def _misdirected(strays: Sequence[Stray], first_sequence: int, last_sequence: int) -> list[Stray]:
    """Return the strays that are misdirected records of these sequences. A misdirected write
    returned like any other, so the zeros in its place are no tear.
    """
    return [
        stray
        for stray in strays
        if stray.misdirected is not None
        and first_sequence <= stray.misdirected.sequence <= last_sequence
    ]


def _end(previous: VerifiedRecord | None, first_segment: int) -> tuple[int, int]:
    """Return where the record after `previous` begins, if it fits there."""
    if previous is None:
        return first_segment, SECTOR_BYTES
    return previous.segment, previous.offset + previous.extent_bytes


def _begins_blank(
    previous: VerifiedRecord | None,
    following: VerifiedRecord | None,
    strays: Sequence[Stray],
    first_segment: int,
) -> bool:
    """Return whether the frame of the record after `previous` was never written.

    The record began right behind `previous` or, if it did not fit there, with a later segment. An
    intact frame at one of these places is of a later record. So if all other places are blank, its
    own is too. Where the preceding records were dropped, there is no place to look at.
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


def _expected(previous: VerifiedRecord | None, entry: VerifiedRecord, first_segment: int) -> int:
    """Return the sequence that should have come here."""
    if previous is not None:
        return previous.frame.sequence + 1
    if first_segment == 1:
        return 1
    # Earlier segments were dropped, so the count cannot start at 1; the place still tells.
    at_start = entry.segment == first_segment and entry.offset == SECTOR_BYTES
    return entry.frame.sequence - (0 if at_start else 1)


def _inferred_op(previous: VerifiedRecord | None, first_segment: int) -> int | None:
    if previous is not None:
        return previous.frame.op + 1 if previous.frame.kind is RecordKind.PREPARE else None
    return 1 if first_segment == 1 else None


def _locate(
    previous: VerifiedRecord | None,
    following: VerifiedRecord | None,
    strays: Sequence[Stray],
    first_segment: int,
) -> tuple[int, int, str]:
    """Return where a record is missing: the first stray between two records, or after the first."""
    after = (first_segment, 0) if previous is None else (previous.segment, previous.offset)
    for stray in strays:
        place = (stray.segment, stray.offset)
        before_following = following is None or place < (following.segment, following.offset)
        if place > after and before_following:
            return stray.segment, stray.offset, stray.reason
    if previous is None:
        return first_segment, SECTOR_BYTES, "a record is missing"
    return previous.segment, previous.offset + previous.extent_bytes, "a record is missing"


def _damaged(entry: VerifiedRecord, reason: str, *, torn: bool) -> JournalFinding:
    frame = entry.frame
    is_prepare = frame.kind is RecordKind.PREPARE
    return JournalFinding(
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
        shown_from=entry.segment,
    )


def _find_after(
    previous: VerifiedRecord | None,
    strays: Sequence[Stray],
    first_segment: int,
    known_sequence: int,
) -> Iterator[JournalFinding]:
    """Yield the damage that no record follows: strays, misdirected records, a truncated journal
    without any record, or records that only the superblock knows of: the disk lost what it had
    synced, or the journal is an older copy.
    """
    last = (first_segment, 0) if previous is None else (previous.segment, previous.offset)
    followed = any((stray.segment, stray.offset) > last for stray in strays)
    emptied = previous is None and first_segment > 1
    sequence = 1 if previous is None else previous.frame.sequence + 1
    misdirected = [stray.misdirected.sequence for stray in strays if stray.misdirected is not None]
    last_sequence = max((sequence, known_sequence, *misdirected))
    is_known = known_sequence >= sequence
    if followed or emptied or is_known or last_sequence in misdirected:
        yield _missing(sequence, last_sequence, previous, None, strays, first_segment)


def harmless_strays(entries: Sequence[VerifiedRecord], strays: Sequence[Stray]) -> list[Stray]:
    """Return the strays between two records of neighbouring sequences, where nothing can be
    lost."""
    places = [(entry.segment, entry.offset) for entry in entries]
    harmless = []
    for stray in strays:
        index = bisect_right(places, (stray.segment, stray.offset))
        if 0 < index < len(entries):
            before, after = entries[index - 1].frame.sequence, entries[index].frame.sequence
            if after == before + 1:
                harmless.append(stray)
    return harmless
