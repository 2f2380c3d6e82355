"""The domains of all services, for whatever runs their machines in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.mux.stage import Stage
from services.consumer_groups.domain import DOMAIN as CONSUMER_GROUPS
from services.runtime.domain import Domain
from services.streams.domain import DOMAIN as STREAMS
from services.users.domain import build_domain
from viewstamp import limits


def all_domains(
    cluster_key: bytes = bytes(limits.CLUSTER_KEY_BYTES), clock_us: Callable[[], int] = lambda: 0
) -> dict[Stage, Domain[Any]]:
    """Return the domain of each service; `clock_us` tells microseconds since 1970."""
    return {
        Stage.USERS: build_domain(cluster_key, clock_us),
        Stage.STREAMS: STREAMS,
        Stage.CONSUMER_GROUPS: CONSUMER_GROUPS,
    }
