"""The views of snapshots: their columns, their slices, and the rows of a slice.

    entities   one row per entity; with the option `kind`, its fields as columns
    facts      one row per entity or grant: ids, expiry and bytes, for counting and joining
    changes    entities added, changed and removed by each generation, counted by kind
    sections   bytes and entities of each kind
    layers     one row per layer of each section, as in an export

Entities are sliced by ranges of keys across all layers, the rest by generation and section.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql.types import StructType

from analytics.schema import SNAPSHOT_SECTIONS
from analytics.snapshots import copies, entities
from analytics.snapshots.chain import (
    Chain,
    chain_of,
    changed_by_base,
    changed_by_delta,
    merged,
    opened,
    ranges,
)
from analytics.snapshots.columns import struct
from analytics.snapshots.errors import SnapshotError
from analytics.snapshots.layers import CopiedLayer, KeyRange
from analytics.snapshots.selection import SECTION_NAMES, SnapshotSelection, kind_name
from analytics.snapshots.weights import kind_weights
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format.block import ENTRY_HEADER_BYTES
from viewstamp.format.manifest import sections
from viewstamp.format.section import Change

Row = tuple[Any, ...]
WHOLE: Final = KeyRange()
NOTHING: Final = KeyRange(stop=WHOLE.start)


@dataclass(frozen=True, slots=True)
class SectionSlice:
    """A range of keys of one section of one generation.

    `manifest` and `before` are manifest files: of the generation, and of what it is compared with.
    `work_bytes` estimates the work.
    """

    directories: tuple[Path, ...]
    manifest: bytes
    stage: int
    work_bytes: int = 0
    within: KeyRange = WHOLE
    before: bytes | None = None


class View(NamedTuple):
    """Columns, a function that slices a selection, and one that yields the rows of a slice."""

    struct: StructType
    plan: Callable[[SnapshotSelection], Iterable[SectionSlice]]
    rows: Callable[[SectionSlice], Iterator[Row]]


def entities_of(struct: StructType, make: entities.Maker) -> View:
    """Return the view of the merged entities of which `make` makes rows."""

    def rows(part: SectionSlice) -> Iterator[Row]:
        manifest = copies.decoded(part.manifest)
        cut = entities.GenerationCut(manifest.generation, manifest.cut_revision, manifest.timestamp)
        with opened(part.directories, chain_of(manifest, part.stage)) as layers:
            for entry in merged(layers, part.within):
                yield from make(cut, part.stage, entry)

    return View(struct, _plan_entities, rows)


def _plan_entities(selection: SnapshotSelection) -> Iterator[SectionSlice]:
    for manifest in selection.manifests():
        message = copies.decoded(manifest)
        for stage in selection.stages:
            with opened(selection.directories, chain_of(message, stage)) as layers:
                if layers:
                    found = ranges(layers, selection.within, selection.partition_bytes)
                    for within, raw_bytes in found:
                        yield SectionSlice(
                            selection.directories, manifest, stage, raw_bytes, within
                        )


# --- Changes ---

# Entities added, changed and removed, then their bytes.
COUNTS: Final = 6


def _plan_changes(selection: SnapshotSelection) -> Iterator[SectionSlice]:
    """Yield ranges of the sections of each generation whose earlier state is known."""
    there = copies.generations(selection.directories)
    for manifest in selection.manifests():
        message = copies.decoded(manifest)
        parent = None
        if message.parent_generation in there:
            parent = copies.manifest_of(selection.directories, message.parent_generation)
        for stage in selection.stages:
            yield from _plan_section_changes(selection, manifest, stage, parent)


def _plan_section_changes(
    selection: SnapshotSelection, manifest: bytes, stage: int, parent: bytes | None
) -> Iterator[SectionSlice]:
    message = copies.decoded(manifest)
    chain = chain_of(message, stage)
    is_rewritten = _newest(chain) == message.generation and len(chain.layers) == 1
    if is_rewritten and message.parent_generation and parent is None:
        return
    if _newest(chain) != message.generation:
        # Nothing changed: an empty range yields a row of zeros.
        yield SectionSlice(selection.directories, manifest, stage, 0, NOTHING)
        return
    before = parent if is_rewritten else None
    with opened(selection.directories, chain) as layers:
        looked_at = layers if is_rewritten else layers[-1:]
        found = ranges(looked_at, selection.within, selection.partition_bytes)
        for within, raw_bytes in found:
            yield SectionSlice(selection.directories, manifest, stage, raw_bytes, within, before)


def _changes(part: SectionSlice) -> Iterator[Row]:
    """Yield a row per kind, and one of zeros where there is no change."""
    manifest = copies.decoded(part.manifest)
    counts: dict[int, list[int]] = {0: [0] * COUNTS}
    for kind, key, old, new in _change_list(part, manifest):
        what = 0 if old is None else 2 if new is None else 1
        count = counts.setdefault(kind, [0] * COUNTS)
        count[what] += 1
        count[what + 3] += ENTRY_HEADER_BYTES + len(key) + len(new or b"")
    for kind, count in counts.items():
        name = kind_name(part.stage, kind) if kind else None
        yield manifest.generation, SECTION_NAMES[part.stage], name, *count


def _change_list(part: SectionSlice, manifest: SnapshotManifest) -> Iterator[Change]:
    if part.within.stop <= part.within.start:
        return
    chain = chain_of(manifest, part.stage)
    with ExitStack() as stack:
        layers = stack.enter_context(opened(part.directories, chain))
        older: list[CopiedLayer] = []
        if len(layers) > 1:
            yield from changed_by_delta(layers[:-1], layers[-1], part.within)
            return
        if part.before is not None:
            parent = chain_of(copies.decoded(part.before), part.stage)
            older = stack.enter_context(opened(part.directories, parent))
        yield from changed_by_base(older, layers, part.within)


def _newest(chain: Chain) -> int:
    return chain.layers[-1].generation if chain.layers else 0


# --- Whole generations ---


def _plan_generations(selection: SnapshotSelection) -> Iterator[SectionSlice]:
    for manifest in selection.manifests():
        for stage in selection.stages:
            yield SectionSlice(selection.directories, manifest, stage)


def _sections(part: SectionSlice) -> Iterator[Row]:
    """Yield a row per kind that has entities or bytes."""
    manifest = copies.decoded(part.manifest)
    section = dict(sections(manifest))[part.stage]
    counts = {count.kind: count.entities for count in section.kinds}
    with opened(part.directories, chain_of(manifest, part.stage)) as layers:
        weights = [(layer.reference, kind_weights(layer)) for layer in layers]
    for kind in sorted({*counts, *(kind for _, held in weights for kind in held)}):
        own = [(layer, held[kind]) for layer, held in weights if kind in held]
        base_bytes = sum(held.file_bytes for layer, held in own if not layer.base_generation)
        delta_bytes = sum(held.file_bytes for layer, held in own if layer.base_generation)
        yield (
            manifest.generation,
            SECTION_NAMES[part.stage],
            kind_name(part.stage, kind),
            counts.get(kind, 0),
            base_bytes + delta_bytes,
            sum(held.raw_bytes for _, held in own),
            len(section.layers),
            base_bytes,
            delta_bytes,
            manifest.cut_revision,
            manifest.timestamp,
        )


def _layers(part: SectionSlice) -> Iterator[Row]:
    manifest = copies.decoded(part.manifest)
    for position, layer in enumerate(chain_of(manifest, part.stage).layers):
        yield (
            manifest.generation,
            SECTION_NAMES[part.stage],
            position,
            layer.base_generation == 0,
            layer.generation,
            layer.base_generation,
            layer.digest.hex(),
            layer.size_bytes,
            layer.raw_bytes,
            layer.entries,
            layer.tombstones,
        )


CHANGES: Final = View(
    struct(
        "generation BIGINT, section STRING, kind STRING, added BIGINT, changed BIGINT,"
        " removed BIGINT, added_bytes BIGINT, changed_bytes BIGINT, removed_bytes BIGINT"
    ),
    _plan_changes,
    _changes,
)
SECTIONS: Final = View(struct(SNAPSHOT_SECTIONS.columns), _plan_generations, _sections)
LAYERS: Final = View(
    struct(
        "generation BIGINT, section STRING, position BIGINT, is_base BOOLEAN,"
        " layer_generation BIGINT, base_generation BIGINT, digest STRING, size_bytes BIGINT,"
        " raw_bytes BIGINT, entries BIGINT, tombstones BIGINT"
    ),
    _plan_generations,
    _layers,
)
ENTITIES: Final = "entities"
VIEWS: Final[dict[str, View]] = {
    "facts": entities_of(entities.FACTS_STRUCT, entities.facts),
    "changes": CHANGES,
    "sections": SECTIONS,
    "layers": LAYERS,
}


def view_of(name: str, kind: str | None) -> View:
    """Return a view by name, with the columns of a kind if one is given. Raises SnapshotError."""
    if name == ENTITIES and kind is not None:
        return entities_of(entities.kind_struct(kind), entities.kind_row)
    if name == ENTITIES:
        return entities_of(entities.ENTITIES_STRUCT, entities.entity_row)
    if name not in VIEWS:
        known = ", ".join((ENTITIES, *VIEWS))
        raise SnapshotError(f"{name!r} is no view of a snapshot: choose from {known}")
    return VIEWS[name]
