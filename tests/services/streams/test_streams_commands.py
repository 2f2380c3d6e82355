"""What each command of the streams domain changes, and sends to other stages."""

from __future__ import annotations

from typing import Any, Final

import pytest
from google.protobuf.message import Message

from tests.services.streams.streams_workbench import (
    CLOCK,
    Workbench,
    by,
    everywhere,
    in_stream,
    in_topic,
    orders_bench,
    topic_request,
)
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.routing.v1.routing_pb2 import STAGE_CONSUMER_GROUPS, STAGE_USERS
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.limits import FEATURE_LEVEL_OFFSETS

ZSTD: Final = streams_pb2.COMPRESSION_ALGORITHM_ZSTD
NONE: Final = streams_pb2.COMPRESSION_ALGORITHM_NONE
GIB: Final = 1 << 30


@pytest.fixture
def bench() -> Workbench:
    """Return a bench with streams `orders` and `bills`, and topics `paid` and `open` in orders."""
    return orders_bench()


def stream_of(bench: Workbench, key: int | str) -> streams_pb2.Stream:
    """Return a stream as root sees it."""
    stream: streams_pb2.Stream = bench.query(
        "GetStream", api.GetStreamRequest(stream=by(key))
    ).stream
    return stream


def topic_of(bench: Workbench, stream: int | str, topic: int | str) -> streams_pb2.Topic:
    """Return a topic as root sees it."""
    request = api.GetTopicRequest(stream=by(stream), topic=by(topic))
    found: streams_pb2.Topic = bench.query("GetTopic", request).topic
    return found


def partitions_of(bench: Workbench, topic: str = "paid") -> list[tuple[int, int, int]]:
    """Return (first, count, created_revision) of the runs of a topic of orders."""
    request = api.ListPartitionsRequest(stream=by("orders"), topic=by(topic))
    ranges = bench.query("ListPartitions", request).partitions
    return [(run.first, run.count, run.created_revision) for run in ranges]


# --- Successful commands ---


def test_created_stream(bench: Workbench) -> None:
    """A new stream has the next id, and its revision and log time of creation."""
    assert bench.create_stream("new") == 3
    at = bench.revision
    assert stream_of(bench, "new") == streams_pb2.Stream(
        id=3,
        name="new",
        created_at=CLOCK + at,
        created_revision=at,
        modified_revision=at,
    )


def test_created_topic(bench: Workbench) -> None:
    """A new topic has the next id of all topics, every option, and its partitions."""
    assert bench.create_topic("bills", "new", 1000) == 3
    at = bench.revision
    assert topic_of(bench, "bills", 3) == streams_pb2.Topic(
        id=3,
        stream_id=2,
        name="new",
        partitions_count=1000,
        options=streams_pb2.TopicOptions(
            message_expiry_us=0,
            max_topic_size_bytes=0,
            compression_algorithm=NONE,
            replication_factor=1,
            segment_size_bytes=GIB,
        ),
        created_at=CLOCK + at,
        created_revision=at,
        modified_revision=at,
    )


def test_counts_topics_without_modifying_their_stream(bench: Workbench) -> None:
    """A stream counts its topics; their coming and going is no change of the stream itself."""
    before = stream_of(bench, "orders")
    bench.create_topic("orders", "new")
    bench.command("DeleteTopic", topic_request(api.DeleteTopicRequest))
    bench.command("DeleteTopic", topic_request(api.DeleteTopicRequest, "open"))
    before.topics_count = 1
    assert stream_of(bench, "orders") == before


def test_renamed_stream(bench: Workbench) -> None:
    """A renamed stream keeps id and topics, is found by its new name, and frees the old one."""
    bench.command("UpdateStream", api.UpdateStreamRequest(stream=by("orders"), name="sales"))
    assert stream_of(bench, "sales").modified_revision == bench.revision
    assert topic_of(bench, "sales", "paid").stream_id == 1
    assert bench.create_stream("orders") == 3


def test_renamed_topic(bench: Workbench) -> None:
    """A renamed topic keeps id and partitions, is found by its new name, and frees the old one."""
    bench.command("UpdateTopic", topic_request(api.UpdateTopicRequest, name="done"))
    topic = topic_of(bench, "orders", "done")
    assert (topic.id, topic.partitions_count) == (1, 3)
    assert topic.modified_revision == bench.revision
    assert bench.create_topic("orders", "paid") == 3


def test_options_of_update_replace_only_what_is_set(bench: Workbench) -> None:
    """A field that an update leaves out stays, and zero is a value."""
    first = streams_pb2.TopicOptions(
        message_expiry_us=5, compression_algorithm=ZSTD, max_topic_size_bytes=GIB
    )
    second = streams_pb2.TopicOptions(message_expiry_us=0, replication_factor=255)
    for options in (first, second):
        bench.command("UpdateTopic", topic_request(api.UpdateTopicRequest, options=options))
    assert topic_of(bench, "orders", "paid").options == streams_pb2.TopicOptions(
        message_expiry_us=0,
        max_topic_size_bytes=GIB,
        compression_algorithm=ZSTD,
        replication_factor=255,
        segment_size_bytes=GIB,
    )


def test_equal_options_are_one_object(bench: Workbench) -> None:
    """Topics with equal options share them, however they came by them."""
    options = streams_pb2.TopicOptions(replication_factor=3)
    for name in ("a", "b"):
        bench.command(
            "CreateTopic",
            api.CreateTopicRequest(stream=by("orders"), name=name, options=options),
        )
    bench.command("UpdateTopic", topic_request(api.UpdateTopicRequest, options=options))
    rows = bench.state.topics.rows
    assert rows[1, 1].options is rows[1, 3].options is rows[1, 4].options


def test_purges_are_counted(bench: Workbench) -> None:
    """A purge adds one to the count and modifies the purged entity, and no other."""
    bench.command("PurgeTopic", topic_request(api.PurgeTopicRequest))
    topic_revision = bench.revision
    for _ in range(2):
        bench.command("PurgeStream", api.PurgeStreamRequest(stream=by("orders")))
    stream, topic = stream_of(bench, "orders"), topic_of(bench, "orders", "paid")
    assert (stream.purge_generation, stream.modified_revision) == (2, bench.revision)
    assert (topic.purge_generation, topic.modified_revision) == (1, topic_revision)


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("UpdateStream", api.UpdateStreamRequest(stream=by("orders"), name="orders")),
        ("UpdateTopic", topic_request(api.UpdateTopicRequest)),
        ("UpdateTopic", topic_request(api.UpdateTopicRequest, name="paid")),
        (
            "UpdateTopic",
            topic_request(
                api.UpdateTopicRequest, options=streams_pb2.TopicOptions(replication_factor=1)
            ),
        ),
    ],
)
def test_what_changes_nothing_modifies_nothing(
    bench: Workbench, method: str, request_: Message
) -> None:
    """An update without a change succeeds and leaves the modified revision."""
    before = bench.digest()
    bench.command(method, request_)
    assert bench.digest() == before


def test_partitions_remember_who_created_them(bench: Workbench) -> None:
    """Partitions grow and shrink at the end; recreated ones carry the later revision."""
    created = bench.revision - 1
    add = topic_request(api.CreatePartitionsRequest, partitions_count=4)
    assert bench.command("CreatePartitions", add).partitions_count == 7
    added = bench.revision
    assert partitions_of(bench) == [(0, 3, created), (3, 4, added)]
    remove = topic_request(api.DeletePartitionsRequest, partitions_count=5)
    assert bench.command("DeletePartitions", remove).partitions_count == 2
    assert partitions_of(bench) == [(0, 2, created)]
    assert bench.state.topics.rows[1, 1].runs == ()
    assert bench.command("CreatePartitions", add).partitions_count == 6
    assert partitions_of(bench) == [(0, 2, created), (2, 4, bench.revision)]
    assert topic_of(bench, "orders", "paid").modified_revision == bench.revision


def test_topic_without_partitions(bench: Workbench) -> None:
    """A topic may begin and end without partitions, and gets later ones of a later revision."""
    assert partitions_of(bench, "open") == []
    add = topic_request(api.CreatePartitionsRequest, "open", partitions_count=2)
    bench.command("CreatePartitions", add)
    assert partitions_of(bench, "open") == [(0, 2, bench.revision)]
    remove = topic_request(api.DeletePartitionsRequest, "open", partitions_count=2)
    assert bench.command("DeletePartitions", remove).partitions_count == 0
    assert partitions_of(bench, "open") == []


@pytest.mark.parametrize(
    "name",
    ["x", "n" * 255, "ü" * 127, "with space", "中文", "'; DROP", "\u00a0", "42"],
)
def test_names_that_are_fine(bench: Workbench, name: str) -> None:
    """Names are 1 to 255 bytes of UTF-8 without control characters, digits alone included."""
    stream_id = bench.create_stream(name)
    topic_id = bench.create_topic(name, name)
    assert (stream_of(bench, name).id, topic_of(bench, name, name).id) == (stream_id, topic_id)


def test_validate_only_changes_nothing(bench: Workbench) -> None:
    """A command that only validates answers like a real one, sends no effect and changes
    nothing."""
    before = bench.digest()
    request = api.DeleteStreamRequest(stream=by("orders"), validate_only=True)
    bench.command("DeleteStream", request)
    assert (bench.digest(), bench.effects) == (before, [])
    assert bench.state.topics.ids(1) == [1, 2]
    assert bench.state.topics.sorted_keys() == [(1, 1), (1, 2)]


# --- Effects on other stages, and on itself ---


def test_deleted_stream_cascades(bench: Workbench) -> None:
    """A deleted stream removes its topics and sends their ids to groups and users.

    Groups learn, too, how many rows of watermarks each topic may have had.
    """
    bench.command("DeleteStream", api.DeleteStreamRequest(stream=by("orders")))
    deleted = effects_pb2.StreamDeleted(stream_id=1, topic_ids=[1, 2], watermark_rows=[1, 0])
    payload = effects_pb2.EffectPayload(stream_deleted=deleted)
    assert bench.effects == [((STAGE_CONSUMER_GROUPS, STAGE_USERS), payload)]
    assert (len(bench.state.topics), bench.state.topics.count(1)) == (0, 0)
    assert list(bench.state.stream_ids.rows) == ["bills"]


def test_deleted_topic_cascades(bench: Workbench) -> None:
    """A deleted topic is sent to groups and users."""
    bench.command("DeleteTopic", topic_request(api.DeleteTopicRequest))
    deleted = effects_pb2.TopicDeleted(stream_id=1, topic_id=1, watermark_rows=1)
    payload = effects_pb2.EffectPayload(topic_deleted=deleted)
    assert bench.effects == [((STAGE_CONSUMER_GROUPS, STAGE_USERS), payload)]


@pytest.mark.parametrize(
    ("partitions_count", "row_count"), [(0, 0), (1, 1), (128, 1), (129, 2), (1_000, 8)]
)
def test_a_deleted_topic_tells_how_many_rows_it_may_have(
    bench: Workbench, partitions_count: int, row_count: int
) -> None:
    """The rows are those of all partitions, whatever was reported of them."""
    bench.create_topic("orders", "new", partitions_count)
    bench.command("DeleteTopic", topic_request(api.DeleteTopicRequest, "new"))
    ((_, payload),) = bench.effects
    assert payload.topic_deleted.watermark_rows == row_count


@pytest.mark.parametrize(
    ("method", "request_", "payload"),
    [
        ("DeleteStream", api.DeleteStreamRequest(stream=by("orders")), "2a06080112020102"),
        ("DeleteTopic", topic_request(api.DeleteTopicRequest), "320408011001"),
    ],
)
def test_below_the_level_of_offsets_deletions_tell_what_they_told_before(
    method: str, request_: Message, payload: str
) -> None:
    """The bytes of the effects are pinned: replicas of that level have them in their logs."""
    bench = orders_bench(FEATURE_LEVEL_OFFSETS - 1)
    bench.command(method, request_)
    ((_, effect),) = bench.effects
    assert effect.SerializeToString().hex() == payload


def test_changed_partitions_are_told(bench: Workbench) -> None:
    """Groups learn how many partitions a topic has now."""
    counts = []
    for kind, method in (
        (api.CreatePartitionsRequest, "CreatePartitions"),
        (api.DeletePartitionsRequest, "DeletePartitions"),
    ):
        bench.command(method, topic_request(kind, partitions_count=2))
        ((to, payload),) = bench.effects
        assert to == (STAGE_CONSUMER_GROUPS,)
        changed = payload.partitions_changed
        counts.append((changed.stream_id, changed.topic_id, changed.partitions_count))
    assert counts == [(1, 1, 5), (1, 1, 3)]


def test_other_commands_tell_nothing(bench: Workbench) -> None:
    """Creating, renaming and purging concern no other stage."""
    bench.create_stream("new")
    bench.create_topic("new", "topic")
    bench.command("PurgeTopic", topic_request(api.PurgeTopicRequest))
    bench.command("PurgeStream", api.PurgeStreamRequest(stream=by("new")))
    assert bench.effects == []


def test_deleted_entities_take_their_grants_along(bench: Workbench) -> None:
    """Scoped grants go with their stream or topic, an emptied entry too, and others stay."""
    both = in_topic(1, 1, "read_topic")
    both.streams[0].topics.append(in_topic(1, 2, "manage_topic").streams[0].topics[0])
    both.streams.append(in_stream(2, "read_stream").streams[0])
    both.MergeFrom(everywhere("read_users"))
    bench.grant(5, both)
    bench.grant(6, in_topic(1, 1, "read_topic"))
    bench.grant(7, in_stream(2, "manage_stream"))
    bench.grant(8, in_stream(1, "read_stream"))

    def granted() -> dict[int, Any]:
        rows = bench.state.access.rows
        return {user: type(both).FromString(rows[user].permissions) for user in (5, 6, 7, 8)}

    bench.command("DeleteTopic", topic_request(api.DeleteTopicRequest))
    del both.streams[0].topics[0]
    nothing = type(both)()
    seven, eight = in_stream(2, "manage_stream"), in_stream(1, "read_stream")
    assert granted() == {5: both, 6: nothing, 7: seven, 8: eight}
    bench.command("DeleteStream", api.DeleteStreamRequest(stream=by("orders")))
    del both.streams[0]
    assert granted() == {5: both, 6: nothing, 7: seven, 8: nothing}
    bench.effect(user_deleted={"user_id": 5})
    assert {s: list(u.rows) for s, u in bench.state.grantees.rows.items()} == {2: [7]}
