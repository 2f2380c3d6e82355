"""Which records the leaders of a world acknowledged, and the judge of what became of them.

A leader acknowledges a record once every replica in sync has it. From then on every later leader
of the partition has to have it at its offset. The only excuse is an operator who has allowed the
loss of data, because no replica in sync was left that had any.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from testkit.world.broker_disks import Record
from viewstamp.client.broker_replicas import TopicPartition


class AcknowledgedRecord(NamedTuple):
    """A record that was acknowledged at an offset, by the leader of an epoch."""

    epoch: int
    offset: int
    record: Record


class BegunLeader(NamedTuple):
    """What a broker had when it began to lead a partition in an epoch."""

    who: str
    epoch: int
    records: Sequence[Record]


class AcknowledgedRecords:
    """What was acknowledged of each partition, and who led it."""

    def __init__(self) -> None:
        self.counts: defaultdict[TopicPartition, int] = defaultdict(int)
        """How many records were acknowledged, each time anew."""
        self._acknowledged: defaultdict[TopicPartition, dict[int, list[AcknowledgedRecord]]]
        self._acknowledged = defaultdict(dict)
        self._leaders: defaultdict[TopicPartition, list[BegunLeader]] = defaultdict(list)
        self._lost: defaultdict[TopicPartition, list[int]] = defaultdict(list)
        self._numbers = count(1)

    def next_number(self) -> int:
        """Return a number that no record has."""
        return next(self._numbers)

    def begun(
        self, who: str, partition: TopicPartition, epoch: int, records: Sequence[Record]
    ) -> None:
        """Note that a broker begins to lead, and what it has."""
        self._leaders[partition].append(BegunLeader(who, epoch, tuple(records)))

    def acknowledge(
        self, partition: TopicPartition, epoch: int, first: int, records: Sequence[Record]
    ) -> None:
        """Note records that were acknowledged in an epoch, from an offset on."""
        for offset, record in enumerate(records, first):
            told = self._acknowledged[partition].setdefault(offset, [])
            self.counts[partition] += not told or told[-1].record != record
            told.append(AcknowledgedRecord(epoch, offset, record))

    def allow_loss(self, partition: TopicPartition, revision: int) -> None:
        """Note at which revision an operator gave up what had been acknowledged before."""
        self._lost[partition].append(revision)

    def violations(self) -> Iterator[str]:
        """Yield what leaders lacked that had been acknowledged before their epochs."""
        for partition, leaders in self._leaders.items():
            for leader in leaders:
                for due in self._due(partition, leader.epoch):
                    yield from _lacks(leader.who, partition, leader.records, due)

    def lacking(
        self, who: str, partition: TopicPartition, epoch: int, records: Sequence[Record]
    ) -> Iterator[str]:
        """Yield what a replica in sync lacks at the end, in the last epoch of its leader."""
        for due in self._due(partition, epoch + 1):
            yield from _lacks(who, partition, records, due)

    def _due(self, partition: TopicPartition, epoch: int) -> Iterator[AcknowledgedRecord]:
        """Yield what the leader of an epoch must have: of earlier ones, and not given up."""
        given_up = max((each for each in self._lost[partition] if each <= epoch), default=0)
        for told in self._acknowledged[partition].values():
            for each in told:
                if given_up <= each.epoch < epoch:
                    yield each


def _lacks(
    who: str, partition: TopicPartition, records: Sequence[Record], due: AcknowledgedRecord
) -> Iterator[str]:
    found = records[due.offset] if due.offset < len(records) else None
    if found != due.record:
        yield (
            f"broker {who} has {found} at offset {due.offset} of {tuple(partition)}, where"
            f" {due.record} was acknowledged in epoch {due.epoch}"
        )
