"""Permissions: every gate with every grant, and the answers to users who may not see an entity.

Method: one table of grants and one of requests; the expected answer is worked out by the rules as
the reference states them, written down anew here rather than taken from the code under test.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Final

import pytest
from google.protobuf.message import Message

from services.runtime.handlers import description_of
from tests.services.streams.access_table import (
    ALL,
    BROKER_EPOCH,
    GRANTS,
    MANAGES_TOPIC,
    PLACED,
    REQUESTS,
    SEES_STREAM,
    SEES_TOPIC,
    SPARE,
    STREAM,
    TOPIC,
)
from tests.services.streams.brokers_workbench import registration
from tests.services.streams.streams_workbench import (
    LATEST,
    METHODS,
    ROOT,
    Workbench,
    by,
    everywhere,
    refusal_of,
)
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.api.users.v1 import users_pb2
from viewstamp.errors import Refusal

USER: Final = 7
# Commands that nobody but the primary may send: the coordinator refuses them from others.
INTERNAL: Final = frozenset(name for name, method in METHODS.items() if method.internal)
# Requests that name an entity, which some may not see.
HIDING: Final = {method for method, row in REQUESTS.items() if row[2] != ALL}
GATES: Final[dict[int, tuple[Set[str], Set[str], str]]] = {
    routing_pb2.GATE_READ_SERVERS: ({"g.read_servers", "g.manage_servers"}, ALL, "read_servers"),
    routing_pb2.GATE_MANAGE_SERVERS: ({"g.manage_servers"}, ALL, "manage_servers"),
    routing_pb2.GATE_READ_TOPIC: (SEES_TOPIC, SEES_TOPIC, ""),
    routing_pb2.GATE_MANAGE_TOPIC: (MANAGES_TOPIC, SEES_TOPIC, "manage_topic"),
    routing_pb2.GATE_POLL_MESSAGES: (frozenset(), SEES_TOPIC, "poll_messages"),
    routing_pb2.GATE_LIST_TOPICS: (SEES_STREAM, SEES_STREAM, ""),
    routing_pb2.GATE_UNSPECIFIED: (ALL, ALL, ""),
}


def bench_with(*grants: str) -> Workbench:
    """Return a bench with the stream, topics, brokers, and a user who holds the grants."""
    bench = Workbench()
    stream = bench.create_stream(STREAM)
    topic = bench.create_topic(STREAM, TOPIC)
    assert bench.command("RegisterBroker", registration("one")).broker_epoch == BROKER_EPOCH
    bench.create_topic(STREAM, PLACED)
    bench.command("RegisterBroker", registration(SPARE))
    in_topic = users_pb2.TopicPermissions(topic=by(topic))
    scoped = users_pb2.StreamPermissions(stream=by(stream), topics=[in_topic])
    permissions = users_pb2.Permissions()
    levels: dict[str, Message] = {
        "g": getattr(permissions, "global"),
        "s": scoped,
        "t": scoped.topics[0],
    }
    for grant in grants:
        level, _, name = grant.partition(".")
        if name:
            setattr(levels[level], name, True)
    permissions.streams.append(scoped)
    bench.grant(USER, permissions)
    return bench


def answer_of(bench: Workbench, name: str, request: Message, user: int = USER) -> str:
    """Return OK, or the refusal's reason with the permission it names."""
    try:
        bench.ask(name, request, user)
    except Refusal as refusal:
        return " ".join(filter(None, [refusal.name, refusal.details.get("permission")]))
    return "OK"


def test_every_method_has_a_row() -> None:
    """The table has a row for each method that the domain claims."""
    claimed = {
        name.rpartition("/")[2] for name in description_of(Workbench().machine.domain).methods
    }
    assert claimed == set(REQUESTS) | INTERNAL
    assert claimed == set(METHODS)


@pytest.mark.parametrize("method", REQUESTS)
def test_gates_of_methods(method: str) -> None:
    """Each single grant opens, denies or hides each method exactly as the table says."""
    request, opens, shows, permission, hidden = REQUESTS[method]
    actual = {grant: answer_of(bench_with(grant), method, request) for grant in GRANTS}
    denied = dict.fromkeys(shows, f"PERMISSION_DENIED {permission}")
    expected = dict.fromkeys(GRANTS, hidden) | denied | dict.fromkeys(opens, "OK")
    assert actual == expected


@pytest.mark.parametrize("gate", GATES)
def test_gates_of_resolving(gate: int) -> None:
    """Each single grant opens, denies or hides what other stages have resolved."""
    opens, shows, permission = GATES[gate]
    item = api.GetTopicRequest(stream=by(STREAM), topic=by(TOPIC)).SerializeToString()
    actual = {}
    for grant in GRANTS:
        try:
            bench_with(grant).resolve(gate, item, USER)
            actual[grant] = "OK"
        except Refusal as refusal:
            actual[grant] = refusal.name + refusal.details.get("permission", "")
    denied = dict.fromkeys(shows, f"PERMISSION_DENIED{permission}")
    expected = dict.fromkeys(GRANTS, "STREAM_NOT_FOUND") | denied | dict.fromkeys(opens, "OK")
    assert actual == expected


@pytest.mark.parametrize("sees", sorted(SEES_TOPIC))
@pytest.mark.parametrize("polls", [f"{level}.poll_messages" for level in "gst"])
def test_poll_gate_needs_both(sees: str, polls: str) -> None:
    """Offsets are open to a user who may see the topic and poll from it, at any levels."""
    item = api.GetTopicRequest(stream=by(STREAM), topic=by(TOPIC)).SerializeToString()
    bench = bench_with(sees, polls)
    context = bench.resolve(routing_pb2.GATE_POLL_MESSAGES, item, USER)
    assert effects_pb2.TopicContext.FromString(context).topic_id == 1


@pytest.mark.parametrize("sees", sorted(SEES_TOPIC))
def test_the_poll_gate_tells_whether_the_caller_manages(sees: str) -> None:
    """Who may change the topic may commit for members of others; no other gate tells it."""
    item = api.GetTopicRequest(stream=by(STREAM), topic=by(TOPIC)).SerializeToString()
    bench = bench_with(sees, "t.poll_messages")
    for gate, manages in (("POLL_MESSAGES", sees in MANAGES_TOPIC), ("READ_TOPIC", False)):
        context = bench.resolve(routing_pb2.Gate.Value(f"GATE_{gate}"), item, USER)
        assert effects_pb2.TopicContext.FromString(context).caller_manages is manages


@pytest.mark.parametrize("sees", sorted(SEES_TOPIC))
@pytest.mark.parametrize("sends", [f"{level}.send_messages" for level in "gst"])
def test_reports_need_both(sees: str, sends: str) -> None:
    """Who may see the topic and send to it may report ends, whatever the levels."""
    request = REQUESTS["ReportPartitionEnds"][0]
    assert answer_of(bench_with(sees, sends), "ReportPartitionEnds", request) == "OK"


@pytest.mark.parametrize("method", REQUESTS)
def test_root_passes_every_gate(method: str) -> None:
    """Root may do everything without a grant."""
    assert answer_of(bench_with(), method, REQUESTS[method][0], ROOT) == "OK"


def test_all_requests_but_those_without_an_entity_hide_it() -> None:
    """Only requests that name no stream have nothing to hide."""
    assert {
        name for name, row in REQUESTS.items() if "stream" not in row[0].DESCRIPTOR.fields_by_name
    } == REQUESTS.keys() - HIDING


@pytest.mark.parametrize("method", sorted(HIDING))
def test_hidden_and_missing_are_the_same_bytes(method: str) -> None:
    """A user who may not see an entity gets the same bytes as for one that does not exist."""
    request = REQUESTS[method][0]
    bench = bench_with("none")
    hidden = refusal_of(bench, method, request, USER).to_error()
    bench.command("DeleteStream", api.DeleteStreamRequest(stream=by(STREAM)))
    bench.effects = []
    missing = refusal_of(bench, method, request, USER).to_error()
    assert hidden == missing


@pytest.mark.parametrize(
    ("grant", "topic", "answer"),
    [
        ("t.read_topic", TOPIC, "OK"),
        ("t.read_topic", "other", "STREAM_NOT_FOUND"),
        ("t.read_topic", "missing", "STREAM_NOT_FOUND"),
        ("t.poll_messages", TOPIC, "STREAM_NOT_FOUND"),
        ("s.read_topics", "other", "OK"),
        ("s.read_topics", "missing", "TOPIC_NOT_FOUND"),
        ("s.poll_messages", "missing", "STREAM_NOT_FOUND"),
        ("g.read_streams", "missing", "TOPIC_NOT_FOUND"),
        ("none", "missing", "STREAM_NOT_FOUND"),
    ],
)
def test_what_a_grant_shows_of_topics(grant: str, topic: str, answer: str) -> None:
    """A topic's grant shows only that topic; a user who sees the stream learns which are
    missing."""
    bench = bench_with(grant)
    bench.create_topic(STREAM, "other")
    request = api.GetTopicRequest(stream=by(STREAM), topic=by(topic))
    assert answer_of(bench, "GetTopic", request) == answer


def test_missing_stream_comes_before_missing_topic() -> None:
    """Where stream and topic are missing, the stream is reported."""
    request = api.GetTopicRequest(stream=by("missing"), topic=by("missing"))
    assert answer_of(bench_with(), "GetTopic", request, ROOT) == "STREAM_NOT_FOUND"


@pytest.mark.parametrize("method", REQUESTS)
@pytest.mark.parametrize("fault", ["unknown", "deleted", "inactive", "outdated"])
def test_unauthenticated(method: str, fault: str) -> None:
    """Unknown, deleted and inactive users, and outdated stamps, are refused everywhere."""
    bench = bench_with("g.manage_streams")
    payloads: dict[str, dict[str, Any]] = {
        "deleted": {"user_deleted": {"user_id": USER}},
        "inactive": {"user_deactivated": {"user_id": USER}},
        "outdated": {
            "credentials_changed": {"user_id": USER, "minimum_credential_revision": LATEST + 1}
        },
    }
    if fault in payloads:
        bench.effect(**payloads[fault])
    user = 99 if fault == "unknown" else USER
    assert answer_of(bench, method, REQUESTS[method][0], user) == "UNAUTHENTICATED"


@pytest.mark.parametrize("user", [ROOT, USER])
def test_stamp_is_compared_with_the_minimum(user: int) -> None:
    """A stamp at the minimum is accepted and one below it is not, for root too."""
    bench = bench_with("g.manage_streams")
    minimum = bench.revision + 5
    changed = {"user_id": user, "minimum_credential_revision": minimum}
    bench.effect(credentials_changed=changed)
    request = api.ListStreamsRequest()
    bench.query("ListStreams", request, user, minimum)
    with pytest.raises(Refusal, match="log in again"):
        bench.query("ListStreams", request, user, minimum - 1)


def test_new_user_begins_at_the_creating_revision() -> None:
    """The first grants of a user fix which credentials are the oldest accepted."""
    bench = Workbench()
    bench.grant(USER, everywhere("read_streams"))
    born = bench.revision
    bench.grant(USER, everywhere("manage_streams"))
    bench.query("ListStreams", api.ListStreamsRequest(), USER, born)
    with pytest.raises(Refusal, match="log in again"):
        bench.query("ListStreams", api.ListStreamsRequest(), USER, born - 1)


def test_reactivated_user_may_act_again() -> None:
    """Deactivation takes the power of all grants, and activation gives it back."""
    bench = bench_with("g.read_streams")
    bench.effect(user_deactivated={"user_id": USER})
    bench.effect(user_activated={"user_id": USER})
    assert answer_of(bench, "ListStreams", api.ListStreamsRequest()) == "OK"


def test_effects_about_users_that_are_gone_change_nothing() -> None:
    """Credentials and deletion of an absent user change nothing."""
    bench = Workbench()
    before = bench.digest()
    changed = {"user_id": USER, "minimum_credential_revision": 3}
    bench.effect(credentials_changed=changed)
    bench.effect(user_deleted={"user_id": USER})
    assert bench.digest() == before


@pytest.mark.parametrize(
    ("grants", "may_send", "may_poll"),
    [
        (("g.send_messages",), True, False),
        (("s.send_messages",), True, False),
        (("t.send_messages",), True, False),
        (("g.poll_messages",), False, True),
        (("s.poll_messages",), False, True),
        (("t.poll_messages",), False, True),
        (("t.send_messages", "t.poll_messages"), True, True),
        (("g.manage_streams",), False, False),
        (("s.manage_stream",), False, False),
        (("t.manage_topic",), False, False),
    ],
)
def test_check_access(grants: tuple[str, ...], may_send: bool, may_poll: bool) -> None:
    """Sending and polling are granted at any level, and managing implies neither."""
    bench = bench_with(*grants)
    own = api.CheckAccessRequest(stream=by(STREAM), topic=by(TOPIC))
    others = api.CheckAccessRequest(stream=by(STREAM), topic=by(TOPIC), user_id=USER)
    for request, caller in ((own, USER), (others, USER), (others, ROOT)):
        answer = bench.query("CheckAccess", request, caller)
        assert (answer.send_messages, answer.poll_messages) == (may_send, may_poll)


@pytest.mark.parametrize(
    ("grant", "topic", "answer"),
    [
        ("g.read_users", TOPIC, "OK"),
        ("g.manage_users", TOPIC, "OK"),
        ("g.read_users", "missing", "TOPIC_NOT_FOUND"),
        ("t.manage_topic", TOPIC, "PERMISSION_DENIED read_users"),
        ("g.manage_streams", "missing", "PERMISSION_DENIED read_users"),
        ("none", TOPIC, "PERMISSION_DENIED read_users"),
    ],
)
def test_check_access_of_others(grant: str, topic: str, answer: str) -> None:
    """Another user's access is shown only to those who may read users."""
    request = api.CheckAccessRequest(stream=by(STREAM), topic=by(topic), user_id=ROOT)
    assert answer_of(bench_with(grant), "CheckAccess", request) == answer


def test_check_access_of_who_may_not_act() -> None:
    """Inactive and unknown users may neither send nor poll, and root may both."""
    bench = bench_with("g.send_messages", "g.poll_messages")
    bench.effect(user_deactivated={"user_id": USER})
    answers = {}
    for user in (USER, 99, ROOT):
        request = api.CheckAccessRequest(stream=by(STREAM), topic=by(TOPIC), user_id=user)
        answers[user] = bench.query("CheckAccess", request).send_messages
    assert answers == {USER: False, 99: False, ROOT: True}


def test_grants_are_replaced_whole() -> None:
    """Grants that a later change leaves out are gone."""
    bench = bench_with("s.read_stream", "g.read_users")
    assert answer_of(bench, "GetStream", REQUESTS["GetStream"][0]) == "OK"
    bench.grant(USER, everywhere("read_users"))
    assert answer_of(bench, "GetStream", REQUESTS["GetStream"][0]) == "STREAM_NOT_FOUND"


def test_grants_of_one_stream_hold_there_alone() -> None:
    """A grant in one stream or topic opens no other, not even one created under its name."""
    bench = bench_with("s.manage_stream", "t.manage_topic")
    bench.create_stream("other")
    assert answer_of(bench, "GetStream", api.GetStreamRequest(stream=by("other"))) == (
        "STREAM_NOT_FOUND"
    )
    bench.command("DeleteStream", api.DeleteStreamRequest(stream=by(STREAM)))
    bench.create_stream(STREAM)
    assert answer_of(bench, "GetStream", REQUESTS["GetStream"][0]) == "STREAM_NOT_FOUND"
