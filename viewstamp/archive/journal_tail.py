"""The journal of a replica as it grows, read beside the replica: each record once, none changed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from viewstamp.archive.committed_chain import CommittedChain, EntryPlace
from viewstamp.archive.segment_spool import SegmentSpool
from viewstamp.format.prepare import SealedPrepare
from viewstamp.format.record import SECTOR_BYTES, IntactRecord, decode_record
from viewstamp.format.scan import scan_segment
from viewstamp.journals.segment_window import opened_segment

# Entries that are looked at before some are shipped: about 0.3 KB of memory for each.
ENTRIES_TOGETHER: Final = 50_000

_log = logging.getLogger(__name__)


class JournalTail:
    """Walks over the records behind those that it has seen."""

    def __init__(self, spool: SegmentSpool) -> None:
        self._spool = spool
        self._journal_id = b""
        self._paths: dict[int, Path] = {}
        self._segment = 0
        self._offset = SECTOR_BYTES
        self._room = 0

    def read_into(self, chain: CommittedChain, entries_max: int = ENTRIES_TOGETHER) -> bool:
        """Add the entries that are new; return whether all were read.

        Raises NoJournal, FormatVersionError, OSError.
        """
        self._paths = self._spool.look()
        if self._spool.journal_id != self._journal_id:
            self._journal_id = self._spool.journal_id
            self._segment, self._offset = 0, SECTOR_BYTES
            chain.forget()
        chain.keep_only(self._paths)
        self._room = entries_max
        for number in [n for n in self._paths if n >= self._segment]:
            self._read(number, chain)
            if self._room <= 0:
                return False
        return True

    def entries(self, places: Sequence[EntryPlace]) -> Iterator[SealedPrepare]:
        """Yield the entries of places. Raises FileNotFoundError, FormatError, OSError."""
        for place in places:
            path = self._paths.get(place.segment)
            if path is None:
                raise FileNotFoundError(f"segment {place.segment} is gone")
            with opened_segment(path) as window:
                extent = window[place.offset : place.offset + place.record_bytes]
            record = decode_record(
                extent,
                journal_id=self._journal_id,
                segment=place.segment,
                offset=place.offset,
            )
            assert isinstance(record.content, SealedPrepare), "places are of entries"
            yield record.content

    def release(self, chain: CommittedChain) -> None:
        """Let go of the segments of which all was read, and nothing is left in the chain."""
        first = chain.first_segment()
        self._spool.release_below(self._segment if first is None else min(first, self._segment))

    def _read(self, number: int, chain: CommittedChain) -> None:
        """Read a segment. What ends in one that is not the last is whole once a later one begins.

        Between the two looks the replica may have written into both, so the one before is read
        once more as soon as the later one has a record.
        """
        if number != self._segment:
            if not self._has_record(number):
                return
            if self._segment in self._paths:
                self._read_on(self._segment, chain)
            self._segment, self._offset = number, SECTOR_BYTES
        self._read_on(number, chain)

    def _has_record(self, number: int) -> bool:
        return any(True for _ in self._records(number, SECTOR_BYTES))

    def _read_on(self, number: int, chain: CommittedChain) -> None:
        """Add what is behind the offset, which stays before the first place without a record.

        The journal grows while it is read, and windows of it are read one after another. So a
        place that was blank may hold records by the time when what lies behind it is read.
        """
        is_whole = True
        for record in self._records(number, self._offset):
            is_whole = is_whole and record.offset == self._offset
            if is_whole:
                self._offset = record.offset + record.extent_bytes
            content = record.content
            if isinstance(content, SealedPrepare):
                chain.add(_place_of(number, record, content))
                self._room -= 1
                if self._room <= 0 and is_whole:
                    return

    def _records(self, number: int, start: int) -> Iterator[IntactRecord]:
        try:
            with opened_segment(self._paths[number]) as window:
                for item in scan_segment(
                    window, journal_id=self._journal_id, segment=number, start=start
                ):
                    if isinstance(item, IntactRecord):
                        yield item
        except FileNotFoundError:
            _log.info("segment %d was dropped while it was read", number)


def _place_of(number: int, record: IntactRecord, entry: SealedPrepare) -> EntryPlace:
    return EntryPlace(
        op=entry.op,
        checksum=entry.checksum,
        parent=entry.parent,
        commit=entry.commit,
        entry_bytes=record.frame.length,
        segment=number,
        offset=record.offset,
        record_bytes=record.extent_bytes,
    )
