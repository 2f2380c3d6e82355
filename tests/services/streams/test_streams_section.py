"""The section: pinned bytes, the way back, and content that must not load."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from services.runtime.section import SectionError
from services.streams.model import StreamsState
from services.streams.section import SECTION, encode_topic
from tests.services.streams.streams_workbench import Workbench, by, in_topic, topic_request
from viewstamp.api.common.v1.common_pb2 import PartitionOffset
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.machine.freezing import Entity
from viewstamp.machine.tables import UndoLog

# The entities of the bench below, field by field as the protos number them. They never change: a
# snapshot of an earlier build must load to the same digest.
GOLDEN = [
    (1, "0000000000000001", "080112066f7264657273188280f9c0c1c48203200228073001"),
    (1, "0000000000000002", "08021205656d707479188380f9c0c1c4820320032803"),
    (
        2,
        "00000000000000010000000000000001",
        "080110011a0470616964220e08001000180120012880808080042a04100318042a0608031002"
        "1806308480f9c0c1c4820338044006",
    ),
    (
        2,
        "00000000000000010000000000000002",
        "080210011a046f70656e221108808ece1c100018012003288080808004308580f9c0c1c4820338054005",
    ),
    (3, "0000000000000000", "10012001"),
    (3, "0000000000000004", "080410081a10120e0a02080142080a02080218012001"),
    (4, "", "08031003"),
    (5, "00000000000000010000000000000000", "08011001220300c8012a0600ad02000002"),
]
GOLDEN_DIGEST = "e3e170256b0d445d662090769312e73f52a52b4c37c16449d2bcfa3a13296acc"


def small() -> Workbench:
    """Return a bench with one entity of each kind and form."""
    bench = Workbench()
    bench.create_stream("orders")
    bench.create_stream("empty")
    bench.create_topic("orders", "paid", 3)
    options = streams_pb2.TopicOptions(message_expiry_us=60_000_000, replication_factor=3)
    bench.command(
        "CreateTopic", api.CreateTopicRequest(stream=by("orders"), name="open", options=options)
    )
    add = api.CreatePartitionsRequest(stream=by("orders"), topic=by("paid"), partitions_count=2)
    bench.command("CreatePartitions", add)
    bench.command("PurgeStream", api.PurgeStreamRequest(stream=by("orders")))
    bench.grant(4, in_topic(1, 2, "read_topic", "poll_messages"))
    bench.effect(user_deactivated={"user_id": 4})
    bench.command(
        "ReportPartitionEnds",
        topic_request(
            api.ReportPartitionEndsRequest,
            end_offsets=[
                PartitionOffset(partition=1, offset=300), PartitionOffset(partition=4, offset=1),
            ],
        ),
    )  # fmt: skip
    bench.command(
        "TruncatePartitions",
        topic_request(
            api.TruncatePartitionsRequest,
            start_offsets=[PartitionOffset(partition=1, offset=200)],
        ),
    )
    return bench


def entities_of(bench: Workbench) -> list[Entity]:
    """Return all entities."""
    return list(SECTION.entities(bench.state))


def loaded(entities: list[Entity]) -> StreamsState:
    """Return a state loaded from entities."""
    undo = UndoLog()
    state = StreamsState(undo)
    SECTION.load(state, entities)
    return state


def test_golden_bytes() -> None:
    """The encoding of each kind of entity is pinned."""
    actual = [(kind, key.hex(), value.hex()) for kind, key, value in entities_of(small())]
    assert actual == GOLDEN
    assert small().digest().hex() == GOLDEN_DIGEST


def test_golden_bytes_load() -> None:
    """The pinned bytes load to the state that wrote them, indexes and all."""
    state = loaded(
        [(kind, bytes.fromhex(key), bytes.fromhex(value)) for kind, key, value in GOLDEN]
    )
    original = small().state
    for table in (
        "streams",
        "stream_ids",
        "topics",
        "watermarks",
        "access",
        "grantees",
        "counters",
    ):
        assert getattr(state, table).rows == getattr(original, table).rows
    assert list(SECTION.entities(state)) == entities_of(small())
    assert state.topics.find(1, "open") is state.topics.rows[1, 2]
    assert state.topics.ids(1) == [1, 2]
    assert state.access.rows[4].active is False


def test_empty_section() -> None:
    """A state in which nothing was ever created has no entity, and loads."""
    assert list(SECTION.entities(StreamsState(UndoLog()))) == []
    assert list(SECTION.entities(loaded([]))) == []


def test_root_keeps_its_rights_over_a_load() -> None:
    """Root needs no grants before and after a load."""
    state = loaded(entities_of(small()))
    assert state.access.rows[0] == small().state.access.rows[0]


def changed(index: int, change: Callable[[Entity], list[Entity]]) -> list[Entity]:
    """Return the entities of the small bench, one of them changed by `change`."""
    entities = entities_of(small())
    return [*entities[:index], *change(entities[index]), *entities[index + 1 :]]


def stream_entity(id_: int, name: str) -> Entity:
    """Return the entity of a stream."""
    encoded = streams_pb2.StreamEntity(id=id_, name=name).SerializeToString()
    return 1, id_.to_bytes(8, "big"), encoded


def topic_entity(stream_id: int, id_: int, name: str) -> Entity:
    """Return the entity of a topic with default options."""
    options = streams_pb2.TopicOptions(
        message_expiry_us=0,
        max_topic_size_bytes=0,
        compression_algorithm=streams_pb2.COMPRESSION_ALGORITHM_NONE,
        replication_factor=1,
        segment_size_bytes=1 << 30,
    )
    entity = streams_pb2.TopicEntity(id=id_, stream_id=stream_id, name=name, options=options)
    return 2, stream_id.to_bytes(8, "big") + id_.to_bytes(8, "big"), entity.SerializeToString()


def marks_entity(topic_id: int, first: int, starts: list[int], ends: list[int]) -> Entity:
    """Return the entity of watermarks in stream 1."""
    entity = streams_pb2.WatermarksEntity(
        stream_id=1, topic_id=topic_id, first_partition=first, start_offsets=starts,
        end_offsets_plus_one=ends,
    )  # fmt: skip
    key = topic_id.to_bytes(8, "big") + first.to_bytes(8, "big")
    return 5, key, entity.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        (0, lambda entity: [(9, entity[1], entity[2])], "kind 9 is unknown"),
        (0, lambda entity: [entity, entity], "out of order"),
        (1, lambda entity: [(1, entity[1], entity[2] + b"\x30\x00")], "not canonical"),
        (2, lambda entity: [(2, entity[1][::-1], entity[2])], "wrong key"),
        (3, lambda entity: [(1, entity[1], entity[2])], "out of order"),
        (4, lambda entity: [(3, entity[1], entity[2] + b"\xa0\x06\x01")], "not canonical"),
        (6, lambda entity: [], "next stream may get"),
        (6, lambda entity: [(8, b"", b"")], "kind 8 is unknown"),
        (
            7,
            lambda entity: [marks_entity(1, 0, [0], [])],
            "begin, are beyond the highest offset, or are too many or none",
        ),
        (7, lambda entity: [marks_entity(1, 0, [2], [1])], "end before they begin"),
        (7, lambda entity: [marks_entity(1, 0, [], [1] * 129)], "too many"),
        (7, lambda entity: [marks_entity(1, 0, [], [1, 0])], "not canonical"),
        (7, lambda entity: [marks_entity(1, 1, [], [1])], "not canonical"),
        (7, lambda entity: [marks_entity(1, 128, [], [1])], "partition 128 of topic 1"),
        (7, lambda entity: [marks_entity(1, 0, [], [1] * 6)], "partition 5 of topic 1"),
        (7, lambda entity: [marks_entity(9, 0, [], [1])], "of topic 9, which is not there"),
        (6, lambda entity: [entity, (4, b"x", entity[2])], "wrong key"),
        (6, lambda entity: [(4, b"", b"\xff")], "not a protobuf message"),
        (1, lambda entity: [stream_entity(2, "orders")], "share the name 'orders'"),
        (1, lambda entity: [stream_entity(3, "next")], "next stream may get"),
        (3, lambda entity: [topic_entity(1, 2, "paid")], "are called 'paid'"),
        (3, lambda entity: [topic_entity(1, 3, "next")], "next topic may get"),
        (3, lambda entity: [topic_entity(9, 2, "open")], "which is not there"),
    ],
)
def test_what_is_not_loaded(
    index: int, change: Callable[[Entity], list[Entity]], message: str
) -> None:
    """A section that no machine wrote is refused, and the message says where it is wrong."""
    with pytest.raises(SectionError, match=message):
        loaded(changed(index, change))


RANGES = st.builds(
    streams_pb2.PartitionRange,
    first=st.integers(0, 3),
    count=st.integers(0, 3),
    created_revision=st.integers(5, 7),
)
TOPIC_OPTIONS = st.builds(
    streams_pb2.TopicOptions,
    message_expiry_us=st.none() | st.just(0),
    max_topic_size_bytes=st.just(0),
    compression_algorithm=st.sampled_from([0, 1, 2]),
    replication_factor=st.integers(0, 1),
    segment_size_bytes=st.sampled_from([1 << 20, 1 << 30]),
)
UNKNOWN_FIELD = b"\xa0\x06\x01"
TAILS = st.sampled_from([b"", b"", b"\x40\x05", UNKNOWN_FIELD, b"\x22\x03\xa0\x06\x01"])


@pytest.mark.parametrize("counts", [(), (3,), (1, 2), (2, 1, 1)])
def test_whole_topics_load(counts: tuple[int, ...]) -> None:
    """A topic whose ranges follow one another, each of another revision, loads as it was."""
    entity = streams_pb2.TopicEntity.FromString(topic_entity(1, 2, "t")[2])
    entity.created_revision = 5
    for index, count in enumerate(counts):
        revision = 5 + index
        entity.partitions.add(first=sum(counts[:index]), count=count, created_revision=revision)
    canonical = entity.SerializeToString(deterministic=True)
    state = loaded(changed(3, lambda known: [(2, known[1], canonical)]))
    assert state.topics.rows[1, 2].partitions_count == sum(counts)
    assert encode_topic(state.topics.rows[1, 2]) == canonical


@settings(max_examples=300)
@given(
    ranges=st.lists(RANGES, max_size=3),
    options=st.none() | TOPIC_OPTIONS,
    tail=TAILS,
    data=st.data(),
)
def test_what_loads_is_what_the_row_is_encoded_to(
    ranges: list[Any], options: Any, tail: bytes, data: st.DataObject
) -> None:
    """A topic that loads is canonical, without encoding its row to find out; a hole, an empty range
    or an unknown field at its end never loads."""
    if data.draw(st.booleans()):  # otherwise holes are nearly always there
        for index, piece in enumerate(ranges):
            piece.first = sum(earlier.count for earlier in ranges[:index])
    topic = streams_pb2.TopicEntity(
        id=2, stream_id=1, name="t", options=options, partitions=ranges, created_revision=5
    )
    canonical = topic.SerializeToString(deterministic=True) + tail
    small_ones = changed(3, lambda entity: [(2, entity[1], canonical)])
    covered = [
        number for piece in ranges for number in range(piece.first, piece.first + piece.count)
    ]
    is_wrong = tail == UNKNOWN_FIELD or covered != list(range(len(covered)))
    with contextlib.suppress(SectionError):
        state = loaded(small_ones)
        assert not is_wrong
        event("loads")
        assert encode_topic(state.topics.rows[1, 2]) == canonical
