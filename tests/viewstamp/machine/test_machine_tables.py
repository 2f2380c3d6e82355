"""Tables that can be taken back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewstamp.machine.tables import ABSENT, DerivedTable, Table, TableIndex, UndoLog

KEYS = st.integers(0, 5)
# (key, value), or (key, None) to delete it.
STEPS = st.lists(st.tuples(KEYS, st.none() | st.integers(0, 9)), max_size=12)


def carry_out(table: Table[int, int], steps: list[tuple[int, int | None]]) -> None:
    """Put and delete; rows that are not there are not deleted."""
    for key, value in steps:
        if value is not None:
            table.put(key, value)
        elif key in table:
            table.delete(key)


@pytest.mark.parametrize("action", [UndoLog.keep_savepoint, UndoLog.revert_savepoint])
def test_a_savepoint_is_open_once(action: Callable[[UndoLog], None]) -> None:
    """Ending no savepoint, or opening one in another, is a defect and not a no-op."""
    undo = UndoLog()
    with pytest.raises(ValueError, match="no savepoint"):
        action(undo)
    undo.open_savepoint()
    with pytest.raises(ValueError, match="already open"):
        undo.open_savepoint()


@given(before=STEPS, after=STEPS)
def test_a_revert_gives_back_every_row(
    before: list[tuple[int, int | None]], after: list[tuple[int, int | None]]
) -> None:
    """A revert restores every row that was put, replaced or deleted since the savepoint."""
    undo = UndoLog()
    table: Table[int, int] = Table(undo)
    carry_out(table, before)
    undo.settle()
    kept, keys = dict(table.rows), list(table.sorted_keys())
    undo.open_savepoint()
    carry_out(table, after)
    undo.settle()  # forgets nothing: a savepoint is open
    undo.revert_savepoint()
    assert (table.rows, table.sorted_keys()) == (kept, keys)
    assert keys == sorted(kept)


@given(before=STEPS, kept=STEPS, reverted=STEPS)
def test_what_changed_is_known_whatever_was_taken_back(
    before: list[tuple[int, int | None]],
    kept: list[tuple[int, int | None]],
    reverted: list[tuple[int, int | None]],
) -> None:
    """The first old values since a cut, put back over the rows, are the rows of the cut."""
    undo = UndoLog()
    table: Table[int, int] = Table(undo)
    carry_out(table, before)
    undo.settle()
    cut, table.changed = dict(table.rows), {}
    carry_out(table, kept)
    undo.settle()
    undo.open_savepoint()
    carry_out(table, reverted)
    undo.revert_savepoint()
    assert table.changed is not None
    restored = {**table.rows, **table.changed}
    assert {key: old for key, old in restored.items() if old is not ABSENT} == cut


def test_pages_begin_behind_a_key() -> None:
    """A page of keys begins behind the given one, be it there or not, and has no more than asked
    for."""
    table: Table[int, int] = Table(UndoLog())
    for key in (6, 2, 4, 8):
        table.put(key, key)
    assert [table.keys_after(key, 2) for key in (0, 2, 3, 6, 8)] == [
        [2, 4],
        [4, 6],
        [4, 6],
        [8],
        [],
    ]


def test_what_is_kept_is_not_remembered() -> None:
    """A savepoint that is kept leaves nothing to take back, so that the undo log is empty again."""
    undo = UndoLog()
    table: Table[int, int] = Table(undo)
    undo.open_savepoint()
    table.put(1, 1)
    undo.keep_savepoint()
    undo.revert(0)
    assert table.rows == {1: 1}


def test_what_came_and_went_is_forgotten() -> None:
    """Short-lived rows take no memory between cuts; a deleted row of the cut is remembered."""
    table: Table[int, int] = Table(UndoLog())
    table.put(1, 1)
    table.changed = {}
    for key in range(2, 1000):
        table.put(key, key)
        table.delete(key)
    assert table.changed == {}
    table.delete(1)
    table.put(1, 2)
    table.delete(1)
    assert table.changed == {1: 1}


def test_a_row_that_went_and_came_back_by_a_revert_is_new_to_the_cut() -> None:
    """An undone delete restores the row, and the fact that the cut had none."""
    undo = UndoLog()
    table: Table[int, int] = Table(undo)
    table.changed = {}
    table.put(1, 1)
    undo.settle()
    undo.open_savepoint()
    table.delete(1)
    assert table.changed == {}
    undo.revert_savepoint()
    assert (table.rows, table.changed) == ({1: 1}, {1: ABSENT})


def test_derived_rows_are_made_when_somebody_looks() -> None:
    """Rows of other state follow it."""
    state = {1: "one", 3: "three"}
    table = DerivedTable(state.keys, state.get)
    state[2] = "two"
    assert (table.rows[2], table.rows.get(4, ABSENT)) == ("two", ABSENT)
    assert table.sorted_keys() == [1, 2, 3]
    with pytest.raises(KeyError):
        table.rows[4]


@given(st.lists(st.tuples(KEYS, KEYS), max_size=20), st.integers(0, 20))
def test_an_index_has_keys_with_items_alone(steps: list[tuple[int, int]], kept: int) -> None:
    """Whatever comes and goes, a key has its items in order, and a revert gives all of it back."""
    undo = UndoLog()
    index: TableIndex[int, int] = TableIndex(undo)
    model: set[tuple[int, int]] = set()
    before: set[tuple[int, int]] = set()
    for place, (key, item) in enumerate(steps):
        if place == kept:
            undo.open_savepoint()
            before = set(model)
        if (key, item) in model:
            index.take(key, item)
        else:
            index.add(key, item)
        model ^= {(key, item)}
    if kept < len(steps):
        undo.revert_savepoint()
        model = before
    assert {key: index.of(key) for key in index.rows} == {
        key: sorted(item for of, item in model if of == key) for key, _ in model
    }
    assert index.of(99) == []
