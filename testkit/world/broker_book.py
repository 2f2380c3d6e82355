"""What the feed of a world told of brokers and placements, by revision, and who leads by that.

One program follows both from before the first broker registers to the end. The book says who leads
at a revision by a rule of its own, in the words of docs/brokers.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.client.broker_replicas import RowKey, TopicPartition, row_of

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from testkit.world.process import WorldProcess
    from testkit.world.world import World
    from viewstamp.client import Client
    from viewstamp.client.informer import Informer

# What the program logs when it may miss revisions.
_LISTS_AGAIN: Final = "the informer lists again: %s"


class RightfulLeader(NamedTuple):
    """Who leads a partition, 0 for nobody, and in which epoch."""

    broker_id: int
    epoch: int


class BookChange(NamedTuple):
    """A broker or a row of placements as of a revision; None once it is gone."""

    revision: int
    key: int | RowKey
    entity: brokers_pb2.Broker | brokers_pb2.Placements | None


class BookPage:
    """Brokers and placements at one revision."""

    def __init__(self) -> None:
        self.brokers: dict[int, brokers_pb2.Broker] = {}
        self._rows: dict[RowKey, dict[TopicPartition, brokers_pb2.Placement]] = {}

    def put(self, change: BookChange) -> None:
        """Take in a change."""
        key, entity = change.key, change.entity
        if isinstance(key, int):
            self.brokers.pop(key, None)
            if isinstance(entity, brokers_pb2.Broker):
                self.brokers[key] = entity
            return
        self._rows.pop(key, None)
        if isinstance(entity, brokers_pb2.Placements):
            self._rows[key] = {
                TopicPartition(key[0], key[1], each.partition): each for each in entity.placements
            }

    @property
    def placements(self) -> Iterator[tuple[TopicPartition, brokers_pb2.Placement]]:
        """All placed partitions."""
        for row in self._rows.values():
            yield from row.items()

    def row(self, key: RowKey) -> Mapping[TopicPartition, brokers_pb2.Placement]:
        """Return the placed partitions of a row."""
        return self._rows.get(key, {})

    def placement(self, partition: TopicPartition) -> brokers_pb2.Placement | None:
        """Return who has a partition, None if it is not placed."""
        rows = (row for key, row in self._rows.items() if key[:2] == partition[:2])
        return next((row[partition] for row in rows if partition in row), None)

    def keeping(self, placement: brokers_pb2.Placement) -> list[int]:
        """Return the replicas that have all that was acknowledged, in order of preference."""
        return [
            each
            for each in placement.replicas
            if each in placement.in_sync
            and each in self.brokers
            and self.brokers[each].storage_revision <= placement.revision
        ]

    def leader(self, placement: brokers_pb2.Placement) -> RightfulLeader:
        """Return who leads: the first in sync that is not fenced, a drained one only if need be."""
        able = [each for each in self.keeping(placement) if not self.brokers[each].fenced]
        willing = [each for each in able if not self.brokers[each].draining] or able
        changed = [
            self.brokers[b].modified_revision for b in placement.replicas if b in self.brokers
        ]
        return RightfulLeader(willing[0] if willing else 0, max([placement.revision, *changed]))


class BrokerBook:
    """Keeps the book. `now` is the page of the last revision."""

    def __init__(self, world: World) -> None:
        self.now = BookPage()
        self.changes: list[BookChange] = []
        self.fenced_ns: dict[tuple[int, int], int] = {}
        """When it was seen first that a broker's epoch is over, by its id and its epoch."""
        self._world = world
        self._informer: Informer | None = None
        self._begin = self._end = 0
        self._lost_from: int | None = None
        # Behind the first, and before the second of each pair not all revisions are known.
        self._gaps: list[tuple[int, int]] = []

    @property
    def is_begun(self) -> bool:
        """Whether it has come to a first revision."""
        return self._begin > 0

    @property
    def revision(self) -> int:
        """Up to where it has come."""
        return 0 if self._informer is None else self._informer.revision

    async def keep(self, client: Client, process: WorldProcess | None) -> None:
        """Follow brokers and placements until cancelled. Raises what ends an informer."""

        def logged(who: WorldProcess, message: str) -> None:
            if who is process and message == _LISTS_AGAIN and self._lost_from is None:
                self._lost_from = self.revision

        self._world.logged.append(logged)
        informer = client.informer(brokers_pb2.Broker, brokers_pb2.Placements)
        informer.on_change(
            added=self._put, updated=lambda _, new: self._put(new), deleted=self._remove
        )
        async with informer:
            self._informer = informer
            await informer.synced()
            self._begin = informer.revision
            await informer.ended()

    def close(self) -> None:
        """End the book at the revision to which it has come."""
        self._end = self.revision
        self._find_gap()

    def knows(self, revision: int) -> bool:
        """Whether the book has all that there was at a revision."""
        in_gap = any(begin < revision < end for begin, end in self._gaps)
        return self._begin <= revision <= self._end and not in_gap

    def saw_fenced(self, broker_id: int, broker_epoch: int) -> None:
        """Note that somebody sees now that the epoch of a broker is over."""
        self.fenced_ns.setdefault((broker_id, broker_epoch), self._world.schedule.now_ns)

    def pages(self) -> Iterator[tuple[BookChange, BookPage]]:
        """Yield each change with the page before it; the page becomes that of the change."""
        page = BookPage()
        for change in self.changes:
            yield change, page
            page.put(change)

    def _put(self, entity: Message) -> None:
        if isinstance(entity, brokers_pb2.Broker):
            if entity.fenced:
                self.saw_fenced(entity.id, entity.broker_epoch)
            self._note(entity.id, entity)
        elif isinstance(entity, brokers_pb2.Placements):
            self._note(row_of(entity), entity)

    def _remove(self, entity: Message) -> None:
        if isinstance(entity, brokers_pb2.Broker):
            self._note(entity.id, None)
        elif isinstance(entity, brokers_pb2.Placements):
            self._note(row_of(entity), None)

    def _note(
        self, key: int | RowKey, entity: brokers_pb2.Broker | brokers_pb2.Placements | None
    ) -> None:
        self._find_gap()
        change = BookChange(self.revision, key, entity)
        self.changes.append(change)
        self.now.put(change)

    def _find_gap(self) -> None:
        if self._lost_from is not None and self.revision > self._lost_from:
            self._gaps.append((self._lost_from, self.revision))
            self._lost_from = None


class BookReader:
    """Turns the pages of a book in the order of revisions."""

    def __init__(self, book: BrokerBook) -> None:
        self._changes = book.changes
        self._revisions = [each.revision for each in book.changes]
        self._taken = 0
        self._page = BookPage()

    def at(self, revision: int) -> BookPage:
        """Return the page of a revision that is not below the last one that was asked for."""
        end = bisect_right(self._revisions, revision)
        for change in self._changes[self._taken : end]:
            self._page.put(change)
        self._taken = max(self._taken, end)
        return self._page
