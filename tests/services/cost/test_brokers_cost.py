"""Placements of many replicas on many brokers: paid for before they are made, judged or dropped.

Work is counted in instructions of the interpreter, which no other load of the machine changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, Final

import pytest
from hypothesis import given, settings

from services.runtime.offset_rows import unpack
from services.streams.placement import Placement, PlacementRow
from tests.services.cost.machines import STREAM, TOPIC, Fed, reasons, streams
from tests.services.cost.test_offsets_cost import charged, name_of, of_topic, offsets
from tests.services.cost.test_whatever_comes import LONG, Spans, check
from viewstamp import limits
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.brokers.v1 import brokers_service_pb2 as api
from viewstamp.api.common.v1.common_pb2 import BrokerStamp, Identifier, PartitionOffset
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.client.divided import in_parts
from viewstamp.errors import Refusal

LEVEL: Final = limits.FEATURE_LEVEL_BROKERS
BROKERS: Final = limits.BROKERS_MAX
REPLICAS: Final = limits.REPLICAS_PER_PARTITION_MAX
PER_REQUEST: Final = limits.PARTITIONS_PER_REQUEST_MAX
PER_ROW: Final = limits.PARTITIONS_PER_OFFSETS_ROW
ROWS_OF_TOPIC: Final = -(-limits.PARTITIONS_PER_TOPIC_MAX // PER_ROW)
# A row of work is about a microsecond, in which about 100 instructions are carried out.
INSTRUCTIONS_PER_ROW_MAX: Final = 200
# What a command may do before it pays: beside looking things up, it may read what it names.
INSTRUCTIONS_UNPAID_MAX: Final = 40_000
FIRST: Final = 1
# Of the largest number of brokers, one prepare takes no more.
REGISTRATIONS_AT_ONCE: Final = 128
ROWS_APART: Final = 200
# So far that each row of a topic has two or three partitions of the longest report.
FAR_APART: Final = limits.PARTITIONS_PER_TOPIC_MAX // limits.OFFSETS_PER_REQUEST_MAX
RACKS: Final[dict[str, list[str]]] = {
    "one rack": ["r"] * BROKERS,
    "a rack each": [f"r{number}" for number in range(BROKERS)],
    "a large rack": ["r"] * 1_000 + [f"r{number}" for number in range(BROKERS - 1_000)],
    "half in one rack": ["r"] * (BROKERS // 2) + [f"r{number}" for number in range(BROKERS // 2)],
}


def registration(name: str, rack: str = "r", endpoints: int = 1) -> api.RegisterBrokerRequest:
    """Return a registration with so many endpoints."""
    served = [
        brokers_pb2.BrokerEndpoint(listener=f"l{number}", host="h", port=1)
        for number in range(endpoints)
    ]
    return api.RegisterBrokerRequest(name=name, rack=rack, storage_id="s", endpoints=served)


def by_id(broker_id: int) -> Identifier:
    """Return what names a broker."""
    return Identifier(id=broker_id)


def topic(name: str, partitions: int, factor: int) -> Any:
    """Return a request for a topic."""
    options = streams_pb2.TopicOptions(replication_factor=factor)
    request: Any = streams_api.CreateTopicRequest(
        name=name, partitions_count=partitions, options=options
    )
    request.stream.id = STREAM
    return request


def with_brokers(racks: Iterable[str], *topics: Any) -> Fed:
    """Return streams with topics that are not placed, and brokers in racks."""
    fed = streams()
    fed.level = LEVEL
    fed.commands("CreateStream", [streams_api.CreateStreamRequest(name="s")])
    if topics:
        assert set(fed.commands("CreateTopic", topics)) == {""}
    requests = [registration(f"b{number}", rack) for number, rack in enumerate(racks)]
    for first in range(0, len(requests), REGISTRATIONS_AT_ONCE):
        some = requests[first : first + REGISTRATIONS_AT_ONCE]
        assert set(fed.commands("RegisterBroker", some)) == {""}
    return fed


def stamp(fed: Fed, broker_id: int = FIRST) -> BrokerStamp:
    """Return the stamp of a broker that has seen everything."""
    epoch = fed.machine.state.brokers.rows[broker_id].broker_epoch
    return BrokerStamp(broker_id=broker_id, broker_epoch=epoch, seen_revision=fed.revision)


def others(partition: int, count: int = REPLICAS) -> list[int]:
    """Return replicas of which the first broker is the first; nearly no two are the same."""
    rest = BROKERS - 1
    step, start = divmod(partition, rest)
    return [FIRST, *((start + number * (step + 1)) % rest + 2 for number in range(count - 1))]


def placing(partitions: Iterable[int], replicas: Callable[[int], list[int]]) -> Any:
    """Return a request to place partitions of the first topic."""
    assignments = [api.PartitionAssignment(partition=p, replicas=replicas(p)) for p in partitions]
    return of_topic(api.PlacePartitionsRequest(assignments=assignments))


def telling(fed: Fed, partitions: Iterable[int], in_sync: Callable[[int], list[int]]) -> Any:
    """Return what the first broker says of partitions of the first topic."""
    told = [api.InSyncReplicas(partition=p, in_sync=in_sync(p)) for p in partitions]
    return of_topic(api.UpdateInSyncRequest(broker=stamp(fed), partitions=told))


def placed(count: int) -> Fed:
    """Return a topic with so many partitions, all of whose replicas are placed one by one."""
    empty = topic("t", 0, 1)
    fed = with_brokers(RACKS["a rack each"], empty)
    change = {number: Placement(tuple(others(number)), tuple(others(number)), fed.revision)
              for number in range(count)}  # fmt: skip
    put_placements(fed, count, lambda number: change[number])
    return fed


def put_placements(fed: Fed, count: int, placement: Callable[[int], Placement]) -> None:
    """Give the first topic so many partitions, each with a placement."""
    state = fed.machine.state
    held = state.topics.rows[STREAM, TOPIC]
    state.topics.put((STREAM, TOPIC), held._replace(partitions_count=count))
    for number in range(-(-count // PER_ROW)):
        of_row = range(number * PER_ROW, min(count, (number + 1) * PER_ROW))
        row = PlacementRow(STREAM, TOPIC, number, tuple(map(placement, of_row)))
        state.placements.put((TOPIC, number), row)
    fed.machine.undo.settle()


def instructions(run: Callable[[], object]) -> int:
    """Return how many instructions of the interpreter something takes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def check_work(fed: Fed, request: Any, least: int = 0) -> None:
    """Check that a command succeeds, and that its rows stand for what it does."""
    item = fed.span(name_of(request), [request])
    count = instructions(lambda: fed.prepare(item))
    assert reasons(fed.reply.outcomes[0], 1) == [""]
    rows = charged(fed) + limits.COMMAND_FREE_ROWS
    assert least <= rows <= limits.COMMAND_ROWS_MAX
    assert count <= INSTRUCTIONS_PER_ROW_MAX * rows, f"{count} instructions for {rows} rows"


@pytest.mark.parametrize("racks", RACKS)
@pytest.mark.parametrize("factor", [1, 2, REPLICAS])
def test_new_topics_pay_for_replicas(racks: str, factor: int) -> None:
    """The topic with most partitions pays for each replica, once the brokers are spread."""
    fed = with_brokers(RACKS[racks])
    fed.machine.state.brokers.spread()
    check_work(fed, topic("t", PER_REQUEST, factor), factor * PER_REQUEST)


@pytest.mark.parametrize("racks", RACKS)
def test_who_changes_a_broker_pays_for_the_next_spread(racks: str) -> None:
    """A change costs a row for each broker; the spread that the next topic makes costs no more, and
    is made once."""
    fed = with_brokers(RACKS[racks])
    drained = api.UpdateBrokerRequest(broker=by_id(FIRST), draining=True)
    for change in (registration("b1"), api.ResignBrokerRequest(broker=stamp(fed, 3)), drained):
        assert fed.commands(name_of(change), [change]) == [""]
        paid = charged(fed) + limits.COMMAND_FREE_ROWS
        assert paid >= BROKERS
        brokers = fed.machine.state.brokers
        assert instructions(brokers.spread) <= INSTRUCTIONS_PER_ROW_MAX * paid
        assert brokers.spread() is brokers.spread()


def test_placements_and_what_leaders_say_are_paid_for() -> None:
    """1,000 partitions of 16 replicas, no two alike: to place, to judge, to shrink, to move."""
    fed = with_brokers(RACKS["a rack each"], topic("t", PER_REQUEST, 1))
    every, replicas = range(PER_REQUEST), REPLICAS * PER_REQUEST
    check_work(fed, placing(every, others), replicas)
    check_work(fed, telling(fed, every, lambda partition: [FIRST]), PER_REQUEST)
    check_work(fed, telling(fed, every, others), replicas)
    check_work(fed, telling(fed, every, others), replicas)  # which changes nothing
    check_work(fed, placing(every, lambda partition: [FIRST]), PER_REQUEST)


def test_partitions_far_apart_are_paid_for() -> None:
    """A partition in each of many rows costs the copies of these rows."""
    fed = placed(ROWS_APART * PER_ROW)
    scattered = placing(range(0, ROWS_APART * PER_ROW, PER_ROW), lambda each: others(each, 2))
    check_work(fed, scattered, ROWS_APART * 20)


def report(fed: Fed, field: str, count: int) -> Any:
    """Return a report of so many partitions by the first broker."""
    kind: Any = streams_api.TruncatePartitionsRequest
    if field == "end_offsets":
        kind = streams_api.ReportPartitionEndsRequest
    return of_topic(kind(broker=stamp(fed), **{field: offsets(range(count))}))


@pytest.mark.parametrize("field", ["end_offsets", "start_offsets"])
def test_the_longest_report_pays_for_the_judgement_of_its_broker(field: str) -> None:
    """16,384 partitions of 16 replicas, no two alike, may be reported by one command.

    How much is done is counted for some of them.
    """
    fed = placed(limits.OFFSETS_PER_REQUEST_MAX)
    check_work(fed, report(fed, field, PER_REQUEST), PER_REQUEST * REPLICAS // 2)
    longest = report(fed, field, limits.OFFSETS_PER_REQUEST_MAX)
    assert fed.commands(name_of(longest), [longest]) == [""]
    assert charged(fed) >= limits.OFFSETS_PER_REQUEST_MAX * REPLICAS // 2


async def test_the_widest_report_is_carried_out_in_parts() -> None:
    """16,384 partitions in nearly as many rows as a topic can have cost more than a command may.

    The refusal says so for good; halves of neighbours, as a client sends them, are carried out.
    """
    fed = with_brokers(RACKS["a rack each"], topic("t", 0, 1))
    fed.level = limits.FEATURE_LEVEL_TIMES
    far = range(0, limits.PARTITIONS_PER_TOPIC_MAX, FAR_APART)[: limits.OFFSETS_PER_REQUEST_MAX]
    near = Placement((FIRST,), (FIRST,), fed.revision)
    wide = {each: near._replace(replicas=tuple(others(turn))) for turn, each in enumerate(far)}
    put_placements(fed, limits.PARTITIONS_PER_TOPIC_MAX, lambda each: wide.get(each, near))
    asked: list[int] = []

    async def send(part: Mapping[int, int]) -> None:
        ends = [PartitionOffset(partition=each, offset=end) for each, end in part.items()]
        request = streams_api.ReportPartitionEndsRequest(broker=stamp(fed), end_offsets=ends)
        asked.append(len(part))
        fed.prepare(fed.span("ReportPartitionEnds", [of_topic(request)]))
        for failed in fed.reply.outcomes[0].command.errors:
            raise Refusal.from_error(failed.error)

    with pytest.raises(Refusal) as caught:
        await send(dict.fromkeys(far, 1))
    assert caught.value.reason == Reason.REASON_COST_EXCEEDED
    assert caught.value.details["scope"] == "command"
    assert "retry_delay_ms" not in caught.value.details
    asked.clear()
    await in_parts(send, dict.fromkeys(far, 1))
    half = limits.OFFSETS_PER_REQUEST_MAX // 2
    assert asked == [2 * half, half, half]
    ends = fed.machine.state.watermarks.rows.values()
    assert sum(sum(map(bool, unpack(row.ends))) for row in ends) == len(far)
    # Ends that are lower now cost more: streams says so to consumer groups.
    await in_parts(send, dict.fromkeys(far, 0))


def unpaid() -> Iterator[tuple[str, Callable[[Fed], Any]]]:
    """Yield expensive requests to a topic of which 1,000 partitions are placed."""
    every = range(PER_REQUEST)
    yield "create", lambda fed: topic("new", PER_REQUEST, REPLICAS)
    yield (
        "extend",
        lambda fed: of_topic(streams_api.CreatePartitionsRequest(partitions_count=PER_REQUEST)),
    )
    yield "place", lambda fed: placing(every, others)
    yield "tell", lambda fed: telling(fed, every, others)
    yield (
        "cut",
        lambda fed: of_topic(streams_api.DeletePartitionsRequest(partitions_count=PER_REQUEST)),
    )
    yield "delete", lambda fed: of_topic(streams_api.DeleteTopicRequest())


@pytest.mark.parametrize(
    ("made", "rows"), [(made, rows) for made in unpaid() for rows in (17, 100)]
)
def test_nothing_is_done_that_is_not_paid_for(
    monkeypatch: pytest.MonkeyPatch, made: tuple[str, Callable[[Fed], Any]], rows: int
) -> None:
    """Where few rows are left, an expensive command is refused before it has done much."""
    fed = placed(PER_REQUEST)
    request = made[1](fed)
    monkeypatch.setattr(limits, "COMMAND_ROWS_MAX", rows)
    item = fed.span(name_of(request), [request])
    count = instructions(lambda: fed.prepare(item))
    assert reasons(fed.reply.outcomes[0], 1) == ["COST_EXCEEDED"]
    assert count <= INSTRUCTIONS_UNPAID_MAX


@pytest.mark.parametrize(("factor", "reason"), [(1, ""), (3, ""), (REPLICAS, "COST_EXCEEDED")])
def test_a_million_placed_partitions_are_dropped(factor: int, reason: str) -> None:
    """A topic with three replicas is deleted by one command, one with 16 after some partitions."""
    fed = with_brokers(["r"] * BROKERS, topic("t", 0, 1))
    replicas = tuple(others(1, factor))
    shared = Placement(replicas, replicas, fed.revision)
    put_placements(fed, limits.PARTITIONS_PER_TOPIC_MAX, lambda _: shared)
    deletion = of_topic(streams_api.DeleteTopicRequest())
    fewer = of_topic(streams_api.DeletePartitionsRequest(partitions_count=PER_REQUEST))
    assert fed.commands("DeletePartitions", [fewer]) == [""]
    assert fed.commands("DeleteTopic", [deletion]) == [reason]
    if reason:
        assert charged(fed) < 20 * ROWS_OF_TOPIC, "the refusal took no more than the look"
    else:
        assert charged(fed) > factor * limits.PARTITIONS_PER_TOPIC_MAX // 32
        assert not fed.machine.state.placements
        assert fed.machine.state.placements.placed_brokers() == []


def test_a_stream_full_of_placed_topics_goes_after_some_of_them() -> None:
    """The replicas of one stream's topics may be more than one command may drop."""
    fed = with_brokers(["r"] * REPLICAS)
    state = fed.machine.state
    assert set(fed.commands("CreateTopic", [topic(f"{n}", 1, 1) for n in range(400)])) == {""}
    replicas = tuple(range(1, REPLICAS + 1))
    row = (Placement(replicas, replicas, fed.revision),) * PER_ROW
    for topic_id in state.topics.ids(STREAM):
        held = state.topics.rows[STREAM, topic_id]
        state.topics.put((STREAM, topic_id), held._replace(partitions_count=8 * PER_ROW))
        for number in range(8):
            state.placements.put((topic_id, number), PlacementRow(STREAM, topic_id, number, row))
    fed.machine.undo.settle()
    deletion: Any = streams_api.DeleteStreamRequest()
    deletion.stream.id = STREAM
    assert fed.commands("DeleteStream", [deletion]) == ["COST_EXCEEDED"]
    assert state.placements.replicas_count(1) == 400 * 8 * PER_ROW
    some = [of_topic(streams_api.DeleteTopicRequest(), number) for number in range(1, 101)]
    assert set(fed.commands("DeleteTopic", some)) == {""}
    assert fed.commands("DeleteStream", [deletion]) == [""]
    assert state.placements.placed_brokers() == []


def cheap(fed: Fed) -> Iterator[Any]:
    """Yield a cheap request of each kind."""
    yield registration("b1")
    yield api.UpdateBrokerRequest(broker=by_id(2), draining=True)
    yield api.ResignBrokerRequest(broker=stamp(fed, 2), validate_only=True)
    yield api.UnregisterBrokerRequest(broker=by_id(2), validate_only=True)
    yield api.FenceBrokerRequest(broker_id=2, broker_epoch=stamp(fed, 2).broker_epoch)
    yield placing([0], lambda partition: [FIRST])
    yield telling(fed, [0], lambda partition: [FIRST])
    yield of_topic(
        streams_api.ReportPartitionEndsRequest(broker=stamp(fed), end_offsets=offsets([0]))
    )


def test_a_prepare_full_of_cheap_commands_is_carried_out() -> None:
    """As many commands of one kind as a prepare may hold all succeed, with three brokers."""
    fed = with_brokers("abc", topic("t", 1, 1))
    assert fed.commands("PlacePartitions", [placing([0], lambda partition: [FIRST])]) == [""]
    for request in cheap(fed):
        many = [request] * limits.PREPARE_COMMANDS_MAX
        user = limits.SYSTEM_USER_ID if name_of(request) == "FenceBroker" else limits.ROOT_USER_ID
        assert set(fed.commands(name_of(request), many, user=user)) == {""}, name_of(request)
    topics = [topic(f"new {n}", 1, 1) for n in range(limits.PREPARE_COMMANDS_MAX // 4)]
    assert set(fed.commands("CreateTopic", topics)) == {""}


@settings(max_examples=5, deadline=None)
@given(Spans)
def test_of_brokers(drawn: list[tuple[int, int]]) -> None:
    """Any batch of commands of brokers fits: those that do much, and those that are refused."""
    fed = with_brokers(RACKS["a rack each"], topic("t", PER_REQUEST, 1))
    unknown: Any = api.UnregisterBrokerRequest()
    unknown.broker.name = LONG
    every = range(PER_REQUEST)
    kinds = [
        ("PlacePartitions", placing(every, others)),
        ("UpdateInSync", telling(fed, every, others)),
        ("CreateTopic", topic("new", PER_REQUEST, REPLICAS)),
        ("RegisterBroker", registration("b1", endpoints=limits.BROKER_ENDPOINTS_MAX)),
        ("UnregisterBroker", unknown),
        ("DeletePartitions", of_topic(streams_api.DeletePartitionsRequest(partitions_count=9))),
        ("DeleteTopic", of_topic(streams_api.DeleteTopicRequest())),
    ]
    check(fed, kinds, drawn)
