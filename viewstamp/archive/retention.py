"""What an archive gives up: snapshots that are old or many, the log before them, and garbage.

First a manifest without them is written, and later the objects are deleted: readers of an older
manifest have the time between. Ages of snapshots are counted in log time, back from the newest
entry, and ages of objects by the store's clock, so the clock of this machine deletes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import merge
from itertools import pairwise
from typing import Final, TypeVar

from viewstamp.archive.archive_errors import StoreUnreachable
from viewstamp.archive.archive_objects import (
    COLLECTED,
    INDEXES,
    LAYERS,
    LOG,
    MANIFESTS,
    SNAPSHOTS,
    ArchiveObjects,
    archive_name,
    archived_layer_name,
    is_own_name,
    is_unfinished,
    number_of,
    part_name,
    snapshot_name,
)
from viewstamp.archive.archive_reading import layers_of, read_snapshot_manifest, walk_parts
from viewstamp.archive.manifest_chain import (
    MANIFESTS_KEPT,
    ManifestChain,
    protected_numbers,
)
from viewstamp.archive.packing import without_ops_to
from viewstamp.format.archive_manifest import (
    ARCHIVED_DROPS_MAX,
    ArchivedSnapshot,
    ArchiveManifest,
)

T = TypeVar("T")

KEEP_SNAPSHOTS: Final = 0
# Objects that are looked at without a pause.
ITEMS_BETWEEN: Final = 256
KEEP_MS: Final = 0
# A manifest has room for some more, which come between two looks.
SNAPSHOTS_KEPT_MAX: Final = 1_000
# So many go together, since each time is a manifest to protect.
SNAPSHOTS_THINNED: Final = 100
GRACE_MS: Final = 24 * 3_600_000
GRACE_MS_MIN: Final = 60_000
_US_PER_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept: 0 stands for all. `grace_ms` lies between a manifest and the deletion."""

    keep_snapshots: int = KEEP_SNAPSHOTS
    keep_ms: int = KEEP_MS
    grace_ms: int = GRACE_MS


def kept_snapshots(manifest: ArchiveManifest, retention: Retention) -> tuple[ArchivedSnapshot, ...]:
    """Return the snapshots to keep: never none, and one from before the age that is kept."""
    snapshots = manifest.snapshots
    most = retention.keep_snapshots or len(snapshots)
    first = max(0, len(snapshots) - most)
    if retention.keep_ms and snapshots:
        newest_us = max(
            snapshots[-1].timestamp, manifest.parts[-1].last_time if manifest.parts else 0
        )
        begins_us = newest_us - retention.keep_ms * _US_PER_MS
        older = [n for n, each in enumerate(snapshots) if each.timestamp <= begins_us]
        first = max(first, older[-1] if older else 0)
    return snapshots[first:]


def given_up(
    manifest: ArchiveManifest, retention: Retention, objects: ArchiveObjects, now_us: int
) -> ArchiveManifest:
    """Return the manifest without what is not kept; the same one if all is kept.

    `now_us` is only noted. Raises ArchiveError for an index that cannot be read.
    """
    kept = kept_snapshots(manifest, retention)
    thin = thinned(kept, manifest)
    if thin == manifest.snapshots or len(manifest.drops) >= ARCHIVED_DROPS_MAX:
        return manifest
    # Without an older snapshot that is given up, all of the log is kept.
    oldest_op = 0 if len(kept) == len(manifest.snapshots) else kept[0].cut_op
    return replace(
        manifest,
        snapshots=thin,
        parts=without_ops_to(manifest.parts, oldest_op, objects.index),
        gaps=tuple(gap for gap in manifest.gaps if gap[1] > oldest_op),
        drops=(*manifest.drops, (manifest.number, now_us)),
    )


def thinned(
    kept: tuple[ArchivedSnapshot, ...], manifest: ArchiveManifest
) -> tuple[ArchivedSnapshot, ...]:
    """Return the snapshots that a manifest has room for: of older ones each second one goes.

    All can be restored as before, only slower: the log behind an older snapshot leads there. So the
    oldest one stays, and so do those to which the log does not lead.
    """
    surplus = len(kept) - SNAPSHOTS_KEPT_MAX
    if surplus <= 0:
        return kept
    # The newest one stays, or it would be shipped again at once.
    others = [
        each for before, each in pairwise(kept[:-1]) if _is_reached(manifest, before.cut_op, each)
    ]
    dropped = {each.cut_op for each in others[: 2 * max(surplus, SNAPSHOTS_THINNED) : 2]}
    return tuple(each for each in kept if each.cut_op not in dropped)


def _is_reached(manifest: ArchiveManifest, from_op: int, snapshot: ArchivedSnapshot) -> bool:
    """Return whether the log leads from an op to the cut of a snapshot."""
    if not manifest.parts or not manifest.parts[0].first_op - 1 <= from_op:
        return False
    is_whole = not any(
        first_op <= snapshot.cut_op and last_op > from_op for first_op, last_op in manifest.gaps
    )
    return is_whole and snapshot.cut_op <= manifest.last_op


@dataclass(frozen=True, slots=True)
class CollectedGarbage:
    """What a collection of garbage has deleted."""

    objects: int = 0
    stored_bytes: int = 0


def collect(
    chain: ManifestChain,
    newest: ArchiveManifest,
    retention: Retention,
    between: Callable[[], object] = lambda: None,
) -> CollectedGarbage:
    """Delete objects that no manifest has named for the time of grace. Raises ArchiveError.

    What another shipper is about to name is younger. Memory does not grow with the log: names of
    pieces come in order from the store and from the manifests, and are compared as they come.
    `between` is called now and then, for what must not wait: a million pieces take minutes.
    """
    objects = chain.objects
    written = objects.store.look(archive_name(newest.number))
    if written is None:
        return CollectedGarbage()
    before_us = written.modified_us - max(retention.grace_ms, GRACE_MS_MIN) * _US_PER_MS
    manifests = [newest, *_protected(chain, newest, before_us)]
    done = _outdated_manifests(chain, newest, before_us)
    for prefix in COLLECTED:
        named = _Ascending(_names(prefix, objects, manifests, between))
        before = ""
        for found in _pausing(objects.store.objects(prefix), between):
            if found.name <= before:
                raise StoreUnreachable(
                    f"{objects.store.place} lists {found.name} behind {before}: what nobody names"
                    " cannot be told from what is named",
                    "use a store that lists names in their order",
                )
            before = found.name
            if not is_own_name(found.name):
                continue
            is_old = found.modified_us < before_us and not named.has(found.name)
            if is_old and _is_still_old(chain, found.name, before_us):
                objects.store.delete(found.name)
                done = CollectedGarbage(done.objects + 1, done.stored_bytes + found.stored_bytes)
    return done


def _is_still_old(chain: ManifestChain, name: str, before_us: int) -> bool:
    """Return whether nobody has stored the same object again since it was listed."""
    found = chain.objects.store.look(name)
    return found is not None and found.modified_us < before_us


def _outdated_manifests(
    chain: ManifestChain, newest: ArchiveManifest, before_us: int
) -> CollectedGarbage:
    """Delete manifests that were protected once, and what a crash has left beside them."""
    protected = protected_numbers(newest)
    done = CollectedGarbage()
    for found in chain.objects.store.objects(MANIFESTS):
        number = number_of(found.name)
        is_left = is_unfinished(found.name) and found.modified_us < before_us
        is_outdated = number is not None and number <= newest.number - MANIFESTS_KEPT
        if is_left or (is_outdated and number not in protected):
            chain.objects.store.delete(found.name)
            done = CollectedGarbage(done.objects + 1, done.stored_bytes + found.stored_bytes)
    return done


def without_old_drops(
    chain: ManifestChain, newest: ArchiveManifest, grace_ms: int
) -> ArchiveManifest:
    """Return the manifest without drops whose time of grace is over, by the store's clock."""
    written = chain.objects.store.look(archive_name(newest.number))
    if written is None:
        return newest
    before_us = written.modified_us - max(grace_ms, GRACE_MS_MIN) * _US_PER_MS
    kept = tuple(drop for drop in newest.drops if not _is_over(chain, drop, before_us))
    return replace(newest, drops=kept)


def _is_over(chain: ManifestChain, drop: tuple[int, int], before_us: int) -> bool:
    """Return whether the manifest that gave something up is so old."""
    found = chain.objects.store.look(archive_name(drop[0] + 1))
    return found is None or found.modified_us < before_us


def _protected(
    chain: ManifestChain, newest: ArchiveManifest, before_us: int
) -> Iterator[ArchiveManifest]:
    """Yield older manifests that a reader may still go by."""
    for number, _ in newest.drops:
        if not _is_over(chain, (number, 0), before_us):
            yield chain.read(number).manifest


def _names(
    prefix: str,
    objects: ArchiveObjects,
    manifests: list[ArchiveManifest],
    between: Callable[[], object],
) -> Iterator[str]:
    """Yield the names below a prefix that manifests name, ascending; some more than once."""
    if prefix == LOG:
        walks = [
            (
                part_name(part)
                for part in _pausing(walk_parts(objects, manifest.parts), between)
                if part.is_piece
            )
            for manifest in manifests
        ]
        return merge(*walks)
    if prefix == INDEXES:
        return iter(
            sorted(
                part_name(part)
                for manifest in manifests
                for part in _pausing(walk_parts(objects, manifest.parts), between)
                if not part.is_piece
            )
        )
    snapshots = {each.digest: each for manifest in manifests for each in manifest.snapshots}
    if prefix == SNAPSHOTS:
        return iter(sorted(map(snapshot_name, snapshots.values())))
    assert prefix == LAYERS, prefix
    return iter(
        sorted(
            {
                archived_layer_name(layer)
                for each in snapshots.values()
                for layer in layers_of(read_snapshot_manifest(objects, each))
            }
        )
    )


def _pausing(items: Iterable[T], between: Callable[[], object]) -> Iterator[T]:
    for number, item in enumerate(items, start=1):
        if number % ITEMS_BETWEEN == 0:
            between()
        yield item


class _Ascending:
    """Answers whether names that are asked for in order are among names that come in order."""

    def __init__(self, names: Iterator[str]) -> None:
        self._names = names
        self._next = next(names, None)

    def has(self, name: str) -> bool:
        while self._next is not None and self._next < name:
            self._next = next(self._names, None)
        return self._next == name
