"""A segment that grows between two windows of it is read whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.viewstamp.archive.shipped import ShippedReplica
from viewstamp.archive.committed_chain import CommittedChain
from viewstamp.archive.journal_tail import JournalTail
from viewstamp.archive.segment_spool import SegmentSpool
from viewstamp.format.record import SECTOR_BYTES

# The header and two entries were there, and two blank sectors behind them are in memory.
EARLY_BYTES = 5 * SECTOR_BYTES


class GrowingSegment:
    """A segment of which the begin is in memory when the replica writes four entries more."""

    def __init__(self, path: Path, replica: ShippedReplica) -> None:
        self._path = path
        self._replica = replica
        self._early = path.read_bytes()

    def __len__(self) -> int:
        """Return the bytes of the segment."""
        return len(self._early)

    def __getitem__(self, place: slice) -> bytes:
        """Return bytes of the begin as they were, and of the rest as they are."""
        if place.start < EARLY_BYTES:
            return self._early[place]
        if len(self._replica.entries) == 2:
            self._replica.append(4)
        return self._path.read_bytes()[place]


def test_no_entry_is_passed_over_while_the_segment_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that come into a place that was read as blank are read with the next look."""
    replica = ShippedReplica(tmp_path / "data", segment_bytes=12 * SECTOR_BYTES)
    replica.append(2)

    @contextmanager
    def growing(path: Path) -> Iterator[GrowingSegment]:
        yield GrowingSegment(path, replica)

    spool, chain = SegmentSpool(replica.data), CommittedChain()
    tail = JournalTail(spool)
    with monkeypatch.context() as patched:
        patched.setattr("viewstamp.archive.journal_tail.opened_segment", growing)
        assert tail.read_into(chain)
    assert len(chain) == 4
    assert tail.read_into(chain)
    spool.close()
    assert [place.op for place in chain.proved().entries] == [1, 2, 3, 4, 5]
