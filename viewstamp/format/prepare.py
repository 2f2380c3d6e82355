"""A prepare: one entry of the Viewstamped Replication log, byte-identical on all replicas.

A prepare is a header of 128 bytes followed at once by its body of `size` bytes. The journal stores
these bytes and the wire carries them; nothing translates between the two. All integers are
unsigned and little-endian.

====== ==== ================================================================================
offset size header field
====== ==== ================================================================================
0      16   checksum: BLAKE3-128 of header bytes 16..127. It covers the body checksum, so it is
            the identity of the whole prepare and the `parent` of the next op
16     16   body_checksum: BLAKE3-128 of the body
32     16   parent: checksum of the prepare of op - 1; zeros for op 1
48     16   cluster_id
64     4    magic, the ASCII letters "VSPR"
68     2    format version: 1, or 2 for an entry that ends an epoch
70     2    reserved, zero
72     8    view in which the primary created this prepare
80     8    op, 1, 2, 3 ...
88     8    commit: the highest op its primary knew to be committed when it created this prepare
96     8    first_revision: revision of the first command. A prepare without commands names the
            revision that the next command will take
104    8    timestamp: microseconds since the Unix epoch, by the primary's clock
112    4    command_count
116    4    feature_level in force
120    4    size of the body in bytes
124    4    reserved, zero
====== ==== ================================================================================

A reader verifies in this order: length, magic, checksum, version, reserved bytes, `invalid`, body
size, body checksum. A later format version keeps the places of checksum, magic and version and the
extent of the header, so a reader can tell "too new" from "corrupt".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from blake3 import blake3

from viewstamp.format import CHECKSUM_BYTES, FormatError, FormatVersionError
from viewstamp.limits import PREPARE_BODY_BYTES_MAX, PREPARE_COMMANDS_MAX

PREPARE_MAGIC = b"VSPR"
PREPARE_VERSION = 1
PREPARE_VERSION_ENDS_EPOCH = 2
HEADER_BYTES = 128
NO_PARENT = bytes(CHECKSUM_BYTES)

_U64_MAX = (1 << 64) - 1
_U32_MAX = (1 << 32) - 1

_HEADER = struct.Struct("<16s16s16s16s4sHHQQQQQIIII")
_CHECKED = struct.Struct("<16s16s16s4sHHQQQQQIIII")
assert _HEADER.size == HEADER_BYTES
assert _CHECKED.size == HEADER_BYTES - CHECKSUM_BYTES


@dataclass(frozen=True, slots=True)
class SealedHeader:
    """What identifies and orders a prepare. Checksums and ids are 16 bytes each."""

    checksum: bytes
    body_checksum: bytes
    parent: bytes
    cluster_id: bytes
    view: int
    op: int
    commit: int
    first_revision: int
    command_count: int
    feature_level: int
    timestamp: int
    """Microseconds since the Unix epoch."""
    size: int
    """Bytes of the body."""
    ends_epoch: bool = False
    """Whether it is the last entry of an epoch, and its body says who has a vote in the next."""

    @property
    def last_revision(self) -> int:
        """Revision of the last command; first_revision - 1 when there are no commands."""
        return self.first_revision + self.command_count - 1


@dataclass(frozen=True, slots=True)
class SealedPrepare:
    """A sealed log entry: its header and its body. Build one with `seal` or `decode_prepare`."""

    header: SealedHeader
    body: bytes

    @property
    def op(self) -> int:
        """Position in the log: 1, 2, 3 ..."""
        return self.header.op

    @property
    def view(self) -> int:
        """View whose primary created it."""
        return self.header.view

    @property
    def commit(self) -> int:
        """Highest op known to be committed when it was created."""
        return self.header.commit

    @property
    def checksum(self) -> bytes:
        """Its identity, 16 bytes."""
        return self.header.checksum

    @property
    def parent(self) -> bytes:
        """Identity of the entry before it, 16 bytes."""
        return self.header.parent

    @property
    def first_revision(self) -> int:
        """Revision of its first command."""
        return self.header.first_revision

    @property
    def command_count(self) -> int:
        """How many commands its body holds."""
        return self.header.command_count

    @property
    def last_revision(self) -> int:
        """Revision of its last command; first_revision - 1 when there are none."""
        return self.header.last_revision

    @property
    def timestamp(self) -> int:
        """Log time in microseconds since the Unix epoch."""
        return self.header.timestamp


def checksum_of(data: bytes | memoryview) -> bytes:
    """BLAKE3 truncated to 128 bits."""
    return blake3(data).digest(length=CHECKSUM_BYTES)


def invalid(header: SealedHeader) -> str | None:
    """Why no correct primary can have made this header, or None. Checksums are not recomputed."""
    return _invalid_widths(header) or _invalid_numbers(header)


def _invalid_widths(header: SealedHeader) -> str | None:
    for name in ("checksum", "body_checksum", "parent", "cluster_id"):
        value = getattr(header, name)
        if len(value) != CHECKSUM_BYTES:
            return f"{name} is {len(value)} bytes, must be {CHECKSUM_BYTES}"
    for name in ("view", "op", "commit", "first_revision", "timestamp"):
        if not 0 <= getattr(header, name) <= _U64_MAX:
            return f"{name} {getattr(header, name)} does not fit into 64 bits unsigned"
    if not 0 <= header.feature_level <= _U32_MAX:
        return f"feature_level {header.feature_level} does not fit into 32 bits unsigned"
    return None


def _invalid_numbers(header: SealedHeader) -> str | None:
    if header.op < 1:
        return "op is 0, the first op is 1"
    if header.commit >= header.op:
        return f"commit {header.commit} must lie below op {header.op}"
    if header.first_revision < 1:
        return "first_revision is 0, the first revision is 1"
    if not 0 <= header.command_count <= PREPARE_COMMANDS_MAX:
        return f"command_count {header.command_count} exceeds {PREPARE_COMMANDS_MAX}"
    if header.last_revision > _U64_MAX:
        return f"revisions run past 64 bits from {header.first_revision}"
    if not 0 <= header.size <= PREPARE_BODY_BYTES_MAX:
        return f"size {header.size} exceeds {PREPARE_BODY_BYTES_MAX} bytes"
    if (header.op == 1) != (header.parent == NO_PARENT):
        return f"parent of op {header.op} is {header.parent.hex()}; it is zero for op 1 alone"
    return None


def seal(
    *,
    parent: bytes,
    cluster_id: bytes,
    view: int,
    op: int,
    commit: int,
    first_revision: int,
    command_count: int,
    feature_level: int,
    timestamp: int,
    body: bytes,
    ends_epoch: bool = False,
) -> SealedPrepare:
    """Make a prepare and compute its checksums; raises ValueError for an impossible one."""
    unsealed = SealedHeader(
        checksum=NO_PARENT,
        body_checksum=checksum_of(body),
        parent=parent,
        cluster_id=cluster_id,
        view=view,
        op=op,
        commit=commit,
        first_revision=first_revision,
        command_count=command_count,
        feature_level=feature_level,
        timestamp=timestamp,
        size=len(body),
        ends_epoch=ends_epoch,
    )
    reason = invalid(unsealed)
    if reason is not None:
        raise ValueError(f"cannot seal a prepare: {reason}")
    return SealedPrepare(_with_checksum(unsealed, checksum_of(_pack_checked(unsealed))), body)


def _with_checksum(header: SealedHeader, checksum: bytes) -> SealedHeader:
    return SealedHeader(
        checksum,
        header.body_checksum,
        header.parent,
        header.cluster_id,
        header.view,
        header.op,
        header.commit,
        header.first_revision,
        header.command_count,
        header.feature_level,
        header.timestamp,
        header.size,
        header.ends_epoch,
    )


def _pack_checked(header: SealedHeader) -> bytes:
    """The header bytes that its checksum covers."""
    return _CHECKED.pack(
        header.body_checksum,
        header.parent,
        header.cluster_id,
        PREPARE_MAGIC,
        PREPARE_VERSION_ENDS_EPOCH if header.ends_epoch else PREPARE_VERSION,
        0,
        header.view,
        header.op,
        header.commit,
        header.first_revision,
        header.timestamp,
        header.command_count,
        header.feature_level,
        header.size,
        0,
    )


def encode_header(header: SealedHeader) -> bytes:
    """The 128 bytes of a header."""
    return header.checksum + _pack_checked(header)


def encode_prepare(prepare: SealedPrepare) -> bytes:
    """The bytes of a prepare: 128 of header, then the body."""
    return encode_header(prepare.header) + prepare.body


def decode_header(buffer: bytes | memoryview) -> SealedHeader:
    """Read and verify the first 128 bytes of `buffer`; raises FormatError saying what is wrong."""
    if len(buffer) < HEADER_BYTES:
        raise FormatError(f"prepare header is cut off: {len(buffer)} of {HEADER_BYTES} bytes")
    (
        checksum,
        body_checksum,
        parent,
        cluster_id,
        magic,
        version,
        reserved_start,
        view,
        op,
        commit,
        first_revision,
        timestamp,
        command_count,
        feature_level,
        size,
        reserved_end,
    ) = _HEADER.unpack_from(buffer)
    if magic != PREPARE_MAGIC:
        raise FormatError(f"prepare magic is {magic!r}, must be {PREPARE_MAGIC!r}")
    if checksum != checksum_of(buffer[CHECKSUM_BYTES:HEADER_BYTES]):
        raise FormatError(f"prepare header checksum {checksum.hex()} does not match its bytes")
    if not PREPARE_VERSION <= version <= PREPARE_VERSION_ENDS_EPOCH:
        raise FormatVersionError(
            f"prepare format version {version} is unknown, this build reads {PREPARE_VERSION} and "
            f"{PREPARE_VERSION_ENDS_EPOCH}"
        )
    if reserved_start or reserved_end:
        raise FormatError("reserved bytes of the prepare header are not zero")
    header = SealedHeader(
        checksum,
        body_checksum,
        parent,
        cluster_id,
        view,
        op,
        commit,
        first_revision,
        command_count,
        feature_level,
        timestamp,
        size,
        version == PREPARE_VERSION_ENDS_EPOCH,
    )
    # The layout bounds the widths, so only the numbers are left to check.
    reason = _invalid_numbers(header)
    if reason is not None:
        raise FormatError(f"prepare header is impossible: {reason}")
    return header


def decode_prepare(buffer: bytes | memoryview) -> SealedPrepare:
    """Read and verify a prepare that fills `buffer`; raises FormatError saying what is wrong."""
    header = decode_header(buffer)
    body = bytes(buffer[HEADER_BYTES:])
    if len(body) != header.size:
        raise FormatError(
            f"prepare body of op {header.op} is {len(body)} bytes, its header says {header.size}"
        )
    if checksum_of(body) != header.body_checksum:
        raise FormatError(f"prepare body checksum of op {header.op} does not match its bytes")
    return SealedPrepare(header, body)
