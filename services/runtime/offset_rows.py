"""Offsets of consecutive partitions in few bytes: a row of a table holds those of up to 128.

A row is immutable bytes: one unsigned number of 64 bits for each partition, from the first of the
row on, without zeros at the end. So equal offsets are equal rows, a million partitions take 8 MB,
and a change copies one kilobyte at most. A zero stands for what was never said.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from viewstamp.limits import PARTITIONS_PER_OFFSETS_ROW

EMPTY: Final = b""
_OFFSET_BYTES: Final = 8
_NOTHING: Final = bytes(_OFFSET_BYTES)
_ONE: Final = struct.Struct("=Q")
# Which row, and where in it: a shift and a mask cost half of divmod.
_ROW_SHIFT: Final = PARTITIONS_PER_OFFSETS_ROW.bit_length() - 1
_INDEX_MASK: Final = PARTITIONS_PER_OFFSETS_ROW - 1

# By row number, then by index in the row.
ByRow = dict[int, dict[int, int]]


def by_row(offsets: Iterable[tuple[int, int]]) -> ByRow:
    """Return offsets by the row that they belong to; of several for one partition the highest.

    `offsets` are pairs of a partition's number and its offset.
    """
    rows: ByRow = {}
    for partition, offset in offsets:
        row = rows.get(partition >> _ROW_SHIFT)
        if row is None:
            row = rows[partition >> _ROW_SHIFT] = {}
        index = partition & _INDEX_MASK
        if offset > row.get(index, -1):
            row[index] = offset
    return rows


def row_count(partitions_count: int) -> int:
    """Return how many rows so many partitions take."""
    return (partitions_count + _INDEX_MASK) >> _ROW_SHIFT


def place(partition: int) -> tuple[int, int]:
    """Return the row of a partition, and its index there."""
    return partition >> _ROW_SHIFT, partition & _INDEX_MASK


def first_partition(row_number: int) -> int:
    """Return the first partition of a row."""
    return row_number << _ROW_SHIFT


def pack(offsets: Sequence[int]) -> bytes:
    """Return the row of these offsets."""
    return _trimmed(struct.pack(f"={len(offsets)}Q", *offsets))


def unpack(row: bytes) -> tuple[int, ...]:
    """Return the offsets of a row, from its first partition on; those beyond are 0."""
    return struct.unpack(f"={len(row) // _OFFSET_BYTES}Q", row)


def at(row: bytes, index: int) -> int:
    """Return one offset of a row."""
    start = index * _OFFSET_BYTES
    if start >= len(row):
        return 0
    offset: int = _ONE.unpack_from(row, start)[0]
    return offset


def replaced(row: bytes, changes: Mapping[int, int]) -> bytes:
    """Return the row with other offsets at some indexes."""
    changed = _writable(row, max(changes))
    offsets = memoryview(changed).cast("Q")
    for index, offset in changes.items():
        offsets[index] = offset
    offsets.release()
    return _trimmed(bytes(changed))


def raised(row: bytes, changes: Mapping[int, int]) -> bytes:
    """Return the row with each offset at least as high as said; the same object if all were."""
    changed = _writable(row, max(changes))
    offsets = memoryview(changed).cast("Q")
    is_higher = False
    for index, offset in changes.items():
        if offset > offsets[index]:
            offsets[index] = offset
            is_higher = True
    offsets.release()
    # Zeros that were added for the sake of lower offsets are not kept.
    return _trimmed(bytes(changed)) if is_higher else row


def lowered(row: bytes, limits: Mapping[int, int]) -> bytes:
    """Return the row with no offset above its limit, which is above 0, at some indexes."""
    changed = bytearray(row)
    offsets = memoryview(changed).cast("Q")
    for index, limit in limits.items():
        if index < len(offsets) and limit < offsets[index]:
            offsets[index] = limit
    offsets.release()
    return bytes(changed)


def cut(row: bytes, count: int) -> bytes:
    """Return the row with the offsets of its first `count` partitions alone."""
    return _trimmed(row[: count * _OFFSET_BYTES])


def _writable(row: bytes, last_index: int) -> bytearray:
    """Return a copy that has an offset at the index."""
    changed = bytearray(row)
    lacking = (last_index + 1) * _OFFSET_BYTES - len(row)
    if lacking > 0:
        changed.extend(bytes(lacking))
    return changed


def _trimmed(row: bytes) -> bytes:
    end = len(row)
    while end and row[end - _OFFSET_BYTES : end] == _NOTHING:
        end -= _OFFSET_BYTES
    return row if end == len(row) else row[:end]
