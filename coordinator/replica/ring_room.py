"""Room in a ring, which only a snapshot makes: nothing is made ahead, and no disk is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from coordinator.journal.ring_journal import RingJournal
from coordinator.journal.segments import JournalSpace
from coordinator.replica.ports import JournalRoom
from coordinator.replica.space import (
    RECORD_BYTES_MAX,
    RETRY_DELAY_MS,
    JournalRoomPort,
    SpaceWatch,
    bytes_of,
)

# The next record, one more, and what may stay unused at the end of the ring.
MARGIN_RECORDS: Final = 3


class RoomWatch(Protocol):
    """Room for prepares in a journal of either kind."""

    full: bool
    """Whether commands are refused for lack of it."""

    @property
    def frees_by_snapshot(self) -> bool:
        """Whether only a snapshot that this replica adopts makes room."""

    @property
    def is_snapshot_due(self) -> bool:
        """Whether a snapshot has to make room soon."""

    def room(self) -> JournalRoom:
        """Return whether another prepare may be admitted."""

    def entry_room(self) -> JournalRoom:
        """Return whether an entry that another replica has admitted may be taken."""

    def sent(self, prepares: Sequence[Any]) -> None:
        """Count prepares on their way to the journal."""

    def written(self, prepares: Sequence[Any]) -> None:
        """Count prepares as written."""

    async def look_again(self) -> None:
        """Look for room after something was dropped."""

    async def run(self) -> None:
        """Watch until cancelled. Raises JournalFailed."""


class RingRoomPort(Protocol):
    """The ring as seen from here."""

    @property
    def segment_bytes(self) -> int:
        """The bytes of the whole ring."""

    @property
    def is_snapshot_due(self) -> bool:
        """Whether a snapshot has to free something."""

    @property
    def entry_bytes(self) -> int:
        """The room for entries that another replica has admitted."""

    def space(self) -> JournalSpace:
        """Return how much room there is."""


class RingWatch:
    """Room for prepares: the ring's room, less the prepares on their way there.

    No record is larger than `record_bytes_max`.
    """

    frees_by_snapshot = True

    def __init__(
        self,
        ring: RingRoomPort,
        became_full: Callable[[str], None],
        has_room: Callable[[], None],
        record_bytes_max: int = RECORD_BYTES_MAX,
    ) -> None:
        self._margin_bytes = MARGIN_RECORDS * record_bytes_max
        self._record_bytes_max = record_bytes_max
        self._ring = ring
        self._became_full = became_full
        self._has_room = has_room
        self._on_the_way_bytes = 0
        self._wake = asyncio.Event()
        self.full = False

    @property
    def is_snapshot_due(self) -> bool:
        """Whether a snapshot has to make room soon."""
        return self._ring.is_snapshot_due

    def room(self) -> JournalRoom:
        """Return whether another prepare may be admitted."""
        space = self._ring.space()
        if space.free_bytes - self._on_the_way_bytes >= self._margin_bytes:
            return JournalRoom.FREE
        if not self.full:
            self.full = True
            self._wake.set()
            self._became_full(
                f"commands are refused: the ring of {self._ring.segment_bytes} bytes is full of"
                " entries that no snapshot covers"
            )
        return JournalRoom.FULL if space.reserve_intact else JournalRoom.EXHAUSTED

    def entry_room(self) -> JournalRoom:
        """Return whether an entry that another replica has admitted may be taken.

        It may use the band that commands of clients here leave free. So the log that a primary has
        admitted has room everywhere, and so has the command behind it that completes a snapshot.
        """
        if self._ring.entry_bytes - self._on_the_way_bytes >= self._margin_bytes:
            return JournalRoom.FREE
        return self.room()

    def sent(self, prepares: Sequence[Any]) -> None:
        """Count prepares on their way to the journal."""
        self._on_the_way_bytes += self._bytes_of(prepares)

    def written(self, prepares: Sequence[Any]) -> None:
        """Count prepares as written."""
        self._on_the_way_bytes -= self._bytes_of(prepares)

    async def look_again(self) -> None:
        """Tell of room after records were freed."""
        self._look()

    async def run(self) -> None:
        """Look from time to time while the ring is full, until cancelled: a restart from a snapshot
        and a repair that ends free room, too."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self.full:
                await asyncio.sleep(RETRY_DELAY_MS / 1000)
                self._look()

    def _look(self) -> None:
        free_bytes = self._ring.space().free_bytes - self._on_the_way_bytes
        if free_bytes >= self._margin_bytes:
            self.full = False
        # Admits the waiting commands, or tells them that the ring is full.
        self._has_room()

    def _bytes_of(self, prepares: Sequence[Any]) -> int:
        return sum(bytes_of(prepare, self._record_bytes_max) for prepare in prepares)


def room_watch(
    journal: JournalRoomPort,
    became_full: Callable[[str], None],
    has_room: Callable[[], None],
    record_bytes_max: int,
) -> RoomWatch:
    """Return what watches the room of a journal. Raises ValueError for segments that are too
    small."""
    if isinstance(journal, RingJournal):
        return RingWatch(journal, became_full, has_room, record_bytes_max)

    def told(why: str) -> None:
        became_full(f"commands are refused once the journal's last segment is full: {why}")

    return SpaceWatch(journal, told, has_room, record_bytes_max)
