"""The room for entries, as the product's `SpaceWatch` counts it, in simulated time.

Segments here are so small that records of the product's size would not fit. What is held free is as
many records as matter: a few, so that a disk that fills up is soon felt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

from coordinator.journal import Journal, NoSpace, journal
from coordinator.replica import space
from coordinator.replica.space import RETRY_DELAY_MS, SpaceWatch
from viewstamp.format.record import SECTOR_BYTES

# The largest record of any seed fits into the smallest segment that seeds have.
RECORD_BYTES_MAX: Final = 3 * SECTOR_BYTES
FREE_BYTES: Final = 6 * RECORD_BYTES_MAX
MAKE_MS: Final = 5


class SimulatedSpace(SpaceWatch):
    """Makes segments ahead of the journal. `later` does something after so many milliseconds."""

    def __init__(
        self,
        files: Journal,
        became_full: Callable[[str], None],
        has_room: Callable[[], None],
        later: Callable[[int, Callable[[], None]], None],
    ) -> None:
        super().__init__(files, became_full, has_room, RECORD_BYTES_MAX)
        self._later = later
        self._is_making = False

    def make_if_due(self) -> None:
        """Begin to make segments if room is wanted or segments were used up."""
        if self._wake.is_set() and not self._is_making:
            self._wake.clear()
            self._is_making = True
            self._later(MAKE_MS, self.make)

    def make(self) -> None:
        """Make segments now, and tell whoever waits; on a full disk try again after a while."""
        self._is_making = False
        try:
            self._journal.prepare_spares()
        except NoSpace as error:
            if not self.full:
                self.full = True
                self._became_full(str(error))
            self._is_making = True
            self._later(RETRY_DELAY_MS, self.make)
        else:
            self.full = False
        self._has_room()


@contextmanager
def small(segment_sectors: int) -> Iterator[None]:
    """Let the limits fit segments of so many sectors."""
    usable_bytes = (segment_sectors - 1) * SECTOR_BYTES
    spares = journal.RESERVE_SEGMENTS + -(-FREE_BYTES // usable_bytes)
    with (
        patch.object(journal, "SPARE_SEGMENTS", spares),
        patch.object(space, "SPARE_SEGMENTS", spares),
    ):
        yield
