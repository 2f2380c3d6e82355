"""Brokers in plain words: how they come, stay and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from testkit.composite.world import (
    Call,
    CompositeBroker,
    CompositeModelState,
    CompositeRefused,
    User,
    check_expected,
    check_name,
    find,
    key_of,
)

BROKERS_MAX: Final = 1_024
ENDPOINTS_MAX: Final = 8
TIMEOUT_MS: Final = 9_000
TIMEOUTS_MS: Final = (6_000, 3_600_000)  # the shortest and the longest
HEARTBEAT_MS: Final = 2_000
PORTS_END: Final = 1 << 16
_BAD: Final = "INVALID_BROKER"


def register_broker(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Register a broker, or begin its next epoch."""
    caller = world.caller(call)
    broker: CompositeBroker | None = find(world.brokers, request.name)
    _demand_own(world, caller, broker)
    _check_registration(world, request)
    if broker is None:
        if len(world.brokers) >= BROKERS_MAX:
            raise CompositeRefused("BROKER_LIMIT")
        broker = _new_broker(world, request.name, caller, call)
    else:
        world.turns.add("broker fenced came back" if broker.fenced else "broker came again")
    if request.HasField("user_id") and request.user_id != broker.user_id:
        world.demand(caller, "manage_servers")
        broker.user_id = request.user_id
    if request.storage_id != broker.storage:
        world.turns |= {"storage lost"} if broker.storage else set()
        broker.storage, broker.storage_since = request.storage_id, call.revision
    broker.rack, broker.fenced = request.rack, False
    broker.endpoints = [(each.listener, each.host, each.port) for each in request.endpoints]
    broker.timeout_ms = request.timeout_ms or TIMEOUT_MS
    broker.epoch = broker.modified = call.revision
    return {"broker_id": broker.id, "broker_epoch": call.revision}


def resign_broker(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """End the epoch of a broker."""
    broker = acting_broker(world, world.caller(call), request.broker, call)
    broker.fenced, broker.modified = True, call.revision
    return {}


def update_broker(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Have a broker drained, or used again."""
    broker = _managed_broker(world, request, call)
    if request.HasField("draining") and request.draining != broker.draining:
        broker.draining, broker.modified = request.draining, call.revision
    return {}


def unregister_broker(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Forget a broker without replicas."""
    broker = _managed_broker(world, request, call)
    if replicas_count(world, broker.id):
        raise CompositeRefused("BROKER_IN_USE", replicas_count=replicas_count(world, broker.id))
    del world.brokers[broker.id]
    return {}


def fence_broker(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """End the epoch of a broker that was silent, unless it is over."""
    broker = world.brokers.get(request.broker_id)
    if broker is not None and broker.epoch == request.broker_epoch and not broker.fenced:
        broker.fenced, broker.modified = True, call.revision
        world.turns.add("broker fenced")
    return {}


def get_broker(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Read a broker."""
    world.caller(call)
    return {"broker": broker_view(world, _find_broker(world, request.broker))}


def list_brokers(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Read all brokers."""
    world.caller(call)
    return {"brokers": [broker_view(world, world.brokers[key]) for key in sorted(world.brokers)]}


def keep_alive_broker(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Show life, unless it is too late. What it has seen does not matter."""
    broker = _present_broker(world, world.caller(call), request.broker)
    if (broker.id, broker.epoch) in world.to_fence:
        raise CompositeRefused("OVERLOADED")
    return {
        "interval_ms": HEARTBEAT_MS,
        "timeout_ms": broker.timeout_ms,
        "draining": broker.draining,
    }


COMMANDS: Final[dict[str, Callable[[CompositeModelState, Any, Call], dict[str, Any]]]] = {
    "RegisterBroker": register_broker,
    "ResignBroker": resign_broker,
    "UpdateBroker": update_broker,
    "UnregisterBroker": unregister_broker,
    "FenceBroker": fence_broker,
}
QUERIES: Final[dict[str, Callable[[CompositeModelState, Any, Call], dict[str, Any]]]] = {
    "GetBroker": get_broker,
    "ListBrokers": list_brokers,
    "KeepAliveBroker": keep_alive_broker,
}


def acting_broker(
    world: CompositeModelState, caller: User, stamp: Any, call: Call
) -> CompositeBroker:
    """Return the broker that acts by a command, in its epoch, on behalf of the caller."""
    broker = _present_broker(world, caller, stamp)
    if stamp.seen_revision >= call.revision:
        raise CompositeRefused("MALFORMED_REQUEST", seen_revision=stamp.seen_revision)
    return broker


def broker_entity(broker: CompositeBroker) -> dict[str, Any]:
    """Return a broker as a section has it."""
    return {
        "id": broker.id,
        "name": broker.name,
        "rack": broker.rack,
        "endpoints": [
            {"listener": listener, "host": host, "port": port}
            for listener, host, port in broker.endpoints
        ],
        "broker_epoch": broker.epoch,
        "fenced": broker.fenced,
        "draining": broker.draining,
        "timeout_ms": broker.timeout_ms,
        "storage_id": broker.storage,
        "storage_revision": broker.storage_since,
        "user_id": broker.user_id,
        "created_at": broker.created_at,
        "created_revision": broker.created,
        "modified_revision": broker.modified,
    }


def broker_view(world: CompositeModelState, broker: CompositeBroker) -> dict[str, Any]:
    """Return a broker as callers see it."""
    return {**broker_entity(broker), "replicas_count": replicas_count(world, broker.id)}


def replicas_count(world: CompositeModelState, broker_id: int) -> int:
    """Count the replicas of a broker."""
    return sum(
        broker_id in placement.replicas
        for stream in world.streams.values()
        for topic in stream.topics.values()
        for placement in topic.placements.values()
    )


def _present_broker(world: CompositeModelState, caller: User, stamp: Any) -> CompositeBroker:
    broker = world.brokers.get(stamp.broker_id)
    if broker is None:
        raise CompositeRefused("BROKER_NOT_FOUND", broker=stamp.broker_id)
    _demand_own(world, caller, broker)
    if broker.fenced or stamp.broker_epoch != broker.epoch:
        raise CompositeRefused("FENCED_BROKER_EPOCH", broker_epoch=broker.epoch)
    return broker


def _demand_own(world: CompositeModelState, caller: User, broker: CompositeBroker | None) -> None:
    if broker is None or caller.id != broker.user_id:
        world.demand(caller, "manage_servers")


def _managed_broker(world: CompositeModelState, request: Any, call: Call) -> CompositeBroker:
    world.demand(world.caller(call), "manage_servers")
    broker = _find_broker(world, request.broker)
    check_expected(request, broker)
    return broker


def _find_broker(world: CompositeModelState, named: Any) -> CompositeBroker:
    key = key_of(named)
    broker: CompositeBroker | None = find(world.brokers, key)
    if broker is None:
        raise CompositeRefused("BROKER_NOT_FOUND", broker=key)
    return broker


def _new_broker(world: CompositeModelState, name: str, caller: User, call: Call) -> CompositeBroker:
    broker = CompositeBroker(world.next_broker_id, name, caller.id, call.timestamp, call.revision)
    world.next_broker_id += 1
    world.brokers[broker.id] = broker
    return broker


def _check_registration(world: CompositeModelState, request: Any) -> None:
    """Refuse what no broker can say of itself."""
    check_name(request.name, _BAD, 1, 255)
    check_name(request.rack, _BAD, 0, 255)
    check_name(request.storage_id, _BAD, 1, 64)
    shortest, longest = TIMEOUTS_MS
    if request.timeout_ms and not shortest <= request.timeout_ms <= longest:
        raise CompositeRefused(_BAD, requested=request.timeout_ms)
    if request.HasField("user_id") and request.user_id not in world.users:
        raise CompositeRefused("USER_NOT_FOUND", user=request.user_id)
    if not 1 <= len(request.endpoints) <= ENDPOINTS_MAX:
        raise CompositeRefused(_BAD, endpoints_count=len(request.endpoints))
    for endpoint in request.endpoints:
        check_name(endpoint.listener, _BAD, 1, 255)
        check_name(endpoint.host, _BAD, 1, 255)
        if not 0 < endpoint.port < PORTS_END:
            raise CompositeRefused(_BAD, port=endpoint.port)
    if len({each.listener for each in request.endpoints}) < len(request.endpoints):
        raise CompositeRefused(_BAD)
