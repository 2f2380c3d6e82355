"""The refusals of the streams domain's commands, and their texts."""

from __future__ import annotations

from typing import Any, Final

import pytest
from google.protobuf.message import Message

from services.streams import options
from tests.services.streams.streams_workbench import (
    Workbench,
    by,
    orders_bench,
    refusal_of,
    topic_request,
)
from viewstamp import limits
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api

GIB: Final = 1 << 30
MIB: Final = 1 << 20
TOO_LONG: Final = "ü" * 128
CONTROL: Final = "line\nbreak"


@pytest.fixture
def bench() -> Workbench:
    """Return a bench with streams `orders` and `bills`, and topics `paid` and `open` in orders."""
    return orders_bench()


def options_request(**options: Any) -> api.CreateTopicRequest:
    """Return a request to create a topic with options."""
    return api.CreateTopicRequest(
        stream=by("orders"), name="new", options=streams_pb2.TopicOptions(**options)
    )


def unknown_option() -> streams_pb2.TopicOptions:
    """Return options with an unknown field."""
    return streams_pb2.TopicOptions.FromString(b"\xa0\x06\x01")


REFUSALS: Final[list[tuple[str, str, Message]]] = [
    ("STREAM_EXISTS", "CreateStream", api.CreateStreamRequest(name="orders")),
    (
        "STREAM_EXISTS",
        "UpdateStream",
        api.UpdateStreamRequest(stream=by("orders"), name="bills"),
    ),
    ("TOPIC_EXISTS", "CreateTopic", api.CreateTopicRequest(stream=by("orders"), name="paid")),
    ("TOPIC_EXISTS", "UpdateTopic", topic_request(api.UpdateTopicRequest, name="open")),
    *(
        ("INVALID_STREAM_NAME", method, request)
        for name in ("", TOO_LONG, CONTROL, "n" * 256, "\x7f", "\u0085")
        for method, request in (
            ("CreateStream", api.CreateStreamRequest(name=name)),
            ("UpdateStream", api.UpdateStreamRequest(stream=by("orders"), name=name)),
        )
    ),
    *(
        ("INVALID_TOPIC_NAME", method, request)
        for name in ("", TOO_LONG, CONTROL, "n" * 256, "\x7f", "\u0085")
        for method, request in (
            ("CreateTopic", api.CreateTopicRequest(stream=by("orders"), name=name)),
            ("UpdateTopic", topic_request(api.UpdateTopicRequest, name=name)),
        )
    ),
    ("INVALID_OPTION", "CreateTopic", options_request(replication_factor=0)),
    ("INVALID_OPTION", "CreateTopic", options_request(replication_factor=256)),
    ("INVALID_OPTION", "CreateTopic", options_request(compression_algorithm=5)),
    ("INVALID_OPTION", "CreateTopic", options_request(segment_size_bytes=MIB - 512)),
    ("INVALID_OPTION", "CreateTopic", options_request(segment_size_bytes=GIB + 512)),
    ("INVALID_OPTION", "CreateTopic", options_request(segment_size_bytes=MIB + 1)),
    ("INVALID_TOPIC_SIZE", "CreateTopic", options_request(max_topic_size_bytes=GIB - 1)),
    (
        "INVALID_TOPIC_SIZE",
        "CreateTopic",
        options_request(max_topic_size_bytes=MIB, segment_size_bytes=MIB + 512),
    ),
    (
        "INVALID_TOPIC_SIZE",
        "UpdateTopic",
        topic_request(
            api.UpdateTopicRequest, options=streams_pb2.TopicOptions(max_topic_size_bytes=1)
        ),
    ),
    (
        "INVALID_OPTION",
        "UpdateTopic",
        topic_request(
            api.UpdateTopicRequest, options=streams_pb2.TopicOptions(replication_factor=256)
        ),
    ),
    (
        "UNSUPPORTED_OPTION",
        "UpdateTopic",
        topic_request(
            api.UpdateTopicRequest, options=streams_pb2.TopicOptions(segment_size_bytes=GIB)
        ),
    ),
    (
        "UNSUPPORTED_OPTION",
        "CreateTopic",
        api.CreateTopicRequest(stream=by("orders"), name="new", options=unknown_option()),
    ),
    (
        "UNSUPPORTED_OPTION",
        "UpdateTopic",
        topic_request(api.UpdateTopicRequest, options=unknown_option()),
    ),
    (
        "INVALID_PARTITIONS_COUNT",
        "CreateTopic",
        api.CreateTopicRequest(stream=by("orders"), name="new", partitions_count=1001),
    ),
    *(
        ("INVALID_PARTITIONS_COUNT", method, topic_request(kind, partitions_count=count))
        for count in (0, 1001)
        for method, kind in (
            ("CreatePartitions", api.CreatePartitionsRequest),
            ("DeletePartitions", api.DeletePartitionsRequest),
        )
    ),
    (
        "INVALID_PARTITIONS_COUNT",
        "DeletePartitions",
        topic_request(api.DeletePartitionsRequest, partitions_count=4),
    ),
    ("MALFORMED_REQUEST", "DeleteStream", api.DeleteStreamRequest()),
    ("MALFORMED_REQUEST", "CreateTopic", api.CreateTopicRequest(name="new")),
    ("MALFORMED_REQUEST", "DeleteTopic", api.DeleteTopicRequest(stream=by("orders"))),
    ("MALFORMED_REQUEST", "DeleteTopic", api.DeleteTopicRequest(topic=by("paid"))),
    ("STREAM_NOT_FOUND", "DeleteStream", api.DeleteStreamRequest(stream=by("missing"))),
    ("STREAM_NOT_FOUND", "DeleteStream", api.DeleteStreamRequest(stream=by(""))),
    ("STREAM_NOT_FOUND", "DeleteStream", api.DeleteStreamRequest(stream=by(0))),
    ("STREAM_NOT_FOUND", "DeleteStream", api.DeleteStreamRequest(stream=by(3))),
    ("STREAM_NOT_FOUND", "DeleteStream", api.DeleteStreamRequest(stream=by("1"))),
    ("TOPIC_NOT_FOUND", "DeleteTopic", topic_request(api.DeleteTopicRequest, "missing")),
    ("TOPIC_NOT_FOUND", "DeleteTopic", topic_request(api.DeleteTopicRequest, "")),
    (
        "TOPIC_NOT_FOUND",
        "DeleteTopic",
        api.DeleteTopicRequest(stream=by("bills"), topic=by("paid")),
    ),
    ("TOPIC_NOT_FOUND", "DeleteTopic", api.DeleteTopicRequest(stream=by("bills"), topic=by(1))),
]


@pytest.mark.parametrize(("reason", "method", "request_"), REFUSALS)
def test_refusals(bench: Workbench, reason: str, method: str, request_: Message) -> None:
    """Each wrong request is refused with its reason, and changes nothing."""
    bench.effects = []
    assert refusal_of(bench, method, request_).name == reason


@pytest.mark.parametrize(
    ("method", "kind", "fields"),
    [
        ("UpdateStream", api.UpdateStreamRequest, {"name": "new"}),
        ("DeleteStream", api.DeleteStreamRequest, {}),
        ("PurgeStream", api.PurgeStreamRequest, {}),
        ("UpdateTopic", api.UpdateTopicRequest, {"name": "new"}),
        ("DeleteTopic", api.DeleteTopicRequest, {}),
        ("PurgeTopic", api.PurgeTopicRequest, {}),
        ("CreatePartitions", api.CreatePartitionsRequest, {"partitions_count": 1}),
        ("DeletePartitions", api.DeletePartitionsRequest, {"partitions_count": 1}),
    ],
)
def test_expected_revision(method: str, kind: Any, fields: dict[str, Any]) -> None:
    """A command succeeds only at the expected revision; a mismatch names both."""
    bench = Workbench()
    bench.create_stream("orders")
    modified = bench.revision
    names: dict[str, Any] = {"stream": by("orders")}
    if "topic" in kind.DESCRIPTOR.fields_by_name:
        bench.create_topic("orders", "paid")
        modified = bench.revision
        names["topic"] = by("paid")
    for wrong in (0, modified - 1, modified + 1):
        refusal = refusal_of(bench, method, kind(**names, **fields, expected_revision=wrong))
        assert refusal.name == "REVISION_MISMATCH"
        assert refusal.details["expected_revision"] == str(wrong)
        assert refusal.details["modified_revision"] == str(modified)
    bench.command(method, kind(**names, **fields, expected_revision=modified))


@pytest.mark.parametrize(
    ("limit", "reason", "method", "request_"),
    [
        ("STREAMS_MAX", "STREAM_LIMIT", "CreateStream", api.CreateStreamRequest(name="new")),
        (
            "TOPICS_PER_STREAM_MAX",
            "TOPIC_LIMIT",
            "CreateTopic",
            api.CreateTopicRequest(stream=by("orders"), name="new"),
        ),
    ],
)
def test_limits(
    monkeypatch: pytest.MonkeyPatch,
    bench: Workbench,
    limit: str,
    reason: str,
    method: str,
    request_: Message,
) -> None:
    """At the limit a further one is refused; below it one is created."""
    monkeypatch.setattr(limits, limit, 2)
    assert refusal_of(bench, method, request_).name == reason
    monkeypatch.setattr(limits, limit, 3)
    bench.command(method, request_)


def test_partition_limit(monkeypatch: pytest.MonkeyPatch, bench: Workbench) -> None:
    """A topic is filled up to the limit, and not by one partition more."""
    monkeypatch.setattr(limits, "PARTITIONS_PER_TOPIC_MAX", 10)
    request = topic_request(api.CreatePartitionsRequest, partitions_count=8)
    refusal = refusal_of(bench, "CreatePartitions", request)
    assert (refusal.name, refusal.details["existing"]) == ("PARTITION_LIMIT", "3")
    bench.command(
        "CreatePartitions", topic_request(api.CreatePartitionsRequest, partitions_count=7)
    )


def test_partition_run_limit(monkeypatch: pytest.MonkeyPatch, bench: Workbench) -> None:
    """A topic grows in steps until it has as many runs as allowed, and no further."""
    monkeypatch.setattr(limits, "PARTITION_RUNS_PER_TOPIC_MAX", 3)
    request = topic_request(api.CreatePartitionsRequest, partitions_count=1)
    for _ in range(2):
        bench.command("CreatePartitions", request)
    refusal = refusal_of(bench, "CreatePartitions", request)
    assert refusal.name == "PARTITION_LIMIT"
    assert refusal.details == {"topic": "paid", "limit": "3"}


def test_messages_name_what_was_asked_for(bench: Workbench) -> None:
    """A refusal names the requested entity, in words and in its details."""
    request = api.DeleteTopicRequest(stream=by("orders"), topic=by(77))
    refusal = refusal_of(bench, "DeleteTopic", request)
    assert refusal.message == "There is no topic 77 in stream 'orders', or you may not see it."
    assert refusal.details == {"stream": "orders", "topic": "77"}


def test_options_cache_is_bounded(monkeypatch: pytest.MonkeyPatch, bench: Workbench) -> None:
    """However many distinct options exist, few are cached, and every topic keeps its own."""
    monkeypatch.setattr(options, "OPTIONS_CACHED_MAX", 3)
    for expiry in range(1, 9):
        request = options_request(message_expiry_us=expiry)
        request.name = f"topic-{expiry}"
        bench.command("CreateTopic", request)
    rows = [bench.state.topics.find(1, f"topic-{expiry}") for expiry in range(1, 9)]
    assert [row.options.message_expiry_us for row in rows if row] == list(range(1, 9))
    pool = bench.state.options_pool
    assert max(len(pool.shared), len(pool.by_encoding)) <= 3
