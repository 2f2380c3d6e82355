"""The machines of all services, for a process that only looks back."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from coordinator.gateway.request_runs import mux_route
from coordinator.gateway.routes import Routes
from coordinator.mux.stage import SERVICE_STAGES, Stage
from coordinator.mux.types import Route
from services.consumer_groups.domain import DOMAIN as CONSUMER_GROUPS
from services.runtime.domain import Domain
from services.runtime.handlers import description_of
from services.streams.domain import DOMAIN as STREAMS
from services.users.domain import build_domain
from viewstamp.limits import CLUSTER_KEY_BYTES

# The key and the clock are for logins, of which there are none in the past.
DOMAINS: Final[Mapping[Stage, Domain[Any]]] = MappingProxyType(
    {
        Stage.USERS: build_domain(bytes(CLUSTER_KEY_BYTES), lambda: 0),
        Stage.STREAMS: STREAMS,
        Stage.CONSUMER_GROUPS: CONSUMER_GROUPS,
    }
)


def all_routes() -> dict[int, Route]:
    """Return the routes of all methods by code, put together as the coordinator does."""
    routes = Routes()
    for stage in SERVICE_STAGES:
        routes.update(description_of(DOMAINS[stage]))
    return {method.code: mux_route(method) for method in routes.methods()}
