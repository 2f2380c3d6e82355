"""Measures the cost of the streams domain: prints one JSON object, microseconds per command.

Method: CreateTopic spans of 1000 into 100 streams, streams named by name, either straight into the
handler (decoding and undo included, as the runtime does it) or through the whole machine, where
they are made in bulk; the same in spans of 100 with a topic for each stream in every span; then
resolving, reading and the section of 100,000 topics with 1,000,000 partitions. The best of several
rounds counts, so that other load on the computer has little effect.
"""

from __future__ import annotations

import gc
import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Final

from services.runtime.domain import Call
from services.runtime.machine import Machine
from services.streams.access import new_access
from services.streams.commands import create_topic
from services.streams.domain import DOMAIN
from services.streams.model import NEXT_TOPIC_ID, StreamsState, Topic
from services.streams.options import DEFAULT_OPTIONS
from services.streams.resolve import resolve
from services.streams.section import SECTION
from testkit.frozen import changes_of
from viewstamp import framing, routing
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.format.block import compress, raw_blocks
from viewstamp.limits import FEATURE_LEVEL_MAX
from viewstamp.machine.tables import UndoLog

CREATE_TOPIC: Final = 210
STREAMS: Final = 100
TOPICS_PER_STREAM: Final = 1000
PARTITIONS_PER_TOPIC: Final = 10
ROUNDS: Final = 5
BATCH: Final = routing.batch_class(api.CreateTopicRequest.DESCRIPTOR)
OPTIONS: Final = streams_pb2.TopicOptions(message_expiry_us=3_600_000_000, replication_factor=3)


def caller(revision: int = 1) -> Call:
    """Return a call of root."""
    return Call(revision, 1_700_000_000_000_000, 0, 1, 0, 1)


def stream_name(number: int) -> str:
    """Return the name of a stream."""
    return f"stream-{number:03}"


def identifier(number: int) -> common_pb2.Identifier:
    """Return the stream named by name."""
    return common_pb2.Identifier(name=stream_name(number))


def spans(options: streams_pb2.TopicOptions | None) -> list[bytes]:
    """Return one span of CreateTopic requests per stream."""
    return [
        framing.frame_all(
            api.CreateTopicRequest(
                stream=identifier(number),
                name=f"topic-{number:03}-{topic:06}",
                partitions_count=PARTITIONS_PER_TOPIC,
                options=options,
            ).SerializeToString()
            for topic in range(TOPICS_PER_STREAM)
        )
        for number in range(STREAMS)
    ]


def mixed_spans() -> list[bytes]:
    """Return spans that name every stream once, as independent callers would."""
    return [
        framing.frame_all(
            api.CreateTopicRequest(
                stream=identifier(number),
                name=f"topic-{number:03}-{topic:06}",
                partitions_count=PARTITIONS_PER_TOPIC,
            ).SerializeToString()
            for number in range(STREAMS)
        )
        for topic in range(TOPICS_PER_STREAM)
    ]


def prepare(state: StreamsState, undo: UndoLog) -> None:
    """Fill a state with root and the streams."""
    state.access.put(0, new_access(0, 1))
    for number in range(STREAMS):
        request = api.CreateStreamRequest(name=stream_name(number))
        DOMAIN.commands["CreateStream"](state, request, caller())
    undo.settle()


def filled(all_items: list[bytes]) -> StreamsState:
    """Return a state with all topics, made by the handler alone."""
    undo = UndoLog()
    state = StreamsState(undo)
    prepare(state, undo)
    call = caller()
    for items in all_items:
        for request in BATCH.FromString(items).items:
            call.revision += 1
            create_topic(state, request, call)
            undo.entries.clear()
    return state


def through_machine(all_items: list[bytes], count: int) -> None:
    """Make topics through the machine, `count` per span, from encoded batch to encoded reply."""
    machine = Machine(DOMAIN)
    prepare(machine.state, machine.undo)
    for number, items in enumerate(all_items):
        first = 1 + number * count
        batch = pb.Batch(sequence=number + 1, op=number + 1, feature_level=FEATURE_LEVEL_MAX)
        command = batch.items.add().command
        command.code, command.first_revision, command.count = CREATE_TOPIC, first, count
        command.items, command.credential_revision, command.timestamp = items, 1, 1
        reply = machine.apply(pb.Batch.FromString(batch.SerializeToString())).reply
        assert not reply.outcomes[0].command.errors
        reply.SerializeToString()


def best_us(run: Callable[[], object], count: int) -> float:
    """Return the microseconds per one of `count` in the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        gc.collect()
        gc.disable()
        start = time.perf_counter_ns()
        run()
        best = min(best, (time.perf_counter_ns() - start) / count / 1000)
        gc.enable()
    return round(best, 3)


def resolving(state: StreamsState) -> Callable[[], object]:
    """Return a run that resolves the first topic of every stream 100 times."""
    join = [
        api.GetTopicRequest(
            stream=identifier(number), topic=common_pb2.Identifier(name=f"topic-{number:03}-000000")
        ).SerializeToString()
        for number in range(STREAMS)
    ] * 100
    call = caller()
    return lambda: [resolve(state, item, call, routing_pb2.GATE_READ_TOPIC) for item in join]


def loading(entities: list[tuple[int, bytes, bytes]]) -> None:
    """Load a section into an empty state."""
    undo = UndoLog()
    for _ in SECTION.loading(StreamsState(undo), entities):
        undo.settle()


def cutting(run: Callable[[Machine[StreamsState]], object], count: int) -> float:
    """Return the best microseconds per topic of a run on a machine full of topics."""
    best = float("inf")
    for _ in range(ROUNDS):
        machine = filled_machine()
        gc.collect()
        gc.disable()
        start = time.perf_counter_ns()
        run(machine)
        best = min(best, (time.perf_counter_ns() - start) / count / 1000)
        gc.enable()
    return round(best, 3)


def filled_machine() -> Machine[StreamsState]:
    """Return a machine in whose tables all topics are new."""
    machine: Machine[StreamsState] = Machine(DOMAIN)
    prepare(machine.state, machine.undo)
    for number in range(STREAMS):
        for topic in range(TOPICS_PER_STREAM):
            id_ = number * TOPICS_PER_STREAM + topic + 1
            name = f"topic-{number:03}-{topic:06}"
            row = Topic(id_, number + 1, name, 10, (), DEFAULT_OPTIONS, 1, 1, 1, 0)
            machine.state.topics.put((number + 1, id_), row)
        machine.undo.settle()
    machine.state.counters.put(NEXT_TOPIC_ID, STREAMS * TOPICS_PER_STREAM + 1)
    return machine


def read_whole(machine: Machine[StreamsState]) -> None:
    """Freeze everything, and make compressed blocks of it."""
    machine.freezer.freeze(1, 1)
    frozen = machine.freezer.frozen
    assert frozen is not None
    tally = machine.freezer.tally()
    entries = (entry for change in changes_of(frozen) if (entry := tally.add(change)))
    for raw in raw_blocks(entries):
        compress(raw)


def state_bytes(all_items: list[bytes]) -> int:
    """Return the memory of a state with all topics."""
    tracemalloc.start()
    state = filled(all_items)
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(state.topics) == STREAMS * TOPICS_PER_STREAM
    return size


def main() -> None:
    """Measure and print."""
    topics = STREAMS * TOPICS_PER_STREAM
    plain, with_options, mixed = spans(None), spans(OPTIONS), mixed_spans()
    state = filled(plain)
    call = caller()
    entities = list(SECTION.entities(state))
    report = {
        "create_topic_decode_and_handler_us": best_us(lambda: filled(plain), topics),
        "create_topic_with_options_us": best_us(lambda: filled(with_options), topics),
        "create_topic_machine_us": best_us(
            lambda: through_machine(plain, TOPICS_PER_STREAM), topics
        ),
        "create_topic_machine_mixed_us": best_us(lambda: through_machine(mixed, STREAMS), topics),
        "resolve_us": best_us(resolving(state), 100 * STREAMS),
        "list_topics_1000_us": best_us(
            lambda: DOMAIN.queries["ListTopics"](
                state, api.ListTopicsRequest(stream=identifier(7), page_size=1000), call
            ),
            1,
        ),
        "section_encode_us_per_topic": best_us(lambda: list(SECTION.entities(state)), topics),
        "section_load_us_per_topic": best_us(lambda: loading(entities), topics),
        "freeze_us_per_topic": cutting(lambda machine: machine.freezer.freeze(1, 1), topics),
        "section_blocks_us_per_topic": cutting(read_whole, topics),
        "state_megabytes": round(state_bytes(plain) / 1e6, 1),
        "topics": topics,
        "partitions": topics * PARTITIONS_PER_TOPIC,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
