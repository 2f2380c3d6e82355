"""Which brokers get partitions, and what leaders say of them.

A new partition begins with all its replicas in sync, since there is nothing yet that one of them
could lack. From then on its leader says who is in sync, and only replicas in sync can lead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from services.runtime import offset_rows
from services.runtime.domain import Call, CommandHandler
from services.streams import access as gates
from services.streams import refusals
from services.streams.broker_commands import acting_broker
from services.streams.lookup import authenticate, find_topic
from services.streams.model import StreamsState, Topic
from services.streams.placement import (
    Placement,
    PlacementsByRow,
    keeping,
    leader_of,
    shared,
)
from viewstamp import limits
from viewstamp.api.brokers.v1 import brokers_service_pb2 as api
from viewstamp.api.common.v1.common_pb2 import BrokerStamp

# Rows of work for each partition, beside one for each broker that is named or chosen.
_ROWS_PER_PARTITION: Final = 4
# Replicas that are looked at for one row of work, to find out who leads.
_REPLICAS_PER_ROW_OF_WORK: Final = 2

_Placements = dict[int, Placement]  # by number of the partition


def place_new(state: StreamsState, topic: Topic, first: int, count: int, call: Call) -> None:
    """Place partitions that are about to be created, if brokers are registered. Raises Refusal."""
    if state.brokers.rows and count:
        call.charge(_ROWS_PER_PARTITION * count)
        _change(state, topic, _chosen(state, topic, range(first, first + count), call), call)


def place_partitions(state: StreamsState, request: api.PlacePartitionsRequest, call: Call) -> bytes:
    """Decide which brokers have partitions. What is so already stays as it is."""
    caller = authenticate(state, call)
    topic = find_topic(state, caller, gates.CHANGE_TOPIC, request.stream, request.topic)
    named = [each.partition for each in request.assignments]
    _check_partitions(topic, named, call)
    known = {number: state.placements.of(topic.id, number) for number in named}
    if call.has_guards and request.HasField("expected_revision"):
        _check_revision(topic, known.values(), request.expected_revision)
    left_open = [
        each.partition
        for each in request.assignments
        if not each.replicas and not known[each.partition].replicas
    ]
    changes = _chosen(state, topic, left_open, call) if left_open else {}
    for each in request.assignments:
        if each.replicas:
            placed = _assigned(state, known[each.partition], each, request.allow_data_loss, call)
            if placed is not known[each.partition]:
                changes[each.partition] = placed
    _change(state, topic, changes, call)
    return b""


def update_in_sync(state: StreamsState, request: api.UpdateInSyncRequest, call: Call) -> bytes:
    """Note which replicas have all that was acknowledged, as the leader says."""
    caller = authenticate(state, call)
    acting_broker(state, caller, request.broker, call)
    topic = find_topic(state, caller, gates.SEND_TOPIC, request.stream, request.topic)
    named = [each.partition for each in request.partitions]
    _check_partitions(topic, named, call)
    check_leads(state, topic, named, request.broker, call)
    changes: _Placements = {}
    for each in request.partitions:
        known = state.placements.of(topic.id, each.partition)
        told = _told(state, known, each, request.broker.broker_id, call)
        # Who was in sync with another storage is so again, although the set is the same.
        if told != known.in_sync or told != keeping(known, state.brokers.rows):
            changes[each.partition] = Placement(known.replicas, told, call.revision)
    _change(state, topic, changes, call)
    return b""


COMMANDS: Final[Mapping[str, CommandHandler[StreamsState]]] = {
    "PlacePartitions": place_partitions,
    "UpdateInSync": update_in_sync,
}


def check_leads(
    state: StreamsState, topic: Topic, partitions: Iterable[int], stamp: BrokerStamp, call: Call
) -> None:
    """Raise Refusal NOT_LEADER unless a broker leads all of them, and has seen that it does.

    It answers for a partition that is not placed as well: nobody leads that one. The caller has
    paid for the look at each partition.
    """
    judged: set[Placement] = set()  # many partitions have the same placement
    for number in partitions:
        placement = state.placements.of(topic.id, number)
        if placement in judged:
            continue
        call.charge(len(placement.replicas) // _REPLICAS_PER_ROW_OF_WORK)
        leader = leader_of(placement, state.brokers.rows)
        if leader.broker_id != stamp.broker_id or leader.epoch > stamp.seen_revision:
            raise refusals.not_leader(number, stamp.broker_id, leader.broker_id, leader.epoch)
        judged.add(placement)


def _chosen(
    state: StreamsState, topic: Topic, partitions: Sequence[int], call: Call
) -> _Placements:
    """Return placements for partitions that have none. Raises Refusal NOT_ENOUGH_BROKERS."""
    factor = topic.options.replication_factor
    spread = state.brokers.spread()
    available = min(spread.brokers_count, limits.REPLICAS_PER_PARTITION_MAX)
    if factor > available:
        raise refusals.not_enough_brokers(available, factor)
    call.charge(factor * len(partitions))
    chosen = {}
    for number in partitions:
        # Topics begin at different brokers.
        replicas = spread.replicas(topic.id + number, factor)
        chosen[number] = Placement(replicas, replicas, call.revision)
    return chosen


def _assigned(
    state: StreamsState,
    known: Placement,
    assignment: api.PartitionAssignment,
    allow_data_loss: bool,
    call: Call,
) -> Placement:
    """Return who has a partition from now on, `known` if nothing changes. Raises Refusal."""
    replicas = _brokers(state, assignment.partition, assignment.replicas, call)
    kept = keeping(known, state.brokers.rows)
    in_sync = tuple(each for each in replicas if each in kept)
    if known.replicas and not in_sync and not allow_data_loss:
        raise refusals.replicas_not_in_sync(assignment.partition)
    if in_sync and replicas == known.replicas:
        return known
    return Placement(replicas, shared(in_sync) or replicas, call.revision)


def _told(
    state: StreamsState, known: Placement, told: api.InSyncReplicas, leader: int, call: Call
) -> tuple[int, ...]:
    """Return who is in sync, in the order of the replicas. Raises Refusal."""
    named = _brokers(state, told.partition, told.in_sync, call)
    if leader not in named:
        raise refusals.malformed("leader_not_in_sync", partition=told.partition, leader=leader)
    kept = keeping(known, state.brokers.rows)
    for broker_id in named:
        if broker_id not in known.replicas:
            raise refusals.malformed("no_replica", partition=told.partition, broker_id=broker_id)
        if broker_id not in kept and state.brokers.rows[broker_id].fenced:
            raise refusals.malformed(
                "fenced_in_sync", partition=told.partition, broker_id=broker_id
            )
    return shared(tuple(each for each in known.replicas if each in named))


def _brokers(
    state: StreamsState, partition: int, broker_ids: Sequence[int], call: Call
) -> tuple[int, ...]:
    """Return the brokers that a request names for a partition. Raises Refusal."""
    if not 1 <= len(broker_ids) <= limits.REPLICAS_PER_PARTITION_MAX:
        raise refusals.malformed(
            "replicas_count",
            partition=partition,
            replicas_count=len(broker_ids),
            limit=limits.REPLICAS_PER_PARTITION_MAX,
        )
    call.charge(len(broker_ids))
    if len(set(broker_ids)) < len(broker_ids):
        raise refusals.malformed("broker_twice", partition=partition)
    for broker_id in broker_ids:
        if broker_id not in state.brokers:
            raise refusals.broker_not_found(broker_id)
    return shared(tuple(broker_ids))


def _check_partitions(topic: Topic, partitions: Sequence[int], call: Call) -> None:
    """Raise Refusal unless a request names partitions of a topic, each once; pay for them."""
    if not 1 <= len(partitions) <= limits.PARTITIONS_PER_REQUEST_MAX:
        raise refusals.invalid_partitions_count(
            len(partitions), 1, limits.PARTITIONS_PER_REQUEST_MAX
        )
    call.charge(_ROWS_PER_PARTITION * len(partitions))
    if len(set(partitions)) < len(partitions):
        raise refusals.malformed("partition_twice")
    highest = max(partitions)
    if highest >= topic.partitions_count:
        raise refusals.partition_not_found(topic.name, highest, topic.partitions_count)


def _check_revision(topic: Topic, placements: Iterable[Placement], expected: int) -> None:
    """Raise REVISION_MISMATCH unless the last of these placements was changed at a revision."""
    newest = max(placement.revision for placement in placements)
    if expected != newest:
        raise refusals.placements_revision_mismatch(topic.name, expected, newest)


def _change(state: StreamsState, topic: Topic, changes: _Placements, call: Call) -> None:
    by_row: PlacementsByRow = {}
    for partition, placement in changes.items():
        number, index = offset_rows.place(partition)
        by_row.setdefault(number, {})[index] = placement
    call.charge(state.placements.rows_to_change(by_row))
    state.placements.change(topic.stream_id, topic.id, by_row)
