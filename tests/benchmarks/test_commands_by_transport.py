"""What the comparison of transports makes of its measurements."""

from __future__ import annotations

import pytest

from benchmarks.commands_by_transport import figures_of, in_order, summary
from benchmarks.load_target import WARM_UP_S


def test_processor_time_is_told_for_a_command() -> None:
    """Each process has its share of all commands, those of the warm-up included."""
    measured = {
        "commands_per_s": 1_000.0,
        "p50_ms": 1.0,
        "p99_ms": 2.0,
        "load_cpu_s": 0.2,
        "server_cpu_s": {"coordinator": 0.4},
    }
    figures = figures_of(measured, 3.0)
    commands = 1_000 * (3.0 + WARM_UP_S)
    assert figures["coordinator_cpu_us"] == pytest.approx(400_000 / commands)
    assert figures["client_cpu_us"] == pytest.approx(200_000 / commands)
    assert (figures["p50_ms"], figures["p99_ms"]) == (1.0, 2.0)


def test_ratios_are_of_one_round() -> None:
    """A ratio compares what was measured in one round, and the median of the rounds is told."""
    pairs = [(10.0, 5.0), (100.0, 40.0), (10.0, 6.0)]
    rounds = [
        {"grpcio": {"create": {"p50_ms": theirs}}, "wire": {"create": {"p50_ms": ours}}}
        for theirs, ours in pairs
    ]
    assert summary(rounds)["create"]["p50_ms"] == {"grpcio": 10.0, "wire": 6.0, "ratio": 0.5}


def test_the_order_changes_from_round_to_round() -> None:
    """Neither transport is always the first."""
    assert in_order(0) == in_order(1)[::-1]
