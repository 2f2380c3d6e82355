"""Reads: pages, and what other stages learn of the names in their requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from services.streams import resolve as resolving
from tests.services.streams.streams_workbench import Workbench, by, refusal_of
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.errors import Refusal

READ: Final = routing_pb2.GATE_READ_TOPIC


@pytest.fixture
def bench() -> Workbench:
    """Return a bench with streams s1 to s5, of which s2 has topics t1 to t5."""
    bench = Workbench()
    for number in range(1, 6):
        bench.create_stream(f"s{number}")
    for number in range(1, 6):
        bench.create_topic("s2", f"t{number}", number)
    return bench


# --- Pages ---


def pages(ask: Callable[[str], Any], field: str) -> list[list[int]]:
    """Return the ids on each page until there is no next one."""
    found: list[list[int]] = []
    token = ""
    while not found or token:
        answer = ask(token)
        found.append([entity.id for entity in getattr(answer, field)])
        token = answer.next_page_token
    return found


def stream_pages(bench: Workbench, size: int) -> list[list[int]]:
    """Return the ids on each page of streams."""
    return pages(
        lambda token: bench.query(
            "ListStreams", api.ListStreamsRequest(page_size=size, page_token=token)
        ),
        "streams",
    )


def topic_pages(bench: Workbench, stream: str, size: int) -> list[list[int]]:
    """Return the ids on each page of a stream's topics."""
    return pages(
        lambda token: bench.query(
            "ListTopics",
            api.ListTopicsRequest(stream=by(stream), page_size=size, page_token=token),
        ),
        "topics",
    )


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, [[1, 2, 3, 4, 5]]),
        (1, [[1], [2], [3], [4], [5]]),
        (2, [[1, 2], [3, 4], [5]]),
        (5, [[1, 2, 3, 4, 5]]),
        (1000, [[1, 2, 3, 4, 5]]),
    ],
)
def test_pages(bench: Workbench, size: int, expected: list[list[int]]) -> None:
    """Pages hold every entity once, by ascending id, and the last one has no token."""
    assert stream_pages(bench, size) == expected
    assert topic_pages(bench, "s2", size) == expected


def test_default_page_holds_a_hundred(bench: Workbench) -> None:
    """The default page size is 100."""
    for number in range(6, 103):
        bench.create_stream(f"s{number}")
    assert list(map(len, stream_pages(bench, 0))) == [100, 2]


def test_empty_lists(bench: Workbench) -> None:
    """A stream without topics has one empty page."""
    assert topic_pages(bench, "s1", 10) == [[]]


def test_page_goes_on_where_its_entity_was_deleted(bench: Workbench) -> None:
    """A token outlives the entity it was made from, and nothing is repeated or left out."""
    first = bench.query("ListTopics", api.ListTopicsRequest(stream=by("s2"), page_size=2))
    bench.command("DeleteTopic", api.DeleteTopicRequest(stream=by("s2"), topic=by(2)))
    bench.create_topic("s2", "t6")
    request = api.ListTopicsRequest(stream=by("s2"), page_token=first.next_page_token)
    assert [topic.id for topic in bench.query("ListTopics", request).topics] == [3, 4, 5, 6]


def test_tokens_belong_to_a_list(bench: Workbench) -> None:
    """A page token of one stream's topics is refused for other lists, and survives a rename."""
    bench.create_topic("s1", "t1")
    token = bench.query("ListTopics", api.ListTopicsRequest(stream=by("s2"), page_size=2))
    token = token.next_page_token
    for name, request in (
        ("ListStreams", api.ListStreamsRequest(page_token=token)),
        ("ListTopics", api.ListTopicsRequest(stream=by("s1"), page_token=token)),
    ):
        assert refusal_of(bench, name, request).case == "page_token_of_another_list"
    bench.command("UpdateStream", api.UpdateStreamRequest(stream=by("s2"), name="renamed"))
    request = api.ListTopicsRequest(stream=by("renamed"), page_token=token)
    assert [topic.id for topic in bench.query("ListTopics", request).topics] == [3, 4, 5]


@pytest.mark.parametrize(
    "fields", [{"page_size": 1001}, {"page_token": "1"}, {"page_token": "g" * 16}]
)
@pytest.mark.parametrize("kind", [api.ListStreamsRequest, api.ListTopicsRequest])
def test_malformed_pages(bench: Workbench, kind: Any, fields: dict[str, Any]) -> None:
    """Too large a page, or a token that no page gave, is refused."""
    request = kind(**fields)
    if kind is api.ListTopicsRequest:
        request.stream.name = "s2"
    name = kind.DESCRIPTOR.name.removesuffix("Request")
    assert refusal_of(bench, name, request).name == "MALFORMED_REQUEST"


def test_lists_show_what_get_shows(bench: Workbench) -> None:
    """An entity looks the same in a list and by itself."""
    streams = bench.query("ListStreams", api.ListStreamsRequest()).streams
    topics = bench.query("ListTopics", api.ListTopicsRequest(stream=by("s2"))).topics
    assert [stream.topics_count for stream in streams] == [0, 5, 0, 0, 0]
    for stream in streams:
        request = api.GetStreamRequest(stream=by(stream.id))
        assert bench.query("GetStream", request).stream == stream
    for topic in topics:
        about = api.GetTopicRequest(stream=by("s2"), topic=by(topic.name))
        assert bench.query("GetTopic", about).topic == topic


# --- Resolving ---


def context_of(bench: Workbench, item: bytes) -> effects_pb2.TopicContext:
    """Return the groups' view of a topic."""
    return effects_pb2.TopicContext.FromString(bench.resolve(READ, item))


def test_context_of_a_topic(bench: Workbench) -> None:
    """Any request is read by its fields 1 and 2, whatever its other fields are."""
    request = groups.JoinConsumerGroupRequest(
        stream=by("s2"), topic=by("t4"), group=by("workers"), instance_id="one", rack="west"
    )
    expected = effects_pb2.TopicContext(
        stream_id=2, topic_id=4, partitions_count=4, created_revision=bench.revision - 1
    )
    for _ in range(2):  # the second answer comes from the cache
        assert context_of(bench, request.SerializeToString()) == expected


def test_context_follows_the_topic(monkeypatch: pytest.MonkeyPatch, bench: Workbench) -> None:
    """A context is never older than the topic, not even when the change was taken back."""
    monkeypatch.setattr(resolving, "CONTEXTS_CACHED_MAX", 2)
    add = api.CreatePartitionsRequest(stream=by("s2"), topic=by("t1"), partitions_count=9)
    item = add.SerializeToString()
    counts = [context_of(bench, item).partitions_count]
    bench.command("CreatePartitions", add)
    counts.append(context_of(bench, item).partitions_count)
    add.validate_only = True
    bench.command("CreatePartitions", add)
    counts.append(context_of(bench, item).partitions_count)
    assert counts == [1, 10, 10]
    for topic in ("t2", "t3", "t4"):
        item = api.GetTopicRequest(stream=by("s2"), topic=by(topic)).SerializeToString()
        assert context_of(bench, item).partitions_count == int(topic[1])
    assert len(bench.state.contexts) <= 2


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (b"\x0a\xff", "MALFORMED_REQUEST"),
        (b"\x0a\x03\x12\x01\xff", "MALFORMED_REQUEST"),
        (b"", "MALFORMED_REQUEST"),
        (api.GetStreamRequest(stream=by("s2")).SerializeToString(), "MALFORMED_REQUEST"),
        (
            api.GetTopicRequest(stream=by("s2"), topic=by("none")).SerializeToString(),
            "TOPIC_NOT_FOUND",
        ),
        (
            api.GetTopicRequest(stream=by("s9"), topic=by("t1")).SerializeToString(),
            "STREAM_NOT_FOUND",
        ),
    ],
)
def test_unresolvable(bench: Workbench, item: bytes, reason: str) -> None:
    """A name that cannot be resolved is refused, and the reason is the command's result."""
    with pytest.raises(Refusal) as refused:
        bench.resolve(READ, item)
    assert refused.value.name == reason


def test_server_gates_need_no_names(bench: Workbench) -> None:
    """Gates of servers read nothing of the request and yield an empty context."""
    for gate in (routing_pb2.GATE_READ_SERVERS, routing_pb2.GATE_MANAGE_SERVERS):
        assert bench.resolve(gate, b"\xff not a message") == b""


def test_unknown_gate_is_a_defect(bench: Workbench) -> None:
    """An unknown gate admits nobody and raises an alarm."""
    with pytest.raises(AssertionError):
        bench.resolve(99, b"")
    (alarm,) = bench.machine.alarms
    assert "gate 99 is unknown" in str(alarm.defect)


def test_grants_are_resolved_without_authorization(bench: Workbench) -> None:
    """Each named stream and topic yields its id or nothing, in order; a caller is not needed."""

    def entry(stream: Identifier, *topics: Identifier) -> users_pb2.StreamPermissions:
        return users_pb2.StreamPermissions(
            stream=stream, topics=[users_pb2.TopicPermissions(topic=topic) for topic in topics]
        )

    permissions = users_pb2.Permissions(
        streams=[
            entry(by("s2"), by("t3"), by(1), by("none"), by(77), Identifier()),
            entry(by(5)),
            entry(by("none"), by("t1"), by(1)),
            entry(by(1), by(1)),
            entry(Identifier()),
        ]
    )
    request = users.CreateUserRequest(username="ann", permissions=permissions)
    context = bench.resolve(0, request.SerializeToString(), user=99, grants=True)
    found = [
        (
            stream.stream_id if stream.HasField("stream_id") else None,
            [topic.topic_id if topic.HasField("topic_id") else None for topic in stream.topics],
        )
        for stream in effects_pb2.GrantsContext.FromString(context).streams
    ]
    assert found == [
        (2, [3, 1, None, None, None]),
        (5, []),
        (None, [None, None]),
        (1, [None]),
        (None, []),
    ]


def test_request_without_permissions_resolves_to_nothing(bench: Workbench) -> None:
    """Without field 8 there is nothing to resolve."""
    assert bench.resolve(0, b"", grants=True) == b""
    with pytest.raises(Refusal, match="its bytes are not the request message of the method"):
        bench.resolve(0, b"\x42\x05", grants=True)
