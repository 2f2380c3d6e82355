"""Bad input over real gRPC: exact status, reason, and a message that says what to change."""

from __future__ import annotations

import time
from typing import Any

import grpc
import pytest

from tests.processes.callers import Caller, SubmitStream, create_streams, named, refused, span
from tests.processes.processes import CLUSTER_KEY, ReplicaProcesses, unique
from viewstamp import limits, tokens
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users

pytestmark = pytest.mark.xdist_group("processes")

CREATE_STREAM = "/viewstamp.api.streams.v1.StreamsService/CreateStream"
GET_STATUS_CODE = 450
LIST_STREAMS_CODE = 251
KEY = bytes.fromhex(CLUSTER_KEY)
INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED


def test_malformed_protobuf(root: Caller) -> None:
    """Bytes that do not parse as the method's request are refused, for commands and reads."""
    for method in (
        "streams.v1.StreamsService/CreateStream",
        "streams.v1.StreamsService/GetStream",
        "users.v1.UsersService/CreateUser",
        "users.v1.UsersService/Login",
        "consumer_groups.v1.ConsumerGroupsService/CreateConsumerGroup",
        "cluster.v1.ClusterService/GetStatus",
        "sessions.v1.SessionsService/RegisterSession",
        "submit.v1.SubmitService/Transact",
    ):
        with refused() as failure:
            root.raw(f"/viewstamp.api.{method}", b"\x1a\x05ab")
        assert (failure.it.code, failure.it.reason) == (INVALID, "MALFORMED_REQUEST"), method
        assert "protobuf encoding" in failure.it.message, method


def test_invalid_utf8_in_a_name(root: Caller) -> None:
    """A name that is not UTF-8 is refused, and the message names the field or the encoding."""
    with refused() as failure:
        root.raw(CREATE_STREAM, b"\x1a\x02\xff\xfe")
    assert (failure.it.code, failure.it.reason) == (INVALID, "MALFORMED_REQUEST")


def test_oversized_command(root: Caller) -> None:
    """A command that is larger than it may be is refused with both sizes, whatever surrounds it."""
    traceparent = "00-" + 32 * "a" + "-" + 16 * "b" + "-01"
    for size in range(limits.COMMAND_BYTES_MAX - 400, limits.COMMAND_BYTES_MAX + 2, 67):
        metadata = (*root.metadata(), ("traceparent", traceparent))
        payload = b"\xa2\x06" + b"\x80\x80\x10" + bytes(size - 5)
        with pytest.raises(grpc.RpcError) as caught:
            call: Any = root.channel.unary_unary(CREATE_STREAM)
            call(payload, metadata=metadata)
        assert caught.value.code() is INVALID
    with refused() as failure:
        root.create_stream("x" * (limits.COMMAND_BYTES_MAX + 1))
    assert (failure.it.code, failure.it.reason) == (INVALID, "COMMAND_TOO_LARGE")
    assert f"at most {limits.COMMAND_BYTES_MAX} are allowed" in failure.it.message
    assert failure.it.details["bytes_max"] == str(limits.COMMAND_BYTES_MAX)


def test_message_over_the_transport_limit(root: Caller) -> None:
    """gRPC itself refuses messages over 4 MiB and says both sizes."""
    with pytest.raises(grpc.RpcError) as caught:
        root.raw(CREATE_STREAM, bytes(limits.MESSAGE_BYTES_MAX + 1))
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(limits.MESSAGE_BYTES_MAX) in error.details()


def test_unserved_methods(root: Caller) -> None:
    """Unknown, unbuilt and internal methods are UNIMPLEMENTED, even those with a very long name."""
    for path in (
        "/viewstamp.api.streams.v1.StreamsService/Polish",
        "/no.such.Service/Call",
        "/viewstamp.api.snapshots.v1.SnapshotsService/BeginSnapshot",
        "/viewstamp.api.sessions.v1.SessionsService/ExpireSession",
        "/viewstamp.api.users.v1.UsersService/Found",
        "/viewstamp.api.consumer_groups.v1.ConsumerGroupsService/Assign",
        "/" + "x" * 7000 + "/y",
    ):
        with refused() as failure:
            root.raw(path, b"")
        assert (failure.it.code, failure.it.reason) == (UNIMPLEMENTED, "UNIMPLEMENTED"), path
        assert path[1:100] in failure.it.message


def test_unserved_codes_in_submit(root: Caller) -> None:
    """Submit refuses the same methods by code; a read is no command, and the stream goes on."""
    stream = SubmitStream(root.with_session())
    for code in (3, 190, 400, 999, LIST_STREAMS_CODE):
        reply = stream.ask(1, submit.Span(code=code, count=1, items=b"\x0a\x00"))
        assert "command of code" in reply.error.message
    stream.send_read(1, submit.Span(code=200, count=1, items=b"\x0a\x00"))
    assert "query of code 200" in stream.receive().read.error.message
    assert not stream.ask(1, create_streams(unique("after"))).HasField("error")


def test_tokens(root: Caller, shared: ReplicaProcesses) -> None:
    """Missing, malformed, forged and expired tokens have different messages."""
    cluster_id = bytes.fromhex(root.status().cluster)
    foreign = tokens.sign(bytes(32), cluster_id, 0, 1, 2**62)
    expired = tokens.sign(KEY, cluster_id, 0, 1, 1_000_000)
    cases = {
        "": "carries no token",
        "vsa2.nonsense": "malformed",
        "vsa1.former": "log in again",
        tokens.sign(KEY, bytes(16), 0, 1, 2**62): "not signed by this cluster",
        foreign: "not signed by this cluster",
        expired: "expired",
    }
    for token, message in cases.items():
        with refused() as failure:
            Caller(root.channel, token).create_stream(unique("never"))
        assert (failure.it.code, failure.it.reason) == (UNAUTHENTICATED, "UNAUTHENTICATED")
        assert message in failure.it.message
        with refused() as failure:
            SubmitStream(Caller(root.channel, token))
        assert failure.it.reason == "UNAUTHENTICATED"
    with refused() as failure:
        basic = (("authorization", "Basic cm9vdA=="),)
        root.streams.CreateStream(streams.CreateStreamRequest(name="x"), metadata=basic)
    assert "must be `Bearer <token>`" in failure.it.message


def test_schemes_are_the_same_in_any_case(root: Caller) -> None:
    """`bearer` in any case means the scheme `Bearer` (RFC 7235)."""
    request = users.WhoAmIRequest()
    for scheme in ("bearer", "BEARER"):
        metadata = (("authorization", f"{scheme} {root.token}"),)
        assert root.users.WhoAmI(request, metadata=metadata).user.username == "root"


def test_a_lone_replica_cannot_step_down(root: Caller) -> None:
    """A lone replica refuses StepDown with its own reason, but only to callers who may ask."""
    with refused() as failure:
        root.call(root.cluster.StepDown, cluster.StepDownRequest())
    assert failure.it.code is grpc.StatusCode.FAILED_PRECONDITION
    assert failure.it.reason == "NO_OTHER_REPLICA"
    with refused() as failure:
        Caller(root.channel).call(root.cluster.StepDown, cluster.StepDownRequest())
    assert failure.it.reason == "UNAUTHENTICATED"


def test_token_that_expires_on_a_stream(root: Caller) -> None:
    """An open stream ends with the first message after its token has expired, and says why."""
    expires_at_us = time.time_ns() // 1000 + 1_000_000
    caller = Caller(
        root.channel, tokens.sign(KEY, bytes.fromhex(root.status().cluster), 0, 1, expires_at_us)
    )
    stream = SubmitStream(caller)
    read = submit.Span(code=LIST_STREAMS_CODE, count=1, items=b"\x0a\x00")

    def read_until_refused() -> None:
        while True:
            stream.send_read(1, read)
            assert not stream.receive().read.HasField("error")
            time.sleep(0.05)

    with refused() as failure:
        read_until_refused()
    assert time.time_ns() // 1000 >= expires_at_us
    assert (failure.it.code, failure.it.reason) == (UNAUTHENTICATED, "UNAUTHENTICATED")
    assert "has expired: log in again" in failure.it.message


def test_token_after_password_change(root: Caller) -> None:
    """A password change invalidates older tokens for commands, reads and sessions, in log order."""
    name = unique("user")
    root.create_user(name, "first-password")
    old = root.logged_in(name, "first-password")
    change = users.ChangePasswordRequest(
        current_password="first-password", new_password="second-password"
    )
    old.call(old.users.ChangePassword, change)
    for attempt in (
        lambda: old.create_stream(unique("never")),
        lambda: old.call(old.streams.ListStreams, streams.ListStreamsRequest()),
        old.with_session,
    ):
        with refused() as failure:
            attempt()
        assert (failure.it.code, failure.it.reason) == (UNAUTHENTICATED, "UNAUTHENTICATED")
        assert "log in again" in failure.it.message
    with refused() as failure:
        old.logged_in(name, "first-password")
    assert (failure.it.code, failure.it.reason) == (UNAUTHENTICATED, "INVALID_CREDENTIALS")
    assert old.logged_in(name, "second-password").token


@pytest.mark.parametrize("how", ["deactivated", "deleted"])
def test_users_that_are_no_more(root: Caller, how: str) -> None:
    """Inactive and deleted users can neither call nor log in, and their streams end."""
    name = unique("user")
    root.create_user(name, "some-password")
    caller = root.logged_in(name, "some-password").with_session()
    stream = SubmitStream(caller)
    if how == "deleted":
        root.call(root.users.DeleteUser, users.DeleteUserRequest(user=named(name)))
    else:
        inactive = users.UpdateUserRequest(user=named(name), status=users_pb2.USER_STATUS_INACTIVE)
        root.call(root.users.UpdateUser, inactive)
    with refused() as failure:
        stream.receive()
    assert (failure.it.code, failure.it.reason) == (grpc.StatusCode.ABORTED, "SESSION_EVICTED")
    assert "register a new one" in failure.it.message
    with refused() as failure:
        caller.create_stream(unique("never"))
    assert (failure.it.code, failure.it.reason) == (UNAUTHENTICATED, "UNAUTHENTICATED")
    with refused() as failure:
        root.logged_in(name, "some-password")
    assert failure.it.code is UNAUTHENTICATED


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "0 bytes"),
        ("x" * 256, "256 bytes"),
        ("tab\there", "U+0009 at position 3"),
        ("nul\0", "U+0000 at position 3"),
    ],
)
def test_stream_name_rules(root: Caller, name: str, rule: str) -> None:
    """Names that break a rule are refused, and the message states the rule."""
    with refused() as failure:
        root.create_stream(name)
    assert (failure.it.code, failure.it.reason) == (INVALID, "INVALID_STREAM_NAME")
    assert rule in failure.it.message


def test_unknown_parents(root: Caller) -> None:
    """The refusal names the outermost unknown parent: stream before topic before group."""
    stream = unique("orders")

    def get_group() -> None:
        request = groups.GetConsumerGroupRequest(
            stream=named(stream), topic=named("paid"), group=named("billing")
        )
        root.call(root.groups.GetConsumerGroup, request)

    with refused() as failure:
        get_group()
    assert (failure.it.code, failure.it.reason) == (NOT_FOUND, "STREAM_NOT_FOUND")
    assert stream in failure.it.message
    root.create_stream(stream)
    with refused() as failure:
        get_group()
    assert (failure.it.code, failure.it.reason) == (NOT_FOUND, "TOPIC_NOT_FOUND")
    assert "paid" in failure.it.message
    root.create_topic(stream, "paid")
    with refused() as failure:
        get_group()
    assert (failure.it.code, failure.it.reason) == (NOT_FOUND, "GROUP_NOT_FOUND")
    assert "billing" in failure.it.message


def test_duplicates(root: Caller) -> None:
    """A second entity of the same name is refused, and the message has the name."""
    stream = unique("orders")
    root.create_stream(stream)
    root.create_topic(stream, "paid")
    with refused() as failure:
        root.create_stream(stream)
    assert (failure.it.code, failure.it.reason) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "STREAM_EXISTS",
    )
    assert stream in failure.it.message
    with refused() as failure:
        root.create_topic(stream, "paid")
    assert failure.it.reason == "TOPIC_EXISTS"


def test_sessions_are_demanded_where_needed(root: Caller) -> None:
    """Joining a group without a session is refused with a remedy."""
    stream = unique("orders")
    root.create_stream(stream)
    root.create_topic(stream, "paid")
    where: dict[str, Any] = {"stream": named(stream), "topic": named("paid")}
    root.call(root.groups.CreateConsumerGroup, groups.CreateConsumerGroupRequest(**where, name="g"))
    with refused() as failure:
        join = groups.JoinConsumerGroupRequest(**where, group=named("g"))
        root.call(root.groups.JoinConsumerGroup, join)
    assert (failure.it.code, failure.it.reason) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "SESSION_REQUIRED",
    )
    with refused() as failure:
        root.call(root.sessions.EndSession, sessions.EndSessionRequest())
    assert failure.it.reason == "SESSION_REQUIRED"


def test_counts_that_lie(root: Caller) -> None:
    """A span with a wrong count is refused, command by command or read by read."""
    stream = SubmitStream(root.with_session())
    lie = span(200, streams.CreateStreamRequest(name=unique("s")), count=8190)
    reply = stream.ask(1, lie)
    assert len(reply.spans[0].errors) == 8190
    assert "8190" in reply.spans[0].errors[0].error.message
    lie = submit.Span(code=1, count=3, items=b"\x0a\x00")
    assert len(stream.ask(2, lie, acked=1).spans[0].errors) == 3
    lie = submit.Span(code=100, count=3, items=b"\x0a\x00")
    assert len(stream.ask(3, lie, acked=2).spans[0].errors) == 3
    for number, count in enumerate((8191, 2**32 - 1), start=1):
        reply = stream.ask(4, submit.Span(code=200, count=count, items=b""))
        assert "at most 8190 are allowed" in reply.error.message
        stream.send_read(number, submit.Span(code=LIST_STREAMS_CODE, count=count, items=b""))
        assert "at most 8190 are allowed" in stream.receive().read.error.message
    assert "at least one command" in stream.ask(4, submit.Span(code=200)).error.message
    stream.send_read(9, submit.Span(code=LIST_STREAMS_CODE))
    assert "at least one call" in stream.receive().read.error.message
    stream.send_read(10)
    assert "at least one span" in stream.receive().read.error.message


def test_reads_of_the_cluster_are_refused_one_by_one(root: Caller) -> None:
    """A malformed or refused read affects no other read, and not the replica."""
    stream = SubmitStream(root)
    good, bad = b"\x0a\x00", b"\x0a\x01\xff"
    stream.send_read(1, submit.Span(code=GET_STATUS_CODE, count=3, items=good + bad + good))
    (answer,) = stream.receive().read.spans
    assert [error.index for error in answer.errors] == [1]
    stream.send_read(2, submit.Span(code=GET_STATUS_CODE, count=3, items=good))
    (answer,) = stream.receive().read.spans
    assert [error.index for error in answer.errors] == [0, 1, 2]
    name = unique("user")
    root.create_user(name, "some-password")
    weak = SubmitStream(root.logged_in(name, "some-password"))
    weak.send_read(3, submit.Span(code=GET_STATUS_CODE, count=3, items=good + bad + good))
    (answer,) = weak.receive().read.spans
    assert [error.index for error in answer.errors] == [0, 1, 2]
    with_digests = b"\x0a\x02\x18\x01"
    stream.send_read(4, submit.Span(code=GET_STATUS_CODE, count=2, items=with_digests + bad))
    (answer,) = stream.receive().read.spans
    assert [error.index for error in answer.errors] == [1]


def test_streams_that_do_not_open(root: Caller) -> None:
    """A stream needs `open` first and well-formed messages; otherwise it ends with a reason."""
    path = "/viewstamp.api.submit.v1.SubmitService/Submit"
    call: Any = root.channel.stream_stream(path)
    command = submit.SubmitRequest(command=submit.CommandRequest(number=1)).SerializeToString()
    opening = submit.SubmitRequest(open=submit.OpenStream()).SerializeToString()
    nothing = submit.SubmitRequest(commands=submit.CommandRequests()).SerializeToString()
    cases = {
        (b"\xff\xff",): "send an encoded SubmitRequest",
        (command,): "must be `open`",
        (opening, opening): "must be `command`, `commands` or `read`",
        (opening, nothing): "must be `command`, `commands` or `read`",
        (opening, b"\xff"): "send an encoded SubmitRequest",
    }
    for messages, why in cases.items():
        with refused() as failure:
            list(call(iter(messages), metadata=root.metadata()))
        assert (failure.it.code, failure.it.reason) == (INVALID, "MALFORMED_REQUEST")
        assert why in failure.it.message
