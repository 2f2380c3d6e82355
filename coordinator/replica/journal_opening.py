"""Which kind of journal a data directory has, and opening it.

The kind is fixed when the directory is made. A start with another kind is refused before anything
is written: the journal that is there holds what the replica has acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from coordinator.base.errors import ConfigError
from coordinator.journal.errors import JournalExists, JournalNotFound
from coordinator.journal.interface import ReplicaJournal
from coordinator.journal.journal import Journal
from coordinator.journal.opening import Recovery, check_superblock
from coordinator.journal.plan import JournalIdentity
from coordinator.journal.ring_file import ring_header, ring_path
from coordinator.journal.ring_journal import RingJournal
from coordinator.journal.ring_opening import check_ring_superblock
from coordinator.journal.segment import segment_numbers, segment_path
from coordinator.replica.journal_archive import check_archive
from coordinator.replica.superblock_file import SuperblockFile
from coordinator.storage import Storage
from viewstamp.format import FormatError
from viewstamp.format.record import SECTOR_BYTES, decode_segment_header
from viewstamp.format.superblock import SuperblockState

if TYPE_CHECKING:
    from coordinator.snapshot.restore import Loaded

JOURNAL_DIRECTORY: Final = "journal"
BOOTSTRAPPED_OP: Final = 1
SEGMENTS: Final = "segments"
RING: Final = "ring"


@dataclass(frozen=True, slots=True)
class RingSettings:
    """A ring of so many bytes, whose records are no larger than `record_bytes_max`."""

    ring_bytes: int
    record_bytes_max: int


@dataclass(frozen=True, slots=True)
class JournalPlace:
    """The data directory, and what its journal is to be like."""

    data: str
    segment_bytes: int
    archive: str | None
    ring: RingSettings | None

    @property
    def directory(self) -> str:
        """The directory of the journal."""
        return f"{self.data}/{JOURNAL_DIRECTORY}"


def open_journal(
    storage: Storage, place: JournalPlace, superblock: SuperblockFile, base: Loaded | None
) -> tuple[ReplicaJournal, Recovery]:
    """Open the journal of a directory, or make it. Raises ConfigError for another kind than the
    directory has, and what the journal raises."""
    _check_kind(storage, place)
    if place.archive is not None:
        check_archive(storage, place.data, place.archive)
    if not superblock.exists:
        try:
            return _create(storage, place, superblock)
        except JournalExists:
            pass  # op 1 was written before the crash: it is opened like any other log
    if place.ring is not None:
        return RingJournal.open(
            storage,
            place.directory,
            _identity(superblock, base),
            record_bytes_max=place.ring.record_bytes_max,
            superblock=superblock.mark,
        )
    state = superblock.state
    return Journal.open(
        storage,
        place.directory,
        cluster_id=state.cluster_id,
        replica_id=state.replica_id,
        replica_count=_journal_count(state),
        commit_max=_commit_max(superblock),
        log_view=state.log_view if superblock.exists else None,
        replay_op=1 if base is None else base.manifest.cut_op + 1,
        base_checksum=None if base is None else base.manifest.cut_checksum,
        is_base_fetched=base is not None and base.manifest.generation > state.generation,
        segment_bytes=place.segment_bytes,
        archive=place.archive,
        superblock=superblock.mark,
    )


def _create(
    storage: Storage, place: JournalPlace, superblock: SuperblockFile
) -> tuple[ReplicaJournal, Recovery]:
    state = superblock.state
    if place.ring is not None:
        return RingJournal.create(
            storage,
            place.directory,
            cluster_id=state.cluster_id,
            replica_id=state.replica_id,
            replica_count=_journal_count(state),
            ring_bytes=place.ring.ring_bytes,
            record_bytes_max=place.ring.record_bytes_max,
            superblock=superblock.mark,
        )
    return Journal.create(
        storage,
        place.directory,
        cluster_id=state.cluster_id,
        replica_id=state.replica_id,
        replica_count=_journal_count(state),
        segment_bytes=place.segment_bytes,
        archive=place.archive,
        superblock=superblock.mark,
    )


def _identity(superblock: SuperblockFile, base: Loaded | None) -> JournalIdentity:
    state = superblock.state
    return JournalIdentity(
        state.cluster_id,
        state.replica_id,
        _journal_count(state),
        _commit_max(superblock),
        state.log_view if superblock.exists else None,
        replay_op=1 if base is None else base.manifest.cut_op + 1,
        base_checksum=None if base is None else base.manifest.cut_checksum,
        superblock=superblock.mark(),
        is_base_fetched=base is not None and base.manifest.generation > state.generation,
    )


def _check_kind(storage: Storage, place: JournalPlace) -> None:
    """Raise ConfigError if the directory has a journal of another kind than is asked for."""
    if not storage.exists(place.directory):
        return
    has_ring = storage.exists(ring_path(place.directory))
    has_segments = bool(segment_numbers(storage, place.directory))
    found, wanted = (RING, SEGMENTS) if place.ring is None else (SEGMENTS, RING)
    if (place.ring is None and has_ring) or (place.ring is not None and has_segments):
        raise ConfigError(
            f"--journal {wanted}: the journal in {place.directory} was made as {found}, and its"
            f" kind is fixed: start this replica with --journal {found}, as all others of its"
            " cluster"
        )
    if place.ring is not None and has_ring:
        _check_size(storage, place, place.ring)


def _check_size(storage: Storage, place: JournalPlace, ring: RingSettings) -> None:
    header = ring_header(storage, place.directory)
    if header is not None and header.segment_bytes != ring.ring_bytes:
        raise ConfigError(
            f"--journal-ring-bytes {ring.ring_bytes}: the ring in {place.directory} was made with"
            f" {header.segment_bytes} bytes, and its size is fixed: start this replica with"
            f" --journal-ring-bytes {header.segment_bytes}"
        )


def check_journal_is_not_newer(
    storage: Storage, place: JournalPlace, superblock: SuperblockFile
) -> None:
    """Raise SuperblockOlder if the journal shows a later superblock, JournalNotFound if it is
    gone."""
    directory = place.directory
    if not storage.exists(directory):
        raise JournalNotFound(directory)  # it may come back, with records of a later superblock
    _check_kind(storage, place)
    state = superblock.state
    identity = JournalIdentity(
        state.cluster_id,
        state.replica_id,
        _journal_count(state),
        state.commit_max,
        state.log_view,
        replay_op=1,
        superblock=superblock.mark(),
    )
    check = check_superblock if place.ring is None else check_ring_superblock
    check(storage, directory, identity)


def cluster_of_journal(storage: Storage, directory: str) -> bytes | None:
    """Return the cluster id that the journal's first readable header names, if there is one."""
    if not storage.exists(directory):
        return None
    header = ring_header(storage, directory)
    if header is not None:
        return header.cluster_id
    for number in segment_numbers(storage, directory):
        file = storage.open(segment_path(directory, number))
        try:
            return decode_segment_header(file.read(0, SECTOR_BYTES)).cluster_id
        except (FormatError, OSError):
            # Damaged or unreadable: another one says the same, and opening the journal will tell.
            continue
        finally:
            file.close()
    return None


def _journal_count(state: SuperblockState) -> int:
    """Return how many journals hold the log, which decides what damage can be mended."""
    return 1 if state.is_alone else max(2, state.voter_count)


def _commit_max(superblock: SuperblockFile) -> int:
    """Return the highest op known to be committed here.

    A lone replica writes its first superblock once op 1 is durable, before it knows that to be
    committed. A member that comes with an empty disk may have a superblock before any entry.
    """
    if not superblock.exists:
        return 0
    floor = BOOTSTRAPPED_OP if superblock.state.is_alone else 0
    return max(floor, superblock.state.commit_max)
