"""Writes generations as a replica does: deltas, now and then a new base, manifests, copies.

For tests and load tests. It keeps the whole state in memory, which a replica's snapshots do too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from google.protobuf.message import Message

from analytics.snapshots.copies import COPY_NAMES, LAYERS, MANIFESTS, SNAPSHOTS
from analytics.snapshots.selection import SECTION_NAMES
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.format.kinds import KINDS, key_of
from viewstamp.format.layer import LayerHeader, LayerWriter, compress, raw_blocks
from viewstamp.format.manifest import (
    MANIFEST_VERSION,
    encode_manifest,
    layer_name,
    manifest_name,
    root_of,
    section_of,
)
from viewstamp.format.section import Position, SectionEntry, SectionTally
from viewstamp.limits import COMPACT_DELTAS_PERCENT, COMPACT_LAYERS_MAX, FEATURE_LEVEL_MAX

CLUSTER_ID: Final = bytes(range(16))
SECTION_VERSION: Final = 1
OPS_PER_GENERATION: Final = 1000

# New canonical bytes by position, None where the entity goes.
Changes = Mapping[Position, bytes | None]

_PLACES: Final = {info.message: place for place, info in KINDS.items()}


def place_of(message: Message) -> tuple[int, Position]:
    """Return stage and position of an entity."""
    stage, kind = _PLACES[type(message)]
    return stage, (kind, key_of(KINDS[stage, kind], message))


def changes_of(
    changed: Iterable[Message], gone: Iterable[Message] = ()
) -> dict[int, dict[Position, bytes | None]]:
    """Return entities that are new or changed, and those that go, by stage."""
    found: dict[int, dict[Position, bytes | None]] = {stage: {} for stage in SECTION_NAMES}
    for message in gone:
        stage, position = place_of(message)
        found[stage][position] = None
    for message in changed:
        stage, position = place_of(message)
        found[stage][position] = message.SerializeToString(deterministic=True)
    return found


class SnapshotWriter:
    """Writes the generations of one replica below a data directory."""

    def __init__(self, data_directory: Path, copies: Sequence[str] = COPY_NAMES) -> None:
        """Make the copy directories."""
        self.copies = [data_directory / SNAPSHOTS / name for name in copies]
        for copy in self.copies:
            (copy / LAYERS).mkdir(parents=True)
            (copy / MANIFESTS).mkdir()
        self.states: dict[int, dict[Position, bytes]] = {stage: {} for stage in SECTION_NAMES}
        self._tallies = {stage: SectionTally() for stage in SECTION_NAMES}
        self._chains: dict[int, list[LayerReference]] = {stage: [] for stage in SECTION_NAMES}
        self._manifest = SnapshotManifest()

    def snapshot(
        self,
        changes: Mapping[int, Changes],
        *,
        timestamp_us: int,
        generation: int = 0,
        is_rebased: bool = False,
    ) -> SnapshotManifest:
        """Write a generation, the next one unless it is given; return its manifest.

        `changes` are those since the last one, by stage. Tombstones of what never was are written.
        With `is_rebased` each section is a new base, as after a new section version.
        """
        parent = self._manifest
        number = generation or parent.generation + 1
        manifest = SnapshotManifest(
            format_version=MANIFEST_VERSION,
            cluster_id=CLUSTER_ID,
            generation=number,
            cut_op=OPS_PER_GENERATION * number,
            cut_revision=10 * OPS_PER_GENERATION * number,
            timestamp=timestamp_us,
            cut_checksum=bytes(16),
            feature_level=FEATURE_LEVEL_MAX,
            parent_generation=parent.generation,
            parent_root=parent.root,
        )
        for stage in SECTION_NAMES:
            self._change(stage, number, changes.get(stage, {}))
            if is_rebased:
                self._chains[stage] = self._base(stage, number)
            self._describe(manifest, stage)
        manifest.root = root_of(manifest)
        self._write(f"{MANIFESTS}/{manifest_name(number)}", encode_manifest(manifest))
        self._manifest = manifest
        return manifest

    def compact(self, *, is_forced: bool = False) -> None:
        """Merge the chains that are due, or all, into new bases; the next generation has them."""
        for stage, chain in self._chains.items():
            if len(chain) > 1 and (is_forced or _is_due(chain)):
                self._chains[stage] = self._base(stage, chain[-1].generation)

    def _base(self, stage: int, generation: int) -> list[LayerReference]:
        state = sorted(self.states[stage].items())
        entries = [SectionEntry(*position, value) for position, value in state]
        return [self._layer(stage, generation, 0, entries)] if entries else []

    def _change(self, stage: int, generation: int, changes: Changes) -> None:
        state, tally = self.states[stage], self._tallies[stage]
        entries = []
        for (kind, key), new in sorted(changes.items(), key=lambda change: change[0]):
            old = state.get((kind, key))
            tally.add((kind, key, old, new))
            if old != new or new is None:
                entries.append(SectionEntry(kind, key, new))
            if new is not None:
                state[kind, key] = new
            else:
                state.pop((kind, key), None)
        chain = self._chains[stage]
        base = chain[-1].generation if chain else 0
        if not base:
            entries = [entry for entry in entries if entry.canonical is not None]
        if entries:
            chain.append(self._layer(stage, generation, base, entries))

    def _layer(
        self, stage: int, generation: int, base: int, entries: Iterable[SectionEntry]
    ) -> LayerReference:
        header = LayerHeader(
            CLUSTER_ID, stage, SECTION_VERSION, generation, base, FEATURE_LEVEL_MAX
        )
        writer = LayerWriter(header)
        parts = [writer.begin(), *(writer.add(compress(raw)) for raw in raw_blocks(entries))]
        data = b"".join([*parts, writer.finish()])
        self._write(f"{LAYERS}/{layer_name(writer.digest)}", data)
        return LayerReference(
            digest=writer.digest,
            size_bytes=len(data),
            generation=generation,
            base_generation=base,
            entries=writer.entries,
            tombstones=writer.tombstones,
            raw_bytes=writer.raw_bytes,
        )

    def _describe(self, manifest: SnapshotManifest, stage: int) -> None:
        section, tally = section_of(manifest, stage), self._tallies[stage]
        section.version = SECTION_VERSION
        section.applied_revision = manifest.cut_revision
        section.state_digest = tally.digest.to_bytes()
        for kind, entities in tally.kinds.items():
            section.kinds.add(kind=kind, entities=entities)
        section.layers.extend(self._chains[stage])

    def _write(self, name: str, data: bytes) -> None:
        for copy in self.copies:
            (copy / name).write_bytes(data)


def _is_due(chain: Sequence[LayerReference]) -> bool:
    deltas_bytes = sum(layer.raw_bytes for layer in chain[1:])
    return (
        len(chain) > COMPACT_LAYERS_MAX
        or deltas_bytes * 100 > chain[0].raw_bytes * COMPACT_DELTAS_PERCENT
    )
