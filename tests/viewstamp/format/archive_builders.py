"""The archive of version 1 that tests keep: objects by their names, made once and never again.

    python -m tests.viewstamp.format.archive_builders

writes it. Whoever changes a format makes a new version beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from blake3 import blake3

from testkit.journal_builders import chain
from viewstamp.archive.archive_objects import archive_name, part_name
from viewstamp.format.archive_manifest import ArchiveManifest, encode_archive
from viewstamp.format.archive_parts import LogPart, encode_index, index_part, piece_part
from viewstamp.format.archive_piece import encode_piece, piece_of
from viewstamp.format.prepare import SealedPrepare

GOLDEN_ARCHIVE: Final = Path(__file__).parent / "golden" / "archive_version_1"
ENTRIES: Final = 6


def entries() -> list[SealedPrepare]:
    """Return the entries of the golden archive."""
    return chain(ENTRIES)


def archive_files() -> dict[str, bytes]:
    """Return the objects: two pieces, of which the first one is in an index, and a manifest."""
    found: dict[str, bytes] = {}
    pieces = [_piece(found, entries()[:4]), _piece(found, entries()[4:])]
    data = encode_index(pieces[:1])
    index = index_part(pieces[:1], blake3(data).digest(), len(data))
    found[part_name(index)] = data
    manifest = ArchiveManifest(
        cluster_id=entries()[0].header.cluster_id,
        number=1,
        written_us=1_700_000_000_000_000,
        replica=2,
        parts=(index, pieces[1]),
    )
    found[archive_name(1)] = encode_archive(manifest)
    return found


def _piece(found: dict[str, bytes], of: list[SealedPrepare]) -> LogPart:
    piece = piece_of(of)
    data = encode_piece(piece)
    part = piece_part(piece.header, blake3(data).digest(), len(data))
    found[part_name(part)] = data
    return part


if __name__ == "__main__":
    for name, data in archive_files().items():
        path = GOLDEN_ARCHIVE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
