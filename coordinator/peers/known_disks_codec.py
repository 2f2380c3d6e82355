"""What is remembered of the other replicas' directories, as bytes for the disk.

Integers are unsigned, little-endian. First come cluster_id (16 bytes), replica_id (4) of the
replica that remembers, and the number of replicas (4). For each of these, ascending by id, follow
its id (4), the number of its directories (4), and the boot_nonce of its last start (16). Then come
its directories, the newest last: disk_id (16), view, log_view, damaged_start and journal_sequence
(8 each).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from coordinator.peers.hello import DISK_ID_BYTES, DiskMark
from coordinator.peers.known_disks import (
    DISKS_REMEMBERED_MAX,
    REPLICAS_REMEMBERED_MAX,
    RememberedReplica,
)
from viewstamp.format import FormatError
from viewstamp.limits import BOOT_NONCE_BYTES, CLUSTER_ID_BYTES

_HEAD: Final = struct.Struct(f"<{CLUSTER_ID_BYTES}sII")
_REPLICA: Final = struct.Struct(f"<II{BOOT_NONCE_BYTES}s")
_MARK: Final = struct.Struct(f"<{DISK_ID_BYTES}sQQQQ")
MEMORY_BYTES_MAX: Final = _HEAD.size + REPLICAS_REMEMBERED_MAX * (
    _REPLICA.size + DISKS_REMEMBERED_MAX * _MARK.size
)


@dataclass(frozen=True, slots=True)
class MemoryOwner:
    """The replica that remembers. The memory of another one is not taken for its own."""

    cluster_id: bytes
    replica_id: int


def encode_memory(owner: MemoryOwner, remembered: Sequence[RememberedReplica]) -> bytes:
    """Return the memory as bytes, at most MEMORY_BYTES_MAX."""
    parts = [_HEAD.pack(owner.cluster_id, owner.replica_id, len(remembered))]
    for replica in remembered:
        parts.append(_REPLICA.pack(replica.replica_id, len(replica.marks), replica.boot_nonce))
        parts += [
            _MARK.pack(m.disk_id, m.view, m.log_view, m.damaged_start, m.journal_sequence)
            for m in replica.marks
        ]
    return b"".join(parts)


def decode_memory(owner: MemoryOwner, content: bytes) -> tuple[RememberedReplica, ...]:
    """Return the memory of this owner. Raises FormatError, for another owner, too."""
    try:
        cluster_id, replica_id, count = _HEAD.unpack_from(content)
        found = MemoryOwner(cluster_id, replica_id)
        if found != owner:
            raise FormatError(
                f"it is of replica {found.replica_id} of cluster {found.cluster_id.hex()}"
            )
        remembered = tuple(_replicas(content, count))
    except struct.error as error:
        raise FormatError(f"it ends too early: {error}") from error
    if any(one.replica_id >= other.replica_id for one, other in pairwise(remembered)):
        raise FormatError("its replicas do not ascend")
    return remembered


def _replicas(content: bytes, count: int) -> Iterator[RememberedReplica]:
    if count > REPLICAS_REMEMBERED_MAX:
        raise FormatError(f"it tells of {count} replicas, more than {REPLICAS_REMEMBERED_MAX}")
    offset = _HEAD.size
    for _ in range(count):
        replica_id, mark_count, boot_nonce = _REPLICA.unpack_from(content, offset)
        offset += _REPLICA.size
        if not 1 <= mark_count <= DISKS_REMEMBERED_MAX:
            raise FormatError(f"it tells of {mark_count} directories of replica {replica_id}")
        marks = [_MARK.unpack_from(content, offset + n * _MARK.size) for n in range(mark_count)]
        offset += mark_count * _MARK.size
        yield RememberedReplica(replica_id, boot_nonce, tuple(DiskMark(*mark) for mark in marks))
    if offset != len(content):
        raise FormatError(f"it has {len(content)} bytes, must have {offset}")
