"""The superblock's bytes: the little that a replica must never forget, in four copies.

The file has four sectors of 4,096 bytes, one copy each. Integers are unsigned, little-endian.

====== ==== ================================================================================
offset size field
====== ==== ================================================================================
0      16   checksum: BLAKE3-128 of bytes 32..4095; equal in all copies of one state
16     8    copy: 0 to 3, the place of this copy in the file
24     8    reserved, zero
32     4    magic, the ASCII letters "VSSB"
36     2    format version: 4 in an epoch after the first, else 3 where journal_sequence is not 0,
            else 1 where voting_view is 0, else 2
38     2    reserved, zero
40     8    sequence: +1 for each state written, from 1 on
48     16   parent: checksum of the state before; zeros for sequence 1
64     16   cluster_id
80     4    replica_id: in the first epoch from replica_count on, of a standby
84     4    replica_count: number of voters in the first epoch
88     8    view
96     8    log_view
104    8    commit_max
112    8    generation of the snapshot to restart from; 0 for none
120    8    voting_view: the first view in which the replica may vote and vouch for entries; 0
            for an initial member, 2^64-1 for one that is not admitted yet, and for a standby.
            Reserved in version 1
128    8    journal_sequence: of the last record that was durable in the journal; 0 for unknown,
            and before version 3
136    8    damaged_start: sequence of the superblock that noted the last start which found the end
            of the journal damaged; 0 for none, and before version 3
144    232  members of the epoch of `view` (`epoch_members`); zero in the first epoch
376    3720 reserved, zero
====== ==== ================================================================================

Builds that know no other version read version 1, which an initial member has below feature level
FEATURE_LEVEL_NAMED_SUPERBLOCK. From that level on the superblock names a record of the journal, as
the records name the superblock: a copy of either that is older than the other shows. A replica
writes version 4 once members have changed, which needs a feature level of its own.

`coordinator.journal.superblock` writes it, and refuses copies that no replica can have written.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from viewstamp.format import CHECKSUM_BYTES, FormatError, FormatVersionError
from viewstamp.format.epoch_members import (
    EPOCH_MEMBERS_BYTES,
    EPOCH_SHIFT,
    EpochMembers,
    decode_members,
    encode_members,
    invalid_members,
)
from viewstamp.format.prepare import checksum_of
from viewstamp.limits import CLUSTER_ID_BYTES, REPLICAS_MAX, STANDBYS_MAX

COPY_BYTES: Final = 4096
COPIES: Final = 4
# A state is in force once two copies agree on it.
OPEN_QUORUM: Final = 2
SUPERBLOCK_MAGIC: Final = b"VSSB"
SUPERBLOCK_VERSION_INITIAL_MEMBER: Final = 1
SUPERBLOCK_VERSION: Final = 2
SUPERBLOCK_VERSION_NAMED_RECORD: Final = 3
SUPERBLOCK_VERSION_EPOCH: Final = 4
NO_PARENT: Final = bytes(CHECKSUM_BYTES)

_CHECKED_FROM = 32
_PREFIX = struct.Struct("<16sQQ")
_CHECKED = struct.Struct("<4sHHQ16s16sIIQQQQQQQ")
_NO_MEMBERS: Final = bytes(EPOCH_MEMBERS_BYTES)
_USED: Final = _CHECKED.size + EPOCH_MEMBERS_BYTES
_U64_MAX = (1 << 64) - 1
# The voting_view of a replica that lost its disk, until the primary admits it.
NOT_ADMITTED: Final = _U64_MAX
_GROWING: Final = (
    "view",
    "log_view",
    "commit_max",
    "generation",
    "journal_sequence",
    "damaged_start",
)
_CONSTANT: Final = ("cluster_id", "replica_id", "replica_count")


@dataclass(frozen=True, slots=True)
class SuperblockState:
    """What a replica must never forget. All numbers but those of identity only grow.

    `voting_view` grows too, except for the one step down from NOT_ADMITTED: to the view in which a
    replica with a new disk is admitted, or to an initial member's 0 if op 1 names its present boot:
    that replica missed the bootstrap, and has forgotten nothing.
    """

    cluster_id: bytes
    replica_id: int
    replica_count: int
    view: int
    log_view: int
    commit_max: int
    generation: int
    voting_view: int = 0
    journal_sequence: int = 0
    damaged_start: int = 0
    members: EpochMembers | None = None
    """Who belongs to the epoch of `view`; None in the epoch that began with the cluster."""

    @property
    def is_standby(self) -> bool:
        """Whether its replica is a member without a vote."""
        if self.members is not None:
            return self.replica_id in self.members.standbys
        return self.replica_id >= self.replica_count

    @property
    def voter_count(self) -> int:
        """How many replicas have a vote."""
        return self.replica_count if self.members is None else len(self.members.voters)

    @property
    def is_alone(self) -> bool:
        """Whether its replica is the only one that has a vote: its disk alone has the log."""
        if self.members is None:
            return self.replica_count == 1 and self.replica_id == 0
        return self.members.voters == (self.replica_id,)

    @property
    def leads(self) -> bool:
        """Whether its replica is the primary of `view`, by the number of the view."""
        voters = range(self.replica_count) if self.members is None else self.members.voters
        return voters[place_of(self.view) % len(voters)] == self.replica_id


@dataclass(frozen=True, slots=True)
class SuperblockCopy:
    """One state with its place in the chain of states; its encodings differ only in `copy`."""

    checksum: bytes
    sequence: int
    parent: bytes
    state: SuperblockState


def epoch_of(view: int) -> int:
    """Return the epoch of a view: its upper 16 bits."""
    return view >> EPOCH_SHIFT


def place_of(view: int) -> int:
    """Return the place of a view in its epoch: how many views the epoch had before it."""
    return view & ((1 << EPOCH_SHIFT) - 1)


def invalid_state(state: SuperblockState) -> str | None:
    """Return why no replica can be in this state, or None."""
    if len(state.cluster_id) != CLUSTER_ID_BYTES:
        return f"cluster_id is {len(state.cluster_id)} bytes, must be {CLUSTER_ID_BYTES}"
    if not 1 <= state.replica_count <= REPLICAS_MAX:
        return f"replica_count {state.replica_count} is outside 1..{REPLICAS_MAX}"
    reason = _invalid_members(state)
    if reason is not None:
        return reason
    if state.is_standby and state.voting_view != NOT_ADMITTED:
        return f"replica {state.replica_id} is a standby, but may vote from {state.voting_view} on"
    if state.log_view > state.view:
        return f"log_view {state.log_view} is above view {state.view}"
    for name in (*_GROWING, "voting_view"):
        if not 0 <= getattr(state, name) <= _U64_MAX:
            return f"{name} {getattr(state, name)} does not fit into 64 bits unsigned"
    return None


def _invalid_members(state: SuperblockState) -> str | None:
    """Return why this replica cannot be in the epoch of its view, or None."""
    if state.members is not None:
        if epoch_of(state.view) != state.members.epoch:
            return f"view {state.view} is not of epoch {state.members.epoch}, whose members it has"
        return invalid_members(state.members)
    if epoch_of(state.view):
        return f"view {state.view} is of epoch {epoch_of(state.view)}, and its members are unknown"
    if not 0 <= state.replica_id < state.replica_count + STANDBYS_MAX:
        return (
            f"replica_id {state.replica_id} is neither below replica_count {state.replica_count}"
            f" nor one of the {STANDBYS_MAX} standbys beyond"
        )
    return None


def regression(old: SuperblockState, new: SuperblockState) -> str | None:
    """Return why `new` cannot follow `old`, or None."""
    for name in _CONSTANT:
        if getattr(old, name) != getattr(new, name):
            return f"{name} changed from {getattr(old, name)!r} to {getattr(new, name)!r}"
    for name in _GROWING:
        if getattr(new, name) < getattr(old, name):
            return f"{name} fell from {getattr(old, name)} to {getattr(new, name)}"
    if new.voting_view < old.voting_view != NOT_ADMITTED:
        return f"voting_view fell from {old.voting_view} to {new.voting_view}"
    return None


def seal_state(state: SuperblockState, sequence: int, parent: bytes) -> SuperblockCopy:
    """Give a state its place in the chain, and its checksum."""
    return SuperblockCopy(
        checksum_of(_encode_checked(state, sequence, parent)), sequence, parent, state
    )


def _encode_checked(state: SuperblockState, sequence: int, parent: bytes) -> bytes:
    packed = _CHECKED.pack(
        SUPERBLOCK_MAGIC,
        _version(state),
        0,
        sequence,
        parent,
        state.cluster_id,
        state.replica_id,
        state.replica_count,
        state.view,
        state.log_view,
        state.commit_max,
        state.generation,
        state.voting_view,
        state.journal_sequence,
        state.damaged_start,
    )
    packed += _NO_MEMBERS if state.members is None else encode_members(state.members)
    return packed.ljust(COPY_BYTES - _CHECKED_FROM, b"\0")


def _version(state: SuperblockState) -> int:
    if state.members is not None:
        return SUPERBLOCK_VERSION_EPOCH
    if state.journal_sequence:
        return SUPERBLOCK_VERSION_NAMED_RECORD
    return SUPERBLOCK_VERSION if state.voting_view else SUPERBLOCK_VERSION_INITIAL_MEMBER


def encode_copy(sealed: SuperblockCopy, copy: int) -> bytes:
    """Return the sector of copy number `copy`."""
    checked = _encode_checked(sealed.state, sealed.sequence, sealed.parent)
    return _PREFIX.pack(sealed.checksum, copy, 0) + checked


def decode_copy(sector: bytes, copy: int) -> SuperblockCopy:
    """Read and verify the sector of copy number `copy`. Raises FormatError."""
    if len(sector) != COPY_BYTES:
        raise FormatError(f"superblock copy is {len(sector)} bytes, must be {COPY_BYTES}")
    checksum, copy_found, reserved = _PREFIX.unpack_from(sector)
    magic, version, reserved_checked, sequence, parent, *fields = _CHECKED.unpack_from(
        sector, _CHECKED_FROM
    )
    if magic != SUPERBLOCK_MAGIC:
        raise FormatError(f"superblock magic is {magic!r}, must be {SUPERBLOCK_MAGIC!r}")
    if checksum != checksum_of(sector[_CHECKED_FROM:]):
        raise FormatError(f"superblock checksum {checksum.hex()} does not match its bytes")
    if not SUPERBLOCK_VERSION_INITIAL_MEMBER <= version <= SUPERBLOCK_VERSION_EPOCH:
        raise FormatVersionError(
            f"superblock format version {version} is unknown, this build reads 1 to "
            f"{SUPERBLOCK_VERSION_EPOCH}"
        )
    state = replace(SuperblockState(*fields), members=_members_of(sector))
    if version != _version(state) or state.damaged_start > sequence:
        raise FormatError(
            f"voting_view {state.voting_view}, journal_sequence {state.journal_sequence} and "
            f"damaged_start {state.damaged_start} in superblock {sequence} of version {version}"
        )
    if copy_found != copy or reserved:
        raise FormatError(f"copy {copy_found} of the superblock lies in the place of copy {copy}")
    if reserved_checked or sector.count(0, _CHECKED_FROM + _USED) != (
        COPY_BYTES - _CHECKED_FROM - _USED
    ):
        raise FormatError("reserved bytes of the superblock are not zero")
    if sequence < 1:
        raise FormatError("superblock sequence is 0, the first is 1")
    return SuperblockCopy(checksum, sequence, parent, state)


def _members_of(sector: bytes) -> EpochMembers | None:
    """Return the members in the sector of a copy; zeros stand for none."""
    begin = _CHECKED_FROM + _CHECKED.size
    found = sector[begin : begin + EPOCH_MEMBERS_BYTES]
    return None if found == _NO_MEMBERS else decode_members(found)


def newest_agreed(copies: Sequence[SuperblockCopy | None]) -> SuperblockCopy | None:
    """Return the newest state on which enough verified copies agree to be in force, or None."""
    intact = [copy for copy in copies if copy is not None]
    agreed = [copy for copy in intact if intact.count(copy) >= OPEN_QUORUM]
    return max(agreed, key=lambda copy: copy.sequence, default=None)
