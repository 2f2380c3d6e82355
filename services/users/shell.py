"""What lies outside the machine: the clock, the cluster's secret, the count of failed guesses.

Functions that run in threads use it; a handler that changes state never does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from services.runtime.throttle import Throttle
from viewstamp import limits

FAILURES_WINDOW_US: Final = 60_000_000


@dataclass(frozen=True, slots=True)
class Shell:
    """The surroundings of one users service."""

    cluster_key: bytes = field(repr=False)
    clock_us: Callable[[], int]  # wall clock, microseconds since 1970
    throttle: Throttle


def build_shell(cluster_key: bytes, clock_us: Callable[[], int]) -> Shell:
    """Return the surroundings with a throttle at the login limit. Raises ValueError."""
    if len(cluster_key) != limits.CLUSTER_KEY_BYTES:
        raise ValueError(
            f"the cluster key has {len(cluster_key)} bytes; it must have {limits.CLUSTER_KEY_BYTES}"
        )
    throttle = Throttle(
        clock_us,
        failures_max=limits.LOGIN_FAILURES_PER_MINUTE_MAX,
        window_us=FAILURES_WINDOW_US,
    )
    return Shell(cluster_key, clock_us, throttle)
