"""By when data was written, in plain words: what is remembered of reports, and what follows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from testkit.composite.model_groups import ROW
from testkit.composite.world import Call, CompositeMark, CompositeModelState, Topic
from viewstamp.limits import FEATURE_LEVEL_TIMES

AHEAD_US_MAX: Final = 60_000_000
INTERVAL_US: Final = 10_000_000
MARKS_MAX: Final = 32
LOWERED_MAX: Final = 4


def remember_ends(
    world: CompositeModelState,
    topic: Topic,
    told: Iterable[tuple[int, int]],
    reported_at_us: int,
    call: Call,
) -> None:
    """Remember what a report says, before it moves any end."""
    if world.level < FEATURE_LEVEL_TIMES:
        return
    highest: dict[int, int] = {}
    for partition, end in told:
        highest[partition] = max(end, highest.get(partition, 0))
    if all(topic.ends.get(partition) == end for partition, end in highest.items()):
        return  # nobody hears of it
    written_by = max(reported_at_us, call.timestamp)
    if reported_at_us > call.timestamp + AHEAD_US_MAX:
        written_by = 0
        world.turns.add("reported too far ahead")
    for first in {partition - partition % ROW for partition in highest}:
        of_row = {each: end for each, end in highest.items() if each - each % ROW == first}
        marks = topic.marks.setdefault(first, [])
        _remember(world, marks, of_row, written_by)
        if not marks:
            del topic.marks[first]


def forget_partitions(topic: Topic, left: int) -> None:
    """Forget all but the first partitions, and marks that tell of no others."""
    for marks in topic.marks.values():
        for mark in marks:
            mark.ends = {each: end for each, end in mark.ends.items() if each < left}
        marks[:] = [mark for mark in marks if mark.ends]
    topic.marks = {first: marks for first, marks in topic.marks.items() if marks}


def offset_for(topic: Topic, partition: int, time_us: int) -> tuple[int, int]:
    """Return where to read what was written from a time on, and by when all before was; or 0."""
    start = topic.starts.get(partition, 0)
    older = [
        mark for mark in topic.marks.get(partition - partition % ROW, ()) if mark.time < time_us
    ]
    end = older[-1].ends.get(partition, 0) if older else 0
    return (end, older[-1].time) if end > start else (start, 0)


def found_offsets(topic: Topic, partitions: Iterable[int], time_us: int) -> list[dict[str, Any]]:
    """Return the same for each partition of which something was reported, as it is read."""
    views = []
    for partition in sorted(set(partitions) & topic.ends.keys()):
        offset, written_by = offset_for(topic, partition, time_us)
        view = {"partition": partition, "offset": offset, "written_by": written_by}
        view |= {"start_offset": topic.starts.get(partition, 0)}
        views.append(view | {"end_offset": topic.ends[partition]})
    return views


def _remember(
    world: CompositeModelState, marks: list[CompositeMark], ends: dict[int, int], written_by: int
) -> None:
    latest = marks[-1].ends if marks else {}
    now = latest | ends
    if now == latest:
        return
    _lower(world, marks, ends)
    if not written_by:
        return
    time = max([written_by, *(mark.time for mark in marks)])
    if marks and marks[-1].time == time:
        marks.pop()
    elif len(marks) > 1 and time - marks[-2].time < INTERVAL_US:
        marks.pop()
        world.turns.add("reported again soon")
    marks.append(CompositeMark(time, now))
    assert len(marks) <= MARKS_MAX, "the history is too long for a model that forgets no mark"


def _lower(world: CompositeModelState, marks: list[CompositeMark], ends: dict[int, int]) -> None:
    """Take back what was told beyond the ends: of the marks that did, a few are left."""
    too_high = [
        mark for mark in marks if any(mark.ends.get(each, 0) > end for each, end in ends.items())
    ]
    if not too_high:
        return
    world.turns.add("data was lost")
    below = [mark for mark in marks if mark not in too_high]
    for mark in too_high:
        mark.ends |= {each: min(end, ends[each]) for each, end in mark.ends.items() if each in ends}
    if len(too_high) > LOWERED_MAX:
        gaps = LOWERED_MAX - 1  # between the first and the last
        last = len(too_high) - 1
        too_high = [too_high[last * number // gaps] for number in range(gaps + 1)]
        world.turns.add("much data was lost")
    marks[:] = below + too_high
