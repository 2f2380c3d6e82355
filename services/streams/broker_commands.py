"""How brokers come, stay and go.

A broker is the user's who registered it first, unless the registration names another one. Its user
may register it again and act for it; everything else takes the permission to manage servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from services.runtime.domain import Call, CommandHandler
from services.streams import access as gates
from services.streams import refusals
from services.streams.access import Access
from services.streams.brokers import Broker, BrokerEndpoint
from services.streams.lookup import authenticate, demand_everywhere, key_of
from services.streams.model import NEXT_BROKER_ID, StreamsState
from viewstamp import limits
from viewstamp.api.brokers.v1 import brokers_service_pb2 as api
from viewstamp.api.common.v1.common_pb2 import BrokerStamp, Identifier
from viewstamp.api.domain.v1 import domain_service_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.names import check_name
from viewstamp.routing import methods_of_file

_FENCE_BROKER_CODE: Final = next(
    method.code for method in methods_of_file(api.DESCRIPTOR) if method.name == "FenceBroker"
)
_US_PER_MS: Final = 1_000
_PORT_MAX: Final = 65_535
# Rows of work to check an endpoint and to keep it, beside a broker.
_ROWS_PER_ENDPOINT: Final = 6


def register_broker(
    state: StreamsState, request: api.RegisterBrokerRequest, call: Call
) -> api.RegisterBrokerResponse:
    """Make a broker, or begin the next epoch of one."""
    caller = authenticate(state, call)
    broker = state.brokers.rows.get(state.broker_ids.rows.get(request.name, 0))
    if broker is None:
        demand_everywhere(caller, gates.MANAGE_SERVER)
    else:
        _demand_own(caller, broker)
    _check_registration(state, request, call)
    _pay_for_change(state, call)
    if broker is None:
        broker = _new_broker(state, request.name, caller, call)
        state.broker_ids.put(broker.name, broker.id)
    registered = _registered(broker, request, caller, call)
    state.brokers.put(broker.id, registered)
    state.liveness.heard(registered)
    return api.RegisterBrokerResponse(broker_id=broker.id, broker_epoch=call.revision)


def resign_broker(state: StreamsState, request: api.ResignBrokerRequest, call: Call) -> bytes:
    """End the epoch of a broker that stops."""
    broker = acting_broker(state, authenticate(state, call), request.broker, call)
    _pay_for_change(state, call)
    _fence(state, broker, call)
    return b""


def update_broker(state: StreamsState, request: api.UpdateBrokerRequest, call: Call) -> bytes:
    """Have a broker drained, or used again."""
    broker = _managed_broker(state, request, call)
    if request.HasField("draining") and request.draining != broker.draining:
        _pay_for_change(state, call)
        changed = broker._replace(draining=request.draining, modified_revision=call.revision)
        state.brokers.put(broker.id, changed)
    return b""


def unregister_broker(
    state: StreamsState, request: api.UnregisterBrokerRequest, call: Call
) -> bytes:
    """Forget a broker that has no replicas."""
    broker = _managed_broker(state, request, call)
    replicas_count = state.placements.replicas_count(broker.id)
    if replicas_count:
        raise refusals.broker_in_use(broker.name, replicas_count)
    _pay_for_change(state, call)
    state.broker_ids.delete(broker.name)
    state.brokers.delete(broker.id)
    state.liveness.forget(broker)
    return b""


def fence_broker(state: StreamsState, request: api.FenceBrokerRequest, call: Call) -> bytes:
    """End the epoch of a broker that was silent; a no-op if it is over already."""
    broker = state.brokers.rows.get(request.broker_id)
    if broker is not None and broker.broker_epoch == request.broker_epoch and not broker.fenced:
        _fence(state, broker, call)
    return b""


COMMANDS: Final[Mapping[str, CommandHandler[StreamsState]]] = {
    "RegisterBroker": register_broker,
    "ResignBroker": resign_broker,
    "UpdateBroker": update_broker,
    "UnregisterBroker": unregister_broker,
    "FenceBroker": fence_broker,
}


def silent(
    state: StreamsState, tenure: domain_service_pb2.Tenure
) -> Iterable[domain_service_pb2.Proposal]:
    """Return a FenceBroker for some of the brokers that were silent for too long."""
    for broker in state.liveness.silent(state.brokers, tenure):
        request = api.FenceBrokerRequest(broker_id=broker.id, broker_epoch=broker.broker_epoch)
        encoded = request.SerializeToString(deterministic=True)
        yield domain_service_pb2.Proposal(code=_FENCE_BROKER_CODE, request=encoded)


def find_broker(state: StreamsState, identifier: Identifier) -> Broker:
    """Return the named broker. Raises Refusal BROKER_NOT_FOUND or MALFORMED_REQUEST."""
    key = key_of(identifier, "broker")
    broker_id = state.broker_ids.rows.get(key, 0) if isinstance(key, str) else key
    broker = state.brokers.rows.get(broker_id)
    if broker is None:
        raise refusals.broker_not_found(key)
    return broker


def present_broker(state: StreamsState, caller: Access, stamp: BrokerStamp) -> Broker:
    """Return the broker for which the caller speaks, in its present epoch. Raises Refusal."""
    broker = state.brokers.rows.get(stamp.broker_id)
    if broker is None:
        raise refusals.broker_not_found(stamp.broker_id)
    _demand_own(caller, broker)
    if stamp.broker_epoch != broker.broker_epoch or broker.fenced:
        raise refusals.fenced_broker_epoch(broker, stamp.broker_epoch)
    return broker


def acting_broker(state: StreamsState, caller: Access, stamp: BrokerStamp, call: Call) -> Broker:
    """Return the broker for which a command acts, in its present epoch. Raises Refusal.

    What it has seen is judged by commands alone: a read knows the last revision of this domain,
    and others may have gone on since.
    """
    broker = present_broker(state, caller, stamp)
    if stamp.seen_revision >= call.revision:
        raise refusals.malformed("seen_too_much", seen_revision=stamp.seen_revision)
    return broker


def _managed_broker(state: StreamsState, request: Any, call: Call) -> Broker:
    demand_everywhere(authenticate(state, call), gates.MANAGE_SERVER)
    broker = find_broker(state, request.broker)
    if request.HasField("expected_revision"):
        expected = request.expected_revision
        if expected != broker.modified_revision:
            raise refusals.broker_revision_mismatch(broker, expected)
    return broker


def _pay_for_change(state: StreamsState, call: Call) -> None:
    """Pay for spreading partitions over all brokers anew, which the next topic does."""
    call.charge(len(state.brokers))


def _demand_own(caller: Access, broker: Broker) -> None:
    if caller.user_id != broker.user_id:
        demand_everywhere(caller, gates.MANAGE_SERVER)


def _new_broker(state: StreamsState, name: str, caller: Access, call: Call) -> Broker:
    if len(state.brokers) >= limits.BROKERS_MAX:
        raise refusals.broker_limit()
    return Broker(
        id=state.take_id(NEXT_BROKER_ID),
        name=name,
        rack="",
        endpoints=(),
        broker_epoch=0,
        fenced=False,
        draining=False,
        timeout_ms=0,
        storage_id="",
        storage_revision=0,
        user_id=caller.user_id,
        created_at=call.timestamp,
        created_revision=call.revision,
        modified_revision=0,
    )


def _registered(
    broker: Broker, request: api.RegisterBrokerRequest, caller: Access, call: Call
) -> Broker:
    """Return a broker in its next epoch, as it says that it is."""
    user_id = broker.user_id
    if request.HasField("user_id") and request.user_id != user_id:
        demand_everywhere(caller, gates.MANAGE_SERVER)
        user_id = request.user_id
    is_same_storage = request.storage_id == broker.storage_id
    return broker._replace(
        rack=request.rack,
        endpoints=tuple(BrokerEndpoint(*_endpoint(each)) for each in request.endpoints),
        broker_epoch=call.revision,
        fenced=False,
        timeout_ms=request.timeout_ms or limits.BROKER_TIMEOUT_US // _US_PER_MS,
        storage_id=request.storage_id,
        storage_revision=broker.storage_revision if is_same_storage else call.revision,
        user_id=user_id,
        modified_revision=call.revision,
    )


def _endpoint(endpoint: Any) -> tuple[str, str, int]:
    return endpoint.listener, endpoint.host, endpoint.port


def _check_registration(
    state: StreamsState, request: api.RegisterBrokerRequest, call: Call
) -> None:
    """Raise Refusal for what no broker can say of itself."""
    _check_text(request.name, "name", limits.NAME_BYTES_MAX)
    if request.rack:
        _check_text(request.rack, "rack", limits.NAME_BYTES_MAX)
    _check_text(request.storage_id, "storage_id", limits.BROKER_STORAGE_ID_BYTES_MAX)
    lowest, highest = _in_ms(limits.BROKER_TIMEOUT_MIN_US), _in_ms(limits.BROKER_TIMEOUT_MAX_US)
    if request.timeout_ms and not lowest <= request.timeout_ms <= highest:
        raise refusals.invalid_broker_timeout(request.timeout_ms, lowest, highest)
    if request.HasField("user_id") and request.user_id not in state.access:
        raise Refusal.of(Reason.REASON_USER_NOT_FOUND, user=request.user_id)
    _check_endpoints(request, call)


def _check_endpoints(request: api.RegisterBrokerRequest, call: Call) -> None:
    if not 1 <= len(request.endpoints) <= limits.BROKER_ENDPOINTS_MAX:
        raise refusals.invalid_endpoints_count(len(request.endpoints))
    call.charge(_ROWS_PER_ENDPOINT * len(request.endpoints))
    listeners = set()
    for endpoint in request.endpoints:
        _check_text(endpoint.listener, "listener", limits.NAME_BYTES_MAX)
        _check_text(endpoint.host, "host", limits.NAME_BYTES_MAX)
        if not 1 <= endpoint.port <= _PORT_MAX:
            raise refusals.invalid_port(endpoint.listener, endpoint.port, _PORT_MAX)
        listeners.add(endpoint.listener)
    if len(listeners) < len(request.endpoints):
        raise Refusal.of(Reason.REASON_INVALID_BROKER, "listener_twice")


def _check_text(text: str, field: str, bytes_max: int) -> None:
    check_name(
        text, reason=Reason.REASON_INVALID_BROKER, bytes_min=1, bytes_max=bytes_max, field=field
    )


def _in_ms(duration_us: int) -> int:
    return duration_us // _US_PER_MS


def _fence(state: StreamsState, broker: Broker, call: Call) -> None:
    fenced = broker._replace(fenced=True, modified_revision=call.revision)
    state.brokers.put(broker.id, fenced)
    state.liveness.forget(broker)
