"""Cuts of tables: frozen chunks add up, whatever is released, overtaken or undone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testkit.frozen import changes_of
from viewstamp.machine.freezing import (
    CUTS_MAX,
    WHOLE_TABLE_KEY,
    Change,
    CutError,
    Freezer,
    Frozen,
    RowKind,
)
from viewstamp.machine.tables import Table, UndoLog

Rows = dict[bytes, bytes]
KEYS, VALUES = st.integers(0, 6), st.none() | st.integers(0, 3)
# A step puts (key, value) or deletes (key, None), is undone, cuts, or releases a cut.
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["do", "undo"]), st.integers(0, 6), st.none() | st.integers(0, 3)
        ),
        st.tuples(st.just("cut"), st.none(), st.none()),
        st.tuples(st.just("release"), st.integers(0, 3), st.none()),
    ),
    max_size=40,
)
KIND: RowKind[Table[int, int]] = RowKind(
    1, lambda table: table, lambda row: b"%d" % row, lambda key, _: b"%02d" % key
)


class Section:
    """A table of numbers, its freezer, and every cut as it must be: rows by generation."""

    def __init__(self) -> None:
        """Begin empty, released at generation 0."""
        self.undo = UndoLog()
        self.table: Table[int, int] = Table(self.undo)
        self.freezer = Freezer((KIND,), self.table, 0)
        self.rows_at: dict[int, Rows] = {0: {}}
        self.unreleased: list[int] = []

    def rows(self) -> Rows:
        """Return the rows as they are now, encoded."""
        return {key: value for _, key, value in KIND.entities(self.table)}

    def change(self, key: int, value: int | None) -> None:
        """Put or delete a row."""
        if value is not None:
            self.table.put(key, value)
        elif key in self.table:
            self.table.delete(key)

    def take_back(self, key: int, value: int | None) -> None:
        """Change a row and revert it."""
        self.undo.settle()
        self.undo.open_savepoint()
        self.change(key, value)
        self.undo.revert_savepoint()

    def cut(self) -> Frozen[Table[int, int]]:
        """Freeze the next generation."""
        generation = max(self.rows_at) + 1
        self.rows_at[generation] = self.rows()
        self.unreleased.append(generation)
        return self.freezer.freeze(generation, 10 * generation)

    def release(self, position: int) -> None:
        """Release one of the cuts that were not released, and with it all before."""
        if position < len(self.unreleased):
            generation = self.unreleased[position]
            del self.unreleased[: position + 1]
            assert self.freezer.release(generation) is not None


def applied(base: Rows, changes: Iterable[Change]) -> Rows:
    """Return rows after changes, whose old values must equal the base's."""
    rows, last = dict(base), b""
    for kind, key, old, new in changes:
        assert (kind, base.get(key)) == (1, old), key
        assert key > last, "keys ascend"
        last = key
        rows.pop(key, None)
        if new is not None:
            rows[key] = new
    return rows


@given(STEPS)
def test_a_delta_on_its_base_is_the_cut(steps: list[tuple[str, int, int | None]]) -> None:
    """Any cut that is read later gives, over the generation it names, the rows of its moment."""
    section = Section()
    for what, key, value in steps:
        match what:
            case "do":
                section.change(key, value)
            case "undo":
                section.take_back(key, value)
            case "cut" if len(section.unreleased) < CUTS_MAX:
                frozen = section.cut()
                section.change(0, 9)  # later changes are not in it
                base = section.rows_at[frozen.base_generation]
                assert applied(base, changes_of(frozen)) == section.rows_at[frozen.generation]
                assert frozen.revision == 10 * frozen.generation
            case "release":
                section.release(key)
                left = section.freezer.frozen
                if left is not None:
                    base = section.rows_at[left.base_generation]
                    assert applied(base, changes_of(left)) == section.rows_at[left.generation]


def test_generations_ascend() -> None:
    """A number that was used, or released, cannot be cut again."""
    section = Section()
    section.cut()
    with pytest.raises(CutError, match="cut 1 comes after cut 1"):
        section.freezer.freeze(1, 1)
    section.release(0)
    with pytest.raises(CutError, match="cut 1 comes after cut 1"):
        section.freezer.freeze(1, 1)


def test_what_is_not_frozen_is_not_released() -> None:
    """Another generation is ignored, since another replica may have adopted it."""
    section = Section()
    section.cut()
    assert section.freezer.release(7) is None
    assert section.freezer.base_generation == 0


def test_cuts_that_nobody_releases_are_bounded() -> None:
    """Beyond a limit the oldest cuts become one, without losing a change."""
    section = Section()
    for number in range(3 * CUTS_MAX):
        section.change(number, number)
        frozen = section.cut()
    assert len(list(changes_of(frozen))) == 3 * CUTS_MAX
    assert section.freezer.release(2) is None, "it was folded into a later one"
    released = section.freezer.release(3 * CUTS_MAX)
    assert released is not None
    assert applied({}, changes_of(released)) == section.rows()


def test_without_a_base_everything_is_new() -> None:
    """A section that was rewritten at its load is written whole at the next cut."""
    table: Table[int, int] = Table(UndoLog())
    table.put(1, 1)
    freezer = Freezer((KIND,), table)
    table.delete(1)
    table.put(2, 2)
    frozen = freezer.freeze(5, 50)
    assert (frozen.base_generation, list(changes_of(frozen))) == (0, [(1, b"02", None, b"2")])


def test_a_cut_after_the_released_one_is_against_it() -> None:
    """What a release makes the base is in no later delta, not even in the last cut before it."""
    section = Section()
    for number in range(3):
        section.change(number, number)
        section.cut()
    section.release(1)
    left = section.freezer.frozen
    assert left is not None and left.base_generation == 2
    assert list(changes_of(left)) == [(1, b"02", None, b"2")]
    section.release(0)
    assert section.freezer.frozen is None
    assert section.cut().base_generation == 3


WHOLE: RowKind[Table[int, int]] = RowKind(
    2,
    lambda table: table,
    lambda rows: b",".join(b"%d=%d" % item for item in sorted(rows.items())),
    whole_table=True,
)


@given(st.lists(st.lists(st.tuples(KEYS, VALUES), max_size=3), min_size=1, max_size=5))
def test_a_table_that_is_one_entity_is_written_whole(cuts: list[list[tuple[int, Any]]]) -> None:
    """However few rows changed, old and new bytes have all rows of their moment, none if none."""
    table: Table[int, int] = Table(UndoLog())
    freezer = Freezer((WHOLE,), table, 0)
    before: bytes | None = None
    for generation, steps in enumerate(cuts, 1):
        for key, value in steps:
            if value is not None:
                table.put(key, value)
            elif key in table:
                table.delete(key)
        now = WHOLE.encode(table.rows) if len(table) else None
        changes = changes_of(freezer.freeze(generation, generation))
        assert [change for change in changes if change[2] != change[3]] == (
            [(2, WHOLE_TABLE_KEY, before, now)] if now != before else []
        )
        freezer.release(generation)
        before = now
