"""Small generations for tests, written through the real writer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from blake3 import blake3

from coordinator.mux.stage import Stage, cut_stages
from coordinator.snapshot.compaction import Compactor
from coordinator.snapshot.copies import CopyVerdict
from coordinator.snapshot.files import SnapshotDirectories, SnapshotFiles
from coordinator.snapshot.generation_writer import GenerationWriter
from coordinator.snapshot.section_writer import SectionWriter
from coordinator.snapshot.sections import SectionHead
from coordinator.snapshot.verify import LocalFileVerdict
from coordinator.storage import Storage
from testkit.journal_builders import CLUSTER_ID
from testkit.memory_storage import MemoryStorage
from viewstamp.api.domain.v1.domain_service_pb2 import KindCount, SectionSummary
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format.section import Change, SectionTally

STAGES = tuple(map(int, cut_stages(1)))
COPY_DIRECTORIES = ("copies/a", "copies/b", "copies/c")
RESERVE_BYTES_MIN = 4096
# Small blocks, so that a small layer has several.
ENTRIES_PER_BLOCK = 3


def value(*seed: object, size_bytes: int = 400) -> bytes:
    """Bytes that follow from the seed and do not compress."""
    return blake3(repr(seed).encode()).digest(length=size_bytes)


@dataclass
class Repairs:
    """The repairs reported for each file."""

    names: list[str] = field(default_factory=list)
    verdicts: list[tuple[str, ...]] = field(default_factory=list)

    def __call__(self, name: str, verdicts: Sequence[CopyVerdict]) -> None:
        self.names.append(name)
        self.verdicts.append(tuple(str(each) for each in verdicts))


def memory() -> MemoryStorage:
    """An empty disk with the parent of the copy directories."""
    storage = MemoryStorage()
    storage.make_directory("copies")
    return storage


def open_files(
    storage: Storage,
    report: Repairs | None = None,
    *,
    paths: Sequence[str] = COPY_DIRECTORIES,
    cluster_id: bytes = CLUSTER_ID,
    replica_id: int = 0,
    reserve_bytes_min: int = RESERVE_BYTES_MIN,
    compactor: Compactor | None = None,
) -> SnapshotFiles:
    """Snapshot files that are written, and merged, in the calling thread."""
    return SnapshotFiles(
        storage,
        SnapshotDirectories(tuple(paths), cluster_id, replica_id),
        report=report or Repairs(),
        reserve_bytes_min=reserve_bytes_min,
        compact_bytes_min=0,
        compactor=compactor,
    )


def empty_manifest(
    generation: int, cut_op: int, before: SnapshotManifest | None
) -> SnapshotManifest:
    """A manifest without sections."""
    manifest = SnapshotManifest(
        format_version=1,
        cluster_id=CLUSTER_ID,
        generation=generation,
        cut_op=cut_op,
        cut_revision=cut_op,
        view=1,
        timestamp=1_700_000_000_000_000 + cut_op,
        cut_checksum=value("cut", cut_op, size_bytes=16),
        feature_level=1,
    )
    if before is not None:
        manifest.parent_generation = before.generation
        manifest.parent_root = before.root
    return manifest


def append_small_blocks(
    section: SectionWriter, changes: Iterable[Change], tally: SectionTally
) -> None:
    """Append changes in blocks of a few entries."""
    entries = [entry for change in changes if (entry := tally.add(change)) is not None]
    for start in range(0, len(entries), ENTRIES_PER_BLOCK):
        section.add_entries(entries[start : start + ENTRIES_PER_BLOCK])


def write_section(
    writer: GenerationWriter,
    stage: int,
    base_generation: int,
    changes: Iterable[Change],
    tally: SectionTally,
    revision: int,
) -> None:
    """Write a layer of changes against a generation; without changes its chain stays as it is."""
    section = writer.section(Stage(stage), SectionHead(1, base_generation))
    try:
        append_small_blocks(section, changes, tally)
        summary = SectionSummary(
            section_version=1,
            applied_revision=revision,
            state_digest=tally.digest.to_bytes(),
            kinds=[KindCount(kind=kind, entities=count) for kind, count in tally.kinds.items()],
        )
        writer.finish_section(Stage(stage), section, summary)
    finally:
        section.discard()


def reserves(files: SnapshotFiles) -> list[int]:
    """How many bytes are kept in each directory."""
    return [files.reserve.held_bytes(copy) for copy in range(len(files.directories))]


def scrubbed(files: SnapshotFiles, generation: int) -> list[LocalFileVerdict]:
    """Look at every copy of a generation's files."""
    with files.pinned(generation) as pinned:
        return list(pinned.scrub())


class Sections:
    """The state of five sections, and the generations written of it."""

    def __init__(self, files: SnapshotFiles) -> None:
        self.files = files
        self.state: dict[int, dict[tuple[int, bytes], bytes]] = {stage: {} for stage in STAGES}
        self.tallies = {stage: SectionTally() for stage in STAGES}
        self.manifest: SnapshotManifest | None = None

    def write(
        self, generation: int, changed: Mapping[int, Mapping[tuple[int, bytes], bytes | None]]
    ) -> SnapshotManifest:
        """Change the state and write it as a generation; None takes an entity away."""
        base_generation = self.manifest.generation if self.manifest else 0
        manifest = empty_manifest(generation, generation * 10, self.manifest)
        writer = GenerationWriter(self.files, manifest)
        for stage in STAGES:
            changes = list(self._changes(stage, changed.get(stage, {})))
            tally = self.tallies[stage]
            write_section(writer, stage, base_generation, changes, tally, generation * 10)
        writer.finish()
        self.manifest = manifest
        return manifest

    def _changes(
        self, stage: int, changed: Mapping[tuple[int, bytes], bytes | None]
    ) -> Iterable[Change]:
        for (kind, key), new in sorted(changed.items()):
            old = self.state[stage].pop((kind, key), None)
            if new is not None:
                self.state[stage][kind, key] = new
            yield kind, key, old, new


def entities(
    generation: int, count: int, *, first: int = 0, size_bytes: int = 400
) -> dict[int, dict[tuple[int, bytes], bytes | None]]:
    """So many new values in each section, of two kinds."""
    return {
        stage: {
            (1 + number % 2, b"%06d" % number): value(
                generation, stage, number, size_bytes=size_bytes
            )
            for number in range(first, first + count)
        }
        for stage in STAGES
    }


def loaded_state(
    files: SnapshotFiles, generation: int
) -> dict[int, dict[tuple[int, bytes], bytes]]:
    """Read the content of a generation back through all layers of each section."""
    state: dict[int, dict[tuple[int, bytes], bytes]] = {}
    with files.load(generation) as loaded:
        for stage, layers in loaded.layers.items():
            section: dict[tuple[int, bytes], bytes] = {}
            for layer in layers:
                for kind, key, canonical in layer.entries():
                    section.pop((kind, key), None)
                    if canonical is not None:
                        section[kind, key] = canonical
            state[stage] = section
    return state
