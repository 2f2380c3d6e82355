"""Ships the committed log and the snapshots of one replica, in rounds.

A round reads what is new in the journal, takes from it what proves to be committed, stores it in
pieces, and writes a manifest last. Whatever ends a round, the next one begins with what the newest
manifest says: objects that no manifest names are garbage, and harm nobody. So two replicas may ship
at the same time; whose manifest comes second goes on behind the first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from blake3 import blake3

from viewstamp.archive.archive_errors import OtherHistory, StoreUnreachable
from viewstamp.archive.archive_objects import part_name
from viewstamp.archive.committed_chain import (
    CommittedChain,
    CommittedHead,
    EntryPlace,
    ForkError,
    ProvedRange,
)
from viewstamp.archive.history_comparison import NEXT_STEP, check_same_history
from viewstamp.archive.journal_tail import JournalTail
from viewstamp.archive.lost_holes import LostHoles
from viewstamp.archive.manifest_chain import KnownManifest, ManifestChain
from viewstamp.archive.packing import packed, with_part
from viewstamp.archive.retention import (
    CollectedGarbage,
    Retention,
    collect,
    given_up,
    without_old_drops,
)
from viewstamp.archive.segment_spool import SPOOL_DIRECTORY, SegmentSpool
from viewstamp.archive.shipping_defaults import PIECE_AGE_MS, PIECE_BYTES, SPOOL_BYTES_MAX
from viewstamp.archive.shipping_lag import ShippingLag
from viewstamp.archive.snapshot_shipping import SnapshotShipping
from viewstamp.format.archive_manifest import (
    ARCHIVED_SNAPSHOTS_MAX,
    NO_PREVIOUS,
    ArchivedSnapshot,
    ArchiveManifest,
)
from viewstamp.format.archive_parts import LogPart, encode_index, index_part, piece_part
from viewstamp.format.archive_piece import encode_piece, piece_of
from viewstamp.format.superblock import SuperblockState
from viewstamp.journals.journal_errors import NoJournal
from viewstamp.journals.superblock_reading import read_superblock
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.errors import SnapshotFilesError

# A backup ships once entries have waited so long.
TAKEOVER_MS: Final = 60_000
# It looks so often for what others have shipped.
LOOKS_PER_TAKEOVER: Final = 4
# What retention gives up is looked for so often.
UPKEEP_MS: Final = 6 * 3_600_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShipOptions:
    """What is shipped and when. `copies` are copy directories that are not below `data`."""

    data: Path
    copies: tuple[Path, ...] = ()
    piece_bytes: int = PIECE_BYTES
    piece_age_ms: int = PIECE_AGE_MS
    spool_bytes_max: int = SPOOL_BYTES_MAX
    takeover_ms: int = TAKEOVER_MS
    retention: Retention = field(default_factory=Retention)


@dataclass(frozen=True, slots=True)
class ShipReport:
    """What a round has done, and where the archive is.

    `gaps_found` are the gaps that the archive had before this process shipped anything. Without
    `is_archive_known` nothing could be read of the archive yet, and its fields are zero.
    """

    manifest: int = 0
    archived_op: int = 0
    archived_revision: int = 0
    committed_op: int = 0
    lag_ms: int = 0
    gaps: int = 0
    gaps_found: int = 0
    is_archive_known: bool = False
    snapshot: int = 0
    shipped_bytes: int = 0
    shipped_pieces: int = 0
    collected_objects: int = 0
    is_shipping: bool = True
    waits_for: str = ""

    @property
    def lag_ops(self) -> int:
        """The entries that are committed and not in the archive."""
        return max(0, self.committed_op - self.archived_op)


class Shipper:
    """Ships one data directory to one archive. Use it as a context, which holds the directory."""

    def __init__(
        self,
        options: ShipOptions,
        manifests: ManifestChain,
        wall_us: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        """`wall_us` is only noted; `now_ms` must never jump. Raises ShipperInUse, OSError."""
        self._options = options
        self._manifests = manifests
        self._objects = manifests.objects
        self._wall_us = wall_us
        self._now_ms = now_ms
        self._spool = SegmentSpool(options.data, options.spool_bytes_max)
        self._tail = JournalTail(self._spool)
        self._chain = CommittedChain()
        self._lag = ShippingLag()
        self._known: KnownManifest | None = None
        self._is_known = False
        self._looked_ms = 0
        self._upkept_ms: int | None = None
        self._shipped_bytes = 0
        self._shipped_pieces = 0
        self._attempted = 0
        self._told: CommittedHead | None = None
        self._compared: CommittedHead | None = None
        self._holes = LostHoles()
        self._collected = CollectedGarbage()
        self._gaps_found: int | None = None
        self._stored: set[bytes] = set()

    def __enter__(self) -> Shipper:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let others ship."""
        self._spool.close()

    def round(
        self, told: CommittedHead | None = None, *, is_last: bool = False, as_backup: bool = False
    ) -> ShipReport:
        """Ship what is due. With `is_last` all that is committed is due, and upkeep.

        `told` is an entry that the replica itself says is committed. A replica that is not the
        primary ships if nobody else does, or with `as_backup`.

        Raises ArchiveError, FilesError, FormatVersionError, OSError. The next round goes on.
        """
        self._shipped_bytes = self._shipped_pieces = 0
        self._collected, self._told = CollectedGarbage(), told
        state = read_superblock(self._options.data).state
        if state is None:
            return ShipReport(waits_for="the replica has no superblock yet")
        # Segments are kept also while the store is away.
        with suppress(NoJournal):  # which is told below
            self._spool.look()
        self._learn_newest(state, is_asked=is_last or as_backup)
        all_read = self._tail.read_into(self._chain)
        # What others have shipped need not be kept here any more, either.
        self._tail.release(self._chain)
        proved = self._proved(state)
        may_ship = is_last or as_backup or state.leads or self._takes_over()
        if may_ship:
            if self._is_behind():
                self._compare(state)
            proved = self._ship_log(proved, state, all_read=all_read, is_last=is_last)
            self._ship_snapshot(state)
            if is_last:
                proved = self._ship_log(self._proved(state), state, all_read=False, is_last=True)
            self._collected = self._upkeep(state, is_due=is_last)
        return self._report(proved, may_ship=may_ship)

    def so_far(self) -> ShipReport:
        """Return what the round has done that ended with an error, and where the archive is."""
        return self._report(ProvedRange(), may_ship=True)

    # --- What is there ---

    def _learn_newest(self, state: SuperblockState, *, is_asked: bool) -> None:
        """Find out where the archive is: at first, and as long as another one may ship."""
        now_ms = self._now_ms()
        if self._is_known and state.leads and not is_asked:
            return
        number = self._known.manifest.number if self._known else 0
        is_recent = now_ms - self._looked_ms < self._options.takeover_ms // LOOKS_PER_TAKEOVER
        if self._is_known and is_recent and not is_asked:
            return
        self._looked_ms = now_ms
        if self._is_known and self._manifests.newest_number() == number:
            return
        if not self._is_known:
            self._manifests.check_store()
        self._know(self._manifests.newest())
        if self._known is not None and self._known.manifest.cluster_id != state.cluster_id:
            raise OtherHistory(
                f"{self._objects.store.place} is the archive of cluster"
                f" {self._known.manifest.cluster_id.hex()}, and {self._options.data} is of"
                f" {state.cluster_id.hex()}",
                "give a place of its own: another bucket, prefix or directory",
            )

    def _know(self, known: KnownManifest | None) -> None:
        self._known, self._is_known = known, True
        if self._gaps_found is None:
            self._gaps_found = len(known.manifest.gaps) if known else 0
        if known is not None and known.manifest.parts:
            manifest = known.manifest
            self._chain.ship(CommittedHead(manifest.last_op, manifest.parts[-1].last_checksum))
            self._lag.shipped(manifest.last_op)

    def _proved(self, state: SuperblockState) -> ProvedRange:
        # A single replica discards nothing, so the op alone says which entry it is.
        alone = self._chain.only_at(state.commit_max) if _is_alone(state) else None
        try:
            proved = self._chain.proved((self._told, alone))
        except ForkError as error:
            raise OtherHistory(
                f"{error}: {self._objects.store.place} holds a log that this replica does not have",
                NEXT_STEP,
            ) from error
        if proved.entries:
            self._lag.committed(proved.entries[-1].op, self._now_ms())
        return proved

    def _takes_over(self) -> bool:
        """Return whether entries have waited for longer than a primary lets them wait."""
        return self._lag.age_ms(self._now_ms()) >= self._options.takeover_ms

    # --- The log ---

    def _ship_between(self, state: SuperblockState) -> None:
        """Go on with the log between two layers of a snapshot, which may take long."""
        all_read = self._tail.read_into(self._chain)
        self._ship_log(self._proved(state), state, all_read=all_read, is_last=False)

    def _ship_log(
        self, proved: ProvedRange, state: SuperblockState, *, all_read: bool, is_last: bool
    ) -> ProvedRange:
        """Ship pieces that are full or old, until no more is due; return what is left."""
        while True:
            due = self._due(proved, state, all_read=all_read, is_last=is_last)
            if due:
                part = self._store_piece(due)
                if not self._write(partial(with_part, part=part), state):
                    self._follow_other()
                self._tail.release(self._chain)
            elif all_read:
                return proved
            else:
                all_read = self._tail.read_into(self._chain)
            proved = self._proved(state)

    def _due(
        self, proved: ProvedRange, state: SuperblockState, *, all_read: bool, is_last: bool
    ) -> list[EntryPlace]:
        """Return the entries of the next piece, none if it is neither full nor old."""
        if proved.hole is not None:
            if not (all_read and self._is_lost(proved.hole, state, is_asked=is_last)):
                return []  # it comes again, or another replica ships it
            self._compare(state)
        else:
            self._holes.end()
        taken: list[EntryPlace] = []
        taken_bytes = 0
        for place in proved.entries:
            taken.append(place)
            taken_bytes += place.entry_bytes
            if taken_bytes >= self._options.piece_bytes:
                return taken
        is_old = self._lag.age_ms(self._now_ms()) >= self._options.piece_age_ms
        return taken if is_last or is_old else []

    def _is_lost(self, op: int, state: SuperblockState, *, is_asked: bool) -> bool:
        """Return whether an entry that is missing will not come again: a snapshot covers it.

        Another replica may still have it, and gets the time to take over, unless all is asked for.
        """
        cut = self._cut_of(state.generation)
        is_covered = cut is not None and op <= cut.op
        takeover_ms = self._options.takeover_ms
        pause_ms = takeover_ms + takeover_ms // LOOKS_PER_TAKEOVER
        has_waited = self._holes.has_waited(op, self._now_ms(), pause_ms)
        return is_covered and (is_asked or has_waited)

    def _cut_of(self, generation: int) -> CommittedHead | None:
        """Return the entry of a snapshot's cut, which is committed."""
        if not generation:
            return None
        try:
            manifest = self._copies().manifest(generation)
        except SnapshotFilesError as error:
            _log.warning("the snapshot to restart from cannot be read: %s", error.message)
            return None
        return CommittedHead(manifest.cut_op, manifest.cut_checksum)

    def _is_behind(self) -> bool:
        """Return whether the archive goes further than what is told: a disk may be put back."""
        told, known = self._told, self._known
        is_new = told is not None and told != self._compared
        return (
            is_new and told is not None and known is not None and told.op < known.manifest.last_op
        )

    def _compare(self, state: SuperblockState) -> None:
        """Raise OtherHistory, before a hole is passed over, if the archive holds another log."""
        if self._known is None:
            return
        self._compared = self._told
        known = (self._told, self._cut_of(state.generation))
        check_same_history(
            self._objects,
            self._known.manifest,
            self._chain.found_at_shipped(),
            [head for head in known if head is not None],
            self._told,
        )

    def _store_piece(self, places: list[EntryPlace]) -> LogPart:
        piece = piece_of(list(self._tail.entries(places)))
        stored = self._objects.sealing.sealed(encode_piece(piece))
        part = piece_part(piece.header, blake3(stored).digest(), len(stored))
        self._objects.put_checked(part_name(part), stored)
        self._shipped_bytes += len(stored)
        self._shipped_pieces += 1
        return part

    def _store_index(self, parts: Sequence[LogPart]) -> LogPart:
        stored = self._objects.sealing.sealed(encode_index(parts))
        part = index_part(parts, blake3(stored).digest(), len(stored))
        self._objects.put_checked(part_name(part), stored)
        self._shipped_bytes += len(stored)
        return part

    # --- Snapshots ---

    def _copies(self) -> Copies:
        return Copies(self._options.copies or copy_directories(self._options.data))

    def _ship_snapshot(self, state: SuperblockState) -> None:
        """Ship the snapshot that the replica restarts from, if the archive has none so new."""
        known = self._known.manifest.snapshots if self._known else ()
        if not state.generation or (known and known[-1].generation >= state.generation):
            return
        if len(known) >= ARCHIVED_SNAPSHOTS_MAX:
            _log.error("the archive has %d snapshots: let retention give up some", len(known))
            return
        self._compare(state)
        work = self._options.data / SPOOL_DIRECTORY
        with ExitStack() as stack:
            try:
                shipping = SnapshotShipping(
                    self._objects,
                    self._copies(),
                    state.generation,
                    work,
                    self._stored_layers(state.generation),
                )
            except SnapshotFilesError as error:
                # A newer one may have taken its place just now; else the replica has its own alarm.
                _log.warning("snapshot %d is not shipped: %s", state.generation, error.message)
                return
            stack.callback(shipping.close)
            newest = self._known.manifest if self._known else None
            snapshot, shipped_bytes = shipping.ship(newest, partial(self._ship_between, state))
        self._shipped_bytes += shipped_bytes
        if not self._write(lambda manifest: _with_snapshot(manifest, snapshot), state):
            self._follow_other()

    def _stored_layers(self, generation: int) -> set[bytes]:
        """Return what attempts at a generation have stored: the next one goes on from there."""
        if self._attempted != generation:
            self._attempted, self._stored = generation, set()
        return self._stored

    # --- Manifests ---

    def _write(
        self, change: Callable[[ArchiveManifest], ArchiveManifest], state: SuperblockState
    ) -> bool:
        """Write the next manifest; return False if somebody else has written it."""
        known = self._known
        before = ArchiveManifest(state.cluster_id, 0, 0, 0) if known is None else known.manifest
        changed = change(before)
        following = replace(
            changed,
            number=before.number + 1,
            written_us=self._wall_us(),
            replica=state.replica_id,
            previous=NO_PREVIOUS if known is None else known.digest,
            parts=packed(changed.parts, self._store_index),
        )
        written = self._manifests.write(following)
        if written is None:
            return False
        self._know(written)
        return True

    def _follow_other(self) -> None:
        """Go on from what another one has written under the number that this one wanted."""
        before = self._known.manifest.number if self._known else 0
        newest = self._manifests.newest()
        if newest is None or newest.manifest.number <= before:
            raise StoreUnreachable(
                f"{self._objects.store.place} says that manifest {before + 1} is there, and has"
                " none",
                "look at the store: it does not show what it has taken",
            )
        self._know(newest)

    def _upkeep(self, state: SuperblockState, *, is_due: bool) -> CollectedGarbage:
        """Give up what is not kept, and delete garbage, now and then."""
        now_ms = self._now_ms()
        if self._known is None or not (
            is_due or self._upkept_ms is None or now_ms - self._upkept_ms >= UPKEEP_MS
        ):
            return CollectedGarbage()
        self._upkept_ms = now_ms
        retention, newest = self._options.retention, self._known.manifest
        changed = without_old_drops(self._manifests, newest, retention.grace_ms)
        changed = given_up(changed, retention, self._objects, self._wall_us())
        if changed != newest and not self._write(lambda _: changed, state):
            self._follow_other()
            return CollectedGarbage()
        between = partial(self._ship_between, state)
        return collect(self._manifests, self._known.manifest, retention, between)

    def _report(self, proved: ProvedRange, *, may_ship: bool) -> ShipReport:
        manifest = self._known.manifest if self._known else None
        told = self._told
        heads = [told.op if told else 0, proved.entries[-1].op if proved.entries else 0]
        archived_op = manifest.last_op if manifest else 0
        return ShipReport(
            manifest=manifest.number if manifest else 0,
            archived_op=archived_op,
            archived_revision=manifest.parts[-1].last_revision if archived_op and manifest else 0,
            committed_op=max(archived_op, *heads),
            lag_ms=self._lag.age_ms(self._now_ms()),
            gaps=len(manifest.gaps) if manifest else 0,
            gaps_found=self._gaps_found or 0,
            is_archive_known=self._is_known,
            snapshot=manifest.snapshots[-1].generation if manifest and manifest.snapshots else 0,
            shipped_bytes=self._shipped_bytes,
            shipped_pieces=self._shipped_pieces,
            collected_objects=self._collected.objects,
            is_shipping=may_ship,
            waits_for="" if proved.hole is None else f"entry {proved.hole}, which is missing",
        )


def _is_alone(state: SuperblockState) -> bool:
    """Return whether this replica was the whole cluster ever since: it has discarded nothing."""
    return state.replica_count == 1 and state.members is None


def _with_snapshot(manifest: ArchiveManifest, snapshot: ArchivedSnapshot) -> ArchiveManifest:
    if manifest.snapshots and manifest.snapshots[-1].generation >= snapshot.generation:
        return manifest
    return replace(manifest, snapshots=(*manifest.snapshots, snapshot))
