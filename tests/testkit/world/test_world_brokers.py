"""Brokers of a world: what their judge finds, and runs in which they come and go."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.streams.broker_queries import broker_message
from services.streams.brokers import Broker
from services.streams.placement import Placement
from services.streams.placement import leader_of as leader_in_the_cluster
from testkit.world.broker_acts import AcceptedAct, BrokerActs, BrokerLook
from testkit.world.broker_book import BookChange, BookPage, BrokerBook
from testkit.world.broker_disks import BrokerDisk, Record, RecordLog
from testkit.world.broker_judge import BrokerJudge
from testkit.world.broker_records import AcknowledgedRecords
from testkit.world.fault_plan import KINDS, KINDS_OF_BROKERS, plan
from testkit.world.options import WorldOptions, draw
from testkit.world.run import WorldRun
from testkit.world.world import World
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.common.v1.common_pb2 import BrokerStamp
from viewstamp.client.broker_replicas import TopicPartition

PLACE = TopicPartition(1, 2, 0)
TIMEOUT_NS = 100_000_000
OPTIONS = WorldOptions(brokers=3, seconds=4, clients=2, callers=1, faults=KINDS_OF_BROKERS)


def row(*replicas: int, in_sync: tuple[int, ...] = (), revision: int) -> brokers_pb2.Placements:
    """Return the placement of the first partition, whose replicas are in sync unless told."""
    placement = brokers_pb2.Placement(
        replicas=replicas, in_sync=in_sync or replicas, revision=revision
    )
    return brokers_pb2.Placements(stream_id=1, topic_id=2, placements=[placement])


def broker(broker_id: int, revision: int, **fields: object) -> brokers_pb2.Broker:
    """Return a broker that registered with its disk at a revision, in a rack of its own."""
    values: dict[str, object] = {"rack": f"rack {broker_id}", "storage_revision": revision}
    values |= {"broker_epoch": revision, "modified_revision": revision}
    return brokers_pb2.Broker(id=broker_id, name=f"b{broker_id}", **(values | fields))  # type: ignore[arg-type]


class Evidence:
    """A book of two brokers and a partition that the first one leads in epoch 12."""

    def __init__(self) -> None:
        self.world = World(1)
        self.book = WrittenBook(self.world)
        self.acts = BrokerActs(self.world.schedule, self.book)
        self.records = AcknowledgedRecords()
        self.judge = BrokerJudge(self.book, self.acts, self.records, TIMEOUT_NS)
        self.judge.stream_id = PLACE.stream_id
        self.book.write(10, 1, broker(1, 10))
        self.book.write(11, 2, broker(2, 11))
        self.book.write(12, (1, 2, 0), row(1, 2, revision=12))

    def found(self) -> list[str]:
        """Return the verdict of the judge, without disks."""
        return self.judge.violations({})


class WrittenBook(BrokerBook):
    """A book that the test writes, and that knows every revision."""

    def write(
        self,
        revision: int,
        key: int | tuple[int, int, int],
        entity: brokers_pb2.Broker | brokers_pb2.Placements,
    ) -> None:
        """Note a change."""
        self.changes.append(BookChange(revision, key, entity))
        self.now.put(self.changes[-1])

    def knows(self, revision: int) -> bool:
        """Know all."""
        return True


def look(leads: Mapping[TopicPartition, int], broker_id: int = 1) -> BrokerLook:
    """Return what a broker says of the partition, of which it has no replica, at revision 12."""
    return BrokerLook(f"b{broker_id}", broker_id, 12, leads, {})


def act(broker_id: int, seen_revision: int, epoch: int) -> AcceptedAct:
    """Return a report that was accepted at revision 14."""
    stamp = BrokerStamp(broker_id=broker_id, broker_epoch=epoch, seen_revision=seen_revision)
    return AcceptedAct(f"b{broker_id}", "report", 14, stamp, (PLACE,))


@pytest.mark.parametrize(
    ("accepted", "complaint"),
    [
        (act(1, 12, epoch=10), ""),
        (act(1, 11, epoch=10), "it had seen 11"),
        (act(2, 13, epoch=11), "RightfulLeader(broker_id=1, epoch=12) led"),
        (act(1, 13, epoch=9), "fenced"),
    ],
)
def test_stale_leaders_are_found(accepted: AcceptedAct, complaint: str) -> None:
    """Only a leader in its present epoch that has seen the leader epoch may have reported."""
    evidence = Evidence()
    evidence.acts.accepted.append(accepted)
    found = evidence.found()
    assert [complaint in each for each in found] == ([True] if complaint else [])


def test_what_a_session_says_is_held_against_the_feed() -> None:
    """A session leads what follows from the feed, or nothing, and knows who leads the others."""
    evidence = Evidence()
    evidence.acts.looks += [look({PLACE: 11}), look({PLACE: 11}, broker_id=2)]
    found = evidence.found()
    assert found[0] == "brokers b1 and b2 led partition (1, 2, 0) in epoch 11"
    assert [each for each in found if "by the feed it leads {(1, 2, 0): 12}" in each]
    assert [each for each in found if each.endswith("by the feed it leads {}")]


@pytest.mark.parametrize(
    ("sent_ns", "resigned", "is_found"),
    [(1, False, False), (2 * TIMEOUT_NS, False, True), (2 * TIMEOUT_NS, True, False)],
)
def test_a_broker_that_was_fenced_alive_is_found(
    sent_ns: int, resigned: bool, is_found: bool
) -> None:
    """A sign of life that was answered keeps a broker for its timeout, unless it resigns."""
    evidence = Evidence()
    evidence.acts.signs_ns[1, 10] = sent_ns
    evidence.acts.resigned |= {(1, 10)} if resigned else set()
    evidence.world.schedule.now_ns = 2 * TIMEOUT_NS + 1
    evidence.book.saw_fenced(1, 10)
    assert bool(evidence.found()) == is_found


@pytest.mark.parametrize(
    ("placements", "complaint"),
    [
        (row(1, 2, revision=14), ""),
        (row(1, 1, revision=14), "[1, 1]"),
        (row(1, 3, revision=14), "not all may get any"),
        (row(1, 5, revision=14), "nobody knows brokers {5}"),
        (row(1, 4, revision=14), "are in racks {'rack 1'}"),
    ],
)
def test_misplaced_replicas_are_found(placements: brokers_pb2.Placements, complaint: str) -> None:
    """Chosen replicas are of different brokers that may get some, and of different racks."""
    evidence = Evidence()
    evidence.book.write(13, 3, broker(3, 13, draining=True))
    evidence.book.write(13, 4, broker(4, 13, rack="rack 1"))
    evidence.book.write(14, (1, 3, 0), placements)
    found = evidence.found()
    assert any(complaint in each for each in found) if complaint else not found


RECORDS = [Record(12, number) for number in range(3)]


def test_a_leader_that_lacks_what_was_acknowledged_is_found() -> None:
    """A later leader, and a replica in sync in the end, have each record at its offset."""
    evidence = Evidence()
    evidence.records.acknowledge(PLACE, 12, 0, RECORDS)
    evidence.records.begun("b2", PLACE, 20, RECORDS[:2])
    (found,) = evidence.found()
    assert found.startswith("broker b2 has None at offset 2 of (1, 2, 0)")
    disk = BrokerDisk("disk")
    disk.logs[PLACE].append([*RECORDS[:2], Record(20, 9)])
    found_on_disk = evidence.judge.violations({1: ("b1", disk)})[1:]
    assert [each.partition(" at offset ")[2][:1] for each in found_on_disk] == ["2"]


def test_what_an_operator_gave_up_is_excused() -> None:
    """After the loss of data was allowed, only what was acknowledged since is missed."""
    records = AcknowledgedRecords()
    records.acknowledge(PLACE, 12, 0, RECORDS)
    records.allow_loss(PLACE, 15)
    records.begun("b2", PLACE, 15, [])
    assert list(records.violations()) == []
    records.acknowledge(PLACE, 15, 0, [Record(15, 7)])
    records.begun("b1", PLACE, 16, [])
    assert len(list(records.violations())) == 1


def test_logs_agree_up_to_the_same_epoch() -> None:
    """A log begins another one if it is not longer, and has the same epoch at its end."""
    log = RecordLog()
    log.append([Record(5, 1), Record(7, 2)])
    cases = {(0, 0): True, (1, 5): True, (2, 7): True, (1, 7): False, (3, 7): False}
    assert {case: log.agrees(*case) for case in cases} == cases


IDS = (1, 2, 3)


@given(st.data())
def test_the_book_knows_the_rule(data: st.DataObject) -> None:
    """The judge's own rule says the same as the cluster's."""
    page, brokers = BookPage(), {}
    for broker_id in IDS:
        storage = data.draw(st.integers(1, 4))
        brokers[broker_id] = Broker(
            *(broker_id, f"b{broker_id}", "", (), 1),
            *(data.draw(st.booleans()), data.draw(st.booleans()), 0, "disk", storage),
            *(0, 0, 0, storage + data.draw(st.integers(0, 3))),
        )
        page.put(BookChange(9, broker_id, broker_message(brokers[broker_id])))
    replicas = tuple(data.draw(st.permutations(IDS)))
    in_sync = tuple(each for each in replicas if data.draw(st.booleans()))
    placement = Placement(replicas, in_sync, data.draw(st.integers(1, 6)))
    due = leader_in_the_cluster(placement, brokers)
    message = brokers_pb2.Placement(replicas=replicas, in_sync=in_sync, revision=placement.revision)
    assert tuple(page.leader(message)) == tuple(due)


def test_faults_of_brokers_leave_the_others_as_they_are() -> None:
    """The plan of a seed is the same with and without those of brokers."""
    both = plan(5, (*KINDS, *KINDS_OF_BROKERS), 8)
    assert [each for each in both if each.kind not in KINDS_OF_BROKERS] == list(plan(5, KINDS, 8))
    assert {each.kind for each in both} & set(KINDS_OF_BROKERS)


def test_a_third_of_the_seeds_has_brokers() -> None:
    """Seeds with brokers have all faults of brokers, and the others have none."""
    drawn = [draw(seed) for seed in range(300)]
    for options in drawn:
        assert (options.brokers > 0) == (set(KINDS_OF_BROKERS) <= set(options.faults))
    assert 60 < sum(options.brokers > 0 for options in drawn) < 140


@pytest.mark.long
def test_a_run_with_brokers_is_one_run() -> None:
    """Brokers write and report through faults; the same seed gives the same digest."""
    first, second = (WorldRun(3, OPTIONS).run() for _ in range(2))
    assert first.violations == []
    assert first.branches["records acknowledged by brokers"] > 10
    assert first.branches["commands of brokers accepted"] > 5
    assert first.digest == second.digest
