"""Damage to a stopped replica's files, and checks of the repair after its next start."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from viewstamp.format import FormatError
from viewstamp.format.layer import file_digest
from viewstamp.format.manifest import decode_manifest, layer_name, manifest_name
from viewstamp.format.record import FRAME_BYTES, SECTOR_BYTES
from viewstamp.format.superblock import COPY_BYTES

PREPARE_KIND: Final = 1
REPAIRED_KIND: Final = 3
# This is after the cut of any snapshot of the tests, and before the last group of records.
BEFORE_THE_END: Final = 12
# Magic, format version, kind, sequence, durable sequence, op.
_FRAME: Final = struct.Struct("<4sHHQQQ")
_FRAME_OFFSET: Final = 16
_SEQUENCE_OFFSET: Final = 24

# A Damage changes files below a data directory; it returns a check that they are good again.
Damage = Callable[[Path], Callable[[], bool]]


class Found(NamedTuple):
    """A record of a journal, by the offset of its frame."""

    path: Path
    offset: int
    kind: int
    op: int


def records(directory: Path) -> Iterator[Found]:
    """Yield the records of a data directory's journal, in order."""
    for path in sorted((directory / "journal").glob("segment-*.log")):
        data = path.read_bytes()
        for offset in range(SECTOR_BYTES, len(data), SECTOR_BYTES):
            magic, _, kind, _, _, op = _FRAME.unpack_from(data, offset + _FRAME_OFFSET)
            if magic == b"VSRC":
                yield Found(path, offset, kind, op)


def record_content(directory: Path) -> Callable[[], bool]:
    """Change a prepare near the end of the log; it is repaired once it is fetched and rewritten."""
    chosen = _chosen(directory)
    _flip(chosen.path, chosen.offset + FRAME_BYTES + 8)
    return lambda: sum(found[2:] == chosen[2:] for found in records(directory)) > 1


def record_frame(directory: Path) -> Callable[[], bool]:
    """Change a frame near the end of the log, so that its kind and op are unknown.

    It is repaired once a record says that its entry is held again, whichever it was.
    """
    chosen = _chosen(directory)
    _flip(chosen.path, chosen.offset + _SEQUENCE_OFFSET)
    return lambda: any(found.kind == REPAIRED_KIND for found in records(directory))


def superblock_copy(directory: Path) -> Callable[[], bool]:
    """Change one copy of four; it is repaired once all are equal, but for their places."""
    path = directory / "superblock"
    _flip(path, COPY_BYTES + 200)

    def are_equal() -> bool:
        data = path.read_bytes()
        copies = (data[start : start + COPY_BYTES] for start in range(0, len(data), COPY_BYTES))
        return len({copy[:16] + copy[24:] for copy in copies}) == 1

    assert not are_equal()
    return are_equal


def snapshot_files(directory: Path) -> Callable[[], bool]:
    """Change every layer and manifest of one copy; those that still exist must be good later."""
    copy = directory / "snapshots" / "copy-1"
    paths = [path for name in ("layers", "manifests") for path in sorted((copy / name).iterdir())]
    good = {path: path.read_bytes() for path in paths}
    assert good
    for path in paths:
        _flip(path, 100)

    def are_good() -> bool:
        return all(path.read_bytes() == data for path, data in good.items() if path.exists())

    assert not are_good()
    return are_good


def every_copy(directory: Path) -> Callable[[], bool]:
    """Change every layer and manifest in every copy; each file must match its name later."""
    return _spoiled(
        [
            path
            for name in ("layers", "manifests")
            for path in sorted((directory / "snapshots").glob(f"copy-*/{name}/*"))
        ]
    )


def every_copy_of_one_layer(directory: Path, number: int) -> Callable[[], bool]:
    """Change one layer in every copy, the same for each number in equal directories."""
    names = sorted({path.name for path in (directory / "snapshots").glob("copy-*/layers/*")})
    return _spoiled(sorted((directory / "snapshots").glob(f"copy-*/layers/{names[number]}")))


def _spoiled(paths: Sequence[Path]) -> Callable[[], bool]:
    assert paths
    for path in paths:
        _flip(path, 100)

    def are_whole() -> bool:
        return all(_is_whole(path) for path in paths if path.exists())

    assert not any(map(_is_whole, paths))
    return are_whole


DAMAGES: Final = MappingProxyType(
    {
        damage.__name__: damage
        for damage in (record_content, record_frame, superblock_copy, snapshot_files, every_copy)
    }
)


def _chosen(directory: Path) -> Found:
    return [found for found in records(directory) if found.kind == PREPARE_KIND][-BEFORE_THE_END]


def _is_whole(path: Path) -> bool:
    data = path.read_bytes()
    if path.suffix == ".layer":
        return layer_name(file_digest([data])) == path.name
    try:
        return manifest_name(decode_manifest(data).generation) == path.name
    except FormatError:
        return False


def _flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
