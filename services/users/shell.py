"""The surroundings of the machine: the clock, the cluster's secret, the count of failed guesses.

Functions that run in threads use it; handlers that change state never do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from services.runtime.login_guard import FAILURES_WINDOW_US, LoginGuard
from services.runtime.throttle import Throttle
from viewstamp import limits


@dataclass(slots=True)
class Shell:
    """The surroundings of one users service. The cluster is known once it is served."""

    cluster_key: bytes = field(repr=False)
    clock_us: Callable[[], int]  # wall clock, microseconds since 1970
    throttle: Throttle  # of guesses at one's own current password
    logins: LoginGuard
    cluster_id: bytes = b""

    def opened(self, cluster_id: bytes) -> None:
        """Serve this cluster: tokens are made only for it."""
        self.cluster_id = cluster_id


def build_shell(cluster_key: bytes, clock_us: Callable[[], int]) -> Shell:
    """Return the surroundings with throttles at the login limits. Raises ValueError."""
    if len(cluster_key) != limits.CLUSTER_KEY_BYTES:
        raise ValueError(
            f"the cluster key has {len(cluster_key)} bytes; it must have {limits.CLUSTER_KEY_BYTES}"
        )
    throttle = Throttle(
        clock_us,
        failures_max=limits.LOGIN_FAILURES_PER_MINUTE_MAX,
        window_us=FAILURES_WINDOW_US,
    )
    return Shell(cluster_key, clock_us, throttle, LoginGuard(clock_us))
