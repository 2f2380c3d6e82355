"""What callers may read of brokers and placements. Lists are paged, as all lists are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from services.runtime import offset_rows
from services.runtime.domain import Call, QueryHandler
from services.streams import access as gates
from services.streams.broker_commands import find_broker, present_broker
from services.streams.brokers import Broker
from services.streams.lookup import authenticate, find_topic
from services.streams.model import StreamsState, Topic
from services.streams.placement import leader_of
from viewstamp import limits
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.brokers.v1 import brokers_service_pb2 as api
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.paging import PagedList, page_size


def get_broker(
    state: StreamsState, request: api.GetBrokerRequest, call: Call
) -> api.GetBrokerResponse:
    """Return one broker."""
    authenticate(state, call)
    return api.GetBrokerResponse(broker=_counted(state, find_broker(state, request.broker)))


def list_brokers(
    state: StreamsState, request: api.ListBrokersRequest, call: Call
) -> api.ListBrokersResponse:
    """Return a page of the brokers."""
    authenticate(state, call)
    size = min(page_size(request.page_size), limits.BROKERS_PAGE_MAX)
    pages = PagedList("ListBrokers")
    ids = state.brokers.keys_after(pages.id_after(request.page_token), size + 1)
    brokers = [_counted(state, state.brokers.rows[id_]) for id_ in ids[:size]]
    return api.ListBrokersResponse(brokers=brokers, next_page_token=pages.next_id_token(ids, size))


def keep_alive_broker(
    state: StreamsState, request: api.KeepAliveBrokerRequest, call: Call
) -> api.KeepAliveBrokerResponse:
    """Note that a broker shows life.

    Once it is to be fenced it is refused until that is decided: others may lead before it shows
    life again.
    """
    broker = present_broker(state, authenticate(state, call), request.broker)
    if state.liveness.is_leaving(broker):
        raise Refusal.of(Reason.REASON_OVERLOADED, "broker_leaves", broker_id=broker.id)
    state.liveness.heard(broker)
    return api.KeepAliveBrokerResponse(
        interval_ms=limits.BROKER_HEARTBEAT_MS,
        timeout_ms=broker.timeout_ms,
        draining=broker.draining,
    )


def list_placements(
    state: StreamsState, request: api.ListPlacementsRequest, call: Call
) -> api.ListPlacementsResponse:
    """Return a page of who has and who leads the partitions of a topic."""
    caller = authenticate(state, call)
    topic = find_topic(state, caller, gates.READ_TOPIC, request.stream, request.topic)
    size = page_size(request.page_size)
    pages = PagedList("ListPlacements", topic.id)
    response = api.ListPlacementsResponse()
    for each in _placed(state, topic, pages.begin(request.page_token)):
        if len(response.placements) == size:
            response.next_page_token = pages.id_token(each.partition)
            break
        response.placements.append(each)
    return response


QUERIES: Final[Mapping[str, QueryHandler[StreamsState]]] = {
    "GetBroker": get_broker,
    "ListBrokers": list_brokers,
    "KeepAliveBroker": keep_alive_broker,
    "ListPlacements": list_placements,
}


def broker_message(broker: Broker) -> brokers_pb2.Broker:
    """Return a broker as callers see it, without the count of its replicas."""
    return brokers_pb2.Broker(**described(broker))


def described(broker: Broker) -> dict[str, Any]:
    """Return the fields that a broker has for callers and in a section alike."""
    fields = broker._asdict()
    fields["endpoints"] = [
        brokers_pb2.BrokerEndpoint(**each._asdict()) for each in broker.endpoints
    ]
    return fields


def _counted(state: StreamsState, broker: Broker) -> brokers_pb2.Broker:
    message = broker_message(broker)
    message.replicas_count = state.placements.replicas_count(broker.id)
    return message


def _placed(state: StreamsState, topic: Topic, start: int) -> Iterator[brokers_pb2.Placement]:
    """Yield the placed partitions from `start` on, ascending."""
    first_number, first_index = offset_rows.place(start)
    for number in range(first_number, offset_rows.row_count(topic.partitions_count)):
        row = state.placements.rows.get((topic.id, number))
        if row is None:
            continue
        first = offset_rows.first_partition(number)
        begin = first_index if number == first_number else 0
        for index, placement in enumerate(row.partitions[begin:], begin):
            if placement.replicas:
                leader = leader_of(placement, state.brokers.rows)
                yield brokers_pb2.Placement(
                    partition=first + index,
                    **placement._asdict(),
                    leader=leader.broker_id,
                    leader_epoch=leader.epoch,
                )
