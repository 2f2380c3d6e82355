"""Rows of offsets against plain dictionaries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.runtime import offset_rows
from services.runtime.offset_rows import EMPTY
from viewstamp.limits import OFFSET_MAX, PARTITIONS_PER_OFFSETS_ROW

INDEXES = st.integers(0, PARTITIONS_PER_OFFSETS_ROW - 1)
OFFSETS = st.integers(0, 5) | st.integers(0, OFFSET_MAX)
CHANGES = st.dictionaries(INDEXES, OFFSETS, min_size=1, max_size=5)


def known(row: bytes) -> dict[int, int]:
    """Return the offsets of a row that are not 0, by index."""
    return {index: offset for index, offset in enumerate(offset_rows.unpack(row)) if offset}


def is_canonical(row: bytes) -> bool:
    """Whether packing what it says gives the same bytes."""
    return offset_rows.pack(offset_rows.unpack(row)) == row


@given(st.lists(CHANGES, max_size=4))
def test_replaced_offsets_are_those_of_a_dictionary(steps: list[dict[int, int]]) -> None:
    """Each change replaces what it names and nothing else, and zeros at the end are not kept."""
    row, model = EMPTY, dict[int, int]()
    for changes in steps:
        row = offset_rows.replaced(row, changes)
        model |= changes
        assert known(row) == {index: offset for index, offset in model.items() if offset}
        assert all(offset_rows.at(row, index) == model.get(index, 0) for index in range(128))
        assert is_canonical(row)


@given(st.lists(CHANGES, max_size=4))
def test_raised_offsets_never_fall(steps: list[dict[int, int]]) -> None:
    """An offset is the highest that was said; where all were as high, the row is the same one."""
    row, model = EMPTY, dict[int, int]()
    for changes in steps:
        before, row = row, offset_rows.raised(row, changes)
        higher = {index: max(model.get(index, 0), offset) for index, offset in changes.items()}
        assert (row is before) == all(
            model.get(index, 0) == offset for index, offset in higher.items()
        )
        model |= higher
        assert known(row) == {index: offset for index, offset in model.items() if offset}
        assert is_canonical(row)


@given(CHANGES, st.integers(0, PARTITIONS_PER_OFFSETS_ROW))
def test_a_cut_row_keeps_its_first_offsets(changes: dict[int, int], count: int) -> None:
    """What lies behind the cut is gone, with the zeros before it."""
    row = offset_rows.cut(offset_rows.replaced(EMPTY, changes), count)
    assert known(row) == {i: offset for i, offset in changes.items() if offset and i < count}
    assert is_canonical(row)


@given(st.lists(st.tuples(st.integers(0, 999_999), OFFSETS), max_size=8))
def test_offsets_go_to_the_rows_of_their_partitions(offsets: list[tuple[int, int]]) -> None:
    """Row and index make the partition again, and of several offsets the highest counts."""
    found = {
        offset_rows.first_partition(number) + index: offset
        for number, row in offset_rows.by_row(offsets).items()
        for index, offset in row.items()
    }
    highest: dict[int, int] = {}
    for partition, offset in offsets:
        highest[partition] = max(offset, highest.get(partition, 0))
        number, index = offset_rows.place(partition)
        assert offset_rows.first_partition(number) + index == partition
        assert number < offset_rows.row_count(partition + 1)
    assert found == highest


def test_rows_of_partitions_are_counted() -> None:
    """The last row need not be full, and no partition takes no row."""
    assert [offset_rows.row_count(count) for count in (0, 1, 128, 129, 1_000_000)] == [
        0, 1, 1, 2, 7_813,
    ]  # fmt: skip
