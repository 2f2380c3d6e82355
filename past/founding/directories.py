"""The data directories of the new cluster: as if its replicas had just restarted from the cut.

Each holds the snapshot in three copies, a journal whose only entry is the cut's, and a superblock
that names both as committed. All are made below one directory with a temporary name, which gets its
own name last: a restore that was cut short leaves nothing that a replica could start from.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator import vsr
from coordinator.journal.journal import Journal
from coordinator.mux.stage import SERVICE_STAGES, Stage, cut_stages
from coordinator.replica.data_directory import (
    SNAPSHOTS_DIRECTORY,
    SUPERBLOCK_FILE,
    DirectoryOptions,
    open_replica,
)
from coordinator.replica.journal_opening import JOURNAL_DIRECTORY
from coordinator.replica.superblock_file import SuperblockFile
from coordinator.snapshot.copies import CopyVerdict
from coordinator.snapshot.files import SnapshotDirectories, SnapshotFiles
from coordinator.snapshot.generation_writer import GenerationWriter
from coordinator.snapshot.inner_sections import VERSIONS
from coordinator.snapshot.layout import layer_file
from coordinator.snapshot.restore import Loaded
from coordinator.snapshot.sections import SectionHead
from coordinator.storage import FileStorage, Storage
from past.domains import DOMAINS
from past.founding.endings import FOUNDING_VIEW, EndedState
from past.founding.errors import TargetNotEmpty, UnequalRestore
from past.founding.jumps import JumpedCut, jumped
from past.founding.remains import Progress
from past.sections import ArrivingSnapshot
from past.state import PastState
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.cluster.preflight import CLUSTER_ID_FILE, write_secret
from viewstamp.format.manifest import MANIFEST_VERSION, sections
from viewstamp.format.prepare import SealedPrepare
from viewstamp.format.section import SectionEntry, SectionTally
from viewstamp.format.superblock import SuperblockState
from viewstamp.limits import MIB
from viewstamp.machine.freezing import Entity
from viewstamp.snapshots.durable import sync_directory

TEMPORARY_SUFFIX: Final = ".restoring"
REPLICA_DIRECTORY: Final = "replica-{}"
DIRECTORY_MODE: Final = 0o700
READ_BYTES: Final = 1 * MIB
# A journal of a single replica never restarts elsewhere; who makes one is no replica.
_JOURNAL_MAKER_REPLICAS: Final = 2


@dataclass(frozen=True, slots=True)
class NewCluster:
    """The new cluster: where, how many replicas, and its id of 16 bytes.

    With `only_replica` the path is the directory of this one. Whoever restores each replica in a
    place of its own gives the same source and id everywhere, and gets the same snapshot.
    `copies` are the directories of this replica's snapshots, where they are not below its own.
    """

    path: Path
    replica_count: int
    cluster_id: bytes
    only_replica: int | None = None
    copies: tuple[Path, ...] = ()

    def directories(self, root: Path) -> dict[int, Path]:
        """Return the data directory of each replica, as `viewstamp up` names them."""
        if self.only_replica is not None:
            return {self.only_replica: root}
        if self.replica_count == 1:
            return {0: root}
        return {n: root / REPLICA_DIRECTORY.format(n) for n in range(self.replica_count)}

    @property
    def is_below_one_directory(self) -> bool:
        """Whether the path holds a directory for each of several replicas."""
        return self.only_replica is None and self.replica_count > 1


def check_target(path: Path, sources: Sequence[Path] = ()) -> None:
    """Raise TargetNotEmpty unless the path is free, or an empty directory, apart from the sources.

    A mount cannot get its name last: nothing can be moved over it.
    """
    target, temporary = path.resolve(), _temporary_of(path).resolve()
    for source in (each.resolve() for each in sources):
        if any(
            one.is_relative_to(other)
            for one, other in ((target, source), (source, target), (source, temporary))
        ):
            raise TargetNotEmpty(
                f"{path} and {source}, which is to be read, are not apart",
                "give a directory for the new cluster that neither holds the source nor is in it",
            )
    if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise TargetNotEmpty(
            f"{path} exists and is not an empty directory",
            "a new cluster needs a directory of its own: give another one, or move this one away",
        )
    if path.is_mount():
        raise TargetNotEmpty(
            f"{path} is the root of a file system", "give a directory below it, such as ./data"
        )


def check_targets(new: NewCluster, sources: Sequence[Path] = ()) -> None:
    """Raise TargetNotEmpty unless all directories of the new cluster are free and apart."""
    check_target(new.path, sources)
    for path in new.copies:
        check_target(path, (*sources, new.path))


def _temporary_of(path: Path) -> Path:
    return path.with_name(path.name + TEMPORARY_SUFFIX)


@dataclass(frozen=True, slots=True)
class WrittenCluster:
    """The directories of a new cluster that have no names yet, and the snapshot in each."""

    target: NewCluster
    temporary: Path
    manifest: SnapshotManifest
    replicas: tuple[DirectoryOptions, ...]


def write_cluster(
    target: NewCluster, state: PastState, ended: EndedState, progress: Progress
) -> WrittenCluster:
    """Write all directories below a temporary name. `state` is that of `ended.cut`.

    Raises TargetNotEmpty, OSError, and what snapshot files, journal and superblock raise.
    """
    check_targets(target)
    temporary = _temporary_of(target.path)
    copies = tuple(map(_temporary_of, target.copies))
    for path in (temporary, *copies):
        if path.exists():
            shutil.rmtree(path)  # of a restore that was cut short
        path.mkdir(mode=DIRECTORY_MODE, parents=True)
    replicas = tuple(
        DirectoryOptions(path, replica, target.replica_count, target.cluster_id, snapshots=copies)
        for replica, path in target.directories(temporary).items()
    )
    first, *others = replicas
    manifest = _write_first(first, state, ended, progress)
    for done, options in enumerate(others, start=1):
        _write_copy(options, first, manifest, ended.cut)
        progress("replicas", done, len(others))
    return WrittenCluster(target, temporary, manifest, replicas)


def check_and_name(written: WrittenCluster, progress: Progress) -> None:
    """Start from what was written, as replicas and machines do, and give it its name.

    Raises UnequalRestore, OSError, RestoreError, SectionContentsError, and what an opening raises.
    """
    first, *others = written.replicas
    with _opened(first, written.manifest) as base:
        _check_equal(base, progress)
    for options in others:
        with _opened(options, written.manifest):
            pass  # its files are the first one's, each verified at the opening
    target = written.target
    if target.is_below_one_directory:
        write_secret(written.temporary / CLUSTER_ID_FILE, target.cluster_id.hex() + "\n")
    # The data directory last: a replica starts from nothing that lacks a copy.
    for path in (*target.copies, target.path):
        _temporary_of(path).rename(path)
        sync_directory(path.parent)


# --- Snapshot files ---


def _write_first(
    options: DirectoryOptions, state: PastState, ended: EndedState, progress: Progress
) -> SnapshotManifest:
    storage = FileStorage()
    _make(storage, options.path)
    manifest = _manifest(options, ended.cut, ended.generation)
    files = _snapshot_files(storage, options)
    try:
        writer = GenerationWriter(files, manifest)
        stages = cut_stages(manifest.feature_level)
        for done, stage in enumerate(stages, start=1):
            _write_section(writer, manifest, stage, state.entities(stage))
            progress("sections", done, len(stages))
        writer.finish()
    finally:
        files.close()
    _write_log(storage, options, ended.cut, ended.generation)
    return manifest


def _manifest(options: DirectoryOptions, cut: SealedPrepare, generation: int) -> SnapshotManifest:
    return SnapshotManifest(
        format_version=MANIFEST_VERSION,
        cluster_id=options.cluster_id or b"",
        generation=generation,
        cut_op=cut.op,
        cut_revision=cut.last_revision,
        view=cut.view,
        timestamp=cut.timestamp,
        cut_checksum=cut.checksum,
        feature_level=cut.header.feature_level,
    )


def _write_section(
    writer: GenerationWriter, manifest: SnapshotManifest, stage: Stage, entities: Iterator[Entity]
) -> None:
    """Write a section as one base layer; a section without entities has none."""
    version = DOMAINS[stage].section.version if stage in SERVICE_STAGES else VERSIONS[stage]
    cut = JumpedCut(manifest.generation, manifest.cut_revision, manifest.feature_level)
    tally = SectionTally()
    section = writer.section(stage, SectionHead(version, base_generation=0))
    try:
        section.add_entries(_counted(tally, jumped(stage, entities, cut)))
        summary = domain_pb2.SectionSummary(
            section_version=version,
            applied_revision=manifest.cut_revision,
            state_digest=tally.digest.to_bytes(),
            kinds=[domain_pb2.KindCount(kind=k, entities=n) for k, n in tally.kinds.items()],
        )
        writer.finish_section(stage, section, summary)
    finally:
        section.discard()


def _counted(tally: SectionTally, entities: Iterator[Entity]) -> Iterator[SectionEntry]:
    for kind, key, canonical in entities:
        entry = tally.add((kind, key, None, canonical))
        assert entry is not None, "an entity is not empty"
        yield entry


def _write_copy(
    options: DirectoryOptions,
    first: DirectoryOptions,
    manifest: SnapshotManifest,
    cut: SealedPrepare,
) -> None:
    """Write another replica's directory: the same files, as if they came from the first one."""
    storage = FileStorage()
    _make(storage, options.path)
    files = _snapshot_files(storage, options)
    try:
        incoming = files.incoming(manifest, adopted=0)
        try:
            for reference in incoming.lacking():
                incoming.add_layer(reference, _chunks(first, reference))
            incoming.finish()
        finally:
            incoming.close()
    finally:
        files.close()
    _write_log(storage, options, cut, manifest.generation)


def _chunks(first: DirectoryOptions, reference: LayerReference) -> Iterator[bytes]:
    name = layer_file(reference.digest)
    with Path(first.snapshot_directories()[0], name).open("rb") as file:
        while chunk := file.read(READ_BYTES):
            yield chunk


def _snapshot_files(storage: Storage, options: DirectoryOptions) -> SnapshotFiles:
    if not options.snapshots:
        storage.make_directory(str(options.path / SNAPSHOTS_DIRECTORY))
    assert options.cluster_id is not None
    directories = SnapshotDirectories(
        options.snapshot_directories(), options.cluster_id, options.replica_id
    )
    return SnapshotFiles(storage, directories, report=_refuse_damage)


def _refuse_damage(name: str, verdicts: Sequence[CopyVerdict]) -> None:
    """Files that were just written are intact, or the disk is not fit for a replica."""
    told = ", ".join(map(str, verdicts))
    raise UnequalRestore(f"{name} was damaged as it was written: {told}", "use another disk")


# --- Log ---


def _write_log(
    storage: Storage, options: DirectoryOptions, cut: SealedPrepare, generation: int
) -> None:
    """Write journal and superblock: the cut is committed, and the snapshot is what is behind it."""
    identity = SuperblockState(
        cluster_id=options.cluster_id or b"",
        replica_id=options.replica_id,
        replica_count=options.replica_count or 1,
        view=FOUNDING_VIEW,
        log_view=FOUNDING_VIEW,
        commit_max=cut.op,
        generation=0,
    )
    superblock = SuperblockFile(storage, str(options.path / SUPERBLOCK_FILE), identity)
    journal, _ = Journal.create(
        storage,
        str(options.path / JOURNAL_DIRECTORY),
        cluster_id=identity.cluster_id,
        replica_id=identity.replica_id,
        replica_count=max(_JOURNAL_MAKER_REPLICAS, identity.replica_count),
        segment_bytes=options.segment_bytes,
        superblock=superblock.mark,
    )
    try:
        journal.restart_at(cut.op - 1, cut.parent)
        journal.append([cut])
        superblock.write_core(vsr.CoreState(FOUNDING_VIEW, FOUNDING_VIEW, cut.op))
        named = journal.sequence_for_superblock
        superblock.record_generation(generation, cut.op, named)
    finally:
        journal.close()


# --- Checks and names ---


@contextmanager
def _opened(options: DirectoryOptions, manifest: SnapshotManifest) -> Iterator[Loaded]:
    """Open a directory as a replica does. Raises what that raises, UnequalRestore."""
    files = open_replica(options)
    try:
        base = files.base
        if base is None or base.manifest != manifest or files.recovery.head_uncertain:
            raise UnequalRestore(
                f"replica {options.replica_id} would not restart from the snapshot written",
                "keep the directory for whoever looks for the reason",
            )
        yield base
    finally:
        files.close()


def _check_equal(base: Loaded, progress: Progress) -> None:
    """Load what was written into machines of its own, and compare the digests of all sections."""
    arriving = ArrivingSnapshot(base.manifest)
    parts = list(sections(base.manifest))
    for done, (stage, _) in enumerate(parts, start=1):
        for layer, block in base.blocks(stage):
            arriving.add(Stage(stage), layer, [block])
        progress("check", done, len(parts))
    arriving.state()  # it raises where a digest, a reference or a projection differs


def _make(storage: Storage, path: Path) -> None:
    storage.make_directory(str(path))
    path.chmod(DIRECTORY_MODE)
