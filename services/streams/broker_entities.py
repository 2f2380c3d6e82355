"""Brokers and placements in the section: kinds 6 and 7."""

from __future__ import annotations

from services.runtime import offset_rows
from services.runtime.section import Projected, SectionError, id_key
from services.streams.broker_queries import described
from services.streams.brokers import Broker, BrokerEndpoint
from services.streams.model import NEXT_BROKER_ID, StreamsState
from services.streams.placement import UNPLACED, Placement, PlacementRow, shared
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.limits import PARTITIONS_PER_OFFSETS_ROW


def encode_broker(broker: Broker) -> bytes:
    """Return the canonical bytes of a BrokerEntity."""
    return brokers_pb2.BrokerEntity(**described(broker)).SerializeToString(deterministic=True)


def load_broker(state: StreamsState, canonical: bytes) -> Projected:
    """Insert a broker. Raises DecodeError, and SectionError for a name that is there twice."""
    entity = brokers_pb2.BrokerEntity.FromString(canonical)
    fields = {name: getattr(entity, name) for name in Broker._fields}
    fields["endpoints"] = tuple(
        BrokerEndpoint(each.listener, each.host, each.port) for each in entity.endpoints
    )
    broker = Broker(**fields)
    if broker.name in state.broker_ids:
        raise SectionError(f"two brokers are called {broker.name!r}")
    state.brokers.put(broker.id, broker)
    state.broker_ids.put(broker.name, broker.id)
    return id_key(broker.id), encode_broker(broker)


def encode_placements(row: PlacementRow) -> bytes:
    """Return the canonical bytes of a PlacementsEntity."""
    return brokers_pb2.PlacementsEntity(
        stream_id=row.stream_id,
        topic_id=row.topic_id,
        first_partition=offset_rows.first_partition(row.number),
        partitions=[brokers_pb2.PartitionReplicas(**each._asdict()) for each in row.partitions],
    ).SerializeToString(deterministic=True)


def load_placements(state: StreamsState, canonical: bytes) -> Projected:
    """Insert the placements of a row. Raises DecodeError, and SectionError for impossible ones."""
    entity = brokers_pb2.PlacementsEntity.FromString(canonical)
    number, _ = offset_rows.place(entity.first_partition)
    partitions = tuple(_placement(each) for each in entity.partitions)
    if not partitions or len(partitions) > PARTITIONS_PER_OFFSETS_ROW:
        raise SectionError(f"a row of placements of topic {entity.topic_id} has {len(partitions)}")
    if partitions[-1] is UNPLACED:
        raise SectionError(f"a row of placements of topic {entity.topic_id} ends with none")
    row = PlacementRow(entity.stream_id, entity.topic_id, number, partitions)
    state.placements.put((row.topic_id, row.number), row)
    return placements_key(row), encode_placements(row)


def placements_key(row: PlacementRow) -> bytes:
    """Return the key of a PlacementsEntity."""
    return id_key(row.topic_id, offset_rows.first_partition(row.number))


def check(state: StreamsState) -> None:
    """Raise SectionError if brokers and placements contradict each other, or topics."""
    next_broker = state.counters.rows.get(NEXT_BROKER_ID, 0)
    for broker_id in state.brokers.rows:
        if broker_id >= next_broker:
            raise SectionError(f"broker {broker_id} has an id that the next broker may get")
    for row in state.placements.rows.values():
        found = state.topics.rows.get((row.stream_id, row.topic_id))
        last = offset_rows.first_partition(row.number) + len(row.partitions)
        if found is None or last > found.partitions_count:
            raise SectionError(
                f"there is a placement of partition {last - 1} of topic {row.topic_id}, which is"
                " not there"
            )
    for broker_id in state.placements.placed_brokers():
        if broker_id not in state.brokers:
            raise SectionError(f"broker {broker_id} has replicas, and is not registered")


def _placement(entity: brokers_pb2.PartitionReplicas) -> Placement:
    """Return who has a partition. Raises SectionError unless those in sync are replicas."""
    replicas, in_sync = shared(tuple(entity.replicas)), shared(tuple(entity.in_sync))
    placement = Placement(replicas, in_sync, entity.revision)
    if placement == UNPLACED:
        return UNPLACED
    in_order = tuple(each for each in placement.replicas if each in placement.in_sync)
    is_once = len(set(placement.replicas)) == len(placement.replicas)
    if not placement.in_sync or placement.in_sync != in_order or not is_once:
        raise SectionError(
            f"the replicas {placement.replicas} with {placement.in_sync} in sync have no order"
        )
    return placement
