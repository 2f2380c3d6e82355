"""Who has the partitions, and who leads them.

What is kept says who *may* lead: the replicas in order of preference, and which of them are in
sync. Who leads follows from that and from the brokers, and is never written down. So a broker with
a million partitions that dies is one change of one row, and everybody who knows the rows knows the
new leaders at the same revision. KRaft writes a record for each partition instead.

The epoch of a leader is a revision, too: the last one at which the answer may have changed.

Partitions are kept in rows of 128, as offsets are. Brokers are spread as KIP-36 does it: partitions
take turns over all brokers, and the replicas of one walk over the racks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain, zip_longest
from operator import itemgetter
from typing import Final, NamedTuple

from services.runtime import offset_rows
from services.streams.brokers import Broker
from viewstamp.machine.tables import Table, UndoLog

# Rows of work to replace a row of placements, and to look at one and forget it; replicas counted
# for one of them.
_ROWS_PER_REPLACED: Final = 24
_ROWS_PER_FORGOTTEN: Final = 12
_REPLICAS_PER_ROW_OF_WORK: Final = 24
NO_LEADER: Final = 0
_REPLICAS: Final = itemgetter(0)  # of a placement, faster than by name


class Placement(NamedTuple):
    """Who has one partition. Both tuples are ids of brokers, in order of preference."""

    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    revision: int  # of the last change of either


class PlacementRow(NamedTuple):
    """Consecutive partitions of a topic, without those at the end that are not placed."""

    stream_id: int
    topic_id: int
    number: int
    partitions: tuple[Placement, ...]


class Leader(NamedTuple):
    """Who leads a partition, 0 if nobody can, and since which revision that is certain."""

    broker_id: int
    epoch: int


UNPLACED: Final = Placement((), (), 0)
# Partitions have few different sets of replicas: equal ones are one object, and take no memory.
_SHARED_MAX: Final = 1 << 16
shared: Final = lru_cache(_SHARED_MAX)(tuple[int, ...])
RowKey = tuple[int, int]  # topic id, number of the row
# New placements by row number, then by index in the row.
PlacementsByRow = dict[int, dict[int, Placement]]


class PlacementTable(Table[RowKey, PlacementRow]):
    """The placements, with a count of replicas by broker that follows every change and revert."""

    __slots__ = ("_replicas",)

    def __init__(self, undo: UndoLog) -> None:
        super().__init__(undo)
        self._replicas: Counter[int] = Counter()

    def replicas_count(self, broker_id: int) -> int:
        """Return how many replicas a broker has."""
        return self._replicas[broker_id]

    def placed_brokers(self) -> list[int]:
        """Return the ids of all brokers that have replicas, ascending."""
        return sorted(self._replicas)

    def of(self, topic_id: int, partition: int) -> Placement:
        """Return who has a partition."""
        number, index = offset_rows.place(partition)
        row = self.rows.get((topic_id, number))
        if row is None or index >= len(row.partitions):
            return UNPLACED
        return row.partitions[index]

    def rows_to_change(self, changes: PlacementsByRow) -> int:
        """Return what it costs to replace some placements."""
        replicas = sum(len(each.replicas) for row in changes.values() for each in row.values())
        return _ROWS_PER_REPLACED * len(changes) + replicas // _REPLICAS_PER_ROW_OF_WORK

    def change(self, stream_id: int, topic_id: int, changes: PlacementsByRow) -> None:
        """Replace the placements of some partitions."""
        for number in sorted(changes):
            old = self.rows.get((topic_id, number))
            partitions = list(old.partitions) if old is not None else []
            lacking = max(changes[number]) + 1 - len(partitions)
            partitions += [UNPLACED] * lacking
            for index, placement in changes[number].items():
                partitions[index] = placement
            self._keep(PlacementRow(stream_id, topic_id, number, tuple(partitions)))

    def cut(self, topic_id: int, before: int, count: int) -> None:
        """Forget the partitions behind the first `count`, of `before`."""
        number, kept = offset_rows.place(count)
        row = self.rows.get((topic_id, number)) if kept else None
        if row is not None and len(row.partitions) > kept:
            self._keep(row._replace(partitions=row.partitions[:kept]))
        self._drop(topic_id, number + bool(kept), offset_rows.row_count(before))

    def rows_to_drop(self, topic_id: int, first: int, end: int) -> int:
        """Return what it costs to forget partitions; to find out costs `rows_to_find`."""
        found = self._found(topic_id, first, end)
        replicas = sum(sum(map(len, map(_REPLICAS, row.partitions))) for row in found)
        return replicas // _REPLICAS_PER_ROW_OF_WORK

    def rows_to_find(self, first: int, end: int) -> int:
        """Return what it costs to look at partitions; nothing if no broker has any anywhere."""
        return _ROWS_PER_FORGOTTEN * len(_row_numbers(first, end)) if self.rows else 0

    def drop(self, topic_id: int, partitions_count: int) -> None:
        """Forget a topic with so many partitions."""
        if self.rows:
            self._drop(topic_id, 0, offset_rows.row_count(partitions_count))

    def put(self, key: RowKey, value: PlacementRow) -> None:
        """Insert or replace a row."""
        old = self.rows.get(key)
        super().put(key, value)
        self._count(old, value)

    def delete(self, key: RowKey) -> PlacementRow:
        """Remove a row and return it. Raises KeyError if there is none."""
        old = super().delete(key)
        self._count(old, None)
        return old

    def restore(self, key: RowKey, old: object) -> None:
        """Put back the value before a change; only the undo log calls this."""
        undone = self.rows.get(key)
        super().restore(key, old)
        self._count(undone, self.rows.get(key))

    def _keep(self, row: PlacementRow) -> None:
        """Put a row without what is not placed at its end; one that has nothing else is dropped."""
        end = len(row.partitions)
        while end and not row.partitions[end - 1].replicas:
            end -= 1
        if end:
            self.put((row.topic_id, row.number), row._replace(partitions=row.partitions[:end]))
        elif (row.topic_id, row.number) in self.rows:
            self.delete((row.topic_id, row.number))

    def _found(self, topic_id: int, first: int, end: int) -> Iterator[PlacementRow]:
        for number in _row_numbers(first, end):
            row = self.rows.get((topic_id, number))
            if row is not None:
                yield row

    def _drop(self, topic_id: int, number: int, end: int) -> None:
        for row_number in range(number, end):
            if (topic_id, row_number) in self.rows:
                self.delete((topic_id, row_number))

    def _count(self, old: PlacementRow | None, new: PlacementRow | None) -> None:
        """Follow the change of a row; many are replaced for the sake of few partitions."""
        before = old.partitions if old is not None else ()
        after = new.partitions if new is not None else ()
        if before and after:
            pairs = zip_longest(before, after, fillvalue=UNPLACED)
            changed = [(was, now) for was, now in pairs if was is not now]
            before, after = tuple(was for was, _ in changed), tuple(now for _, now in changed)
        self._replicas.update(chain.from_iterable(map(_REPLICAS, after)))
        gone = Counter(chain.from_iterable(map(_REPLICAS, before)))
        self._replicas.subtract(gone)
        for broker_id in gone:
            if not self._replicas[broker_id]:
                del self._replicas[broker_id]


def _row_numbers(first: int, end: int) -> range:
    """Return the numbers of the rows of partitions from `first` to before `end`."""
    return range(offset_rows.place(first)[0], offset_rows.row_count(end))


def leader_of(placement: Placement, brokers: Mapping[int, Broker]) -> Leader:
    """Return who leads a partition: the first replica in sync that can.

    One that is drained leads only if no other can.
    """
    able = [brokers[each] for each in keeping(placement, brokers) if not brokers[each].fenced]
    chosen = next((broker.id for broker in able if not broker.draining), NO_LEADER)
    if not chosen and able:
        chosen = able[0].id
    changed = (brokers[each].modified_revision for each in placement.replicas)
    return Leader(chosen, max((placement.revision, *changed)))


def keeping(placement: Placement, brokers: Mapping[int, Broker]) -> tuple[int, ...]:
    """Return the replicas that still have all that was acknowledged.

    Those with another storage than when they were last in sync have lost it.
    """
    return tuple(
        each for each in placement.in_sync if brokers[each].storage_revision <= placement.revision
    )


class Spread:
    """The brokers that may get replicas, in turns over racks."""

    def __init__(self, brokers: Mapping[int, Broker]) -> None:
        """Take those of the brokers that are neither fenced nor drained."""
        racks: dict[str, list[int]] = {}
        for broker_id in sorted(brokers):
            broker = brokers[broker_id]
            if not broker.fenced and not broker.draining:
                racks.setdefault(broker.rack, []).append(broker_id)
        self._racks = [racks[name] for name in sorted(racks)]
        self._turns = list(self._in_turns())

    @property
    def brokers_count(self) -> int:
        """How many brokers there are."""
        return len(self._turns)

    def replicas(self, turn: int, count: int) -> tuple[int, ...]:
        """Return `count` different brokers, no more than there are, for the partition of a turn."""
        cycle, position = divmod(turn, len(self._turns))
        rack, place = self._turns[position]
        chosen = [self._racks[rack][place]]
        others = self._others(rack, place + cycle)
        while len(chosen) < count:
            other = next(others)
            if other != chosen[0]:
                chosen.append(other)
        return shared(tuple(chosen))

    def _in_turns(self) -> Iterator[tuple[int, int]]:
        """Yield racks and places in them: each lap takes one broker of each rack that has one."""
        left, lap = list(range(len(self._racks))), 0
        while left:
            for rack in left:
                yield rack, lap
            lap += 1
            left = [rack for rack in left if lap < len(self._racks[rack])]

    def _others(self, rack: int, place: int) -> Iterator[int]:
        """Yield every broker once, the racks behind `rack` first; `place` shifts within racks."""
        ring, lap = [*self._racks[rack + 1 :], *self._racks[: rack + 1]], 0
        while ring:
            for ids in ring:
                yield ids[(place + lap) % len(ids)]
            lap += 1
            ring = [ids for ids in ring if lap < len(ids)]


class BrokerTable(Table[int, Broker]):
    """The brokers by id, and the spread over them: it is made once after each change of a broker.

    So a topic pays for its partitions alone, and whoever changes a broker pays for the next spread.
    """

    __slots__ = ("_spread",)

    def __init__(self, undo: UndoLog) -> None:
        super().__init__(undo)
        self._spread: Spread | None = None

    def spread(self) -> Spread:
        """Return the brokers that may get replicas, in turns."""
        if self._spread is None:
            self._spread = Spread(self.rows)
        return self._spread

    def put(self, key: int, value: Broker) -> None:
        """Insert or replace a broker."""
        self._spread = None
        super().put(key, value)

    def delete(self, key: int) -> Broker:
        """Remove a broker and return it. Raises KeyError if there is none."""
        self._spread = None
        return super().delete(key)

    def restore(self, key: int, old: object) -> None:
        """Put back the value before a change; only the undo log calls this."""
        self._spread = None
        super().restore(key, old)
