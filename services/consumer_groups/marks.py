"""By when data was written: what brokers have reported, remembered for some times.

A mark says of a row of partitions that all below its ends was written by its time. So a reader who
wants what was written from some time on begins at the ends of the newest mark before it. Each mark
is true by itself: whichever are forgotten, nobody reads too little.

A row keeps at most MARKS_PER_ROW_MAX marks, of which at most two lie within MARK_INTERVAL_US. The
newest has the last report, and the older they are the fewer are left: so an offset that is found is
too early by a part of its age. A mark has the ends of all partitions of the row, since one report
mostly tells of many. So where one partition has lost data, times of the others become coarser: of
the marks that said too much of it, LOWERED_MARKS_MAX are left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final, NamedTuple

from services.runtime import offset_rows
from services.runtime.offset_rows import EMPTY, ByRow
from viewstamp.limits import (
    LOWERED_MARKS_MAX,
    MARK_INTERVAL_US,
    MARKS_PER_ROW_MAX,
    PARTITIONS_PER_REQUEST_MAX,
)
from viewstamp.machine.tables import Table

# Gaps between marks are compared as parts of their age: so many parts are the whole.
_PARTS: Final = 1 << 20


class TimeMarks(NamedTuple):
    """The marks of a row of a topic's partitions: at least one."""

    stream_id: int
    topic_id: int
    number: int  # of the row
    written_by: tuple[int, ...]  # microseconds since 1970, ascending
    # Of each mark: next offsets to be written, each plus one (`services.runtime.offset_rows`). No
    # partition has a lower one in a later mark.
    ends: tuple[bytes, ...]

    def before(self, time_us: int) -> tuple[int, bytes]:
        """Return the newest mark before a time; 0 and no ends if there is none."""
        position = bisect_left(self.written_by, time_us)
        return (self.written_by[position - 1], self.ends[position - 1]) if position else (0, EMPTY)


MarksTable = Table[tuple[int, int], TimeMarks]  # by topic id and number of the row


def note(table: MarksTable, stream_id: int, topic_id: int, changes: ByRow, written_by: int) -> None:
    """Remember a report of ends, by when all below them was written; no time if that is 0.

    An end that is lower than a mark says that data was lost, so marks go down to it, or are
    forgotten: what is written there from now on is newer than they say.
    """
    for number in sorted(changes):
        known = table.rows.get((topic_id, number))
        known = known or TimeMarks(stream_id, topic_id, number, (), ())
        row = _noted(known, changes[number], written_by)
        if row is not known:
            table.put((topic_id, number), row)


def cut(table: MarksTable, topic_id: int, partitions_count: int) -> None:
    """Forget the partitions that one command deleted; so many are left."""
    number, kept = offset_rows.place(partitions_count)
    known = table.rows.get((topic_id, number)) if kept else None
    if known is not None:
        _put_cut(table, known, kept)
    end = offset_rows.row_count(partitions_count + PARTITIONS_PER_REQUEST_MAX)
    _drop(table, topic_id, number + bool(kept), end)


def drop(table: MarksTable, topic_id: int, row_count: int) -> None:
    """Forget a topic whose partitions take at most so many rows."""
    _drop(table, topic_id, 0, row_count)


def _noted(known: TimeMarks, changes: Mapping[int, int], written_by: int) -> TimeMarks:
    before = known.ends[-1] if known.ends else EMPTY
    plus_one = {index: offset + 1 for index, offset in changes.items()}
    ends = offset_rows.replaced(before, plus_one)
    if ends == before:
        return known  # the older mark of the same ends says more
    told = offset_rows.unpack(before)
    lost = {each: end for each, end in plus_one.items() if each < len(told) and end < told[each]}
    known = _lowered(known, lost) if lost else known
    return _marked(known, written_by, ends) if written_by else known


def _lowered(known: TimeMarks, lost: Mapping[int, int]) -> TimeMarks:
    """Return marks that are nowhere above ends that turned out to be lower.

    Marks that are not above them stay. Of the others few are left, the first and the last among
    them: to lower a mark is to copy it, and a report must not copy all of a row.
    """
    below = bisect_left(known.ends, True, key=lambda row: _is_above(row, lost))
    last = len(known.ends) - below - 1
    parts = LOWERED_MARKS_MAX - 1
    left = sorted({below + last * part // parts for part in range(parts + 1)})
    lowered = (offset_rows.lowered(known.ends[each], lost) for each in left)
    times = (known.written_by[each] for each in left)
    return known._replace(
        written_by=(*known.written_by[:below], *times), ends=(*known.ends[:below], *lowered)
    )


def _is_above(row: bytes, lost: Mapping[int, int]) -> bool:
    """Return whether a mark is above some of the ends; so are those after it."""
    return any(offset_rows.at(row, index) > end for index, end in lost.items())


def _marked(known: TimeMarks, written_by: int, ends: bytes) -> TimeMarks:
    """Return marks with a newer one. It takes the place of the last if that is hardly older."""
    times, rows = known.written_by, known.ends
    if times:
        written_by = max(written_by, times[-1])
        is_near = len(times) > 1 and written_by - times[-2] < MARK_INTERVAL_US
        if is_near or written_by == times[-1]:
            times, rows = times[:-1], rows[:-1]
    times, rows = (*times, written_by), (*rows, ends)
    if len(times) > MARKS_PER_ROW_MAX:
        least = _least_needed(times)
        times, rows = times[:least] + times[least + 1 :], rows[:least] + rows[least + 1 :]
    return known._replace(written_by=times, ends=rows)


def _least_needed(times: tuple[int, ...]) -> int:
    """Return which mark to forget, neither the oldest nor the newest.

    Without it, who asks for a time just before the next mark begins at the one before: too early by
    the gap between these two. The gap should be the smallest part of the age.
    """
    now = times[-1] + MARK_INTERVAL_US
    between = range(1, len(times) - 1)
    return min(
        between,
        key=lambda each: (times[each + 1] - times[each - 1]) * _PARTS // (now - times[each + 1]),
    )


def _put_cut(table: MarksTable, known: TimeMarks, kept: int) -> None:
    """Leave the first partitions of a row; marks that say nothing of them go."""
    cut_rows = [offset_rows.cut(row, kept) for row in known.ends]
    told = [each for each, row in enumerate(cut_rows) if row]
    key = (known.topic_id, known.number)
    if not told:
        table.delete(key)
    elif cut_rows != list(known.ends):
        times = tuple(known.written_by[each] for each in told)
        rows = tuple(cut_rows[each] for each in told)
        table.put(key, known._replace(written_by=times, ends=rows))


def _drop(table: MarksTable, topic_id: int, number: int, end: int) -> None:
    for row_number in range(number, end):
        if (topic_id, row_number) in table.rows:
            table.delete((topic_id, row_number))
