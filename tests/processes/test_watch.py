"""Watch over real gRPC: what commands do appears once, in order, to those who may see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
import pytest

from tests.processes.callers import Caller, SubmitStream, named, refused, span
from tests.processes.processes import ReplicaProcesses, replica, unique
from tests.processes.watching import (
    CREATED,
    DELETED,
    UPDATED,
    Watching,
    entity_of,
    folded,
    in_short,
    short_type,
)
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups
from viewstamp.api.routing.v1.routing_pb2 import (
    STAGE_CONSUMER_GROUPS,
    STAGE_STREAMS,
    STAGE_USERS,
)
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.api.submit.v1.submit_service_pb2_grpc import SubmitServiceStub
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.api.users.v1.users_pb2 import Permissions
from viewstamp.api.watch.v1.watch_service_pb2 import Change

pytestmark = pytest.mark.xdist_group("processes-watch")

CREATE_STREAM, UPDATE_STREAM, CREATE_TOPIC, CREATE_USER = 200, 201, 210, 100
INVALID: Final = grpc.StatusCode.INVALID_ARGUMENT
PASSWORD: Final = "some-password"
TOPICS: Final = 3_000


@pytest.fixture(scope="module")
def watched() -> Iterator[ReplicaProcesses]:
    """A replica of its own: tests count all of its changes."""
    with replica() as running:
        with running.root() as caller:
            caller.create_stream("filtered")
            caller.create_topic("filtered", "t")
        yield running


@pytest.fixture
def root(watched: ReplicaProcesses) -> Iterator[Caller]:
    """Root, logged in there."""
    with watched.root() as caller:
        yield caller


def place(stream: str, topic: str = "", group: str = "") -> dict[str, Identifier]:
    """Return the fields that name a stream, a topic in it, or a group of that."""
    names = {"stream": stream, "topic": topic, "group": group}
    return {field: named(name) for field, name in names.items() if name}


def steps_of_streams(root: Caller, stream: str) -> Iterator[tuple[Any, list[tuple[int, str]]]]:
    """Do commands of streams; yield each answer with the changes that it should make."""
    at_topic: dict[str, Any] = place(stream, "t")
    options = streams_pb2.TopicOptions(message_expiry_us=10**6)
    yield root.create_stream(stream), [(CREATED, "Stream")]
    yield root.create_topic(stream, "t", partitions=2), [(CREATED, "Topic")]
    request = streams.CreatePartitionsRequest(**at_topic, partitions_count=2)
    yield root.call(root.streams.CreatePartitions, request), [(UPDATED, "Topic")]
    update = streams.UpdateTopicRequest(**at_topic, options=options)
    yield root.call(root.streams.UpdateTopic, update), [(UPDATED, "Topic")]


def steps_of_users(root: Caller, user: str) -> Iterator[tuple[Any, list[tuple[int, str]]]]:
    """Do commands of users; yield each answer with the changes that it should make."""
    changed = [(UPDATED, "User")]
    yield root.create_user(user, PASSWORD), [(CREATED, "User")]
    update = users.UpdateUserRequest(user=named(user), username=user + "-new")
    yield root.call(root.users.UpdateUser, update), changed
    user += "-new"
    permissions = users.UpdatePermissionsRequest(user=named(user), permissions=seeing("read_users"))
    yield root.call(root.users.UpdatePermissions, permissions), changed
    password = users.ChangePasswordRequest(user=named(user), new_password=PASSWORD + "2")
    yield root.call(root.users.ChangePassword, password), changed
    own = root.logged_in(user, PASSWORD + "2")
    token = users.CreatePersonalAccessTokenRequest(name="tool")
    create = own.users.CreatePersonalAccessToken
    yield own.call(create, token), [(CREATED, "PersonalAccessToken")]
    gone = users.DeletePersonalAccessTokenRequest(name="tool")
    delete = own.users.DeletePersonalAccessToken
    yield own.call(delete, gone), [(DELETED, "PersonalAccessToken")]
    yield (
        root.call(root.users.DeleteUser, users.DeleteUserRequest(user=named(user))),
        [(DELETED, "User")],
    )


def steps_of_groups(root: Caller, stream: str) -> Iterator[tuple[Any, list[tuple[int, str]]]]:
    """Do commands of groups; yield each answer with the changes that it should make."""
    member = root.with_session()
    create = groups.CreateConsumerGroupRequest(**place(stream, "t"), name="g")  # type: ignore[arg-type]
    yield root.call(root.groups.CreateConsumerGroup, create), [(CREATED, "ConsumerGroup")]
    fields: dict[str, Any] = place(stream, "t", "g")
    join = groups.JoinConsumerGroupRequest(**fields)
    joined = [(UPDATED, "ConsumerGroup"), (CREATED, "Member")]
    yield member.once(member.groups.JoinConsumerGroup, join), joined
    leave = groups.LeaveConsumerGroupRequest(**fields)
    left = [(UPDATED, "ConsumerGroup"), (DELETED, "Member")]
    yield member.once(member.groups.LeaveConsumerGroup, leave), left


def steps_of_removal(root: Caller, stream: str) -> Iterator[tuple[Any, list[tuple[int, str]]]]:
    """Remove a topic with a group, and its stream; yield each answer with its changes."""
    delete = streams.DeleteTopicRequest(stream=named(stream), topic=named("t"))
    yield (
        root.call(root.streams.DeleteTopic, delete),
        [
            (DELETED, "Topic"),
            (DELETED, "ConsumerGroup"),
        ],
    )
    gone = streams.DeleteStreamRequest(stream=named(stream))
    yield root.call(root.streams.DeleteStream, gone), [(DELETED, "Stream")]


def seeing(*names: str) -> Permissions:
    """Return global permissions."""
    permissions = Permissions()
    for name in names:
        setattr(getattr(permissions, "global"), name, True)  # a keyword
    return permissions


def a_user(root: Caller, permissions: Permissions) -> Caller:
    """Return a new user, logged in."""
    request = users.CreateUserRequest(
        username=unique("user"), password=PASSWORD, permissions=permissions
    )
    root.call(root.users.CreateUser, request)
    return root.logged_in(request.username, PASSWORD)


def last_of(root: Caller) -> int:
    """Create a stream; return its revision."""
    return int(root.create_stream(unique("last")).header.revision)


def test_commands_of_all_domains_appear(root: Caller) -> None:
    """What each command did appears at its revision, and watching from the past shows the same."""
    live = Watching(root).opened()
    begin = live.complete_revision
    stream = unique("all")
    done = [
        *steps_of_streams(root, stream),
        *steps_of_users(root, unique("user")),
        *steps_of_groups(root, stream),
        *steps_of_removal(root, stream),
    ]
    last = last_of(root)
    live.until(last)
    for answer, expected in done:
        revision = answer.header.revision
        found = [each[1:] for each in live.told if each[0] == revision]
        assert sorted(found) == sorted(expected), answer
    assert len(done) == 16
    # Beside them only what the group itself makes of its members.
    revisions = {answer.header.revision for answer, _ in done} | {last}
    beside = [each for each in live.changes if each.revision not in revisions]
    assert {each.domain for each in beside} <= {STAGE_CONSUMER_GROUPS}
    assert [each.revision for each in live.changes] == sorted(
        each.revision for each in live.changes
    )
    again = Watching(root, from_revision=begin + 1)
    assert again.until(last) == live.changes
    live.cancel()
    again.cancel()


def test_the_whole_history_is_what_there_is(root: Caller) -> None:
    """Applied one after the other from the first revision on, changes give what lists show."""
    stream = unique("kept")
    for _ in (*steps_of_streams(root, stream), *steps_of_groups(root, stream)):
        pass
    history = Watching(root, from_revision=1)
    left = folded(history.until(last_of(root)))
    history.cancel()
    listed = root.call(root.streams.ListStreams, streams.ListStreamsRequest(page_size=1_000))
    found = [each for (kind, _), each in left.items() if kind == "Stream"]
    for each in listed.streams:
        each.topics_count = 0
    assert sorted(found, key=lambda each: each.id) == list(listed.streams)
    people = root.call(root.users.ListUsers, users.ListUsersRequest(page_size=1_000)).users
    names = sorted(each.username for (kind, _), each in left.items() if kind == "User")
    assert names == sorted(each.username for each in people)
    request = groups.GetConsumerGroupRequest(**place(stream, "t", "g"))  # type: ignore[arg-type]
    group = root.call(root.groups.GetConsumerGroup, request).group
    (watched,) = [
        each for (kind, _), each in left.items() if kind == "ConsumerGroup" and each.id == group.id
    ]
    assert (watched.group_epoch, watched.modified_revision) == (
        group.group_epoch,
        group.modified_revision,
    )
    topic = root.call(root.streams.GetTopic, streams.GetTopicRequest(**place(stream, "t"))).topic
    assert topic in [each for (kind, _), each in left.items() if kind == "Topic"]


def test_a_transaction_is_one_revision(root: Caller) -> None:
    """All that a transaction did has its revision; an entity that it touched twice appears once."""
    live = Watching(root).opened()
    stream, user = unique("transaction"), unique("transaction")
    parts: list[tuple[int, Any]] = [
        (CREATE_STREAM, streams.CreateStreamRequest(name=stream)),
        (CREATE_TOPIC, streams.CreateTopicRequest(stream=named(stream), name="t")),
        (CREATE_USER, users.CreateUserRequest(username=user, password=PASSWORD)),
        (UPDATE_STREAM, streams.UpdateStreamRequest(stream=named(stream), name=stream + "-new")),
    ]
    request = submit.TransactRequest(
        parts=[
            submit.TransactionPart(code=code, request=part.SerializeToString())
            for code, part in parts
        ]
    )
    caller = root.with_session()
    answer = caller.once(SubmitServiceStub(root.channel).Transact, request)
    revision = answer.header.revision
    changes = [each for each in live.until(revision) if each.revision == revision]
    assert [(each.kind, short_type(each)) for each in changes] == [
        (CREATED, "User"),
        (CREATED, "Stream"),
        (CREATED, "Topic"),
    ]
    assert entity_of(changes[1]).name == stream + "-new"
    live.cancel()


def test_what_is_only_validated_or_refused_does_not_appear(root: Caller) -> None:
    """A command that changes nothing makes no change."""
    live = Watching(root).opened()
    name = unique("validated")
    request = streams.CreateStreamRequest(name=name, validate_only=True)
    root.call(root.streams.CreateStream, request)
    created = root.create_stream(name).header.revision
    with refused() as failure:
        root.create_stream(name)
    assert failure.it.reason == "STREAM_EXISTS"
    last = last_of(root)
    live.until(last)
    assert live.told == [(created, CREATED, "Stream"), (last, CREATED, "Stream")]
    live.cancel()


def test_many_commands_of_one_request(root: Caller) -> None:
    """Commands that were sent, logged and applied together have a revision each, in order."""
    stream = unique("many")
    root.create_stream(stream)
    live = Watching(root).opened()
    requests = [
        streams.CreateTopicRequest(stream=named(stream), name=f"t{number}", partitions_count=1)
        for number in range(TOPICS)
    ]
    sent = SubmitStream(root.with_session())
    reply = sent.ask(1, span(CREATE_TOPIC, *requests))
    first = reply.header.revision
    gone = root.call(root.streams.DeleteStream, streams.DeleteStreamRequest(stream=named(stream)))
    live.until(gone.header.revision)
    made = [each for each in live.changes if each.revision < gone.header.revision]
    assert [each.revision for each in made] == list(range(first, first + TOPICS))
    assert [entity_of(each).name for each in made] == [request.name for request in requests]
    removed = [each for each in live.changes if each.revision == gone.header.revision]
    assert len(removed) == TOPICS + 1
    assert {each.kind for each in removed} == {DELETED}
    live.cancel()


def test_filters(root: Caller) -> None:
    """Domains, types and places narrow a watch down to what is inside them."""
    one, two = unique("one"), unique("two")
    for stream in (one, two):
        root.create_stream(stream)
        root.create_topic(stream, "t")
    everything = Watching(root).opened()
    begin = everything.complete_revision
    filters: dict[str, dict[str, Any]] = {
        "users": {"domains": [STAGE_USERS]},
        "streams and groups": {"domains": [STAGE_STREAMS, STAGE_CONSUMER_GROUPS]},
        "topics": {"entity_types": ["viewstamp.api.streams.v1.Topic"]},
        "one": place(one),
        "its topic": place(one, "t"),
        "members in it": {
            **place(one),
            "entity_types": ["viewstamp.api.consumer_groups.v1.Member"],
        },
    }
    live = {name: Watching(root, **fields).opened() for name, fields in filters.items()}
    root.create_user(unique("user"), PASSWORD)
    for stream in (one, two):
        root.create_topic(stream, "u")
        for _ in steps_of_groups(root, stream):
            pass
    last = last_of(root)
    changes = everything.until(last)
    ids = {entity_of(each).name: each.stream_id for each in changes if short_type(each) == "Topic"}
    assert len(ids) == 1
    one_id, topic_id = next(
        (each.stream_id, each.topic_id) for each in changes if short_type(each) == "ConsumerGroup"
    )
    wanted: dict[str, Callable[[Change], bool]] = {
        "users": lambda each: each.domain == STAGE_USERS,
        "streams and groups": lambda each: each.domain != STAGE_USERS,
        "topics": lambda each: short_type(each) == "Topic",
        "one": lambda each: each.stream_id == one_id,
        "its topic": lambda each: (each.stream_id, each.topic_id) == (one_id, topic_id),
        "members in it": lambda each: each.stream_id == one_id and short_type(each) == "Member",
    }
    for name, fields in filters.items():
        expected = [each for each in changes if wanted[name](each)]
        assert expected, name
        assert live[name].until(expected[-1].revision) == expected
        again = Watching(root, from_revision=begin + 1, **fields)
        assert again.until(expected[-1].revision) == expected
        again.cancel()
        live[name].cancel()
    everything.cancel()


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"domains": [1]}, INVALID, "MALFORMED_REQUEST"),
        ({"topic": named("t")}, INVALID, "MALFORMED_REQUEST"),
        ({"stream": Identifier()}, INVALID, "MALFORMED_REQUEST"),
        ({"entity_types": ["viewstamp.api.users.v1.Users"]}, INVALID, "MALFORMED_REQUEST"),
        ({"stream": named("nobody")}, grpc.StatusCode.NOT_FOUND, "STREAM_NOT_FOUND"),
        (place("filtered", "nobody"), grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND"),
        (place("filtered", "t", "nobody"), grpc.StatusCode.NOT_FOUND, "GROUP_NOT_FOUND"),
        ({"cluster_id": b"x" * 16}, grpc.StatusCode.OUT_OF_RANGE, "REVISION_COMPACTED"),
        ({"from_revision": 10**12}, grpc.StatusCode.DEADLINE_EXCEEDED, "READ_DEADLINE"),
    ],
)
def test_watches_that_cannot_begin(
    root: Caller, fields: dict[str, Any], code: grpc.StatusCode, reason: str
) -> None:
    """What names nothing, or nothing that is there, is refused with what is wrong."""
    ended = Watching(root, **fields).refused()
    assert (ended.code, ended.reason) == (code, reason)


def test_a_watch_of_the_near_future(root: Caller) -> None:
    """A watch from a revision that is just coming waits for it, and misses nothing from there."""
    now = Watching(root).opened()
    begin = now.complete_revision + 3
    future = Watching(root, from_revision=begin)
    revisions = [last_of(root) for _ in range(4)]
    assert in_short(future.until(revisions[-1])) == [
        (revision, CREATED, "Stream") for revision in revisions if revision >= begin
    ]
    assert future.messages[0].header.revision == begin - 1
    now.cancel()
    future.cancel()


def test_a_group_goes_on_without_its_members(root: Caller) -> None:
    """A watch of a group outlives its members, and ends with the group."""
    stream = unique("group")
    for _ in steps_of_streams(root, stream):
        pass
    create = groups.CreateConsumerGroupRequest(**place(stream, "t"), name="g")  # type: ignore[arg-type]
    root.call(root.groups.CreateConsumerGroup, create)
    live = Watching(root, **place(stream, "t", "g")).opened()
    member, fields = root.with_session(), dict[str, Any](place(stream, "t", "g"))
    member.once(member.groups.JoinConsumerGroup, groups.JoinConsumerGroupRequest(**fields))
    member.once(member.groups.LeaveConsumerGroup, groups.LeaveConsumerGroupRequest(**fields))
    delete = groups.DeleteConsumerGroupRequest(**fields)
    gone = root.call(root.groups.DeleteConsumerGroup, delete).header.revision
    assert live.refused().reason == "GROUP_NOT_FOUND"
    assert live.told[-1] == (gone, DELETED, "ConsumerGroup")
    assert [each[1] for each in live.told if each[2] == "Member"][-1] == DELETED


@pytest.mark.parametrize("removed", ["t", ""], ids=["topic", "stream"])
def test_what_is_removed_is_watched_to_its_end(root: Caller, removed: str) -> None:
    """The removal of the topic, or of its stream, is the last that a watch of the topic shows."""
    stream = unique("removed")
    for _ in steps_of_streams(root, stream):
        pass
    live = Watching(root, **place(stream, "t")).opened()
    if removed:
        topic = streams.DeleteTopicRequest(stream=named(stream), topic=named("t"))
        answer = root.call(root.streams.DeleteTopic, topic)
    else:
        whole = streams.DeleteStreamRequest(stream=named(stream))
        answer = root.call(root.streams.DeleteStream, whole)
    ended = live.refused()
    assert (ended.code, ended.reason) == (grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND")
    assert live.told == [(answer.header.revision, DELETED, "Topic")]
    assert live.complete_revision == answer.header.revision
