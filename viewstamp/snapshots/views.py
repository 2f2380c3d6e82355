"""A generation as plain values, for tables and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from viewstamp.api.snapshots.v1.manifest_pb2 import SectionManifest
from viewstamp.format.columns import row_of
from viewstamp.format.kinds import KINDS
from viewstamp.format.manifest import sections
from viewstamp.snapshots.entities import SECTION_NAMES, Entity
from viewstamp.snapshots.generation import Generation


def about(generation: Generation) -> dict[str, Any]:
    """Return a generation in one row. `timestamp` is log time in microseconds since 1970."""
    manifest = generation.manifest
    layers = [layer for _, section in sections(manifest) for layer in section.layers]
    return {
        "generation": manifest.generation,
        "cluster_id": manifest.cluster_id.hex(),
        "cut_op": manifest.cut_op,
        "cut_revision": manifest.cut_revision,
        "view": manifest.view,
        "timestamp": manifest.timestamp,
        "feature_level": manifest.feature_level,
        "parent_generation": manifest.parent_generation,
        "parent_root": manifest.parent_root.hex(),
        "root": manifest.root.hex(),
        "entities": generation.entities,
        "size_bytes": sum(layer.size_bytes for layer in layers),
        "layers": len(layers),
    }


def sections_of(generation: Generation) -> list[dict[str, Any]]:
    """Return every section of the manifest, with its kinds and its layers, base first."""
    return [_section(stage, section) for stage, section in sections(generation.manifest)]


def rows(entities: Iterable[Entity]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each entity as the name of its kind and its values; bytes are hexadecimal."""
    for entity in entities:
        yield entity.kind.name, textual(row_of(entity.message))


def textual(value: Any) -> Any:
    """Return a value as JSON can hold it: bytes at any depth are hexadecimal."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: textual(one) for name, one in value.items()}
    if isinstance(value, list):
        return [textual(one) for one in value]
    return value


def _section(stage: int, section: SectionManifest) -> dict[str, Any]:
    return {
        "section": SECTION_NAMES[stage],
        "version": section.version,
        "applied_revision": section.applied_revision,
        "state_digest": section.state_digest.hex(),
        "entities": sum(count.entities for count in section.kinds),
        "size_bytes": sum(layer.size_bytes for layer in section.layers),
        "kinds": [
            {"kind": _kind_name(stage, count.kind), "entities": count.entities}
            for count in section.kinds
        ],
        "layers": [
            {
                "generation": layer.generation,
                "base_generation": layer.base_generation,
                "entries": layer.entries,
                "tombstones": layer.tombstones,
                "size_bytes": layer.size_bytes,
                "raw_bytes": layer.raw_bytes,
                "digest": layer.digest.hex(),
            }
            for layer in section.layers
        ],
    }


def _kind_name(stage: int, kind: int) -> str:
    info = KINDS.get((stage, kind))
    return info.name if info is not None else str(kind)
