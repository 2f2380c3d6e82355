"""Verification without a cluster: every copy of every file, then the merged layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from viewstamp.api.snapshots.v1.manifest_pb2 import (
    LayerReference,
    SectionManifest,
    SnapshotManifest,
)
from viewstamp.format.manifest import root_of, section_of, sections
from viewstamp.format.section import SectionTally
from viewstamp.snapshots.copies import (
    INTACT,
    BadCopyError,
    Copies,
    LayerFile,
    layer_file,
    manifest_file,
    read_manifest,
)
from viewstamp.snapshots.entities import SECTION_NAMES
from viewstamp.snapshots.errors import SnapshotFilesError
from viewstamp.snapshots.generation import Generation


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """The state of each copy of a file, by copy directory: "intact", or the fault."""

    file: str
    copies: tuple[str, ...]
    files_left: int


@dataclass(frozen=True, slots=True)
class GenerationVerdict:
    """The verdict on the whole: `is_intact` if the layers of good copies match the manifest.

    `problems` also names bad copies that have a good one beside them.
    """

    is_intact: bool
    problems: tuple[str, ...]


def verify(copies: Copies, number: int) -> Iterator[FileVerdict | GenerationVerdict]:
    """Yield a verdict per file, the manifest first, then the one on the whole. Writes nothing.

    0 stands for the newest generation. Raises NoSuchGeneration.
    """
    number = copies.resolve(number)
    name = manifest_file(number)
    found = [_manifest_verdict(path, number) for path in copies.paths(name)]
    problems = _problems(copies, name, found)
    try:
        generation = Generation(copies, number)
    except SnapshotFilesError as error:
        yield FileVerdict(name, tuple(found), 0)
        yield GenerationVerdict(False, (*problems, error.message))
        return
    references = list(_references(generation.manifest))
    problems += _disagreements(copies, number, found)
    yield FileVerdict(name, tuple(found), len(references))
    for left, (stage, reference) in zip(reversed(range(len(references))), references, strict=True):
        name = layer_file(reference)
        found = [
            _layer_verdict(path, generation.manifest, stage, reference)
            for path in copies.paths(name)
        ]
        problems += _problems(copies, name, found)
        yield FileVerdict(name, tuple(found), left)
    wrong = check_sections(generation)
    yield GenerationVerdict(not wrong, (*problems, *wrong))


def check_sections(generation: Generation) -> list[str]:
    """Recompute digest and counts of every section, and the root; return the differences."""
    wrong: list[str] = []
    recomputed = SnapshotManifest()
    recomputed.CopyFrom(generation.manifest)
    for stage, section in sections(generation.manifest):
        try:
            tally = _tally(generation, stage)
        except SnapshotFilesError as error:
            wrong.append(f"section {SECTION_NAMES[stage]}: {error.message}")
            continue
        wrong += [f"section {SECTION_NAMES[stage]}: {text}" for text in compare(tally, section)]
        section_of(recomputed, stage).state_digest = tally.digest.to_bytes()
    root = root_of(recomputed)
    if root != generation.manifest.root:
        wrong.append(f"the root is {root.hex()}, not {generation.manifest.root.hex()}")
    return wrong


def compare(tally: SectionTally, section: SectionManifest) -> Iterator[str]:
    """Yield how the counts of a section differ from the manifest."""
    digest = tally.digest.to_bytes()
    if digest != section.state_digest:
        yield f"its digest is {digest.hex()}, not {section.state_digest.hex()}"
    counts = {count.kind: count.entities for count in section.kinds}
    if tally.kinds != counts:
        yield f"it has {tally.kinds} entities by kind, not {counts}"


def _tally(generation: Generation, stage: int) -> SectionTally:
    tally = SectionTally()
    for kind, key, canonical in generation.entries(stage):
        tally.add((kind, key, None, canonical))
    return tally


def _references(manifest: SnapshotManifest) -> Iterator[tuple[int, LayerReference]]:
    for stage, section in sections(manifest):
        for reference in section.layers:
            yield stage, reference


def _manifest_verdict(path: Path, number: int) -> str:
    return _verdict(lambda: read_manifest(path, number))


def _layer_verdict(
    path: Path, manifest: SnapshotManifest, stage: int, reference: LayerReference
) -> str:
    return _verdict(lambda: LayerFile(path, manifest, stage, reference).close())


def _verdict(look: Callable[[], object]) -> str:
    try:
        look()
    except BadCopyError as error:
        return str(error)
    return INTACT


def _problems(copies: Copies, name: str, found: list[str]) -> list[str]:
    paths = zip(copies.paths(name), found, strict=True)
    return [f"{path}: {verdict}" for path, verdict in paths if verdict != INTACT]


def _disagreements(copies: Copies, number: int, found: list[str]) -> Iterator[str]:
    """Yield a text for each intact manifest that differs from that of the first intact copy."""
    first: SnapshotManifest | None = None
    for path, verdict in zip(copies.paths(manifest_file(number)), found, strict=True):
        if verdict != INTACT:
            continue
        manifest = read_manifest(path, number)
        first = first or manifest
        if manifest != first:
            yield f"{path}: it is intact, and not the manifest that the copy before it holds"
