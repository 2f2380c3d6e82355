"""What a pass reads, how fast, and what is done about damage: pure parts of the scrubber."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from coordinator.scrub.pace import PAUSE_MS_MAX, RATE_BYTES_PER_S_MAX, SLICE_BYTES, pause_ms
from coordinator.scrub.plan import FileTarget, SegmentTarget, circle, merged
from coordinator.scrub.remedies import REMEDIES, DamagedPart, Remedy, part_of_record
from viewstamp.limits import MIB

WEEK_MS = 7 * 24 * 3_600 * 1_000
SIZES = st.lists(st.integers(0, 1_000), max_size=30)


@given(SIZES, st.integers(0, 10**18), st.integers(1_000, WEEK_MS))
def test_a_pass_reads_each_target_once(sizes: list[int], now_us: int, interval_ms: int) -> None:
    """A circle holds every target once, in the same order, wherever it begins."""
    targets = [SegmentTarget(number, size) for number, size in enumerate(sizes)]
    found = circle(targets, now_us, interval_ms)
    first = found.index(targets[0]) if targets else 0
    assert found[first:] + found[:first] == targets


@given(st.integers(2, 7))
def test_starts_spread_over_the_interval_begin_everywhere(starts: int) -> None:
    """Whoever is started at even times of an interval begins at as many different places."""
    targets = [SegmentTarget(number, 10) for number in range(starts)]
    begun = [
        circle(targets, turn * WEEK_MS * 1_000 // starts + 1, WEEK_MS)[0] for turn in range(starts)
    ]
    assert begun == targets


def test_a_file_of_several_generations_is_read_once() -> None:
    """A layer is one target, with the generations that name it, the newest first."""
    one, other = (
        FileTarget("layers/a", 5, 15, b"d", (1,)),
        FileTarget("layers/b", 5, 15, b"e", (1,)),
    )
    again = FileTarget("layers/a", 5, 15, b"d", (3,))
    assert merged([one, other, again]) == [
        FileTarget("layers/a", 5, 15, b"d", (3, 1)),
        FileTarget("layers/b", 5, 15, b"e", (1,)),
    ]


def test_rests_add_up_to_the_interval() -> None:
    """A pass over a gibibyte takes the interval, give or take a percent."""
    slices = 1_024 * MIB // SLICE_BYTES
    rest_ms = pause_ms(SLICE_BYTES, 1_024 * MIB, WEEK_MS // 100, 0, is_busy=False)
    assert abs(slices * rest_ms * 100 - WEEK_MS) < WEEK_MS // 100


@given(st.integers(0, SLICE_BYTES), st.integers(0, 10**15), st.integers(0, 10**6), st.booleans())
def test_rests_are_bounded(size: int, total: int, read_ms: int, is_busy: bool) -> None:
    """No rest is longer than the longest, and no rate above the highest."""
    rest_ms = pause_ms(size, total, WEEK_MS, read_ms, is_busy=is_busy)
    assert size * 1_000 // RATE_BYTES_PER_S_MAX <= rest_ms <= PAUSE_MS_MAX


def test_a_busy_replica_is_read_more_slowly() -> None:
    """While commands come, a slice that took long has a longer rest."""
    huge = 10**15
    assert pause_ms(SLICE_BYTES, huge, WEEK_MS, 20, is_busy=True) > pause_ms(
        SLICE_BYTES, huge, WEEK_MS, 20, is_busy=False
    )


def test_there_is_a_remedy_for_everything() -> None:
    """Each part has one with and without peers, and a lone replica asks no peers."""
    assert REMEDIES.keys() == set(product(DamagedPart, (True, False)))
    alone = {remedy for (_, is_lone), remedy in REMEDIES.items() if is_lone}
    assert not alone & {Remedy.CORE, Remedy.PEERS}


def test_the_cut_divides_records() -> None:
    """A snapshot covers its cut, and nothing behind it."""
    assert part_of_record(7, 7) is DamagedPart.COVERED_RECORD
    assert part_of_record(8, 7) is DamagedPart.RECORD
