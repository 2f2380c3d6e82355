"""Small rings for tests: sixteen sectors for records a side, of which four are the reserve."""

from __future__ import annotations

from typing import Final

from coordinator.journal import Recovery
from coordinator.journal.plan import JournalIdentity
from coordinator.journal.ring_file import ring_path
from coordinator.journal.ring_journal import RingJournal
from coordinator.journal.superblock import NO_SUPERBLOCK, SuperblockMark
from coordinator.storage import Storage
from testkit.journal_builders import CLUSTER_ID, DIRECTORY, JOURNAL_ID, LOG_VIEW
from testkit.memory_storage import MemoryStorage
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.format.ring import RingLayout, decode_floor

RING: Final = ring_path(DIRECTORY)
DATA_SECTORS: Final = 16
RING_BYTES: Final = 20 * SECTOR_BYTES
RECORD_BYTES_MAX: Final = 2 * SECTOR_BYTES
LAYOUT: Final = RingLayout(RING_BYTES)
FILE_BYTES: Final = LAYOUT.file_bytes
assert LAYOUT.slots == DATA_SECTORS


def create_ring(
    storage: Storage, *, replica_count: int = 1, ring_bytes: int = RING_BYTES
) -> RingJournal:
    """A new ring of replica 0, with a known journal id."""
    journal, _ = RingJournal.create(
        storage,
        DIRECTORY,
        cluster_id=CLUSTER_ID,
        replica_id=0,
        replica_count=replica_count,
        ring_bytes=ring_bytes,
        record_bytes_max=RECORD_BYTES_MAX,
        entropy=lambda size: JOURNAL_ID[:size],
    )
    return journal


def side_of(storage: MemoryStorage) -> int:
    """Which side of the ring is in use."""
    return decode_floor(storage.content(RING)[SECTOR_BYTES : 2 * SECTOR_BYTES], 0).side


def reopen_ring(
    storage: Storage,
    *,
    replica_count: int = 1,
    commit_max: int | None = None,
    log_view: int | None = LOG_VIEW,
    replay_op: int = 1,
    base_checksum: bytes | None = None,
    cluster_id: bytes = CLUSTER_ID,
    replica_id: int = 0,
    superblock: SuperblockMark = NO_SUPERBLOCK,
) -> tuple[RingJournal, Recovery]:
    """Open what `create_ring` made. The superblock knows the snapshot's cut to be committed."""
    identity = JournalIdentity(
        cluster_id,
        replica_id,
        replica_count,
        replay_op - 1 if commit_max is None else commit_max,
        log_view,
        replay_op,
        base_checksum,
        superblock,
    )
    return RingJournal.open(storage, DIRECTORY, identity, record_bytes_max=RECORD_BYTES_MAX)
