"""What the brokers of a world store: the records of partitions, in memory.

A record is on the disk as soon as it is appended, so a broker that dies has lost none. One that
loses its storage comes back with an empty disk, which has another id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from viewstamp.client.broker_replicas import TopicPartition


class Record(NamedTuple):
    """What a producer has written: no other record of the run has the number."""

    epoch: int
    """The leader epoch in which it was written first."""
    number: int


class RecordLog:
    """The records of one partition by offset.

    Two logs that have the same epoch at an offset are the same up to there, since only one broker
    leads in an epoch.
    """

    def __init__(self) -> None:
        self.records: list[Record] = []

    def __len__(self) -> int:
        """Return the offset behind the last record."""
        return len(self.records)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record; 0 without any."""
        return self.records[-1].epoch if self.records else 0

    def agrees(self, count: int, last_epoch: int) -> bool:
        """Whether another log of so many records, with this epoch at its end, begins this one."""
        if count > len(self.records):
            return False
        return count == 0 or self.records[count - 1].epoch == last_epoch

    def append(self, records: Sequence[Record]) -> None:
        """Write records behind the last one."""
        self.records += records

    def cut(self, count: int) -> None:
        """Keep the first records alone."""
        del self.records[count:]


class BrokerDisk:
    """The logs of one broker. `storage_id` is made once, and stays with them."""

    def __init__(self, storage_id: str) -> None:
        self.storage_id = storage_id
        self.logs: defaultdict[TopicPartition, RecordLog] = defaultdict(RecordLog)
