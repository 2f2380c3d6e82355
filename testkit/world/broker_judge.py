"""What must hold of the brokers of a world, whatever goes wrong.

The evidence is what their sessions said (`broker_acts`), what the feed told (`broker_book`), and
which records were acknowledged (`broker_records`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from testkit.world.broker_acts import AcceptedAct, BrokerLook
from testkit.world.broker_book import BookPage, BookReader, BrokerBook
from testkit.world.schedule import NS_PER_MS
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.client.broker_replicas import TopicPartition

if TYPE_CHECKING:
    from testkit.world.broker_acts import BrokerActs
    from testkit.world.broker_disks import BrokerDisk
    from testkit.world.broker_records import AcknowledgedRecords

# By how much clocks that drift may differ over the timeout of a broker.
_DRIFT_NS: Final = NS_PER_MS


class BrokerJudge:
    """Judges a run once its book is closed. `stream_id` is the stream in which brokers write."""

    def __init__(
        self, book: BrokerBook, acts: BrokerActs, records: AcknowledgedRecords, timeout_ns: int
    ) -> None:
        self.stream_id = 0
        self._book = book
        self._acts = acts
        self._records = records
        self._timeout_ns = timeout_ns

    def is_judged(self, partition: TopicPartition) -> bool:
        """Whether brokers write to a partition; of others they only have to know who leads."""
        return partition.stream_id == self.stream_id

    def violations(self, disks: dict[int, tuple[str, BrokerDisk]]) -> list[str]:
        """Return what is wrong, given the disks that brokers have in the end, by id."""
        return [
            *self._acts.violations,
            *self._led_twice(),
            *self._wrong_looks(),
            *self._stale_acts(),
            *self._fenced_alive(),
            *self._misplaced(),
            *self._records.violations(),
            *self._lost_from_disks(disks),
        ]

    def _led_twice(self) -> Iterator[str]:
        """An epoch of a partition has one leader."""
        leaders: dict[tuple[TopicPartition, int], BrokerLook] = {}
        for look in self._acts.looks:
            for place in look.leads.items():
                first = leaders.setdefault(place, look)
                if first.broker_id != look.broker_id:
                    yield (
                        f"brokers {first.who} and {look.who} led partition {tuple(place[0])} in"
                        f" epoch {place[1]}"
                    )

    def _wrong_looks(self) -> Iterator[str]:
        """A session says what follows from the feed at its revision, or that it leads nothing."""
        reader = BookReader(self._book)
        for look in sorted(self._acts.looks, key=lambda each: each.revision):
            if self._book.knows(look.revision):
                yield from _differences(look, reader.at(look.revision))

    def _stale_acts(self) -> Iterator[str]:
        """Only a leader that has seen its epoch acts for a partition."""
        reader = BookReader(self._book)
        for act in sorted(self._acts.accepted, key=lambda each: each.revision):
            # Both, since a change at the revision of the act is that of the act.
            if self._book.knows(act.revision - 1) and self._book.knows(act.revision):
                yield from _staleness(act, reader.at(act.revision - 1))

    def _fenced_alive(self) -> Iterator[str]:
        """A broker is fenced when it was silent for its timeout, or has resigned."""
        for tenancy, over_ns in self._book.fenced_ns.items():
            sent_ns = self._acts.signs_ns.get(tenancy)
            if sent_ns is None or tenancy in self._acts.resigned:
                continue
            if over_ns - sent_ns < self._timeout_ns - _DRIFT_NS:
                yield (
                    f"broker {tenancy[0]} was fenced at {over_ns} ns, and had shown life at"
                    f" {sent_ns} ns"
                )

    def _misplaced(self) -> Iterator[str]:
        """Replicas are on different brokers; chosen ones also in different racks, if there are."""
        for change, page in self._book.pages():
            if not isinstance(change.entity, brokers_pb2.Placements) or isinstance(change.key, int):
                continue
            known = page.row(change.key)
            for placement in change.entity.placements:
                place = TopicPartition(change.key[0], change.key[1], placement.partition)
                if place in known and known[place] == placement:
                    continue
                yield from _wrong_replicas(place, placement, page)
                is_chosen = place not in known and self.is_judged(place)
                if is_chosen and self._book.knows(change.revision - 1):
                    yield from _wrong_choice(place, placement, page)

    def _lost_from_disks(self, disks: dict[int, tuple[str, BrokerDisk]]) -> Iterator[str]:
        """In the end each replica in sync has all that was acknowledged."""
        page = self._book.now
        for partition, placement in page.placements:
            epoch = page.leader(placement).epoch
            for broker_id in page.keeping(placement):
                if self.is_judged(partition) and broker_id in disks:
                    who, disk = disks[broker_id]
                    records = disk.logs[partition].records
                    yield from self._records.lacking(who, partition, epoch, records)


def _differences(look: BrokerLook, page: BookPage) -> Iterator[str]:
    due: dict[TopicPartition, int] = {}
    held: dict[TopicPartition, tuple[int, int]] = {}
    for partition, placement in page.placements:
        if look.broker_id in placement.replicas:
            leader = page.leader(placement)
            held[partition] = leader
            if leader.broker_id == look.broker_id:
                due[partition] = leader.epoch
    if look.leads and dict(look.leads) != due:
        yield (
            f"broker {look.who} said at revision {look.revision} that it leads"
            f" {_told(look.leads)}, and by the feed it leads {_told(due)}"
        )
    said = {place: (each.leader, each.leader_epoch) for place, each in look.replicas.items()}
    if said != held:
        yield (
            f"broker {look.who} said at revision {look.revision} that {_told(said)} lead, and by"
            f" the feed {_told(held)} do"
        )


def _told(by_partition: Mapping[TopicPartition, object]) -> str:
    return str({tuple(place): by_partition[place] for place in sorted(by_partition)})


def _staleness(act: AcceptedAct, page: BookPage) -> Iterator[str]:
    broker = page.brokers.get(act.stamp.broker_id)
    if broker is None or broker.fenced or broker.broker_epoch != act.stamp.broker_epoch:
        yield f"a stale {act.what} of broker {act.who}, fenced, was accepted at {act.revision}"
    for partition in act.partitions:
        placement = page.placement(partition)
        if placement is None:
            continue
        leader = page.leader(placement)
        if leader.broker_id != act.stamp.broker_id or leader.epoch > act.stamp.seen_revision:
            yield (
                f"a stale {act.what} of broker {act.who} about {tuple(partition)} was accepted at"
                f" {act.revision}: it had seen {act.stamp.seen_revision}, and {leader} led"
            )


def _wrong_replicas(
    place: TopicPartition, placement: brokers_pb2.Placement, page: BookPage
) -> Iterator[str]:
    replicas = list(placement.replicas)
    if len(set(replicas)) < len(replicas) or not set(placement.in_sync) <= set(replicas):
        yield f"the replicas of {tuple(place)} are misplaced: {replicas}, {placement.in_sync}"
    if unknown := set(replicas) - page.brokers.keys():
        yield f"the replicas of {tuple(place)} are misplaced: nobody knows brokers {unknown}"


def _wrong_choice(
    place: TopicPartition, placement: brokers_pb2.Placement, page: BookPage
) -> Iterator[str]:
    able = {each.id: each.rack for each in page.brokers.values() if _takes_replicas(each)}
    replicas: Sequence[int] = placement.replicas
    if not set(replicas) <= able.keys():
        yield f"the replicas of {tuple(place)} are misplaced: of {replicas} not all may get any"
    racks = {able[each] for each in replicas if each in able}
    if len(racks) < min(len(replicas), len(set(able.values()))):
        yield f"the replicas of {tuple(place)} are misplaced: {replicas} are in racks {racks}"


def _takes_replicas(broker: brokers_pb2.Broker) -> bool:
    return not broker.fenced and not broker.draining
