"""Manifests stay small however long the log is, and name every piece."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewstamp.archive.packing import joined, packed, with_part, without_ops_to
from viewstamp.archive.shipping_lag import SAMPLES_MAX, ShippingLag
from viewstamp.format.archive_manifest import ArchiveManifest
from viewstamp.format.archive_parts import LogPart, index_part

FANOUT = 4


def piece(op: int, ops: int = 1) -> LogPart:
    """Return a piece of so many entries."""
    before, last = op - 1, op + ops - 1
    return LogPart(
        0, op, last, op, last, op, last, 1, before.to_bytes(16), last.to_bytes(16), bytes(32)
    )


class Indexes:
    """Indexes in memory, by what stands for them."""

    def __init__(self) -> None:
        self.parts: dict[LogPart, tuple[LogPart, ...]] = {}

    def write(self, parts: Sequence[LogPart]) -> LogPart:
        """Keep an index."""
        part = index_part(parts, len(self.parts).to_bytes(32), 1)
        self.parts[part] = tuple(parts)
        return part

    def read(self, part: LogPart) -> Sequence[LogPart]:
        """Return the parts of an index."""
        return self.parts[part]

    def pieces(self, parts: Sequence[LogPart]) -> list[LogPart]:
        """Return all pieces."""
        found = []
        for part in parts:
            found += [part] if part.is_piece else self.pieces(self.read(part))
        return found


@given(st.integers(1, 300), st.lists(st.integers(0, 300), max_size=4))
def test_all_pieces_are_named_by_few_parts(count: int, given_up: list[int]) -> None:
    """Whatever retention gives up meanwhile, the rest is there, in order, in few records."""
    indexes, lowest = Indexes(), 0
    parts: tuple[LogPart, ...] = ()
    for op in range(1, count + 1):
        parts = packed((*parts, piece(op)), indexes.write, FANOUT)
        if op in given_up:
            lowest = op // 2
            parts = without_ops_to(parts, lowest, indexes.read)
        assert len(parts) <= 2 * FANOUT * 6
    assert [each.first_op for each in indexes.pieces(parts)] == list(range(lowest + 1, count + 1))


def test_an_index_is_packed_into_the_next_level() -> None:
    """Sixteen pieces are one index of four indexes, and the seventeenth stands beside it."""
    indexes = Indexes()
    parts: tuple[LogPart, ...] = ()
    for op in range(1, 18):
        parts = packed((*parts, piece(op)), indexes.write, FANOUT)
    assert [(part.level, part.first_op, part.last_op) for part in parts] == [
        (2, 1, 16),
        (0, 17, 17),
    ]


@pytest.mark.parametrize(
    ("gaps", "most", "expected"),
    [
        ([], 2, ()),
        ([(1, 2), (4, 5)], 2, ((1, 2), (4, 5))),
        ([(1, 2), (4, 5), (8, 9)], 2, ((1, 5), (8, 9))),
        ([(1, 2), (4, 5), (8, 9)], 1, ((1, 9),)),
    ],
)
def test_too_many_gaps_become_one(
    gaps: list[tuple[int, int]], most: int, expected: tuple[tuple[int, int], ...]
) -> None:
    """The oldest gaps are told together, with what lies between, and never less than is missing."""
    assert joined(gaps, most) == expected


def test_a_hole_becomes_a_gap() -> None:
    """Entries that are missing between two parts are named; before the first part none are."""
    manifest = with_part(ArchiveManifest(bytes(16), 1, 0, 0), piece(5))
    assert manifest.gaps == ()
    assert with_part(manifest, piece(6)).gaps == ()
    assert with_part(manifest, piece(9)).gaps == ((6, 8),)


def test_lag_is_counted_from_the_oldest_entry() -> None:
    """Lag is the age of the oldest entry that is not shipped, whatever comes behind it."""
    lag = ShippingLag()
    assert (lag.ops, lag.age_ms(50)) == (0, 0)
    for op in range(1, 3 * SAMPLES_MAX):
        lag.committed(op, 100 + op)
    lag.committed(5, 9_999_999)
    assert (lag.ops, lag.age_ms(10_101)) == (3 * SAMPLES_MAX - 1, 10_000)
    lag.shipped(3 * SAMPLES_MAX - 2)
    assert (lag.ops, lag.age_ms(10_101)) == (1, 10_101 - 100 - 3 * SAMPLES_MAX + 1)
    lag.shipped(3 * SAMPLES_MAX)
    assert (lag.ops, lag.age_ms(10_101)) == (0, 0)
