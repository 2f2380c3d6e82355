"""Ways in which the data directory of a replica is spoilt, and what its start may say then.

What is certain to be refused says so. A start may bear the rest: other copies or other replicas
have what is gone. But no start may fail in a way that its operator is not told of.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from coordinator.replica.data_directory import SNAPSHOTS_DIRECTORY, SUPERBLOCK_FILE
from coordinator.replica.journal_opening import JOURNAL_DIRECTORY
from coordinator.snapshot.identity import IDENTITY_FILE, CopyIdentity, encode_identity
from viewstamp.format import CHECKSUM_BYTES
from viewstamp.format.prepare import checksum_of
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.format.superblock import (
    COPIES,
    COPY_BYTES,
    SuperblockCopy,
    decode_copy,
    encode_copy,
    seal_state,
)
from viewstamp.limits import CLUSTER_ID_BYTES

# Where the checked part of a superblock begins, and some of its fields.
_CHECKED_FROM: Final = 32
_VERSION_AT: Final = 36
_RESERVED_AT: Final = 38
_SEQUENCE_AT: Final = 40
_LAST_RESERVED_AT: Final = COPY_BYTES - 1
_U64_BYTES: Final = 8
_OTHER_CLUSTER: Final = b"\x66" * CLUSTER_ID_BYTES
_CUT_BYTES: Final = 100


class Spoiling(NamedTuple):
    """What is done to a directory, and whether its start must be refused if it was done."""

    what: str
    spoil: Callable[[Path, Random], bool]
    """Spoils a directory; returns whether it could."""
    must_be_refused: bool = False


# --- The superblock ---


def _superblock(directory: Path) -> bytes:
    file = directory / SUPERBLOCK_FILE
    return file.read_bytes() if file.exists() else b""


def _present(directory: Path) -> SuperblockCopy | None:
    """Return the first copy; the copies of a replica that was killed may differ."""
    content = _superblock(directory)
    return decode_copy(content[:COPY_BYTES], 0) if content else None


def _of_superblock(change: Callable[[bytes], bytes]) -> Callable[[Path, Random], bool]:
    def spoil(directory: Path, _: Random) -> bool:
        content = _superblock(directory)
        if content:
            (directory / SUPERBLOCK_FILE).write_bytes(change(content))
        return bool(content)

    return spoil


def _forged(at: int, data: bytes) -> Callable[[bytes], bytes]:
    """Return what puts bytes into each copy, with a checksum that fits."""

    def forge(content: bytes) -> bytes:
        return b"".join(_forge(content, copy, at, data) for copy in range(COPIES))

    return forge


def _forge(content: bytes, copy: int, at: int, data: bytes) -> bytes:
    sector = bytearray(content[copy * COPY_BYTES : (copy + 1) * COPY_BYTES])
    sector[at : at + len(data)] = data
    sector[:CHECKSUM_BYTES] = checksum_of(bytes(sector[_CHECKED_FROM:]))
    return bytes(sector)


def _swapped(content: bytes) -> bytes:
    """Return each copy at the place of another one."""
    return content[COPY_BYTES:] + content[:COPY_BYTES]


def _two_pairs(
    make: Callable[[SuperblockCopy], Sequence[SuperblockCopy]],
) -> Callable[[Path, Random], bool]:
    """Return what writes two states, twice each."""

    def spoil(directory: Path, _: Random) -> bool:
        present = _present(directory)
        if present is None:
            return False
        first, second = make(present)
        copies = (first, first, second, second)
        content = b"".join(encode_copy(each, place) for place, each in enumerate(copies))
        (directory / SUPERBLOCK_FILE).write_bytes(content)
        return True

    return spoil


def _fork(present: SuperblockCopy) -> Sequence[SuperblockCopy]:
    other = replace(present.state, view=present.state.view + 1)
    return present, seal_state(other, present.sequence, present.parent)


def _unconnected(present: SuperblockCopy) -> Sequence[SuperblockCopy]:
    return present, seal_state(present.state, present.sequence + 1, bytes(CHECKSUM_BYTES))


def _falling(present: SuperblockCopy) -> Sequence[SuperblockCopy]:
    higher = replace(present.state, commit_max=present.state.commit_max + 1)
    first = seal_state(higher, present.sequence, present.parent)
    return first, seal_state(present.state, present.sequence + 1, first.checksum)


def _changing(present: SuperblockCopy) -> Sequence[SuperblockCopy]:
    other = replace(present.state, cluster_id=_OTHER_CLUSTER)
    return present, seal_state(other, present.sequence + 1, present.checksum)


# --- The journal ---


def _segments(directory: Path) -> list[Path]:
    return sorted((directory / JOURNAL_DIRECTORY).glob("segment-*.log"))


def _without_middle(directory: Path, random: Random) -> bool:
    segments = _segments(directory)
    if len(segments) > 2:
        random.choice(segments[1:-1]).unlink()
    return len(segments) > 2


def _without_first(directory: Path, _: Random) -> bool:
    segments = _segments(directory)
    if segments:
        segments[0].unlink()
    return bool(segments)


def _cut_segment(directory: Path, random: Random) -> bool:
    segments = _segments(directory)
    if segments:
        file = random.choice(segments)
        file.write_bytes(file.read_bytes()[:_CUT_BYTES])
    return bool(segments)


def _without_headers(directory: Path, _: Random) -> bool:
    segments = _segments(directory)
    for file in segments:
        file.write_bytes(bytes(SECTOR_BYTES) + file.read_bytes()[SECTOR_BYTES:])
    return bool(segments)


def _exchanged_segments(directory: Path, random: Random) -> bool:
    segments = _segments(directory)
    if len(segments) < 2:
        return False
    one, other = random.sample(segments, 2)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return True


def _struck_sectors(content: bytearray, random: Random) -> None:
    """Damage, move or erase some sectors of a segment."""
    count = len(content) // SECTOR_BYTES
    for _ in range(random.randint(1, 6)):
        at = random.randrange(count) * SECTOR_BYTES
        source = random.randrange(count) * SECTOR_BYTES
        content[at : at + SECTOR_BYTES] = random.choice(
            (
                bytes(SECTOR_BYTES),
                random.randbytes(SECTOR_BYTES),
                content[source : source + SECTOR_BYTES],
            )
        )


def _struck_segments(directory: Path, random: Random) -> bool:
    segments = _segments(directory)
    for file in random.sample(segments, min(2, len(segments))):
        content = bytearray(file.read_bytes())
        _struck_sectors(content, random)
        file.write_bytes(bytes(content))
    return bool(segments)


def _cut_off_end(directory: Path, random: Random) -> bool:
    """Erase everything behind some place of the last segment."""
    segments = _segments(directory)
    if segments:
        content = segments[-1].read_bytes()
        at = random.randrange(1, len(content) // SECTOR_BYTES) * SECTOR_BYTES
        segments[-1].write_bytes(content[:at] + bytes(len(content) - at))
    return bool(segments)


# --- Copies of snapshots ---


def _copies(directory: Path) -> list[Path]:
    return sorted((directory / SNAPSHOTS_DIRECTORY).glob("copy-*"))


def _swapped_copies(directory: Path, _: Random) -> bool:
    copies = _copies(directory)
    if len(copies) < 2 or not all((each / IDENTITY_FILE).exists() for each in copies):
        return False
    aside = directory / "aside"
    copies[0].rename(aside)
    copies[1].rename(copies[0])
    aside.rename(copies[1])
    return True


def _of_identities(make: Callable[[int], bytes]) -> Callable[[Path, Random], bool]:
    def spoil(directory: Path, _: Random) -> bool:
        copies = [each for each in _copies(directory) if (each / IDENTITY_FILE).exists()]
        for number, each in enumerate(copies):
            (each / IDENTITY_FILE).write_bytes(make(number))
        return bool(copies)

    return spoil


def _without_identity(directory: Path, random: Random) -> bool:
    copies = [each for each in _copies(directory) if (each / IDENTITY_FILE).exists()]
    if copies:
        (random.choice(copies) / IDENTITY_FILE).unlink()
    return bool(copies)


def _without(folder: str) -> Callable[[Path, Random], bool]:
    def spoil(directory: Path, _: Random) -> bool:
        if not (directory / folder).exists():
            return False
        shutil.rmtree(directory / folder)
        return True

    return spoil


def _struck_snapshots(directory: Path, random: Random) -> bool:
    """Damage, cut or exchange one file in all copies."""
    copies = _copies(directory)
    names = sorted(
        str(file.relative_to(copies[0]))
        for file in (copies[0].rglob("*") if copies else ())
        if file.is_file() and file.name != IDENTITY_FILE
    )
    if not names:
        return False
    name, other = random.choice(names), random.choice(names)
    how = random.randrange(3)
    for copy in copies:
        file = copy / name
        if not file.exists() or not (copy / other).exists():
            continue
        content = file.read_bytes()
        changes = (content[: len(content) // 2], b"", (copy / other).read_bytes())
        file.write_bytes(changes[how])
    return True


_OTHER_REPLICA: Final = 9
SPOILINGS: Final = (
    Spoiling("no superblock is intact", _of_superblock(lambda c: bytes(len(c))), True),
    Spoiling("the superblock is cut", _of_superblock(lambda c: c[:_CUT_BYTES]), True),
    Spoiling(
        "the superblock is of a later build",
        _of_superblock(_forged(_VERSION_AT, b"\x63\x00")),
        True,
    ),
    Spoiling(
        "the superblock is of an earlier version than its fields",
        _of_superblock(_forged(_VERSION_AT, b"\x02\x00")),
    ),
    Spoiling("copies of the superblock are exchanged", _of_superblock(_swapped), True),
    Spoiling("reserved bytes are not zero", _of_superblock(_forged(_RESERVED_AT, b"\x01")), True),
    Spoiling(
        "the last byte is not zero", _of_superblock(_forged(_LAST_RESERVED_AT, b"\x01")), True
    ),
    Spoiling(
        "the superblock has no number",
        _of_superblock(_forged(_SEQUENCE_AT, bytes(_U64_BYTES))),
        True,
    ),
    Spoiling("two superblocks of one number", _two_pairs(_fork), True),
    Spoiling("a superblock that does not follow the one before", _two_pairs(_unconnected), True),
    Spoiling("a superblock that goes back", _two_pairs(_falling), True),
    Spoiling("a superblock of another cluster follows", _two_pairs(_changing), True),
    Spoiling("no journal", _without(JOURNAL_DIRECTORY)),
    Spoiling("a segment is missing", _without_middle),
    Spoiling("the first segment is missing", _without_first),
    Spoiling("a segment is cut", _cut_segment),
    Spoiling("no segment has a header", _without_headers),
    Spoiling("two segments are exchanged", _exchanged_segments),
    Spoiling("sectors of segments are struck", _struck_segments),
    Spoiling("the end of the journal is gone", _cut_off_end),
    Spoiling("copies are exchanged", _swapped_copies, True),
    Spoiling("copies are rubbish", _of_identities(lambda _: b"rubbish"), True),
    Spoiling(
        "copies are of another cluster",
        _of_identities(lambda copy: encode_identity(CopyIdentity(_OTHER_CLUSTER, 0, copy))),
        True,
    ),
    Spoiling("a copy has no identity", _without_identity),
    Spoiling("no snapshots", _without(SNAPSHOTS_DIRECTORY)),
    Spoiling("a file of a snapshot is struck", _struck_snapshots),
)
