"""Marks in a section: their bytes, what of them is refused, and which of them are kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pytest

from services.consumer_groups.mark_entities import encode_marks
from services.consumer_groups.marks import TimeMarks
from services.consumer_groups.model import GroupsState
from services.consumer_groups.section import MARKS_KIND, SECTION
from services.runtime import offset_rows, watermarks
from services.runtime.section import SectionError
from services.runtime.watermarks import Watermarks
from tests.services.consumer_groups.offset_requests import empty_group, report
from viewstamp.api.consumer_groups.v1.consumer_groups_pb2 import Mark, MarksEntity
from viewstamp.limits import MARKS_PER_ROW_MAX, OFFSET_MAX, PARTITIONS_PER_OFFSETS_ROW
from viewstamp.machine.tables import UndoLog

STEP: Final = 20_000_000
# From partition 256 of topic 9 on: two reports, the later one of two partitions more.
MARKS: Final = TimeMarks(
    7,
    9,
    2,
    written_by=(1_700_000_000_000_000, 1_700_000_020_000_000),
    ends=(offset_rows.pack([1]), offset_rows.pack([301, 0, OFFSET_MAX + 1])),
)
MARKS_BYTES: Final = (
    "08071009188002220c088080f9c0c1c4820312010122180880dabdcac1c48203120dad020080808080808080808001"
)


def key(first: int) -> bytes:
    """Return the key of a row of topic 9."""
    return (9).to_bytes(8, "big") + first.to_bytes(8, "big")


def entity(marks: Iterable[tuple[int, list[int]]], **fields: Any) -> tuple[int, bytes, bytes]:
    """Return the entity of marks of topic 9, each with a time and ends plus one."""
    made = [Mark(written_by=time, end_offsets_plus_one=ends) for time, ends in marks]
    row = MarksEntity(stream_id=7, topic_id=9, marks=made, **fields)
    return MARKS_KIND, key(row.first_partition), row.SerializeToString(deterministic=True)


def load(marks: tuple[int, bytes, bytes], ends: list[int], first: int = 0) -> GroupsState:
    """Return the state of marks and of the watermarks of the same row."""
    known = Watermarks(7, 9, offset_rows.place(first)[0], b"", offset_rows.pack(ends))
    state = GroupsState(UndoLog())
    SECTION.load(state, [(watermarks.KIND, key(first), watermarks.encode(known)), marks])
    return state


def test_golden_marks() -> None:
    """Their bytes are pinned, and are the marks again: digests of all builds depend on them."""
    assert encode_marks(MARKS).hex() == MARKS_BYTES
    golden = (MARKS_KIND, key(256), bytes.fromhex(MARKS_BYTES))
    ends = [301, 0, OFFSET_MAX + 1]
    assert load(golden, ends, 256).marks.rows == {(9, 2): MARKS}


FULL: Final = [(time, [time]) for time in range(1, MARKS_PER_ROW_MAX + 1)]
# Marks that cannot have been written, and what is said of them.
DAMAGE: Final[dict[str, tuple[tuple[int, bytes, bytes], str]]] = {
    "none": (entity([]), "no marks, too many, or some without ends"),
    "too many": (entity([*FULL, (99, [99])]), "no marks, too many, or some without ends"),
    "without ends": (entity([(1, [1]), (2, [])]), "no marks, too many, or some without ends"),
    "too many ends": (
        entity([(1, [1] * (PARTITIONS_PER_OFFSETS_ROW + 1))]),
        "no marks, too many, or some without ends",
    ),
    "without a time": (entity([(0, [1])]), "out of order"),
    "the same time": (entity([(5, [1]), (5, [2])]), "out of order"),
    "a time that goes back": (entity([(5, [1]), (4, [2])]), "out of order"),
    "an end that goes back": (entity([(1, [9, 8]), (2, [9, 7])]), "beyond what was reported later"),
    "an end that is forgotten": (entity([(1, [9, 8]), (2, [9])]), "beyond what was reported later"),
    "an end beyond the watermark": (entity([(1, [51])]), "beyond what was reported later"),
    "of what was not reported": (entity([(1, [1])], first_partition=128), "beyond what was"),
    "a zero at the end": (entity([(1, [1, 0])]), "not canonical"),
    "amid a row": (entity([(1, [1])], first_partition=1), "not canonical"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_marks_are_refused(damage: str) -> None:
    """Marks that the machine cannot have written are named, not taken in."""
    marks, message = DAMAGE[damage]
    with pytest.raises(SectionError, match=message):
        load(marks, [50, 50])


def test_as_many_as_there_may_be_are_sound() -> None:
    """The marks that the tests above damage are taken in."""
    assert len(load(entity(FULL), [50, 50]).marks.rows[9, 0].ends) == MARKS_PER_ROW_MAX


# Of 200 reports.
KEPT: Final = (
    *(1, 33, 49, 65, 81, 97, 113, 121, 129, 137, 145, 153, 161, 165, 169, 173, 177, 181, 183),
    *(185, 187, 189, 191, 192, 193, 194, 195, 196, 197, 198, 199, 200),
)


def test_which_times_are_kept_is_pinned() -> None:
    """Replicas of all builds forget the same marks of the same reports."""
    harness = empty_group()
    harness.is_checking = False
    for number in range(1, 201):
        report(harness, {0: number}, written_by=number * STEP)
    (row,) = harness.state.marks.rows.values()
    assert tuple(time // STEP for time in row.written_by) == KEPT
