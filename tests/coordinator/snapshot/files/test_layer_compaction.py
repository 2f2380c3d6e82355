"""When chains are merged, what results, and the process of low priority that merges them."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from coordinator.snapshot import compaction
from coordinator.snapshot.compaction import (
    CompactionJob,
    ProcessCompactor,
    answer_of,
    first_to_merge,
    job_from_json,
    merge_chain,
)
from coordinator.snapshot.copies import CopyDirectories
from coordinator.snapshot.errors import CompactionFailed, CopiesFailed, NoIntactCopy
from coordinator.snapshot.layout import layer_file
from coordinator.storage import FileStorage
from testkit.generation_builders import (
    Repairs,
    Sections,
    entities,
    loaded_state,
    memory,
    open_files,
)
from testkit.journal_builders import CLUSTER_ID
from testkit.memory_storage import MemoryStorage
from viewstamp.api.snapshots.v1.manifest_pb2 import (
    LayerReference,
    SectionManifest,
    SnapshotManifest,
)
from viewstamp.format.manifest import section_of
from viewstamp.limits import (
    COMPACT_DELTAS_BYTES_MIN,
    COMPACT_DELTAS_PERCENT,
    COMPACT_LAYERS_MAX,
)

LAYERS = COMPACT_LAYERS_MAX

NEEDS: list[tuple[str, list[int], int | None]] = [
    ("nothing", [], None),
    ("a base alone", [100], None),
    ("half of the base", [100, COMPACT_DELTAS_PERCENT], None),
    ("more than half", [100, COMPACT_DELTAS_PERCENT + 1], 0),
    ("half in three deltas", [100, 20, 20, 10], None),
    ("more than half in three", [100, 20, 20, 11], 0),
    ("fifteen layers", [1000] + [1] * (LAYERS - 2), None),
    ("sixteen small ones", [1000] + [1] * (LAYERS - 1), 1),
    ("behind a large delta", [1000, 400] + [1] * (LAYERS - 2), 2),
    ("behind two levels", [9000, 900, 90] + [1] * (LAYERS - 3), 3),
    ("levels that have met", [9000, 900, 20] + [1] * (LAYERS - 3), 2),
    ("ever smaller", [10**9, *(3**power for power in range(LAYERS - 1, 0, -1))], LAYERS // 2),
    ("many, and more than half", [20] + [1] * (LAYERS - 1), 0),
]


@pytest.mark.parametrize(("name", "sizes", "expected"), NEEDS, ids=[need[0] for need in NEEDS])
def test_what_is_merged_goes_by_bytes_and_by_number(
    name: str, sizes: list[int], expected: int | None
) -> None:
    """Deltas beyond half of their base merge with it; of many small deltas those of one size
    merge."""
    layers = [LayerReference(size_bytes=size_bytes) for size_bytes in sizes]
    assert first_to_merge(SectionManifest(layers=layers), bytes_min=0) == expected


def test_small_deltas_are_merged_for_their_number_alone() -> None:
    """Up to a limit the bytes of deltas do not count: merging would rewrite most of a small
    snapshot."""
    sizes = (100, COMPACT_DELTAS_BYTES_MIN), (100, COMPACT_DELTAS_BYTES_MIN + 1)
    small, grown = (
        SectionManifest(layers=[LayerReference(size_bytes=size) for size in chain])
        for chain in sizes
    )
    assert first_to_merge(small) is None
    assert first_to_merge(grown) == 0


def chained(storage: MemoryStorage) -> Sections:
    """Three generations: a base, a delta that changes and adds, and one that removes."""
    sections = Sections(open_files(storage))
    sections.write(1, entities(1, 8))
    sections.write(2, entities(2, 4, first=6))
    sections.write(3, {stage: {(1, b"000004"): None, (2, b"000007"): None} for stage in (1, 2, 3)})
    return sections


def manifest_of(sections: Sections) -> SnapshotManifest:
    """Return the manifest of the last generation."""
    assert sections.manifest is not None
    return sections.manifest


def test_a_merged_base_is_what_the_chain_was() -> None:
    """The next generation begins with the merged base, holds the same, and has two layers."""
    sections = chained(memory())
    before = manifest_of(sections)
    assert sections.files.stages_to_compact(before) == [1, 2, 3, 4, 5]
    for stage in sections.files.stages_to_compact(before):
        base = sections.files.compact(before, stage)
        assert (base.generation, base.base_generation, base.tombstones) == (
            section_of(before, stage).layers[-1].generation,
            0,
            0,
        )
        assert base.entries == len(sections.state[stage])
    assert sections.files.stages_to_compact(before) == []
    after = sections.write(4, entities(4, 1))
    assert [len(section_of(after, stage).layers) for stage in (1, 2, 3, 4, 5)] == [2] * 5
    assert loaded_state(sections.files, 4) == sections.state
    assert sections.files.problems(4) == []
    assert sections.files.problems(3) == []


def test_deltas_are_merged_with_each_other_while_the_base_is_large() -> None:
    """While the base is large only deltas are merged; the merged delta keeps all tombstones."""
    sections = Sections(open_files(memory()))
    first = sections.write(1, entities(1, 3_000))
    for generation in range(2, COMPACT_LAYERS_MAX + 1):
        gone = {(1 + generation % 2, b"%06d" % generation): None}
        changed = entities(generation, 2, first=100 * generation)
        sections.write(generation, {stage: {**changed[stage], **gone} for stage in changed})
    before = manifest_of(sections)
    assert sections.files.stages_to_compact(before) != []
    for stage in sections.files.stages_to_compact(before):
        merged = sections.files.compact(before, stage)
        assert (merged.generation, merged.base_generation) == (COMPACT_LAYERS_MAX, 1)
        assert merged.tombstones == COMPACT_LAYERS_MAX - 1
        chain = sections.files.chain(stage, section_of(before, stage))
        assert chain == [section_of(first, stage).layers[0], merged]
    after = sections.write(COMPACT_LAYERS_MAX + 1, entities(99, 1))
    assert loaded_state(sections.files, COMPACT_LAYERS_MAX + 1) == sections.state
    sections.files.collect_garbage([], COMPACT_LAYERS_MAX + 1)
    assert sections.files.problems(COMPACT_LAYERS_MAX + 1) == []
    assert max(len(section_of(after, stage).layers) for stage in (1, 2, 3)) == 3


def test_a_merged_base_survives_garbage_collection_until_it_is_named() -> None:
    """A merged base is kept before any manifest names it, and freed once its chain is out of
    use."""
    storage = memory()
    sections = chained(storage)
    before = manifest_of(sections)
    base = sections.files.compact(before, 1)
    sections.files.collect_garbage([], 3)
    assert storage.exists(f"copies/a/{layer_file(base.digest)}")
    sections.write(4, entities(4, 1))
    sections.files.collect_garbage([], 4)
    assert sections.files.problems(4) == []
    assert sections.files.chain(1, section_of(before, 1)) == list(section_of(before, 1).layers)


def test_an_unused_merged_base_becomes_garbage_when_it_is_merged_again() -> None:
    """Of two merged bases of one stage the older becomes garbage."""
    storage = memory()
    sections = chained(storage)
    first = sections.files.compact(manifest_of(sections), 1)
    sections.manifest = sections.files.stored_manifest(3)
    # As after a failed generation, the next one continues from the chain of generation 3.
    second = sections.files.compact(manifest_of(sections), 1)
    assert second == first
    sections.files.collect_garbage([], 3)
    assert storage.exists(f"copies/a/{layer_file(first.digest)}")


def test_a_chain_that_does_not_add_up_is_not_merged() -> None:
    """A section whose layers do not give its digest is not merged; nothing is written."""
    storage = memory()
    sections = chained(storage)
    manifest = SnapshotManifest()
    manifest.CopyFrom(manifest_of(sections))
    section_of(manifest, 2).state_digest = bytes(32)
    before = storage.snapshot()
    with pytest.raises(CompactionFailed, match="section of stage 2: state digest is 0000"):
        sections.files.compact(manifest, 2)
    assert storage.snapshot() == before
    assert len(sections.files.chain(2, section_of(manifest, 2))) == 3


def test_merging_repairs_what_it_reads() -> None:
    """A damaged copy of a layer is repaired on the way; without an intact one merging fails."""
    storage = memory()
    sections = chained(storage)
    name = layer_file(section_of(manifest_of(sections), 1).layers[0].digest)
    pristine = storage.content(f"copies/b/{name}")
    storage.flip(f"copies/b/{name}", 300)
    sections.files.compact(manifest_of(sections), 1)
    assert storage.content(f"copies/b/{name}") == pristine
    for directory in "abc":
        storage.flip(f"copies/{directory}/{name}", 300)
    with pytest.raises(NoIntactCopy):
        sections.files.compact(manifest_of(sections), 1)


class Waiting:
    """Merges, and then waits for permission to go on."""

    def __init__(self) -> None:
        self.merged = threading.Event()
        self.go_on = threading.Event()

    def merge(self, copies: CopyDirectories, job: CompactionJob) -> LayerReference:
        """As `merge_chain`."""
        layer = merge_chain(copies, job)
        self.merged.set()
        assert self.go_on.wait(60)
        return layer

    def stop(self) -> None:
        """Never called while anything is under way."""


def test_no_layer_is_collected_while_a_chain_is_merged() -> None:
    """A layer that another process has just written has no pin yet, so no layer is collected."""
    storage, compactor = memory(), Waiting()
    files = open_files(storage, compactor=compactor)
    sections = Sections(files)
    sections.write(1, entities(1, 4))
    manifest = sections.write(2, entities(2, 4))
    thread = threading.Thread(target=files.compact, args=(manifest, 1))
    thread.start()
    assert compactor.merged.wait(60)
    collected = files.collect_garbage([], 2)
    assert (collected.generations, collected.layers, collected.postponed) == ((1,), (), True)
    compactor.go_on.set()
    thread.join()
    assert files.collect_garbage([], 2).postponed is False
    sections.write(3, entities(3, 1))
    assert files.problems(3) == []


# --- The other process ---


def on_disk(tmp_path: Path, repairs: Repairs, small_bytes_max: int = 0) -> Sections:
    """Three generations in real files, with a compactor in a process of its own."""
    paths = [str(tmp_path / name) for name in ("a", "b", "c")]
    compactor = ProcessCompactor(repairs, answer_of, small_bytes_max)
    files = open_files(FileStorage(), repairs, paths=paths, compactor=compactor)
    sections = Sections(files)
    sections.write(1, entities(1, 8))
    sections.write(2, entities(2, 4, first=6))
    return sections


def test_another_process_merges_the_same(tmp_path: Path) -> None:
    """The process of low priority gives the same base as merging here, and reports repairs."""
    repairs = Repairs()
    sections = on_disk(tmp_path, repairs)
    manifest = manifest_of(sections)
    section = section_of(manifest, 4)
    damaged = tmp_path / "c" / layer_file(section.layers[0].digest)
    damaged.write_bytes(b"rot")
    base = sections.files.compact(manifest, 4)
    assert repairs.names == [layer_file(section.layers[0].digest)]
    here = merge_chain(sections.files.copies, CompactionJob(CLUSTER_ID, 4, 1, section))
    assert base == here
    sections.write(3, entities(3, 1))
    assert sections.files.problems(3) == []
    sections.files.close()
    with pytest.raises(CompactionFailed, match="was stopped"):
        sections.files.compact(manifest, 4)


@pytest.mark.parametrize(("spare_bytes", "is_small"), [(0, True), (-1, False)])
def test_small_chains_need_no_process_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spare_bytes: int, is_small: bool
) -> None:
    """The writer process merges a chain within the limit; another one merges a larger chain."""
    (tmp_path / "sized").mkdir()
    manifest = manifest_of(on_disk(tmp_path / "sized", Repairs()))
    raw_bytes = sum(layer.raw_bytes for layer in section_of(manifest, 4).layers)
    sections = on_disk(tmp_path, Repairs(), raw_bytes + spare_bytes)
    monkeypatch.setattr(compaction, "MODULE", "coordinator.snapshot.no_such_module")
    if is_small:
        assert sections.files.compact(manifest_of(sections), 4).base_generation == 0
    else:
        with pytest.raises(CompactionFailed, match="no_such_module"):
            sections.files.compact(manifest_of(sections), 4)
    sections.files.close()
    with pytest.raises(CompactionFailed, match="was stopped"):
        sections.files.compact(manifest, 4)


def test_what_goes_wrong_in_the_other_process_is_told(tmp_path: Path) -> None:
    """Bad copies in the other process fail the compaction here, with the reason; the chain
    stays."""
    sections = on_disk(tmp_path, Repairs())
    manifest = manifest_of(sections)
    for name in ("a", "b", "c"):
        (tmp_path / name / layer_file(section_of(manifest, 4).layers[1].digest)).unlink()
    with pytest.raises(CompactionFailed, match="no copy of layers/"):
        sections.files.compact(manifest, 4)


def test_a_process_that_dies_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that ends without an answer fails the compaction, with its last words."""
    monkeypatch.setattr(compaction, "MODULE", "coordinator.snapshot.no_such_module")
    sections = on_disk(tmp_path, Repairs())
    with pytest.raises(CompactionFailed, match=r"status 1: .*no_such_module"):
        sections.files.compact(manifest_of(sections), 1)


def test_a_failed_sync_in_the_other_process_ends_this_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel reports a failed write once, so the process that learns of it must pass it on."""
    sections = on_disk(tmp_path, Repairs())
    manifest = manifest_of(sections)

    def failing(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    job = CompactionJob(CLUSTER_ID, 1, 1, section_of(manifest, 1))
    text = job.to_json(sections.files.directories)
    assert job_from_json(text) == (job, list(sections.files.directories))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        answer = json.loads(answer_of(text))
    assert answer["must_end"] is True
    assert answer["layer"] == ""
    take = ProcessCompactor(Repairs(), answer_of).take
    with pytest.raises(CopiesFailed, match=r"in the compaction process: .*Input/output error"):
        take(sections.files.copies, answer)
    with pytest.raises(CopiesFailed):
        sections.files.load(1)
