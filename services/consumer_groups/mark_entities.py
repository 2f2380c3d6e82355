"""Marks as entities of the section: kind 7, key: topic id, first partition of the row."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from operator import le
from typing import Final

from services.consumer_groups.marks import TimeMarks
from services.consumer_groups.model import GroupsState
from services.runtime import offset_rows
from services.runtime.section import Projected, SectionError
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as entities_pb2
from viewstamp.limits import MARKS_PER_ROW_MAX, PARTITIONS_PER_OFFSETS_ROW

_KEY: Final = struct.Struct(">QQ")


def marks_key(row: TimeMarks) -> bytes:
    """Return the key of a row of marks."""
    return _KEY.pack(row.topic_id, offset_rows.first_partition(row.number))


def encode_marks(row: TimeMarks) -> bytes:
    """Return the canonical bytes of a row of marks."""
    entity = entities_pb2.MarksEntity(
        stream_id=row.stream_id,
        topic_id=row.topic_id,
        first_partition=offset_rows.first_partition(row.number),
    )
    for written_by, ends in zip(row.written_by, row.ends, strict=True):
        entity.marks.add(written_by=written_by, end_offsets_plus_one=offset_rows.unpack(ends))
    return entity.SerializeToString(deterministic=True)


def load_marks(state: GroupsState, canonical: bytes) -> Projected:
    """Add the row of an entity. Raises DecodeError, and SectionError if it cannot be."""
    entity = entities_pb2.MarksEntity.FromString(canonical)
    number, _ = offset_rows.place(entity.first_partition)
    times = tuple(each.written_by for each in entity.marks)
    counts = [len(each.end_offsets_plus_one) for each in entity.marks]
    is_whole = 0 < len(times) <= MARKS_PER_ROW_MAX and min(counts) > 0
    if not is_whole or max(counts) > PARTITIONS_PER_OFFSETS_ROW:
        raise SectionError(
            f"row {number} of topic {entity.topic_id} has no marks, too many, or some without ends"
        )
    if not times[0] or any(later <= time for time, later in pairwise(times)):
        raise SectionError(f"the marks of topic {entity.topic_id}, row {number}, are out of order")
    ends = tuple(offset_rows.pack(each.end_offsets_plus_one) for each in entity.marks)
    row = TimeMarks(entity.stream_id, entity.topic_id, number, times, ends)
    state.marks.put((row.topic_id, row.number), row)
    return marks_key(row), encode_marks(row)


def check(state: GroupsState) -> Iterator[None]:
    """Raise SectionError unless ends of marks only grow, up to those that were reported."""
    for key in state.marks.sorted_keys():
        row, known = state.marks.rows[key], state.watermarks.rows.get(key)
        reported = b"" if known is None else known.ends
        if any(not _is_reached(*each) for each in pairwise((*row.ends, reported))):
            raise SectionError(
                f"a mark of topic {row.topic_id}, row {row.number}, is beyond what was reported"
                " later"
            )
        yield


def _is_reached(ends: bytes, later: bytes) -> bool:
    """Return whether each end is at most as high as a later one."""
    if len(ends) > len(later):
        return False
    return all(map(le, offset_rows.unpack(ends), offset_rows.unpack(later)))
