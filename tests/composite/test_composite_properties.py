"""Random commands of all domains: three real machines behind the real mux against a plain model."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.composite.trial import Trial, check_same

SHORT_PREPARES = 10
LONG_PREPARES = 40


def check_history(random: Random, prepares: int, seed: int) -> Trial:
    """Run a history against the model, then again with stages that answer whenever they like."""
    trial = Trial(random)
    trial.run(prepares)
    check_same(trial.replica, trial.replayed(seed))
    return trial


@settings(
    max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(random=st.randoms(use_true_random=False), seed=st.integers(0, 1 << 16))
def test_short_histories_equal_the_model(random: Random, seed: int) -> None:
    """Replies and state equal the model's after each prepare; short, so that failures shrink."""
    check_history(random, SHORT_PREPARES, seed)


@pytest.mark.parametrize("seed", range(30))
def test_long_histories_equal_the_model(seed: int) -> None:
    """Replies and state equal the model's after each prepare of a history that grows deep."""
    check_history(Random(seed), LONG_PREPARES, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_many_long_histories_equal_the_model(seed: int) -> None:
    """The same over many more histories."""
    check_history(Random(seed), LONG_PREPARES, seed)
