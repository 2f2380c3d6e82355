"""The entry point to everything that touches snapshot files.

**Threads.** Every call blocks: make it from a thread that may wait. One thread opens and closes. In
between any thread may call any method. A `SectionWriter` or a `Loaded` belongs to one thread at a
time, and the section writers of one generation may be in different threads. One mutex is held while
layers are pinned and while garbage is collected; writing, loading, scrubbing and compacting run
side by side.

**Order of a generation's life.** A section writer per stage → `write_manifest`: durable here.
Adopted (the superblock names it, durably) → `collect_garbage` → `rebuild_reserve`. Failed or
abandoned → `delete` → `collect_garbage`. After a restart call `collect_garbage` only once the
journal was replayed: before that the catalog is that of the cut, and does not know what was kept
since.

**Errors.** CopiesFailed ends the process. SnapshotNoSpace and CopyNotWritten fail the generation
being written, which must be deleted. NoIntactCopy and GenerationDamaged say what an operator can
do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from coordinator.snapshot.compaction import (
    CompactionJob,
    Compactor,
    ProcessCompactor,
    first_to_merge,
    merge_chain,
)
from coordinator.snapshot.copies import Report
from coordinator.snapshot.errors import ConflictingManifest, CopyNotWritten, NoIntactCopy
from coordinator.snapshot.garbage import (
    Collected,
    Pins,
    collect,
    layers_of,
    stored_generations,
)
from coordinator.snapshot.incoming import IncomingGeneration, check_same_history
from coordinator.snapshot.layout import layer_check, layer_file, manifest_file
from coordinator.snapshot.opening import open_directories, release
from coordinator.snapshot.pinned import PinnedGeneration
from coordinator.snapshot.reserve import Reserve
from coordinator.snapshot.restore import Loaded, open_sections, read_manifest
from coordinator.snapshot.section_writer import SectionWriter
from coordinator.snapshot.unsound_layers import UnsoundLayers
from coordinator.snapshot.verify import problems_of
from coordinator.snapshot.writer_process import FileWriter, WriterProcess
from coordinator.storage import Storage
from viewstamp.api.snapshots.v1.manifest_pb2 import (
    LayerReference,
    SectionManifest,
    SnapshotManifest,
)
from viewstamp.format.layer import LayerHeader
from viewstamp.format.manifest import encode_manifest, sections
from viewstamp.limits import COMPACT_DELTAS_BYTES_MIN, SNAPSHOT_RESERVE_BYTES_MIN

TAG: Final = "coordinator"
# Manifests in memory: of the generation to restart from, and of the next one.
MANIFESTS_WRITTEN_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class SnapshotDirectories:
    """Whose snapshots, and where: three different directories, in an order that never changes.

    `generation` is the one that the superblock names, which must exist; 0 for none.
    """

    paths: tuple[str, ...]
    cluster_id: bytes
    replica_id: int
    generation: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """Layers that replace the first ones of a chain; no manifest names the last one yet."""

    prefix: tuple[bytes, ...]
    layers: tuple[LayerReference, ...]


class SnapshotFiles:
    """The snapshot files of one replica."""

    def __init__(
        self,
        storage: Storage,
        directories: SnapshotDirectories,
        *,
        report: Report,
        reserve_bytes_min: int = SNAPSHOT_RESERVE_BYTES_MIN,
        compactor: Compactor | None = None,
        compact_bytes_min: int = COMPACT_DELTAS_BYTES_MIN,
        has_writer_process: bool = False,
    ) -> None:
        """Open the directories, making new ones; temporary files of a crash are removed.

        `report` is told of each file with a bad copy, and what was done. With a writer process new
        files are written, and chains merged, by other processes; then `storage` must be the file
        system. Raises WrongCopyDirectory, DirectoryInUse, DirectoriesUnused, CopyNotWritten,
        CopiesFailed.
        """
        self._cluster_id = directories.cluster_id
        copies, self.locks = open_directories(
            storage,
            directories.paths,
            directories.cluster_id,
            directories.replica_id,
            report,
            TAG,
            directories.generation,
        )
        self.copies = copies
        self._writer: FileWriter = copies.local
        self.process: WriterProcess | None = None
        self._compactor = compactor
        if has_writer_process:
            descriptors = [each for lock in self.locks for each in lock.descriptors()]
            self._writer = self.process = WriterProcess(copies.local, descriptors)
            self._compactor = compactor or ProcessCompactor(report, self.process.merge)
        self.reserve = Reserve(storage, copies.local, reserve_bytes_min)
        # Generations that come from another replica, which nobody here may delete.
        self._incoming: set[int] = set()
        self.pins = Pins()
        self.unsound = UnsoundLayers()
        self._merged: dict[int, Merged] = {}
        self._compacting = 0
        self._compact_bytes_min = compact_bytes_min
        # Manifests do not change, so the layers of a kept one are read once...
        self._named: dict[int, frozenset[bytes]] = {}
        # ... and those written and verified here are not read at all.
        self._written: dict[int, SnapshotManifest] = {}

    @property
    def directories(self) -> tuple[str, ...]:
        """The copy directories, in order."""
        return self.copies.directories

    def close(self) -> None:
        """End a compaction under way and let others use the directories."""
        if self._compactor is not None:
            self._compactor.stop()
        if self.process is not None:
            self.process.stop()
        release(self.locks)

    # --- Writing ---

    def section_writer(
        self, generation: int, stage: int, header: Callable[[], LayerHeader]
    ) -> SectionWriter:
        """Return the writer of a stage's layer; the layer stays until the manifest is durable, or
        the generation is released."""
        return SectionWriter(
            self._writer,
            f"section-{stage}-of-{generation}",
            header,
            lambda digest: self.pins.add(generation, [digest]),
            use_reserve=True,
        )

    def write_manifest(self, manifest: SnapshotManifest) -> SnapshotManifest:
        """Return once the generation is durable here, with the stored manifest.

        An existing one with the same root stays; another root raises ConflictingManifest. Raises
        FormatError for an invalid one.
        """
        # Otherwise a reader would see that some directories lack the manifest, and repair that.
        with self.pins.mutex:
            stored = self.stored_manifest(manifest.generation)
            if stored is None:
                self._check_sound(manifest)
                self._put_manifest(manifest)
            elif stored.root != manifest.root:
                raise ConflictingManifest(
                    f"generation {manifest.generation} is stored with root {stored.root.hex()}, but"
                    f" was written now with root {manifest.root.hex()}: the same log gave two"
                    " states. Stop this replica and keep its directories for whoever looks for the"
                    " reason"
                )
            self.pins.release(manifest.generation)
        return stored or manifest

    def _put_manifest(self, manifest: SnapshotManifest) -> None:
        """Write a manifest, copy by copy, each by a rename: the first one found after a crash
        replaces the others. The next generation continues from it, so it is remembered."""
        name = manifest_file(manifest.generation)
        self._writer.write(name, encode_manifest(manifest), use_reserve=True)
        copy = SnapshotManifest()
        copy.CopyFrom(manifest)
        self._written[manifest.generation] = copy
        self._named[manifest.generation] = frozenset(layers_of(copy))
        while len(self._written) > MANIFESTS_WRITTEN_MAX:
            del self._written[next(iter(self._written))]

    def rewrite_manifest(self, manifest: SnapshotManifest) -> None:
        """Write bad copies of a manifest anew, as somebody still has it in memory.

        One that was deleted meanwhile stays deleted. Raises CopyNotWritten, CopiesFailed.
        """
        name = manifest_file(manifest.generation)
        with self.pins.mutex:
            if self.copies.has(name):
                self._writer.write(name, encode_manifest(manifest), use_reserve=False)

    def release(self, generation: int) -> None:
        """Give up writing a generation: layers that no manifest names become garbage."""
        self.pins.release(generation)

    def incoming(
        self,
        manifest: SnapshotManifest,
        adopted: int,
        *,
        replaces: bool = False,
        use_reserve: bool = True,
    ) -> IncomingGeneration:
        """Begin to take in a generation of another replica; the result keeps its files until
        closed.

        An existing generation with an equal root continues from the files here; with `replaces`,
        from the layers of the given manifest, because some of those here cannot be read. `adopted`
        is the generation that the superblock names: it is never replaced by one of another cut.
        Raises ConflictingManifest if the same cut led to another root here, or the adopted one has
        another cut; NoIntactCopy if the adopted one's manifest is damaged and not to be replaced.
        """
        check = self._replacing if replaces else self._known_as
        manifest = check(manifest, is_adopted=manifest.generation == adopted)
        with self.pins.mutex:
            self._incoming.add(manifest.generation)
        return IncomingGeneration(
            self.copies,
            self._writer,
            manifest,
            self.pins,
            self._finish_replacing if replaces else self._finish_incoming,
            self._incoming.discard,
            use_reserve,
        )

    def _finish_incoming(self, manifest: SnapshotManifest) -> None:
        self.write_manifest(manifest)
        self.load(manifest.generation).close()

    def _finish_replacing(self, manifest: SnapshotManifest) -> None:
        with self.pins.mutex:
            self._put_manifest(manifest)
        self.load(manifest.generation).close()

    def _replacing(self, manifest: SnapshotManifest, *, is_adopted: bool) -> SnapshotManifest:
        """Return the given manifest. The one here stays until it is replaced."""
        try:
            stored = self.stored_manifest(manifest.generation)
        except NoIntactCopy:
            return manifest
        if stored is not None:
            check_same_history(stored, manifest, is_adopted=is_adopted)
        return manifest

    def _known_as(self, manifest: SnapshotManifest, *, is_adopted: bool) -> SnapshotManifest:
        """Return the manifest of the same generation that is here, or else the given one."""
        try:
            stored = self.stored_manifest(manifest.generation)
        except NoIntactCopy:
            if is_adopted:
                raise  # a restart has it mended
            self.delete(manifest.generation)
            stored = None
        if stored is None or stored.root == manifest.root:
            return stored or manifest
        check_same_history(stored, manifest, is_adopted=is_adopted)
        self.delete(manifest.generation)  # cut at an entry that was never committed
        return manifest

    def chain(self, stage: int, section: SectionManifest) -> list[LayerReference]:
        """Return the layers with which the next generation's chain begins: those of the last
        adopted generation's section, or their merged replacement."""
        layers = list(section.layers)
        with self.pins.mutex:
            merged = self._merged.get(stage)
            if merged is None or not _begins_with(layers, merged.prefix):
                return layers
            return [*merged.layers, *layers[len(merged.prefix) :]]

    def keep_chain(
        self, generation: int, stage: int, section: SectionManifest
    ) -> list[LayerReference]:
        """Return `chain`, whose layers stay until the generation that continues from it is durable
        or released. Raises CopyNotWritten if one of them is gone."""
        with self.pins.mutex:
            base = self.chain(stage, section)
            lost = [each for each in base if not self.copies.has(layer_file(each.digest))]
            if lost:
                raise CopyNotWritten(
                    f"generation {generation} cannot go on from {layer_file(lost[0].digest)}: no "
                    f"directory has it any more; ask for the chain again"
                )
            self._look_at_unsound(generation, base)
            self.pins.add(generation, [each.digest for each in base])
        return base

    def _check_sound(self, manifest: SnapshotManifest) -> None:
        """Raise CopyNotWritten for a lost layer: it may have been whole when this was begun."""
        layers = [layer for _, section in sections(manifest) for layer in section.layers]
        self._look_at_unsound(manifest.generation, layers)

    def _look_at_unsound(self, generation: int, layers: Sequence[LayerReference]) -> None:
        """Take back what is said of layers that are whole again: people may have brought them.

        Raises CopyNotWritten for those that are not.
        """
        for each in layers:
            if self.unsound.has(each.digest):
                with suppress(NoIntactCopy):
                    self.copies.scrub(layer_file(each.digest), layer_check(each))
                    self.unsound.mark(each.digest, is_sound=True)
        self.unsound.check(generation, [each.digest for each in layers])

    def stored_manifest(self, generation: int) -> SnapshotManifest | None:
        """Return the manifest of a generation that is durable here, all copies repaired; None if no
        directory has one. Raises NoIntactCopy."""
        if not self.copies.has(manifest_file(generation)):
            return None
        return read_manifest(self.copies, self._cluster_id, generation)

    def written_manifest(self, generation: int) -> SnapshotManifest | None:
        """Return what `stored_manifest` returns, without reading one again that was just written
        and verified. Do not change the result."""
        return self._written.get(generation) or self.stored_manifest(generation)

    def generations(self) -> list[int]:
        """Return the generations of which any directory has a manifest, ascending."""
        return stored_generations(self.copies)

    # --- Reading ---

    def load(self, generation: int) -> Loaded:
        """Verify and repair every copy of a generation's files, and open it for reading.

        Raises NoIntactCopy, GenerationDamaged, FormatVersionError.
        """
        manifest, let_go = self._held(generation)
        try:
            layers = open_sections(self.copies, manifest)
        except BaseException:
            let_go()
            raise
        return Loaded(manifest, layers, let_go)

    def pinned(self, generation: int) -> PinnedGeneration:
        """Keep the files of a generation until the result is closed. Raises NoIntactCopy."""
        return PinnedGeneration(self.copies, *self._held(generation))

    def _held(self, generation: int) -> tuple[SnapshotManifest, Callable[[], None]]:
        """Keep a generation until the returned function is called; return its manifest too."""
        owner = object()
        with self.pins.mutex:
            manifest = read_manifest(self.copies, self._cluster_id, generation)
            self.pins.add_generation(owner, manifest)
        return manifest, lambda: self.pins.release(owner)

    def problems(self, generation: int) -> list[str]:
        """Recompute every digest and count of a generation from its layers; return what differs.

        Raises NoIntactCopy, GenerationDamaged, FormatVersionError.
        """
        with self.load(generation) as loaded:
            return problems_of(loaded.manifest, loaded.layers)

    # --- Deciding ---

    def delete(self, generation: int) -> None:
        """Remove the manifest of a failed or abandoned generation; its layers become garbage.

        Never call it for the one that the superblock names. One that is being taken in stays.
        """
        with self.pins.mutex:
            if generation in self._incoming:
                return
            self._writer.delete([manifest_file(generation)])
            self.pins.release(generation)
            self._named.pop(generation, None)
            self._written.pop(generation, None)

    def collect_garbage(self, live: Collection[int], adopted: int) -> Collected:
        """Remove what nobody keeps. `live` are the generations of the catalog, `adopted` is the one
        that the superblock names; those above it are kept until they are deleted.

        Raises NoIntactCopy if the manifest of the adopted one, from which others may continue, is
        bad.
        """
        with self.pins.mutex:
            self._forget_named(adopted)
            return collect(
                self.copies,
                self._writer,
                self._cluster_id,
                self.pins,
                live,
                adopted,
                self._named,
                is_compacting=self._compacting > 0,
            )

    def _forget_named(self, adopted: int) -> None:
        """Release merged layers that the adopted generation names, or can no longer use."""
        if not self._merged:
            return
        manifest = read_manifest(self.copies, self._cluster_id, adopted)
        for stage, section in sections(manifest):
            merged = self._merged.get(stage)
            if merged is not None and not _begins_with(section.layers, merged.prefix):
                del self._merged[stage]
                self.pins.release(merged)

    # --- Compaction ---

    def stages_to_compact(self, manifest: SnapshotManifest) -> list[int]:
        """Return the stages whose chain should be merged, given the last adopted manifest."""
        return [
            stage
            for stage, section in sections(manifest)
            if self._first_to_merge(self.chain(stage, section)) is not None
        ]

    def _first_to_merge(self, layers: Sequence[LayerReference]) -> int | None:
        return first_to_merge(SectionManifest(layers=layers), self._compact_bytes_min)

    def compact(self, manifest: SnapshotManifest, stage: int) -> LayerReference:
        """Merge layers of a section's chain into one, which `chain` returns from then on.

        The layer is a base unless merging the last deltas is enough. Takes long. Raises
        CompactionFailed, NoIntactCopy, SnapshotNoSpace, CopyNotWritten, CopiesFailed; the chain
        stays unchanged then.
        """
        section = dict(sections(manifest))[stage]
        first = self._first_to_merge(section.layers) or 0
        job = CompactionJob(self._cluster_id, stage, manifest.feature_level, section, first)
        owner = object()
        with self.pins.mutex:
            self._compacting += 1
            self.pins.add(owner, layers_of(manifest))
        try:
            merge = merge_chain if self._compactor is None else self._compactor.merge
            layer = merge(self.copies, job)
            prefix = tuple(each.digest for each in section.layers)
            self._keep_merged(stage, Merged(prefix, (*section.layers[:first], layer)))
        finally:
            with self.pins.mutex:
                self._compacting -= 1
                self.pins.release(owner)
        return layer

    def _keep_merged(self, stage: int, merged: Merged) -> None:
        with self.pins.mutex:
            before = self._merged.get(stage)
            self._merged[stage] = merged
            self.pins.add(merged, [each.digest for each in merged.layers])
            if before is not None:
                self.pins.release(before)

    # --- Space ---

    def rebuild_reserve(self, manifest: SnapshotManifest) -> Sequence[str]:
        """Make the reserves that were given up or are too small for the last generation.

        Return the directories that have no room for it yet: try again after freeing space.
        """
        return self.reserve.rebuild(sum(layers_of(manifest).values()))

    def give_up_reserve(self) -> None:
        """Free the reserve of every directory, for what else a snapshot needs on a full disk."""
        for copy in range(len(self.directories)):
            self.copies.local.give_up_reserve(copy)


def _begins_with(layers: Sequence[LayerReference], prefix: Sequence[bytes]) -> bool:
    return tuple(each.digest for each in layers[: len(prefix)]) == tuple(prefix)
