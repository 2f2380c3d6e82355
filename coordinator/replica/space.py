"""Keeps spare segments ahead of the journal, and tells when the disk is too full for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from coordinator.journal.errors import NoSpace
from coordinator.journal.journal import RESERVE_SEGMENTS, SPARE_SEGMENTS
from coordinator.journal.segments import JournalSpace
from coordinator.replica.ports import JournalRoom
from viewstamp.format.record import CONTENT_BYTES_MAX, SECTOR_BYTES, record_bytes

RETRY_DELAY_MS: Final = 1_000
RECORD_BYTES_MAX: Final = record_bytes(CONTENT_BYTES_MAX)
# A record never spans segments: up to one record's worth stays unused at the end of each.
MARGIN_RECORDS: Final = 2


class JournalRoomPort(Protocol):
    """The journal as seen from here."""

    @property
    def segment_bytes(self) -> int:
        """The size of new segments."""
        ...

    def space(self) -> JournalSpace:
        """Return how much room there is."""
        ...

    def prepare_spares(self) -> int:
        """Make spare segments. Raises NoSpace."""
        ...


class SpaceWatch:
    """Room for prepares: the journal's room, less the prepares on their way there.

    No record is larger than `record_bytes_max`.
    """

    frees_by_snapshot = False
    is_snapshot_due = False

    def __init__(
        self,
        journal: JournalRoomPort,
        became_full: Callable[[str], None],
        has_room: Callable[[], None],
        record_bytes_max: int = RECORD_BYTES_MAX,
    ) -> None:
        """Raises ValueError if segments are so small that there would never be room."""
        _check_segments(journal.segment_bytes, record_bytes_max)
        self._record_bytes_max = record_bytes_max
        self._journal = journal
        self._became_full = became_full
        self._has_room = has_room
        self._on_the_way_bytes = 0
        self._wake = asyncio.Event()
        self.full = False

    def room(self) -> JournalRoom:
        """Return whether another prepare may be admitted."""
        free_bytes = self._journal.space().free_bytes - self._on_the_way_bytes
        if free_bytes >= MARGIN_RECORDS * self._record_bytes_max:
            return JournalRoom.FREE
        self._wake.set()
        if not self.full:
            return JournalRoom.SOON
        return JournalRoom.FULL if self._journal.space().reserve_intact else JournalRoom.EXHAUSTED

    def entry_room(self) -> JournalRoom:
        """Return whether an entry that another replica has admitted may be taken."""
        return self.room()

    def sent(self, prepares: Sequence[Any]) -> None:
        """Count prepares on their way to the journal."""
        self._on_the_way_bytes += sum(map(self._bytes_of, prepares))

    def written(self, prepares: Sequence[Any]) -> None:
        """Count prepares as written."""
        self._on_the_way_bytes -= sum(map(self._bytes_of, prepares))
        if self._journal.space().spare_segments < SPARE_SEGMENTS:
            self._wake.set()

    async def look_again(self) -> None:
        """Make spare segments after segments were dropped, or files removed."""
        try:
            await asyncio.to_thread(self._journal.prepare_spares)
        except NoSpace:
            self._wake.set()
        else:
            self.full = False
            self._has_room()

    async def run(self) -> None:
        """Make segments as they are used up, until cancelled. Raises JournalFailed."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._make_spares()

    async def _make_spares(self) -> None:
        try:
            await asyncio.to_thread(self._journal.prepare_spares)
        except NoSpace as error:
            if not self.full:
                self.full = True
                self._became_full(str(error))
            await asyncio.sleep(RETRY_DELAY_MS / 1000)
            self._wake.set()
        else:
            self.full = False
        # Admits the waiting commands, or tells them that the disk is full.
        self._has_room()

    def _bytes_of(self, prepare: Any) -> int:
        return bytes_of(prepare, self._record_bytes_max)


def bytes_of(prepare: Any, record_bytes_max: int) -> int:
    """Return the bytes that a prepare takes at most; None stands for any prepare."""
    if prepare is None:
        return record_bytes_max
    return record_bytes(prepare.header.size + _HEADER_ALLOWANCE_BYTES)


def _check_segments(segment_bytes: int, record_bytes_max: int) -> None:
    """With all spare segments made, those that are no reserve may be all the room there is."""
    usable_bytes = segment_bytes - SECTOR_BYTES
    free_bytes = (SPARE_SEGMENTS - RESERVE_SEGMENTS) * usable_bytes
    if usable_bytes < record_bytes_max or free_bytes < MARGIN_RECORDS * record_bytes_max:
        raise ValueError(
            f"{SPARE_SEGMENTS} spare segments of {segment_bytes} bytes never have room for"
            f" {MARGIN_RECORDS} records of {record_bytes_max} bytes beside the reserve of"
            f" {RESERVE_SEGMENTS}"
        )


# More than an encoded prepare header can have.
_HEADER_ALLOWANCE_BYTES: Final = 512
