"""Whole clusters under random failures: safety at every step, and convergence in the calm after."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.coordinator.vsr.storm import weather

STEPS = 700


@settings(max_examples=30)
@given(st.sampled_from([2, 3, 3, 4, 5, 6]), st.integers(min_value=0, max_value=2**32))
def test_no_storm_forks_or_loses_and_after_it_all_converge(replica_count: int, seed: int) -> None:
    """Loss, repetition, reordering, partitions, crashes: one history, and in the end one view."""
    storm = weather(replica_count, seed, STEPS)

    assert max(storm.cluster.history) >= 1


def test_storms_change_views_and_commit() -> None:
    """The storms are no calm, and not so rough that nothing happens."""
    storms = [weather(count, seed, STEPS) for count in (2, 3, 5) for seed in range(8)]

    assert sum(max(storm.views) for storm in storms) > 8
    assert sum(max(storm.cluster.history) for storm in storms) > 80
