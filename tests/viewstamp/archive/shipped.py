"""A data directory whose journal grows, and shippers of it that die and come again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from coordinator.journal import Journal, Superblock
from coordinator.replica.data_directory import SUPERBLOCK_FILE
from coordinator.storage import FileStorage
from testkit.journal_builders import CLUSTER_ID, SEGMENT_BYTES, chain
from viewstamp.archive.archive_check import ArchiveVerdict, check_archive_objects
from viewstamp.archive.archive_objects import ArchiveObjects
from viewstamp.archive.archive_reading import pieces_from
from viewstamp.archive.committed_chain import CommittedHead
from viewstamp.archive.manifest_chain import ManifestChain
from viewstamp.archive.object_store import ObjectStore
from viewstamp.archive.sealing import ArchiveKey, Sealing
from viewstamp.archive.shipper import ShipOptions, Shipper, ShipReport
from viewstamp.format.archive_manifest import ArchiveManifest
from viewstamp.format.epoch_members import EpochMembers
from viewstamp.format.prepare import SealedPrepare
from viewstamp.format.superblock import SuperblockState

KEY: Final = ArchiveKey(bytes(range(32)), "a key")
MEMBERS: Final = 3


@dataclass(slots=True)
class Clock:
    """A clock that tests advance, in milliseconds."""

    ms: int = 1_000

    def __call__(self) -> int:
        """Return the time."""
        return self.ms


@dataclass(slots=True)
class ShippedReplica:
    """A replica's directory, of which a test writes the journal, in segments of three entries."""

    data: Path
    replica_id: int = 0
    replica_count: int = MEMBERS
    clock: Clock = field(default_factory=Clock)
    entries: list[SealedPrepare] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    view: int = 0
    commit_max: int = 0
    cluster_id: bytes = CLUSTER_ID
    segment_bytes: int = SEGMENT_BYTES
    members: EpochMembers | None = None
    _journal: Journal | None = None

    def __post_init__(self) -> None:
        self.data.mkdir(parents=True)
        state = SuperblockState(
            self.cluster_id,
            self.replica_id,
            self.replica_count,
            view=self.view,
            log_view=self.view,
            commit_max=self.commit_max,
            generation=0,
            members=self.members,
        )
        Superblock.create(FileStorage(), str(self.data / SUPERBLOCK_FILE), state).close()

    @property
    def journal(self) -> Journal:
        """The journal, made when it is first asked for."""
        if self._journal is None:
            self._journal, _ = Journal.create(
                FileStorage(),
                str(self.data / "journal"),
                cluster_id=self.cluster_id,
                replica_id=self.replica_id,
                replica_count=self.replica_count,
                segment_bytes=self.segment_bytes,
                entropy=lambda size: bytes([self.replica_id]) * size,
            )
        return self._journal

    def append(self, count: int, *, view: int = 1) -> list[SealedPrepare]:
        """Append entries, each of which says that the ones before it are committed."""
        after = self.entries[-1] if self.entries else None
        added = []
        for _ in range(count):
            op = after.op if after else 0
            (entry,) = chain(1, after=after, commit=op, view=view)
            added.append(entry)
            after = entry
        self.take(added)
        return added

    def take(self, entries: Sequence[SealedPrepare]) -> None:
        """Append the entries of another replica."""
        for entry in entries:
            self.journal.append([entry])
        self.entries += entries

    def drop_segments(self, count: int) -> None:
        """Remove the oldest segments, as a replica does behind a snapshot."""
        paths = sorted((self.data / "journal").glob("segment-*.log"))
        for path in paths[:count]:
            path.unlink()

    def shipper(self, store: ObjectStore, keys: tuple[ArchiveKey, ...] = ()) -> Shipper:
        """Return a shipper that has just started; it is to be closed."""
        defaults: dict[str, Any] = {"piece_age_ms": 0}
        options = ShipOptions(self.data, **(defaults | self.options))
        return Shipper(options, manifests_of(store, keys), lambda: 1_700_000_000, self.clock)

    def ship(
        self,
        store: ObjectStore,
        keys: tuple[ArchiveKey, ...] = (),
        told: CommittedHead | None = None,
        **how: bool,
    ) -> ShipReport:
        """Start a shipper, have it ship once, and end it."""
        with self.shipper(store, keys) as shipper:
            return shipper.round(told, **(how or {"is_last": True}))

    def change(self, **fields: Any) -> None:
        """Write another superblock."""
        superblock = Superblock.open(FileStorage(), str(self.data / SUPERBLOCK_FILE))
        superblock.write(replace(superblock.state, **fields))
        superblock.close()


def manifests_of(
    store: ObjectStore, keys: tuple[ArchiveKey, ...] = (), **more: bool
) -> ManifestChain:
    """Return the manifests in a store."""
    return ManifestChain(ArchiveObjects(store, Sealing(keys)), **more)


def newest_of(store: ObjectStore, keys: tuple[ArchiveKey, ...] = ()) -> ArchiveManifest:
    """Return the newest manifest in a store."""
    return manifests_of(store, keys).wanted().manifest


def archived(store: ObjectStore, keys: tuple[ArchiveKey, ...] = ()) -> list[SealedPrepare]:
    """Return all entries that an archive has."""
    objects = ArchiveObjects(store, Sealing(keys))
    parts = newest_of(store, keys).parts
    pieces = (objects.piece(part) for part in pieces_from(objects, parts))
    return [entry for piece in pieces for entry in piece.entries]


def verified(store: ObjectStore, keys: tuple[ArchiveKey, ...] = ()) -> ArchiveVerdict:
    """Return what a verification finds."""
    objects = ArchiveObjects(store, Sealing(keys))
    return check_archive_objects(objects, newest_of(store, keys), lambda *_: None)
