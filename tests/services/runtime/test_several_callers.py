"""Reads of several callers in one item: each is judged by what its own caller is and may do."""

from __future__ import annotations

import pytest

from services.runtime.machine import ApplyError
from tests.services.consumer_groups.harness import GROUP_NAME, METHODS, settled
from tests.services.runtime.harness import reasons
from tests.services.streams.streams_workbench import LATEST, in_stream, orders_bench, topic_request
from viewstamp import limits
from viewstamp.api.brokers.v1 import brokers_service_pb2 as brokers
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.framing import frame_all, unframe
from viewstamp.routing import methods_of_file

READER, STRANGER = 5, 6
LEVEL = limits.FEATURE_LEVEL_SIGNS
SHOW_LIFE = next(m.code for m in methods_of_file(brokers.DESCRIPTOR) if m.name == "KeepAliveBroker")


def test_each_caller_has_its_own_permissions() -> None:
    """Who may not read the topic, and who is nobody, are refused beside one who may."""
    bench = orders_bench()
    bench.grant(READER, in_stream(1, "read_stream", "read_topics"))
    bench.grant(STRANGER, in_stream(2, "read_stream", "read_topics"))
    request = topic_request(api.KeepAliveConsumerGroupRequest).SerializeToString()
    callers = [
        pb.Caller(user_id=READER, credential_revision=LATEST, count=1),
        pb.Caller(user_id=STRANGER, credential_revision=LATEST, count=2),
        pb.Caller(user_id=99, credential_revision=LATEST, count=1),
        pb.Caller(user_id=READER, credential_revision=LATEST, count=1),
    ]
    item = pb.ResolveItem(
        code=METHODS["KeepAliveConsumerGroup"].code,
        count=5,
        items=frame_all([request] * 5),
        gate=routing_pb2.GATE_READ_TOPIC,
        callers=callers,
    )
    (outcome,) = bench.apply(pb.Item(resolve=item))
    assert reasons(outcome.resolve.errors) == {
        1: "STREAM_NOT_FOUND",
        2: "STREAM_NOT_FOUND",
        3: "UNAUTHENTICATED",
    }
    contexts = unframe(outcome.resolve.contexts)
    assert [bool(context) for context in contexts] == [True, False, False, False, True]


def test_each_caller_has_its_own_session() -> None:
    """Each member of a group is told its own partitions; who is none is told nothing."""
    harness = settled([11, 12], partitions_count=4)
    request = api.KeepAliveConsumerGroupRequest(member_epoch=harness.member(11).member_epoch)
    request.group.name = GROUP_NAME
    item = pb.QueryItem(
        code=METHODS["KeepAliveConsumerGroup"].code,
        count=3,
        items=frame_all([request.SerializeToString()] * 3),
        contexts=frame_all([harness.context()] * 3),
        callers=[pb.Caller(session_id=number, count=1) for number in (11, 13, 12)],
    )
    batch = pb.Batch(feature_level=LEVEL, items=[pb.Item(query=item)])
    (outcome,) = harness.machine.apply(batch).reply.outcomes
    assert reasons(outcome.query.errors) == {1: "NOT_A_MEMBER"}
    answers = map(api.KeepAliveConsumerGroupResponse.FromString, unframe(outcome.query.results))
    assert [list(each.owned_partitions) for each in answers] == [[0, 1], [], [2, 3]]


@pytest.mark.parametrize("counts", [(1,), (1, 2), (3,)])
@pytest.mark.parametrize("kind", ["resolve", "query"])
def test_every_read_has_one_caller(kind: str, counts: tuple[int, ...]) -> None:
    """Callers for fewer or more reads than there are come from no correct coordinator."""
    bench = orders_bench()
    code = METHODS["KeepAliveConsumerGroup"].code
    items = frame_all([b"", b""])
    callers = [pb.Caller(user_id=READER, count=count) for count in counts]
    if kind == "resolve":
        item = pb.Item(resolve=pb.ResolveItem(code=code, count=2, items=items, callers=callers))
    else:
        item = pb.Item(query=pb.QueryItem(code=SHOW_LIFE, count=2, items=items, callers=callers))
    with pytest.raises(ApplyError, match="2 reads have callers for"):
        bench.machine.apply(pb.Batch(feature_level=LEVEL, items=[item]))
