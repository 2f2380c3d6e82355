"""Who belongs to a cluster in an epoch that began after the first one, as a superblock holds it.

====== ==== ================================================================================
offset size field
====== ==== ================================================================================
0      8    first_view: the view that the epoch begins with, with the epoch in its upper 16 bits
8      8    began_op: op of the entry that ended the epoch before
16     1    number of voters, 1 to 7
17     1    number of standbys, 0 to 6
18     1    number of disks, 0 to 7
19     5    reserved, zero
24     28   ids of the voters, in the order in which they lead, 4 bytes each; zeros after them
52     24   ids of the standbys, 4 bytes each; zeros after them
76     140  disks, 20 bytes each: a voter's id (4), the id of its data directory (16); zeros after
216    16   began_checksum: checksum of the entry of began_op
====== ==== ================================================================================

All integers are unsigned and little-endian. `coordinator.vsr.membership` says what it means.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from viewstamp.format import CHECKSUM_BYTES, FormatError

VOTERS_MAX: Final = 7
STANDBYS_MAX: Final = 6
DISK_ID_BYTES: Final = 16
NO_CHECKSUM: Final = bytes(CHECKSUM_BYTES)
EPOCH_SHIFT: Final = 48

_HEAD = struct.Struct("<QQBBB5s")
_VOTERS = struct.Struct(f"<{VOTERS_MAX}I")
_STANDBYS = struct.Struct(f"<{STANDBYS_MAX}I")
_DISK = struct.Struct(f"<I{DISK_ID_BYTES}s")
_DISKS_AT: Final = _HEAD.size + _VOTERS.size + _STANDBYS.size
_CHECKSUM_AT: Final = _DISKS_AT + VOTERS_MAX * _DISK.size
EPOCH_MEMBERS_BYTES: Final = _CHECKSUM_AT + CHECKSUM_BYTES
_RESERVED: Final = bytes(5)
_U32_MAX: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class EpochMembers:
    """The members of an epoch: ids of replicas, and the disks to which votes were given."""

    first_view: int
    voters: tuple[int, ...]
    standbys: tuple[int, ...] = ()
    disks: tuple[tuple[int, bytes], ...] = ()
    began_op: int = 0
    began_checksum: bytes = NO_CHECKSUM

    @property
    def epoch(self) -> int:
        """The number of the epoch, from 1 on."""
        return self.first_view >> EPOCH_SHIFT

    @property
    def members(self) -> tuple[int, ...]:
        """The ids of all members: voters, then standbys."""
        return self.voters + self.standbys


def invalid_members(found: EpochMembers) -> str | None:
    """Return why no epoch has these members, or None."""
    if found.epoch < 1:
        return f"first view {found.first_view} is of the epoch that began with the cluster"
    if not 1 <= len(found.voters) <= VOTERS_MAX:
        return f"{len(found.voters)} voters are outside 1..{VOTERS_MAX}"
    if len(found.standbys) > STANDBYS_MAX:
        return f"{len(found.standbys)} standbys are more than {STANDBYS_MAX}"
    if len(set(found.members)) < len(found.members):
        return f"an id is given twice: {found.members}"
    if not all(0 <= each <= _U32_MAX for each in found.members):
        return f"an id does not fit into 32 bits unsigned: {found.members}"
    if len(found.began_checksum) != CHECKSUM_BYTES:
        return f"the checksum of entry {found.began_op} is not {CHECKSUM_BYTES} bytes"
    return _invalid_disks(found)


def _invalid_disks(found: EpochMembers) -> str | None:
    named = [replica for replica, _ in found.disks]
    if len(set(named)) < len(named) or not set(named) <= set(found.voters):
        return f"disks of {named} are not one for each of some voters {found.voters}"
    if any(len(disk_id) != DISK_ID_BYTES for _, disk_id in found.disks):
        return f"the id of a disk is not {DISK_ID_BYTES} bytes"
    return None


def encode_members(members: EpochMembers) -> bytes:
    """Return the bytes of valid members."""
    counts = (len(members.voters), len(members.standbys), len(members.disks))
    head = _HEAD.pack(members.first_view, members.began_op, *counts, _RESERVED)
    disks = b"".join(_DISK.pack(*each) for each in members.disks)
    return (
        head
        + _VOTERS.pack(*_padded(members.voters, VOTERS_MAX))
        + _STANDBYS.pack(*_padded(members.standbys, STANDBYS_MAX))
        + disks.ljust(VOTERS_MAX * _DISK.size, b"\0")
        + members.began_checksum
    )


def _padded(ids: tuple[int, ...], places: int) -> tuple[int, ...]:
    return ids + (0,) * (places - len(ids))


def decode_members(buffer: bytes) -> EpochMembers:
    """Read and verify the bytes of members. Raises FormatError."""
    first_view, began_op, voters, standbys, disks, _ = _HEAD.unpack_from(buffer)
    # Too many of anything cannot be what was encoded, which the last check finds.
    found = EpochMembers(
        first_view,
        _VOTERS.unpack_from(buffer, _HEAD.size)[:voters],
        _STANDBYS.unpack_from(buffer, _HEAD.size + _VOTERS.size)[:standbys],
        tuple(_DISK.iter_unpack(buffer[_DISKS_AT:_CHECKSUM_AT]))[:disks],
        began_op,
        buffer[_CHECKSUM_AT:EPOCH_MEMBERS_BYTES],
    )
    reason = invalid_members(found)
    if reason is not None:
        raise FormatError(f"the members of the epoch are impossible: {reason}")
    if encode_members(found) != buffer[:EPOCH_MEMBERS_BYTES]:
        raise FormatError("the members of the epoch have counts or reserved bytes of no format")
    return found
