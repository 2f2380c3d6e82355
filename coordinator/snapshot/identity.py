"""The identity of a copy directory.

Each has a file IDENTITY of 64 bytes. Integers are unsigned, little-endian.

====== ==== =====================================================
offset size field
====== ==== =====================================================
0      16   checksum: BLAKE3-128 of bytes 16..63
16     4    magic, the ASCII letters "VSCD"
20     2    format version, 1
22     2    copy: 0 to 2, the place of this directory in the list
24     4    replica_id
28     4    reserved, zero
32     16   cluster_id
48     16   reserved, zero
====== ==== =====================================================

It is written before anything else. So a directory with files but without an identity is not ours,
and is refused; an empty one is a new disk, and is taken into use. A damaged identity is rewritten
as long as another of the three directories has an intact one that fits.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.snapshot.errors import WrongCopyDirectory
from viewstamp.format import CHECKSUM_BYTES, FormatError, FormatVersionError
from viewstamp.format.prepare import checksum_of
from viewstamp.limits import SNAPSHOT_COPIES

IDENTITY_FILE: Final = "IDENTITY"
IDENTITY_BYTES: Final = 64
IDENTITY_MAGIC: Final = b"VSCD"
IDENTITY_VERSION: Final = 1
_CHECKED: Final = struct.Struct("<4sHHII16s16x")


@dataclass(frozen=True, slots=True)
class CopyIdentity:
    """The place of a directory: its cluster, its replica, and which of the three it is."""

    cluster_id: bytes
    replica_id: int
    copy: int


def encode_identity(identity: CopyIdentity) -> bytes:
    """Return the 64 bytes of the file."""
    checked = _CHECKED.pack(
        IDENTITY_MAGIC,
        IDENTITY_VERSION,
        identity.copy,
        identity.replica_id,
        0,
        identity.cluster_id,
    )
    return checksum_of(checked) + checked


def decode_identity(data: bytes) -> CopyIdentity:
    """Read and verify the file; raises FormatError."""
    if len(data) != IDENTITY_BYTES:
        raise FormatError(f"identity is {len(data)} bytes, must be {IDENTITY_BYTES}")
    magic, version, copy, replica_id, _, cluster_id = _CHECKED.unpack_from(data, CHECKSUM_BYTES)
    if magic != IDENTITY_MAGIC:
        raise FormatError(f"identity magic is {magic!r}, must be {IDENTITY_MAGIC!r}")
    if checksum_of(data[CHECKSUM_BYTES:]) != data[:CHECKSUM_BYTES]:
        raise FormatError("identity checksum does not match its bytes")
    if version != IDENTITY_VERSION:
        raise FormatVersionError(
            f"identity format version {version} is unknown, this build reads {IDENTITY_VERSION}"
        )
    identity = CopyIdentity(cluster_id, replica_id, copy)
    if encode_identity(identity) != data:
        raise FormatError("reserved bytes of the identity are not zero")
    return identity


@dataclass(frozen=True, slots=True)
class FoundDirectory:
    """A directory: its identity, or why there is none; and whether it holds anything else."""

    directory: str
    identity: CopyIdentity | None
    damage: str | None
    is_empty: bool


def check_directories(directories: Sequence[str]) -> None:
    """Raise WrongCopyDirectory unless there are three different ones."""
    if len(set(directories)) != SNAPSHOT_COPIES or len(directories) != SNAPSHOT_COPIES:
        raise WrongCopyDirectory(
            f"snapshots are kept in {SNAPSHOT_COPIES} different directories; configured are: "
            f"{', '.join(directories)}"
        )


def to_be_written(found: Sequence[FoundDirectory], cluster_id: bytes, replica_id: int) -> list[int]:
    """Return the copies whose identity is missing or damaged, and may be written.

    Raises WrongCopyDirectory for a directory that belongs elsewhere, before anything is changed.
    """
    for copy, each in enumerate(found):
        if each.identity is not None:
            _check_belongs(each, CopyIdentity(cluster_id, replica_id, copy))
    lacking = [copy for copy, each in enumerate(found) if each.identity is None]
    for copy in lacking:
        _check_may_be_written(found[copy], has_fitting=len(lacking) < len(found))
    return lacking


def _check_belongs(found: FoundDirectory, expected: CopyIdentity) -> None:
    identity = found.identity
    assert identity is not None
    if identity.cluster_id != expected.cluster_id:
        what = f"cluster {identity.cluster_id.hex()}, this replica to {expected.cluster_id.hex()}"
    elif identity.replica_id != expected.replica_id:
        what = f"replica {identity.replica_id}, this process is replica {expected.replica_id}"
    elif identity.copy != expected.copy:
        what = f"copy {identity.copy}, but is configured as copy {expected.copy}"
    else:
        return
    raise WrongCopyDirectory(
        f"{found.directory} belongs to {what}; check the copy directories and their order. "
        f"Nothing was changed"
    )


def _check_may_be_written(found: FoundDirectory, *, has_fitting: bool) -> None:
    if found.damage is None and not found.is_empty:
        raise WrongCopyDirectory(
            f"{found.directory} has files but no {IDENTITY_FILE}: it is not a copy directory of "
            f"this replica. Give an empty directory instead: it is filled from the other copies"
        )
    if found.damage is not None and not has_fitting:
        raise WrongCopyDirectory(
            f"{found.directory}/{IDENTITY_FILE} is damaged ({found.damage}), and no other copy "
            f"directory says whose they are. Put the file back from a copy, or start with empty "
            f"directories and move layers and manifests of this replica into one of them"
        )
