"""Snapshots of earlier builds must load to the same state for ever.

`snapshot_files` wrote the files in `golden/version_1` once, and never again. Their root is pinned
here, and their content is compared with that of a second reader.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.message import Message

from tests.tidy.tree import ROOT
from tests.viewstamp.format import second_reader
from tests.viewstamp.format.snapshot_builders import (
    GENERATION,
    chains,
    snapshot_files,
    state_of,
)
from viewstamp.format import block, digest, layer_parts
from viewstamp.format import manifest as manifests
from viewstamp.format.kinds import decode_entity
from viewstamp.format.layer import check_layer, file_digest
from viewstamp.format.manifest import (
    check_layer_belongs,
    decode_manifest,
    digest_of,
    generation_of,
    layer_name,
    manifest_name,
    sections,
)
from viewstamp.format.merge import merge
from viewstamp.format.section import SectionTally

GOLDEN = Path(__file__).parent / "golden" / "version_1"
GOLDEN_ROOT = "e5bcdc1092e64f5cb01c991afd3a2495b3966175efb6edfd0fad3d9cc31988fe"


def golden_files() -> dict[str, bytes]:
    """The committed files, by their names below a copy directory."""
    return {
        path.relative_to(GOLDEN).as_posix(): path.read_bytes()
        for path in sorted(GOLDEN.rglob("*.*"))
    }


def load(files: dict[str, bytes]) -> tuple[bytes, dict[int, second_reader.State]]:
    """Root and state by stage, through the formats and with every check that they have."""
    manifest = decode_manifest(files[f"manifests/{manifest_name(GENERATION)}"])
    states: dict[int, second_reader.State] = {}
    for stage, section in sections(manifest):
        layers = []
        for reference in section.layers:
            data = files[f"layers/{layer_name(reference.digest)}"]
            assert file_digest([data]) == reference.digest
            layers.append(check_layer(data))
            check_layer_belongs(manifest, stage, reference, layers[-1])
        tally = SectionTally()
        states[stage] = {}
        for kind, key, canonical in merge([r.entries() for r in layers], keep_tombstones=False):
            assert canonical is not None
            tally.add((kind, key, None, canonical))
            states[stage][kind, key] = canonical
        assert tally.digest.to_bytes() == section.state_digest
        assert tally.kinds == {count.kind: count.entities for count in section.kinds}
    return manifest.root, states


def test_golden_snapshot_loads_to_the_same_root() -> None:
    """A snapshot of format version 1 gives the entities that were written, and their root."""
    root, states = load(golden_files())
    assert root.hex() == GOLDEN_ROOT
    assert states == {stage: state_of(chain) for stage, chain in chains().items()}


def test_golden_entities_decode() -> None:
    """Each entity decodes, and encodes to the same bytes: the encodings are pinned."""
    for stage, state in load(golden_files())[1].items():
        for (kind, _), canonical in state.items():
            entity: Message = decode_entity(stage, kind, canonical)
            assert entity.SerializeToString(deterministic=True) == canonical


def test_golden_files_have_the_names_of_their_content() -> None:
    """Every golden file is named by its digest or generation, and none is left over."""
    files = golden_files()
    manifest = decode_manifest(files.pop(f"manifests/{manifest_name(GENERATION)}"))
    assert generation_of(manifest_name(GENERATION)) == manifest.generation
    for name, data in files.items():
        assert digest_of(name.removeprefix("layers/")) == file_digest([data])
    used = [reference.digest for _, section in sections(manifest) for reference in section.layers]
    assert sorted(files) == sorted(f"layers/{layer_name(digest)}" for digest in used)


@pytest.mark.parametrize("files", [golden_files(), snapshot_files()], ids=["golden", "new"])
def test_a_second_reader_agrees(files: dict[str, bytes]) -> None:
    """A reader written from the specification alone finds the same root and the same entities."""
    assert second_reader.read_snapshot(files, GENERATION) == load(files)


def test_todays_writer_gives_the_golden_state() -> None:
    """The same entities written today have the root of the golden files, whatever the layers."""
    assert load(snapshot_files()) == load(golden_files())


@pytest.mark.parametrize(
    "module", [block, digest, layer_parts, manifests], ids=lambda module: module.__name__
)
def test_specification_has_the_tables_of_the_docstrings(module: object) -> None:
    """Every byte table stands in docs/snapshot-files.md as it stands in the code."""
    text = (ROOT / "docs" / "snapshot-files.md").read_text(encoding="utf-8")
    tables = byte_tables(module.__doc__ or "")
    assert tables
    for table in tables:
        assert table in text


def byte_tables(docstring: str) -> list[str]:
    """The tables of a docstring: from one rule of equal signs to the second after it."""
    tables: list[str] = []
    rules = 0
    for line in docstring.splitlines():
        is_rule = line.startswith("======")
        if is_rule and rules % 3 == 0:
            tables.append("")
        rules += is_rule
        if rules % 3 or is_rule:
            tables[-1] += f"{line}\n"
    return tables
