"""Who gets partitions, who is in sync, and who leads at which moment."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from services.streams.brokers import Broker
from services.streams.placement import BrokerTable, Spread
from tests.services.streams.brokers_workbench import (
    BrokersWorkbench,
    placing,
    telling,
    three_brokers,
)
from tests.services.streams.streams_workbench import (
    LATEST,
    METHODS,
    ROOT,
    by,
    orders_bench,
    refusal_of,
)
from viewstamp import framing
from viewstamp.api.brokers.v1 import brokers_service_pb2 as api
from viewstamp.api.common.v1.common_pb2 import BrokerStamp, PartitionOffset
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.limits import FEATURE_LEVEL_BROKERS, REPLICAS_PER_PARTITION_MAX
from viewstamp.machine.tables import UndoLog


def ends(topic: str, offsets: dict[int, int], stamp: BrokerStamp | None = None) -> Any:
    """Return a report of the ends of partitions."""
    told = [PartitionOffset(partition=number, offset=at) for number, at in offsets.items()]
    return streams_api.ReportPartitionEndsRequest(
        stream=by("orders"), topic=by(topic), end_offsets=told, broker=stamp
    )


def test_without_brokers_nothing_is_placed() -> None:
    """Topics have no replicas as long as nobody registers, and old ones have none afterwards."""
    work = BrokersWorkbench()
    work.create("early", 3)
    work.register("one")
    assert work.placements("early") == {}
    work.create("late", 3)
    assert work.leaders("late") == {0: 1, 1: 1, 2: 1}


def test_a_new_topic_is_spread_over_brokers_and_racks() -> None:
    """Each broker leads as many partitions as any other, and replicas stand in different racks."""
    work = BrokersWorkbench()
    racks = {work.register(f"{rack}-{number}", rack): rack for number in (1, 2) for rack in "abc"}
    work.create("wide", 12, replication_factor=3)
    placements = work.placements("wide")
    assert Counter(work.leaders("wide").values()) == dict.fromkeys(racks, 2)
    held = Counter(each for placement in placements.values() for each in placement.replicas)
    assert set(held.values()) == {6}
    for placement in placements.values():
        assert {racks[each] for each in placement.replicas} == set("abc")
        assert placement.in_sync == placement.replicas


def test_topics_begin_at_different_brokers() -> None:
    """Topics of one partition are led by all brokers in turn, also those of one message."""
    work, *ids = three_brokers()
    requests = [
        streams_api.CreateTopicRequest(stream=by("orders"), name=f"t{number}", partitions_count=1)
        for number in range(6)
    ]
    item = pb.CommandItem(
        code=METHODS["CreateTopic"].code,
        first_revision=work.bench.revision + 1,
        count=len(requests),
        items=b"".join(framing.frame(each.SerializeToString()) for each in requests),
        user_id=ROOT,
        credential_revision=LATEST,
    )
    work.bench.apply(pb.Item(command=item))
    leaders = Counter(work.leaders(request.name)[0] for request in requests)
    assert leaders == dict.fromkeys(ids, 2)


def test_what_is_only_checked_leaves_no_count() -> None:
    """A validated placement is taken back with the count of replicas that it made."""
    work, first, *_ = three_brokers()
    work.place("paid", {0: [first], 1: [first]}, validate_only=True)
    assert work.get(first).replicas_count == 0
    work.bench.command("UnregisterBroker", api.UnregisterBrokerRequest(broker=by(first)))


def test_more_partitions_go_on_where_the_first_ended() -> None:
    """CreatePartitions places what is new alone; DeletePartitions forgets what is gone."""
    work, *ids = three_brokers()
    work.create("wide", 130)
    before = work.placements("wide", page_size=1_000)
    more = streams_api.CreatePartitionsRequest(
        stream=by("orders"), topic=by("wide"), partitions_count=2
    )
    work.bench.command("CreatePartitions", more)
    after = work.placements("wide", page_size=1_000)
    assert {number: after[number] for number in before} == before
    assert sorted(after) == list(range(132))
    fewer = streams_api.DeletePartitionsRequest(
        stream=by("orders"), topic=by("wide"), partitions_count=5
    )
    work.bench.command("DeletePartitions", fewer)
    assert sorted(work.placements("wide", page_size=1_000)) == list(range(127))
    assert sum(work.get(each).replicas_count for each in ids) == 127


@pytest.mark.parametrize("kind", ["topic", "stream"])
def test_what_is_deleted_has_no_replicas(kind: str) -> None:
    """A deleted topic, alone or with its stream, leaves nothing on brokers."""
    work, *ids = three_brokers()
    work.create("wide", 300, replication_factor=2)
    requests = {
        "topic": streams_api.DeleteTopicRequest(stream=by("orders"), topic=by("wide")),
        "stream": streams_api.DeleteStreamRequest(stream=by("orders")),
    }
    work.bench.command(f"Delete{kind.title()}", requests[kind])
    assert [work.get(each).replicas_count for each in ids] == [0, 0, 0]
    assert not work.bench.state.placements.rows


@pytest.mark.parametrize(
    ("factor", "leaving", "available"),
    [(4, "", 3), (3, "resigned", 2), (3, "drained", 2), (17, "", 3)],
)
def test_too_few_brokers_are_told(factor: int, leaving: str, available: int) -> None:
    """A topic is not made with fewer replicas than it asks for; fenced ones count for nothing."""
    work, first, _, _ = three_brokers()
    if leaving == "resigned":
        work.resign(first)
    elif leaving:
        work.drain(first)
    request = streams_api.CreateTopicRequest(stream=by("orders"), name="wide", partitions_count=1)
    request.options.replication_factor = factor
    refused = refusal_of(work.bench, "CreateTopic", request)
    assert refused.name == "NOT_ENOUGH_BROKERS"
    assert refused.details["available"] == str(available)


def test_when_a_broker_is_fenced_the_next_in_sync_leads_at_once() -> None:
    """No placement is written; the epoch of the leader is the revision of the fence."""
    work, first, second, third = three_brokers()
    work.create("wide", 1)
    work.place("wide", {0: [first, second, third]})
    work.in_sync("wide", work.leaders("wide")[0], {0: [first, second]})
    placement = work.placements("wide")[0]
    assert (placement.leader, placement.leader_epoch) == (first, work.bench.revision)
    work.resign(first)
    moved = work.placements("wide")[0]
    assert (moved.leader, moved.leader_epoch) == (second, work.bench.revision)
    assert moved.revision == placement.revision
    work.resign(second)
    assert work.leaders("wide") == {0: 0}, "the third lacks what was acknowledged"
    work.register("broker-b", "b")
    assert work.leaders("wide") == {0: second}
    work.register("broker-a", "a")
    assert work.leaders("wide") == {0: first}, "it is in sync until the leader says otherwise"


def test_who_was_dropped_does_not_lead_again() -> None:
    """A leader that goes on alone says so first; the other one must come into sync again."""
    work, first, second, _ = three_brokers()
    work.create("wide", 1)
    work.place("wide", {0: [first, second]})
    work.in_sync("wide", first, {0: [first, second]})
    work.resign(first)
    work.in_sync("wide", second, {0: [second]})
    work.register("broker-a", "a")
    assert work.leaders("wide") == {0: second}
    work.in_sync("wide", second, {0: [first, second]})
    assert work.leaders("wide") == {0: first}


def test_who_lost_its_storage_does_not_lead() -> None:
    """A broker that is back with another storage is in sync with nothing until a leader says so,
    even where it was the last one."""
    work, first, second, _ = three_brokers()
    work.create("wide", 1)
    work.place("wide", {0: [first, second]})
    work.in_sync("wide", first, {0: [first, second]})
    work.register("broker-a", "a", storage_id="new disk")
    assert work.leaders("wide") == {0: second}
    work.in_sync("wide", second, {0: [first, second]})
    assert work.leaders("wide") == {0: first}, "the same set, told anew"
    work.in_sync("wide", first, {0: [first]})
    work.register("broker-a", "a", storage_id="newer disk")
    assert work.leaders("wide") == {0: 0}
    for replicas in ([first, second], [second]):
        refused = refusal_of(work.bench, "PlacePartitions", placing("wide", {0: replicas}))
        assert refused.name == "REPLICAS_NOT_IN_SYNC"
    work.place("wide", {0: [first, second]}, allow_data_loss=True)
    assert work.leaders("wide") == {0: first}, "the same replicas, with what they have"
    work.register("broker-a", "a", storage_id="newest disk")
    work.place("wide", {0: [second]}, allow_data_loss=True)
    assert work.leaders("wide") == {0: second}


def test_a_placement_does_not_bring_lost_storage_into_sync() -> None:
    """Replicas that changed are those that still have everything, whatever was in sync before."""
    work, first, second, third = three_brokers()
    work.create("wide", 1)
    work.place("wide", {0: [first, second]})
    work.in_sync("wide", first, {0: [first, second]})
    work.register("broker-a", "a", storage_id="new disk")
    work.place("wide", {0: [first, second, third]})
    placement = work.placements("wide")[0]
    assert (list(placement.in_sync), placement.leader) == ([second], second)


def test_a_drained_broker_leads_what_no_other_can() -> None:
    """It hands over where another is in sync, goes on where none is, and gets nothing new."""
    work, first, second, third = three_brokers()
    work.create("wide", 2)
    work.place("wide", {0: [first, second], 1: [first]}, allow_data_loss=True)
    work.in_sync("wide", first, {1: [first]})
    led = work.leaders("wide")[0]
    work.in_sync("wide", led, {0: [first, second]})
    work.drain(first)
    assert work.leaders("wide") == {0: second, 1: first}
    work.create("more", 6)
    assert set(work.leaders("more").values()) == {second, third}
    work.drain(second)
    assert work.leaders("wide") == {0: first, 1: first}, "of drained ones the preferred leads"
    work.drain(first, draining=False)
    work.drain(second, draining=False)
    assert work.leaders("wide") == {0: first, 1: first}


def test_what_is_placed_already_stays() -> None:
    """A choice left to the cluster is made once; the same replicas again change nothing."""
    work = BrokersWorkbench()
    first, second = work.register("one"), work.register("two")
    work.place("paid", {0: [], 2: []})
    chosen = work.placements("paid")
    assert sorted(chosen) == [0, 2]
    before = work.bench.digest()
    work.place("paid", {0: [], 2: list(chosen[2].replicas)})
    assert work.bench.digest() == before
    work.place("paid", {1: [second, first]})
    assert list(work.placements("paid")[1].in_sync) == [second, first], "nothing is lacking yet"


@pytest.mark.parametrize(
    ("replicas", "reason", "case"),
    [
        ({3: [1]}, "PARTITION_NOT_FOUND", "beyond"),
        ({0: [1, 1]}, "MALFORMED_REQUEST", "broker_twice"),
        ({0: [9]}, "BROKER_NOT_FOUND", ""),
        (
            {0: list(range(1, REPLICAS_PER_PARTITION_MAX + 2))},
            "MALFORMED_REQUEST",
            "replicas_count",
        ),
        ({}, "INVALID_PARTITIONS_COUNT", ""),
        ({number: [1] for number in range(1_001)}, "INVALID_PARTITIONS_COUNT", ""),
    ],
)
def test_impossible_placements_are_refused(
    replicas: dict[int, list[int]], reason: str, case: str
) -> None:
    """Partitions and brokers exist, each is named once, and there are not too many."""
    work, *_ = three_brokers()
    refused = refusal_of(work.bench, "PlacePartitions", placing("paid", replicas))
    assert (refused.name, refused.case) == (reason, case)


def test_a_partition_is_placed_once_in_a_request() -> None:
    """Two places for one partition are a mistake, and none of them counts."""
    work, *_ = three_brokers()
    request = placing("paid", {0: [1]})
    request.assignments.append(api.PartitionAssignment(partition=0, replicas=[2]))
    refused = refusal_of(work.bench, "PlacePartitions", request)
    assert (refused.name, refused.case) == ("MALFORMED_REQUEST", "partition_twice")


def test_only_the_leader_tells_who_is_in_sync() -> None:
    """And only once it has seen that it leads, in its present epoch, of replicas that are there."""
    work, first, second, third = three_brokers()
    work.create("wide", 1)
    work.place("wide", {0: [first, second]}, allow_data_loss=True)
    led, other = (first, second) if work.leaders("wide")[0] == first else (second, first)
    revision = work.placements("wide")[0].leader_epoch
    asked = [
        (telling("wide", work.stamp(other), {0: [other]}), "NOT_LEADER", ""),
        (telling("wide", work.stamp(led, revision - 1), {0: [led]}), "NOT_LEADER", "unseen"),
        (telling("wide", work.stamp(led), {0: [other]}), "MALFORMED_REQUEST", "leader_not_in_sync"),
        (telling("wide", work.stamp(led), {0: [led, third]}), "MALFORMED_REQUEST", "no_replica"),
        (telling("wide", work.stamp(led), {0: []}), "MALFORMED_REQUEST", "replicas_count"),
        (telling("paid", work.stamp(led), {0: [led]}), "NOT_LEADER", ""),
    ]
    for request, reason, case in asked:
        refused = refusal_of(work.bench, "UpdateInSync", request)
        assert (refused.name, refused.case) == (reason, case)
    work.bench.command("UpdateInSync", telling("wide", work.stamp(led, revision), {0: [led]}))


def test_who_is_fenced_does_not_come_into_sync() -> None:
    """It may stay in sync, since it has everything that was acknowledged, but not become so."""
    work, first, second, third = three_brokers()
    work.create("wide", 1)
    work.place("wide", {0: [first, second, third]}, allow_data_loss=True)
    led = work.leaders("wide")[0]
    work.in_sync("wide", led, {0: [first, second]})
    work.resign(second)
    work.resign(third)
    work.in_sync("wide", first, {0: [first, second]})
    refused = refusal_of(
        work.bench, "UpdateInSync", telling("wide", work.stamp(first), {0: [first, third]})
    )
    assert (refused.name, refused.case) == ("MALFORMED_REQUEST", "fenced_in_sync")


def test_only_the_leader_reports_ends_of_what_is_placed() -> None:
    """An old leader cannot report, nor who has not seen that it leads; other partitions are as
    before."""
    work, first, second, _ = three_brokers()
    work.create("wide", 1)
    work.place("wide", {0: [first, second]}, allow_data_loss=True)
    work.in_sync("wide", work.leaders("wide")[0], {0: [first, second]})
    seen = work.bench.revision
    work.bench.command("ReportPartitionEnds", ends("wide", {0: 5}, work.stamp(first)))
    old = work.stamp(first)
    work.resign(first)
    asked = [
        (ends("wide", {0: 9}), "NOT_LEADER"),
        (ends("wide", {0: 9}, old), "FENCED_BROKER_EPOCH"),
        (ends("wide", {0: 9}, work.stamp(second, seen)), "NOT_LEADER"),
        (ends("paid", {0: 9}, old), "FENCED_BROKER_EPOCH"),
    ]
    for request, reason in asked:
        assert refusal_of(work.bench, "ReportPartitionEnds", request).name == reason
    work.bench.command("ReportPartitionEnds", ends("wide", {0: 9}, work.stamp(second)))
    work.bench.command("ReportPartitionEnds", ends("paid", {0: 9}))


def test_truncations_of_a_broker_are_its_leaders() -> None:
    """Who names a broker has to lead; an administrator who names none may truncate anything."""
    work, first, second, _ = three_brokers()
    work.create("wide", 1)
    work.place("wide", {0: [first]}, allow_data_loss=True)
    request = streams_api.TruncatePartitionsRequest(
        stream=by("orders"),
        topic=by("wide"),
        start_offsets=[PartitionOffset(partition=0, offset=3)],
    )
    work.bench.command("TruncatePartitions", request)
    request.broker.CopyFrom(work.stamp(second))
    assert refusal_of(work.bench, "TruncatePartitions", request).name == "NOT_LEADER"
    request.broker.CopyFrom(work.stamp(first))
    work.bench.command("TruncatePartitions", request)


def test_below_the_level_a_report_names_nobody() -> None:
    """Builds without brokers do not know the field, so all builds ignore it there."""
    bench = orders_bench(FEATURE_LEVEL_BROKERS - 1)
    stamp = BrokerStamp(broker_id=5, broker_epoch=5)
    bench.command("ReportPartitionEnds", ends("paid", {0: 5}, stamp))


def test_placements_are_listed_in_pages() -> None:
    """Pages hold whole placements, ascending, without the partitions that are not placed."""
    work, *_ = three_brokers()
    work.place("paid", {0: [1], 2: [2]})
    first = api.ListPlacementsRequest(stream=by("orders"), topic=by("paid"), page_size=1)
    page = work.bench.query("ListPlacements", first)
    assert [each.partition for each in page.placements] == [0]
    rest = work.placements("paid", page_token=page.next_page_token)
    assert sorted(rest) == [2]


def test_a_section_brings_back_brokers_and_placements() -> None:
    """A machine that loads the section has the same digest, counts and leaders."""
    work, first, *_ = three_brokers()
    work.create("wide", 300, replication_factor=2)
    work.place("paid", {1: [first]})
    work.drain(first)
    domain = work.bench.machine.domain
    state = domain.new_state(UndoLog())
    domain.section.load(state, domain.section.entities(work.bench.state))
    assert domain.section.digest(state) == domain.section.digest(work.bench.state)
    assert state.placements == work.bench.state.placements
    counts = [table.placements.replicas_count(first) for table in (state, work.bench.state)]
    assert counts[0] == counts[1] > 0
    assert state.broker_ids == work.bench.state.broker_ids


def test_a_spread_is_that_of_the_brokers_as_they_are() -> None:
    """It is made anew after each change of a broker, also after one that is taken back."""
    undo = UndoLog()
    brokers = BrokerTable(undo)
    broker = Broker(1, "1", "", (), 1, False, False, 1, "", 1, 0, 0, 1, 1)
    counts = [brokers.spread().brokers_count]
    brokers.put(1, broker)
    counts.append(brokers.spread().brokers_count)
    undo.revert(0)
    counts.append(brokers.spread().brokers_count)
    brokers.put(1, broker)
    brokers.put(1, broker._replace(draining=True))
    counts.append(brokers.spread().brokers_count)
    brokers.put(1, broker)
    counts.append(brokers.spread().brokers_count)
    brokers.delete(1)
    counts.append(brokers.spread().brokers_count)
    assert counts == [0, 1, 0, 0, 1, 0]


@pytest.mark.parametrize(
    ("sizes", "count"), [([3], 3), ([4, 1], 3), ([5, 1, 1], 7), ([2, 2, 2], 4), ([1], 1)]
)
def test_a_spread_takes_each_broker_once(sizes: list[int], count: int) -> None:
    """Whatever the racks, replicas are different brokers, of as many racks as there can be; and in
    a round of turns each broker is preferred once."""
    brokers: dict[int, Broker] = {}
    for rack, size in enumerate(sizes):
        for _ in range(size):
            id_ = len(brokers) + 1
            brokers[id_] = Broker(
                id_, f"{id_}", f"{rack}", (), 1, False, False, 1, "", 1, 0, 0, 1, 1
            )
    spread = Spread(brokers)
    assert spread.brokers_count == sum(sizes)
    for start in (0, 7, 1_000):
        chosen = [spread.replicas(start + turn, count) for turn in range(spread.brokers_count)]
        assert sorted(replicas[0] for replicas in chosen) == sorted(brokers)
        for replicas in chosen:
            assert len(set(replicas)) == len(replicas) == count
            racks = {brokers[each].rack for each in replicas}
            assert len(racks) == min(count, len(sizes))


def test_replicas_of_one_leader_are_not_always_the_same() -> None:
    """The others shift with each round, so that many share what a dead broker had."""
    work = BrokersWorkbench()
    for number in range(9):
        work.register(f"broker-{number}", "abc"[number % 3])
    work.create("wide", 27, replication_factor=2)
    beside: dict[int, set[int]] = {}
    for placement in work.placements("wide").values():
        beside.setdefault(placement.leader, set()).add(placement.replicas[1])
    assert {len(others) for others in beside.values()} == {3}
