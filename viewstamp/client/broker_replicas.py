"""The replicas that one broker has, and who leads them, as of one revision. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.client.broker_leaders import keeping, leader_of
from viewstamp.limits import PARTITIONS_PER_OFFSETS_ROW

NO_EPOCH: Final = 0
# Stream, topic, and the number of a row of partitions.
RowKey: TypeAlias = tuple[int, int, int]


class TopicPartition(NamedTuple):
    """A partition among all partitions of the cluster; ids, because names may change."""

    stream_id: int
    topic_id: int
    partition: int


class HeldReplica(NamedTuple):
    """What is to be known of a partition by a broker that has a replica of it.

    `leader` is 0 if nobody can lead. `replicas` and `in_sync` are ids of brokers. One that has lost
    its storage since it was in sync is not among these: the leader has to add it anew.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class ReplicaTable:
    """Brokers and placements as far as they concern one broker.

    A change of a broker costs a look at each partition that both have a replica of.
    """

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._brokers: dict[int, brokers_pb2.Broker] = {}
        self._rows: dict[RowKey, list[brokers_pb2.Placement]] = {}
        # By broker: the rows in which it shares a partition.
        self._rows_with: defaultdict[int, set[RowKey]] = defaultdict(set)
        self._stale: set[RowKey] = set()
        self._held: dict[TopicPartition, HeldReplica] = {}
        self._leads: dict[TopicPartition, int] = {}

    @property
    def brokers(self) -> Mapping[int, brokers_pb2.Broker]:
        """All brokers by id. Whoever takes one out must not change it."""
        return MappingProxyType(self._brokers)

    @property
    def held(self) -> Mapping[TopicPartition, HeldReplica]:
        """The partitions that the broker has a replica of."""
        self._refresh()
        return MappingProxyType(self._held)

    @property
    def leads(self) -> Mapping[TopicPartition, int]:
        """The partitions that it leads, each with the leader epoch."""
        self._refresh()
        return MappingProxyType(self._leads)

    def put(self, entity: Any) -> None:
        """Take in a Broker, or the Placements of a row."""
        if isinstance(entity, brokers_pb2.Broker):
            self._brokers[entity.id] = entity
            self._stale |= self._rows_with[entity.id]
        else:
            self._put_row(row_of(entity), entity.placements)

    def remove(self, entity: Any) -> None:
        """Forget a Broker, or the Placements of a row."""
        if isinstance(entity, brokers_pb2.Broker):
            del self._brokers[entity.id]
            self._stale |= self._rows_with[entity.id]
        else:
            self._put_row(row_of(entity), ())

    def _put_row(self, row: RowKey, placements: Iterable[brokers_pb2.Placement]) -> None:
        for placement in self._rows.pop(row, ()):
            for broker_id in placement.replicas:
                self._rows_with[broker_id].discard(row)
            self._held.pop(_partition(row, placement), None)
            self._leads.pop(_partition(row, placement), None)
        own = [each for each in placements if self._broker_id in each.replicas]
        if own:
            self._rows[row] = own
            self._stale.add(row)
        for placement in own:
            for broker_id in placement.replicas:
                self._rows_with[broker_id].add(row)

    def _refresh(self) -> None:
        """Derive anew who leads, where that may have changed."""
        for row in self._stale:
            for place, held in self._derived(row):
                self._held[place] = held
                self._leads.pop(place, None)
                if held.leader == self._broker_id:
                    self._leads[place] = held.leader_epoch
        self._stale.clear()

    def _derived(self, row: RowKey) -> Iterator[tuple[TopicPartition, HeldReplica]]:
        for placement in self._rows.get(row, ()):
            leader = leader_of(placement, self._brokers)
            in_sync = keeping(placement, self._brokers)
            held = HeldReplica(*leader, tuple(placement.replicas), in_sync)
            yield _partition(row, placement), held


def row_of(placements: brokers_pb2.Placements) -> RowKey:
    """Return which row of partitions it is; at least one of them is placed."""
    number = placements.placements[0].partition // PARTITIONS_PER_OFFSETS_ROW
    return placements.stream_id, placements.topic_id, number


def _partition(row: RowKey, placement: brokers_pb2.Placement) -> TopicPartition:
    return TopicPartition(row[0], row[1], placement.partition)
