"""Exports for analysis: a generation as Parquet tables, one per kind of entity, without secrets.

docs/export.md describes the layout and the columns; SCHEMA_VERSION grows with each change of them
that a reader could notice. `_SUCCESS` is written last, when everything else is durable: a directory
without it is no export.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format.manifest import section_of, sections
from viewstamp.format.section import SectionEntry, SectionTally
from viewstamp.snapshots import tables
from viewstamp.snapshots.durable import sync_directory, temporary_of, write_text
from viewstamp.snapshots.entities import SECTION_NAMES, decode, kind_of, kinds_of
from viewstamp.snapshots.errors import BadSection, CannotExport
from viewstamp.snapshots.generation import Generation
from viewstamp.snapshots.verify import compare

SCHEMA_VERSION: Final = 1
MANIFEST: Final = "manifest.json"
SUCCESS: Final = "_SUCCESS"
LAYERS: Final = "layers"
SECTION_PREFIX: Final = "section="
KIND_PREFIX: Final = "kind="
DIRECTORY_MODE: Final = 0o700

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Exported:
    """The number of rows written, by table. A table has the name of its directory."""

    directory: Path
    rows: Mapping[str, int]


def export(
    generation: Generation, directory: Path, *, overwrite: bool, progress: Progress
) -> Exported:
    """Write a generation to `directory`, in bounded memory; report written entities to `progress`.

    Raises SnapshotFilesError: AnalyticsMissing; CannotExport if the directory is not empty and may
    not be overwritten, or holds other files than an export; BadSection if the layers do not match
    the manifest.
    """
    tables.check_available()
    _prepare(directory, overwrite=overwrite)
    described = []
    for stage, _ in sections(generation.manifest):
        described += _export_section(generation, stage, directory, progress)
    described.append(_export_layers(generation.manifest, directory))
    manifest = {**_about(generation.manifest), "tables": described}
    write_text(directory / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    write_text(directory / SUCCESS, "")
    return Exported(directory, {table["path"]: table["rows"] for table in described})


# --- The directory ---


def _prepare(directory: Path, *, overwrite: bool) -> None:
    """Empty the directory. Raises CannotExport rather than delete files that no export wrote."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        there = sorted(directory.iterdir())
    except OSError as error:
        raise CannotExport(f"{directory}: {error.strerror}", "choose another directory") from error
    if there and not overwrite:
        raise CannotExport(
            f"{directory} is not empty: {there[0].name} is in it",
            "choose another directory, or add --overwrite to replace an export",
        )
    foreign = [path for path in there if not _is_of_export(path)]
    if foreign:
        raise CannotExport(
            f"{directory} holds {foreign[0].name}, which no export wrote",
            "choose another directory",
        )
    # Remove the mark of a whole export first, because the export is not whole from here on.
    (directory / SUCCESS).unlink(missing_ok=True)
    sync_directory(directory)
    for path in there:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _is_of_export(path: Path) -> bool:
    if path.is_symlink():
        return False
    if path.is_dir():
        return path.name == LAYERS or path.name.startswith(SECTION_PREFIX)
    written = (path.with_name(MANIFEST), path.with_name(SUCCESS))
    return path in written or path in map(temporary_of, written)


# --- Tables ---


def _export_section(
    generation: Generation, stage: int, directory: Path, progress: Progress
) -> list[dict[str, Any]]:
    """Write every kind of a section; return the tables' part of the manifest."""
    tally = SectionTally()
    counted = _counted(generation.entries(stage), tally, progress)
    cut = _cut(generation.manifest)
    described = {}
    for kind, entries in groupby(counted, key=lambda entry: entry.kind):
        described[kind] = _export_kind(stage, kind, entries, cut, directory)
    for kind in kinds_of(stage):
        if kind not in described:
            described[kind] = _export_kind(stage, kind, iter(()), cut, directory)
    wrong = list(compare(tally, section_of(generation.manifest, stage)))
    if wrong:
        raise BadSection(
            f"section {SECTION_NAMES[stage]} does not add up: {'; '.join(wrong)}",
            f"run `viewstamp snapshot verify {generation.number}`",
        )
    return [described[kind] for kind in sorted(described)]


def _export_kind(
    stage: int, kind: int, entries: Iterator[SectionEntry], cut: dict[str, Any], directory: Path
) -> dict[str, Any]:
    info = kind_of(stage, kind)
    path = f"{SECTION_PREFIX}{SECTION_NAMES[stage]}/{KIND_PREFIX}{info.name}"
    schema = tables.schema_of_entities(info.message)
    rows = (
        (tables.row_of_entity(decode(stage, entry).message, cut), len(entry.canonical or b""))
        for entry in entries
    )
    parts = tables.write(directory / path, schema, rows)
    return {
        "path": path,
        "section": SECTION_NAMES[stage],
        "kind": info.name,
        "kind_number": kind,
        "key": list(info.key_fields),
        **_described(parts, schema),
    }


def _export_layers(manifest: SnapshotManifest, directory: Path) -> dict[str, Any]:
    schema = tables.schema_of_layers()
    cut = _cut(manifest)
    rows = ((row, 0) for row in _layer_rows(manifest, cut))
    parts = tables.write(directory / LAYERS, schema, rows)
    return {"path": LAYERS, "section": None, "kind": None, **_described(parts, schema)}


def _described(parts: tables.Parts, schema: Any) -> dict[str, Any]:
    columns = [{"name": column.name, "type": str(column.type)} for column in schema]
    return {"rows": parts.rows, "parts": parts.names, "columns": columns}


def _counted(
    entries: Iterable[SectionEntry], tally: SectionTally, progress: Progress
) -> Iterator[SectionEntry]:
    for entry in entries:
        tally.add((entry.kind, entry.key, None, entry.canonical))
        yield entry
        progress(1)


def _cut(manifest: SnapshotManifest) -> dict[str, Any]:
    """Return the columns that have the same value in every row of an export."""
    return {
        tables.GENERATION: manifest.generation,
        tables.CUT_REVISION: manifest.cut_revision,
        tables.TIMESTAMP: manifest.timestamp,
    }


def _layer_rows(manifest: SnapshotManifest, cut: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for stage, section in sections(manifest):
        for position, layer in enumerate(section.layers):
            yield {
                **cut,
                "section": SECTION_NAMES[stage],
                "section_version": section.version,
                "position": position,
                "is_base": layer.base_generation == 0,
                "layer_generation": layer.generation,
                "base_generation": layer.base_generation,
                "digest": layer.digest.hex(),
                "size_bytes": layer.size_bytes,
                "raw_bytes": layer.raw_bytes,
                "entries": layer.entries,
                "tombstones": layer.tombstones,
            }


# --- The manifest ---


def _about(manifest: SnapshotManifest) -> dict[str, Any]:
    at = datetime.fromtimestamp(manifest.timestamp // 1_000_000, UTC)
    return {
        "schema_version": SCHEMA_VERSION,
        "redacted": True,
        "cluster_id": manifest.cluster_id.hex(),
        "generation": manifest.generation,
        "cut_op": manifest.cut_op,
        "cut_revision": manifest.cut_revision,
        "view": manifest.view,
        "timestamp": manifest.timestamp,
        "time": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "feature_level": manifest.feature_level,
        "parent_generation": manifest.parent_generation,
        "parent_root": manifest.parent_root.hex(),
        "root": manifest.root.hex(),
        "sections": [_about_section(manifest, stage) for stage, _ in sections(manifest)],
    }


def _about_section(manifest: SnapshotManifest, stage: int) -> dict[str, Any]:
    section = section_of(manifest, stage)
    return {
        "section": SECTION_NAMES[stage],
        "stage": stage,
        "version": section.version,
        "applied_revision": section.applied_revision,
        "state_digest": section.state_digest.hex(),
        "entities": sum(count.entities for count in section.kinds),
        "layers": len(section.layers),
        "size_bytes": sum(layer.size_bytes for layer in section.layers),
        "raw_bytes": sum(layer.raw_bytes for layer in section.layers),
    }
