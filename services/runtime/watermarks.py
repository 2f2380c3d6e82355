"""Where the data of partitions begins and ends, in rows that two domains keep alike.

Streams takes the reports of the data plane and tells consumer groups of them in the same prepare,
so that groups can judge offsets and tell lags. A projection of both sections holds them equal.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from services.runtime import offset_rows
from services.runtime.offset_rows import EMPTY, ByRow
from services.runtime.section import EntityKind, Projected, SectionError
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.errors import Refusal
from viewstamp.limits import (
    OFFSET_MAX,
    OFFSETS_PER_REQUEST_MAX,
    PARTITIONS_PER_OFFSETS_ROW,
    PARTITIONS_PER_REQUEST_MAX,
)
from viewstamp.machine.freezing import State
from viewstamp.machine.tables import Table

KIND: Final = 5
PROJECTION: Final = "watermarks"
# Rows of work to replace a row of offsets.
ROWS_PER_REPLACED: Final = 4
# Offsets of a request for one row of work.
OFFSETS_PER_ROW_OF_WORK: Final = 4
_KEY: Final = struct.Struct(">QQ")  # topic id, first partition of the row


class Watermarks(NamedTuple):
    """A row of the watermarks of a topic (`services.runtime.offset_rows`), never without ends."""

    stream_id: int
    topic_id: int
    number: int  # of the row
    starts: bytes  # first offsets that remain
    ends: bytes  # next offsets to be written, each plus one: 0 where nothing was reported


WatermarksTable = Table[tuple[int, int], Watermarks]  # by topic id and number of the row
_Change = Callable[[Watermarks, Mapping[int, int]], Watermarks]


def invalid_offsets_count(count: int) -> Refusal:
    """Return the refusal of a request about no partition, or about too many."""
    return Refusal.of(
        Reason.REASON_MALFORMED_REQUEST,
        "offsets_count",
        offsets_count=count,
        limit=OFFSETS_PER_REQUEST_MAX,
    )


def impossible_offset(offset: int) -> Refusal:
    """Return the refusal of an offset that no partition can have."""
    return Refusal.of(
        Reason.REASON_OFFSET_OUT_OF_RANGE, "impossible", offset=offset, limit=OFFSET_MAX
    )


def raise_ends(table: WatermarksTable, stream_id: int, topic_id: int, changes: ByRow) -> bool:
    """Move ends that lie lower; return whether any did."""
    return _raise(table, stream_id, topic_id, changes, _with_ends)


def lower_counts(table: WatermarksTable, topic_id: int, changes: ByRow) -> list[int]:
    """Return how many ends are lower than known ones, for each row that has such."""
    counts = []
    for number, ends in changes.items():
        row = table.rows.get((topic_id, number))
        known = () if row is None else offset_rows.unpack(row.ends)
        counts.append(
            sum(each < len(known) and end + 1 < known[each] for each, end in ends.items())
        )
    return [count for count in counts if count]


def raise_starts(table: WatermarksTable, stream_id: int, topic_id: int, changes: ByRow) -> bool:
    """Move starts that lie lower, and the ends that would lie before them; return if any did."""
    return _raise(table, stream_id, topic_id, changes, _with_starts)


def cut(table: WatermarksTable, topic_id: int, partitions_count: int) -> None:
    """Forget the partitions that one command deleted; so many are left."""
    number, kept = offset_rows.place(partitions_count)
    known = table.rows.get((topic_id, number)) if kept else None
    if known is not None:
        starts, ends = offset_rows.cut(known.starts, kept), offset_rows.cut(known.ends, kept)
        _put(table, known, known._replace(starts=starts, ends=ends))
    end = offset_rows.row_count(partitions_count + PARTITIONS_PER_REQUEST_MAX)
    _drop(table, topic_id, number + bool(kept), end)


def drop(table: WatermarksTable, topic_id: int, row_count: int) -> None:
    """Forget a topic whose partitions take at most so many rows."""
    _drop(table, topic_id, 0, row_count)


def entity_kind(table: Callable[[State], WatermarksTable]) -> EntityKind[State]:
    """Return the kind of a section that has the rows of a table."""

    def load(state: State, canonical: bytes) -> Projected:
        row = _decode(canonical)
        table(state).put((row.topic_id, row.number), row)
        return _encode_key(row), encode(row)

    return EntityKind(
        KIND,
        table=table,
        encode=encode,
        load=load,
        encode_key=lambda key, row: _encode_key(row),
    )


def projected(table: WatermarksTable) -> Iterator[Projected]:
    """Yield what both domains must know alike."""
    for key in table.sorted_keys():
        row = table.rows[key]
        yield _encode_key(row), encode(row)


def encode(row: Watermarks) -> bytes:
    """Return the canonical bytes of a WatermarksEntity."""
    return streams_pb2.WatermarksEntity(
        stream_id=row.stream_id,
        topic_id=row.topic_id,
        first_partition=offset_rows.first_partition(row.number),
        start_offsets=offset_rows.unpack(row.starts),
        end_offsets_plus_one=offset_rows.unpack(row.ends),
    ).SerializeToString(deterministic=True)


def _encode_key(row: Watermarks) -> bytes:
    return _KEY.pack(row.topic_id, offset_rows.first_partition(row.number))


def _decode(canonical: bytes) -> Watermarks:
    """Return the row of an entity. Raises DecodeError, and SectionError if its ends lie wrong."""
    entity = streams_pb2.WatermarksEntity.FromString(canonical)
    number, _ = offset_rows.place(entity.first_partition)
    starts, ends = entity.start_offsets, entity.end_offsets_plus_one
    is_whole = 0 < len(ends) <= PARTITIONS_PER_OFFSETS_ROW and len(starts) <= len(ends)
    is_in_order = all(start < end or not start for start, end in zip(starts, ends, strict=False))
    if not is_whole or not is_in_order or max(ends) > OFFSET_MAX + 1:
        raise SectionError(
            f"the watermarks of topic {entity.topic_id}, row {number}, end before they begin, are"
            " beyond the highest offset, or are too many or none"
        )
    return Watermarks(
        entity.stream_id,
        entity.topic_id,
        number,
        offset_rows.pack(starts),
        offset_rows.pack(ends),
    )


def _with_ends(known: Watermarks, changes: Mapping[int, int]) -> Watermarks:
    plus_one = {index: offset + 1 for index, offset in changes.items()}
    ends = offset_rows.raised(known.ends, plus_one)
    return known if ends is known.ends else known._replace(ends=ends)


def _with_starts(known: Watermarks, changes: Mapping[int, int]) -> Watermarks:
    starts = offset_rows.raised(known.starts, changes)
    if starts is known.starts:
        return known  # of a start of 0 nobody learns anything
    dropped = {index: offset for index, offset in changes.items() if offset}
    return _with_ends(known._replace(starts=starts), dropped)


def _raise(
    table: WatermarksTable, stream_id: int, topic_id: int, changes: ByRow, change: _Change
) -> bool:
    is_higher = False
    for number in sorted(changes):
        known = table.rows.get((topic_id, number))
        known = known or Watermarks(stream_id, topic_id, number, EMPTY, EMPTY)
        is_higher |= _put(table, known, change(known, changes[number]))
    return is_higher


def _put(table: WatermarksTable, known: Watermarks, row: Watermarks) -> bool:
    """Replace a row, unless it is the same; one without ends is not kept. Return if it changed."""
    key = (known.topic_id, known.number)
    if row == known:
        return False
    if row.ends:
        table.put(key, row)
    else:
        table.delete(key)
    return True


def _drop(table: WatermarksTable, topic_id: int, number: int, end: int) -> None:
    for row_number in range(number, end):
        if (topic_id, row_number) in table.rows:
            table.delete((topic_id, row_number))
