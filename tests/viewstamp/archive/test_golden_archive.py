"""Archives of earlier builds load for ever, and those of later builds are refused by name."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3

from tests.viewstamp.archive.shipped import archived, manifests_of, verified
from tests.viewstamp.format.archive_builders import GOLDEN_ARCHIVE, archive_files, entries
from viewstamp.archive.archive_errors import NewerArchive
from viewstamp.archive.archive_objects import part_name
from viewstamp.archive.directory_store import DirectoryStore
from viewstamp.archive.manifest_chain import ManifestChain
from viewstamp.format.archive_parts import LogPart
from viewstamp.format.prepare import checksum_of

VERSION_OFFSET = 36
PIECE_HEADER_BYTES = 144


def test_the_archive_of_version_1_loads() -> None:
    """The committed files are what this build writes, and hold the entries that they held."""
    store = DirectoryStore(GOLDEN_ARCHIVE)
    assert archived(store) == entries()
    verdict = verified(store)
    assert verdict.is_whole
    assert [each.last_revision for each in verdict.restorable] == [len(entries())]
    found = {
        path.relative_to(GOLDEN_ARCHIVE).as_posix(): path.read_bytes()
        for path in GOLDEN_ARCHIVE.rglob("*.*")
    }
    assert found == archive_files()


def newer(data: bytes) -> bytes:
    """Return a file as a later version might begin, with the right checksum."""
    data = data[:VERSION_OFFSET] + b"\x02" + data[VERSION_OFFSET + 1 :]
    if data[32:36] == b"VSAP":
        return checksum_of(data[16:PIECE_HEADER_BYTES]) + data[16:]
    return blake3(data[32:]).digest() + data[32:]


def test_a_newer_manifest_is_refused(tmp_path: Path) -> None:
    """An intact manifest of a later version says what to do, and is not taken for damage."""
    place = tmp_path / "archive"
    shutil.copytree(GOLDEN_ARCHIVE, place)
    (path,) = (place / "manifests").iterdir()
    path.write_bytes(newer(path.read_bytes()))
    with pytest.raises(NewerArchive, match="version 2 is unknown") as caught:
        manifests_of(DirectoryStore(place)).wanted()
    assert caught.value.next_step == "use the build that wrote it, or a newer one"


@pytest.mark.parametrize("kind", ["log", "indexes"])
def test_newer_pieces_are_refused(tmp_path: Path, kind: str) -> None:
    """A piece or an index of a later version ends a verification, with what to do."""
    store = DirectoryStore(tmp_path / "archive")
    files = archive_files()
    name = next(each for each in files if each.startswith(kind))
    stale = newer(files[name])
    for each, data in files.items():
        store.put(each, data)
    chain = manifests_of(store)
    part = next(
        part for part in (*chain.wanted().manifest.parts, *_inner(chain)) if part_name(part) == name
    )
    renamed = replace(part, digest=blake3(stale).digest(), stored_bytes=len(stale))
    store.put(part_name(renamed), stale)
    with pytest.raises(NewerArchive, match="this build reads 1"):
        chain.objects.index(renamed) if kind == "indexes" else chain.objects.piece(renamed)


def _inner(chain: ManifestChain) -> tuple[LogPart, ...]:
    """Return the parts of the index."""
    return chain.objects.index(chain.wanted().manifest.parts[0])
