"""CreateTopic in bulk does, to the byte, the same as the handler for one command at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.runtime.machine import Machine
from services.streams import bulk
from services.streams.domain import DOMAIN
from services.streams.model import StreamsState
from tests.services.streams.streams_workbench import (
    CLOCK,
    LATEST,
    METHODS,
    Workbench,
    by,
    in_stream,
)
from viewstamp import framing, limits
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api

ROOT, MAKER, READER, STRANGER = 0, 7, 8, 9
STREAMS: Final = ("a", "b", "s" * 200)
TOPICS_MAX: Final = 24  # so that spans meet the limit


def encoded(stream: int | str = 1, name: str = "odd", end: bytes = b"", **fields: Any) -> bytes:
    """Return an encoded request, with further bytes on the wire."""
    request = api.CreateTopicRequest(stream=by(stream), name=name, **fields)
    return request.SerializeToString() + end


UNKNOWN_OPTION: Final = streams_pb2.TopicOptions.FromString(b"\xf8\x06\x01")
ODD: Final[dict[str, bytes]] = {
    "stream by long name": encoded(STREAMS[2]),
    "no such stream": encoded(9),
    "no such stream by name": encoded("none"),
    "no kind of stream": b"\x0a\x00\x1a\x03odd",
    "no stream": b"\x1a\x03odd",
    "no name": encoded(name=""),
    "name of zero bytes": b"\x0a\x02\x08\x01\x1a\x00",
    "name beyond ASCII": encoded(name="\u00e9"),
    "name with a control character": encoded(name="a\x00b"),
    "longest short name": encoded(name="x" * 127),
    "shortest long name": encoded(name="x" * 128),
    "longest name": encoded(name="x" * 255),
    "name too long": encoded(name="x" * 256),
    "name taken": encoded(name="plain-1-0"),
    "name taken in another stream": encoded(2, name="plain-1-0"),
    "most partitions": encoded(partitions_count=1000),
    "too many partitions": encoded(partitions_count=1001),
    "empty options": encoded(options=streams_pb2.TopicOptions()),
    "options": encoded(options=streams_pb2.TopicOptions(message_expiry_us=5)),
    "bad options": encoded(options=streams_pb2.TopicOptions(replication_factor=0)),
    "unknown option": encoded(options=UNKNOWN_OPTION),
    "only validated": encoded(validate_only=True),
    "another stream follows": encoded(end=b"\x0a\x02\x08\x02"),
    "an empty stream follows": encoded(end=b"\x0a\x00"),
    "another name follows": encoded(end=b"\x1a\x01z"),
    "an empty name follows": encoded(end=b"\x1a\x00"),
    "more options follow": encoded(
        options=streams_pb2.TopicOptions(replication_factor=2), end=b"\x2a\x02\x08\x07"
    ),
    "an unknown field follows": encoded(end=b"\xf8\x06\x01"),
    "cut off within a number": encoded(end=b"\x20"),
    "cut off within a text": encoded(end=b"\x1a\x05ab"),
    "garbage follows": encoded(end=b"\xff"),
    "nothing": b"",
    "one byte": b"\x0a",
    "cut off within the stream": b"\x0a\x7f\x08\x01",
    "cut off before the name": b"\x0a\x02\x08\x01\x1a",
    "cut off within the name": b"\x0a\x02\x08\x01\x1a\x09short",
    "not UTF-8": b"\x0a\x02\x08\x01\x1a\x01\xff",
    "a longer length than needed": b"\x0a\x82\x00\x08\x01\x1a\x04long",
    "the same of the name": b"\x0a\x02\x08\x01\x1a\x84\x00long",
    "a length that looks like a name": b"\x0a\x02\x08\x01\x1a\x80\x21" + b" " * 4224,
    "fields in another order": b"\x1a\x05first\x0a\x02\x08\x01",
    "another field for the name": b"\x0a\x02\x08\x01\x22\x01k",
    "another field for the stream": b"\x12\x02\x08\x01\x1a\x04what",
}
PLAIN: Final = st.builds(
    lambda stream, number: encoded(stream, f"topic-{number}", partitions_count=3),
    st.sampled_from([1, "a", 2]),
    st.integers(0, 99),
)
REQUESTS: Final = st.integers(0, 9).flatmap(
    lambda odd: PLAIN if odd else st.sampled_from(list(ODD.values()))
)
# Items, their user, and whether they are taken back.
SPANS: Final = st.lists(
    st.tuples(
        st.lists(REQUESTS, min_size=6, max_size=40),
        st.sampled_from([ROOT, ROOT, ROOT, MAKER]),
        st.sampled_from([False, False, True]),
    ),
    min_size=1,
    max_size=4,
)


def bench(with_bulk: bool) -> Workbench:
    """Return a bench with three streams; in the first MAKER may make topics, READER only look."""
    made = Workbench()
    made.machine = Machine(DOMAIN if with_bulk else replace(DOMAIN, bulk={}))
    made.revision = 0
    made.grant(0, in_stream(1))
    for name in STREAMS:
        made.create_stream(name)
    made.grant(MAKER, in_stream(1, "manage_topics"))
    made.grant(READER, in_stream(1, "read_topics"))
    return made


def apply(made: Workbench, items: list[bytes], user: int, is_reverted: bool) -> bytes:
    """Send the requests as one span, perhaps take it back, and return the encoded reply."""
    span = pb.CommandItem(
        code=METHODS["CreateTopic"].code,
        first_revision=made.revision + 1,
        count=len(items),
        items=framing.frame_all(items),
        user_id=user,
        credential_revision=LATEST,
        timestamp=CLOCK,
    )
    made.revision += len(items)
    steps = [pb.Item(command=span)]
    if is_reverted:
        steps = [pb.Item(savepoint=pb.SavepointItem()), *steps, pb.Item(revert=pb.RevertItem())]
    batch = pb.Batch(
        sequence=made.machine.sequence + 1, feature_level=limits.FEATURE_LEVEL_MAX, items=steps
    )
    reply = made.machine.apply(batch).reply.SerializeToString(deterministic=True)
    assert made.machine.alarms == []
    assert made.machine.undo.entries == []
    return reply


def indexes(state: StreamsState) -> Any:
    """Return the indexes of the table of topics, and the counters."""
    streams = [state.topics.of_stream(stream_id) for stream_id in (1, 2, 3)]
    return [(s.ids, s.by_name) for s in streams], state.topics.sorted_keys(), state.counters.rows


def run_both(spans: list[tuple[list[bytes], int, bool]]) -> None:
    """Apply the spans with and without the bulk handler, and demand the same all the way."""
    with patch.object(limits, "TOPICS_PER_STREAM_MAX", TOPICS_MAX):
        fast, slow = bench(with_bulk=True), bench(with_bulk=False)
        for items, user, is_reverted in spans:
            ours, expected = (apply(made, items, user, is_reverted) for made in (fast, slow))
            assert ours == expected
            assert fast.digest() == slow.digest()
            assert indexes(fast.state) == indexes(slow.state)


@pytest.mark.parametrize("user", [ROOT, MAKER, READER, STRANGER])
@pytest.mark.parametrize("odd", ODD)
def test_odd_request_among_plain_ones(odd: str, user: int) -> None:
    """An odd request, and those around it, are answered as one by one."""
    plain = [encoded(1, f"plain-1-{number}") for number in range(9)]
    others = [encoded("a", f"plain-2-{number}") for number in range(9)]
    run_both([([*plain, ODD[odd], *others], user, False)])


def test_limit_of_a_stream_is_kept() -> None:
    """A stream that fills up within a span refuses the rest, and other streams go on."""
    full = [encoded(1, f"topic-{number}") for number in range(TOPICS_MAX + 20)]
    run_both([([*full[:10], *full[10:], encoded(2), encoded(3), *full], ROOT, False)])


@settings(deadline=None, max_examples=50)
@given(SPANS)
def test_bulk_is_the_same_to_the_byte(spans: list[tuple[list[bytes], int, bool]]) -> None:
    """For any spans replies and state are those of a machine without the bulk handler."""
    run_both(spans)


def test_plain_requests_need_no_handler() -> None:
    """All plain requests are carried out in bulk, whichever way they name a stream.

    Without this test nobody would notice a bulk handler that does nothing.
    """
    made = bench(with_bulk=True)
    keys: tuple[int | str, ...] = (1, "a", "b")
    items = [
        encoded(key, f"{key}-{number}", partitions_count=number, options=options)
        for key in keys
        for number in range(20)
        for options in (None, streams_pb2.TopicOptions(message_expiry_us=9))
        if (options is None) == bool(number % 2)
    ]

    def unexpected(*arguments: Any) -> bytes:
        raise AssertionError("the general way was taken")

    with patch.dict(DOMAIN.commands, {"CreateTopic": unexpected}):
        made.machine = Machine(DOMAIN)
        made.revision = 0
        made.grant(0, in_stream(1))
        made.create_stream("a")
        made.create_stream("b")
        apply(made, items, 0, False)
    assert made.state.topics.sorted_keys() == [(1, i) for i in range(1, 41)] + [
        (2, i) for i in range(41, 61)
    ]


@pytest.mark.parametrize(
    ("first", "count"),
    [(1, 0), (1, 300), (127, 1), (128, 128), (16_000, 9000), (2_097_150, 400), (2**32 - 1, 5)],
)
def test_answers_equal_the_protobuf_encoding(first: int, count: int) -> None:
    """The answers written by hand are, to the byte, those that protobuf writes."""
    expected = framing.frame_all(
        api.CreateTopicResponse(topic_id=id_).SerializeToString()
        for id_ in range(first, first + count)
    )
    assert bulk.framed_ids(first, count) == expected
