"""Records that the disk wrote to a wrong place, recognized by the place where they belong.

A frame is bound to its place, so at any other place it is a stray. The right place still holds its
old content, mostly zeros, and a crash leaves zeros, too. But a misdirected write returned like any
other write, and so did its sync, so its record may have been acknowledged. If nothing was appended
since, only the stray shows that the record existed. So recovery tries each stray that looks like a
frame at the places where the record with its sequence can have begun. If the frame is valid for one
of these places, this journal wrote it, because nobody else knows the journal id.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from coordinator.journal.findings import Stray
from coordinator.journal.plan import Contents, OpenSegments
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.record import (
    CONTENT_BYTES_MAX,
    SECTOR_BYTES,
    claimed_sequence,
    decode_frame,
    record_bytes,
)
from viewstamp.limits import PIPELINE_PREPARES_MAX

# Up to this many lost records before one: their sizes are unknown, so each adds places to try.
LOST_BEFORE_MAX: Final = PIPELINE_PREPARES_MAX


@dataclass(frozen=True, slots=True, order=True)
class End:
    """Where the record of a sequence ends: the next one begins there, or with a later segment."""

    sequence: int
    segment: int
    offset: int


def recognize(opened: OpenSegments, contents: Contents) -> None:
    """Mark each stray that is a record which belongs elsewhere and is missing there.

    Such records inside damaged ones, or over a segment's header, become strays. Of several in one
    sector the newest counts: it shows that the earlier ones are lost. Raises FormatVersionError for
    a record of a later format.
    """
    ends = sorted(
        End(entry.frame.sequence, entry.segment, entry.offset + entry.extent_bytes)
        for entry in contents.entries
    )
    if min(opened.files) == 1:
        ends.insert(0, End(0, 1, SECTOR_BYTES))
    looked_at = [_looked_at(stray, ends, opened) for stray in _by_claim(contents)]
    strays = {(stray.segment, stray.offset): stray for stray in contents.strays}
    strays |= {
        (each.segment, each.offset): each for each in looked_at if each.misdirected is not None
    }
    contents.strays = [strays[place] for place in sorted(strays)]


def _by_claim(contents: Contents) -> list[Stray]:
    """Return the strays that look like a frame, by the sequence they name: each bounds the next."""
    claims = [(claimed_sequence(s.head), s) for s in (*contents.strays, *contents.within)]
    claimed = [(sequence, stray) for sequence, stray in claims if sequence is not None]
    return [stray for _, stray in sorted(claimed, key=lambda claim: claim[0])]


def _looked_at(stray: Stray, ends: list[End], opened: OpenSegments) -> Stray:
    """Return the stray, with its frame if it belongs elsewhere; that place's end joins `ends`."""
    sequence = claimed_sequence(stray.head)
    assert sequence is not None
    index = bisect_left(ends, End(sequence, 0, 0))
    following = ends[index] if index < len(ends) else None
    if index == 0 or (following is not None and following.sequence == sequence):
        return stray
    for segment, offset in _places(sequence, ends[index - 1], following, opened):
        try:
            frame = decode_frame(
                stray.head, journal_id=opened.journal_id, segment=segment, offset=offset
            )
        except FormatVersionError as error:
            raise FormatVersionError(f"{opened.files[stray.segment].path}: {error}") from error
        except FormatError:
            continue
        insort(ends, End(sequence, segment, offset + record_bytes(frame.length)))
        return replace(stray, misdirected=frame)
    return stray


def _places(
    sequence: int, before: End, following: End | None, opened: OpenSegments
) -> Iterator[tuple[int, int]]:
    """Yield where the record can begin: behind `before` by as many records as are lost between."""
    lost = sequence - before.sequence - 1
    if lost > LOST_BEFORE_MAX:
        return
    reach_bytes = lost * record_bytes(CONTENT_BYTES_MAX)
    last_segment = max(opened.files) if following is None else following.segment
    for segment in range(before.segment, last_segment + 1):
        first = before.offset if segment == before.segment else SECTOR_BYTES
        end = min(first + reach_bytes + 1, opened.files[segment].size())
        for offset in range(first, end, SECTOR_BYTES):
            yield segment, offset
