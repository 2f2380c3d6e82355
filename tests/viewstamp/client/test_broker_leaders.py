"""The client derives leaders as the cluster does, whatever brokers and placements there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.streams.broker_queries import broker_message
from services.streams.brokers import Broker
from services.streams.placement import Placement, keeping
from services.streams.placement import leader_of as leader_in_the_cluster
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.client.broker_leaders import leader_of
from viewstamp.client.broker_replicas import HeldReplica, ReplicaTable, TopicPartition
from viewstamp.limits import PARTITIONS_PER_OFFSETS_ROW

IDS = range(1, 6)
OWN = 1
REVISIONS = st.integers(1, 6)


@st.composite
def brokers(draw: st.DrawFn, broker_id: int = 0) -> Broker:
    """A broker in any state, with revisions that meet those of placements."""
    storage_revision = draw(REVISIONS)
    return Broker(
        id=broker_id or draw(st.sampled_from(IDS)),
        name="",
        rack="",
        endpoints=(),
        broker_epoch=0,
        fenced=draw(st.booleans()),
        draining=draw(st.booleans()),
        timeout_ms=0,
        storage_id="",
        storage_revision=storage_revision,
        user_id=0,
        created_at=0,
        created_revision=0,
        modified_revision=storage_revision + draw(st.integers(0, 3)),
    )


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Some replicas in any order, at least one of which is in sync."""
    replicas = tuple(draw(st.permutations(IDS))[: draw(st.integers(1, len(IDS)))])
    synced = draw(st.sets(st.sampled_from(replicas), min_size=1))
    in_order = tuple(each for each in replicas if each in synced)
    return Placement(replicas, in_order, draw(REVISIONS))


ALL_BROKERS: st.SearchStrategy[Mapping[int, Broker]] = st.fixed_dictionaries(
    {each: brokers(each) for each in IDS}
)
# The first partitions of two rows of a topic, so that an entity is of either.
ROWS = (0, PARTITIONS_PER_OFFSETS_ROW)


def placement_message(placement: Placement, partition: int = 0) -> brokers_pb2.Placement:
    """Return who has a partition, as a watch shows it."""
    return brokers_pb2.Placement(
        partition=partition,
        replicas=placement.replicas,
        in_sync=placement.in_sync,
        revision=placement.revision,
    )


def row_message(first: int, row: list[Placement]) -> brokers_pb2.Placements:
    """Return a row of placements, as a watch shows it."""
    found = [placement_message(each, number) for number, each in enumerate(row, first)]
    return brokers_pb2.Placements(stream_id=3, topic_id=4, placements=found)


@given(ALL_BROKERS, placements())
def test_the_rule_is_that_of_the_cluster(known: Mapping[int, Broker], placement: Placement) -> None:
    """Leader and leader epoch are the same here and there."""
    messages = {each: broker_message(broker) for each, broker in known.items()}
    found = leader_of(placement_message(placement), messages)
    assert tuple(found) == tuple(leader_in_the_cluster(placement, known))


@given(
    ALL_BROKERS,
    st.lists(
        st.one_of(
            brokers(),
            st.tuples(st.sampled_from(ROWS), st.lists(placements(), max_size=3)),
        ),
        max_size=20,
    ),
)
def test_a_table_follows_every_change(known: dict[int, Broker], changes: list[Any]) -> None:
    """After any changes, looked at or not, the table has what follows from the last entities."""
    table = ReplicaTable(OWN)
    rows: dict[int, list[Placement]] = {first: [] for first in ROWS}
    for broker in known.values():
        table.put(broker_message(broker))
    for number, change in enumerate(changes):
        if isinstance(change, Broker):
            known[change.id] = change
            table.put(broker_message(change))
        else:
            _replace(table, rows, *change)
        if number % 3 == 0:
            assert table.held == _held(known, rows)
    assert table.held == _held(known, rows)
    assert table.leads == {
        place: held.leader_epoch for place, held in table.held.items() if held.leader == OWN
    }


def test_a_forgotten_broker_leads_nothing() -> None:
    """A broker that is not known any more counts as fenced, until it is known again."""
    one, two = (
        brokers_pb2.Broker(id=each, storage_revision=1, modified_revision=each) for each in (1, 2)
    )
    table = ReplicaTable(OWN)
    for entity in (one, two, row_message(0, [Placement((2, 1), (2, 1), 1)])):
        table.put(entity)
    place = TopicPartition(3, 4, 0)
    assert (table.held[place].leader, table.leads) == (2, {})
    table.remove(two)
    assert (table.held[place].leader, table.leads) == (1, {place: 1})
    table.put(two)
    assert (table.held[place].leader, table.leads) == (2, {})


def _replace(
    table: ReplicaTable, rows: dict[int, list[Placement]], first: int, row: list[Placement]
) -> None:
    if row:
        table.put(row_message(first, row))
    elif rows[first]:
        table.remove(row_message(first, rows[first]))
    rows[first] = row


def _held(
    known: Mapping[int, Broker], rows: Mapping[int, list[Placement]]
) -> dict[TopicPartition, HeldReplica]:
    """Return what the cluster would say of the partitions that the broker has."""
    return {
        TopicPartition(3, 4, number): HeldReplica(
            *leader_in_the_cluster(placement, known), placement.replicas, keeping(placement, known)
        )
        for first, row in rows.items()
        for number, placement in enumerate(row, first)
        if OWN in placement.replicas
    }
