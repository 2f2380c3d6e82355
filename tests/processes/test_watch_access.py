"""Who may watch what, and how a watch ends when that changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import grpc
import pytest

from tests.processes.callers import Caller, named, refused
from tests.processes.processes import CLUSTER_KEY, ReplicaProcesses, replica, unique
from tests.processes.watching import DELETED, UPDATED, Watching
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups
from viewstamp.api.routing.v1.routing_pb2 import (
    STAGE_CONSUMER_GROUPS,
    STAGE_STREAMS,
    STAGE_USERS,
)
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.api.users.v1.users_pb2 import (
    USER_STATUS_INACTIVE,
    GlobalPermissions,
    Permissions,
    StreamPermissions,
    TopicPermissions,
)
from viewstamp.limits import ROOT_USER_ID
from viewstamp.tokens import sign

pytestmark = pytest.mark.xdist_group("processes-watch-access")

PASSWORD: Final = "some-password"
DENIED: Final = "PERMISSION_DENIED"
NO_STREAM, NO_TOPIC = "STREAM_NOT_FOUND", "TOPIC_NOT_FOUND"
SECOND_US: Final = 10**6
STREAM, OTHER, TOPIC, GROUP = (named(name) for name in ("orders", "other", "paid", "billing"))
WATCHES: Final[dict[str, dict[str, Any]]] = {
    "all": {},
    "users": {"domains": [STAGE_USERS]},
    "streams": {"domains": [STAGE_STREAMS]},
    "groups": {"domains": [STAGE_CONSUMER_GROUPS]},
    "stream": {"stream": STREAM},
    "topic": {"stream": STREAM, "topic": TOPIC},
    "group": {"stream": STREAM, "topic": TOPIC, "group": GROUP},
    "other": {"stream": OTHER},
    "nothing": {"stream": named("nothing")},
}
CODES: Final = {
    "OPEN": None,
    DENIED: grpc.StatusCode.PERMISSION_DENIED,
    NO_STREAM: grpc.StatusCode.NOT_FOUND,
    NO_TOPIC: grpc.StatusCode.NOT_FOUND,
}


@pytest.fixture(scope="module")
def watched() -> Iterator[ReplicaProcesses]:
    """A replica with a stream, a topic and a group."""
    with replica() as running:
        with running.root() as root:
            for name in ("orders", "other"):
                root.create_stream(name)
                root.create_topic(name, "paid")
            create = groups.CreateConsumerGroupRequest(name="billing", stream=STREAM, topic=TOPIC)
            root.call(root.groups.CreateConsumerGroup, create)
        yield running


@pytest.fixture
def root(watched: ReplicaProcesses) -> Iterator[Caller]:
    """Root, logged in there."""
    with watched.root() as caller:
        yield caller


def everywhere(**names: bool) -> Permissions:
    """Return global permissions."""
    return Permissions(**{"global": GlobalPermissions(**names)})  # type: ignore[arg-type]


def in_stream(**fields: Any) -> Permissions:
    """Return permissions in the stream."""
    return Permissions(streams=[StreamPermissions(stream=STREAM, **fields)])


def in_topic(topic: Identifier = TOPIC, **names: bool) -> Permissions:
    """Return permissions in the topic."""
    return in_stream(topics=[TopicPermissions(topic=topic, **names)])


@dataclass(frozen=True, slots=True)
class Person:
    """A user, logged in."""

    name: str
    caller: Caller

    def permit(self, root: Caller, permissions: Permissions) -> int:
        """Give the user other permissions; return the revision."""
        request = users.UpdatePermissionsRequest(user=named(self.name), permissions=permissions)
        return int(root.call(root.users.UpdatePermissions, request).header.revision)


def person(root: Caller, permissions: Permissions | None = None) -> Person:
    """Return a new user, logged in."""
    name = unique("person")
    request = users.CreateUserRequest(username=name, password=PASSWORD, permissions=permissions)
    root.call(root.users.CreateUser, request)
    return Person(name, root.logged_in(name, PASSWORD))


def touch(root: Caller) -> int:
    """Change the stream; return the revision."""
    request = streams.CreateTopicRequest(stream=STREAM, name=unique("topic"), partitions_count=1)
    return int(root.call(root.streams.CreateTopic, request).header.revision)


SEES_STREAM: Final = {"stream", "topic", "group"}
SEES_TOPIC: Final = {"topic", "group"}


@pytest.mark.parametrize(
    ("permissions", "may"),
    [
        (Permissions(), set()),
        (everywhere(read_users=True), {"users"}),
        (everywhere(manage_users=True), {"users"}),
        (everywhere(read_streams=True), {"streams", "groups", "other"} | SEES_STREAM),
        (everywhere(manage_streams=True), {"streams", "groups", "other"} | SEES_STREAM),
        (everywhere(read_users=True, read_streams=True), set(WATCHES) - {"nothing"}),
        (everywhere(read_topics=True), SEES_TOPIC),
        (everywhere(read_servers=True, poll_messages=True, send_messages=True), set()),
        (in_stream(read_stream=True), SEES_STREAM),
        (in_stream(manage_stream=True), SEES_STREAM),
        (in_stream(read_topics=True), SEES_TOPIC),
        (in_stream(poll_messages=True), set()),
        (in_topic(read_topic=True), SEES_TOPIC),
        (in_topic(poll_messages=True), set()),
    ],
)
def test_who_may_watch(root: Caller, permissions: Permissions, may: set[str]) -> None:
    """Whoever may read a place may watch it, and who may list everything may watch everything."""
    caller = person(root, permissions).caller
    opened = set()
    for name, fields in WATCHES.items():
        watching = Watching(caller, **fields)
        try:
            watching.opened()
        except grpc.RpcError:
            ended = Watching(caller, **fields).refused()
            assert ended.code is CODES[ended.reason], (name, ended)
            assert ended.reason == DENIED or "stream" in fields, (name, ended)
        else:
            opened.add(name)
            watching.cancel()
    assert opened == may


def test_who_sees_nothing_learns_nothing(root: Caller) -> None:
    """Without any permission in a stream there is no difference to a stream that is not there."""
    caller = person(root, everywhere(read_users=True)).caller
    ended = [Watching(caller, **WATCHES[name]).refused() for name in ("stream", "topic", "nothing")]
    assert [each.reason for each in ended] == [NO_STREAM] * 3
    assert {each.code for each in ended} == {grpc.StatusCode.NOT_FOUND}


def test_strangers_watch_nothing(root: Caller) -> None:
    """Without a token, and with one that is not valid any more, nothing begins."""
    somebody = person(root, everywhere(read_streams=True))
    somebody.caller.call(somebody.caller.users.Logout, users.LogoutRequest())
    for caller in (Caller(root.channel), Caller(root.channel, "x"), somebody.caller):
        ended = Watching(caller, **WATCHES["stream"]).refused()
        assert (ended.code, ended.reason) == (
            grpc.StatusCode.UNAUTHENTICATED,
            "UNAUTHENTICATED",
        )


@pytest.mark.parametrize("name", ["streams", "stream"])
def test_permissions_that_are_taken_end_the_watch(root: Caller, name: str) -> None:
    """The watch shows everything up to the revision that takes them, and nothing behind it."""
    alice, bob = (person(root, everywhere(read_streams=True)) for _ in range(2))
    of_alice = Watching(alice.caller, **WATCHES[name]).opened()
    of_bob = Watching(bob.caller, **WATCHES[name]).opened()
    before = touch(root)
    taken = alice.permit(root, Permissions())
    behind = touch(root)
    ended = of_alice.refused()
    assert (ended.code, ended.reason) == (grpc.StatusCode.ABORTED, "ACCESS_CHANGED")
    assert ended.details["revision"] == str(taken)
    assert [each.revision for each in of_alice.changes] == [before]
    of_bob.until(behind)
    assert [each.revision for each in of_bob.changes] == [before, behind]
    of_bob.cancel()
    again = Watching(alice.caller, from_revision=taken + 1, **WATCHES[name]).refused()
    assert again.reason in (DENIED, NO_STREAM)


def test_users_see_what_ends_their_watch(root: Caller) -> None:
    """A watch of users shows the change of its own user, at which it ends, and goes on behind."""
    alice = person(root, everywhere(read_users=True))
    watching = Watching(alice.caller, **WATCHES["users"]).opened()
    given = alice.permit(root, everywhere(read_users=True, read_streams=True))
    assert watching.refused().reason == "ACCESS_CHANGED"
    assert watching.told == [(given, UPDATED, "User")]
    assert watching.complete_revision == given
    again = Watching(alice.caller, from_revision=given + 1).opened()
    last = touch(root)
    assert [each.revision for each in again.until(last)] == [last]
    again.cancel()


def test_history_from_before_the_last_change_of_access(root: Caller) -> None:
    """What a user was allowed earlier is not known: its history begins behind the last change."""
    alice = person(root, everywhere(read_streams=True))
    touch(root)
    changed = alice.permit(root, in_stream(read_stream=True))
    last = touch(root)
    for revision in (1, changed - 1, changed):
        ended = Watching(alice.caller, from_revision=revision, **WATCHES["stream"]).refused()
        assert (ended.code, ended.reason) == (
            grpc.StatusCode.OUT_OF_RANGE,
            "REVISION_COMPACTED",
        )
        assert ended.details["oldest"] == str(changed + 1)
    watching = Watching(alice.caller, from_revision=changed + 1, **WATCHES["stream"])
    assert [each.revision for each in watching.until(last)] == [last]
    watching.cancel()
    everything = Watching(root, from_revision=1, **WATCHES["stream"])
    assert everything.until(last)[0].revision < changed
    everything.cancel()


def test_a_scoped_grant_goes_with_its_topic(root: Caller) -> None:
    """Who may read one topic alone sees its end, and then neither watches it nor another of its
    name."""
    name = unique("scoped")
    root.create_topic("orders", name)
    alice = person(root, in_topic(named(name), read_topic=True))
    place: dict[str, Any] = {"stream": STREAM, "topic": named(name)}
    watching = Watching(alice.caller, **place).opened()
    request = streams.DeleteTopicRequest(**place)
    gone = int(root.call(root.streams.DeleteTopic, request).header.revision)
    ended = watching.refused()
    assert ended.reason in ("ACCESS_CHANGED", NO_TOPIC)
    assert watching.told == [(gone, DELETED, "Topic")]
    root.create_topic("orders", name)
    for revision in (0, gone + 1):
        again = Watching(alice.caller, from_revision=revision, **place).refused()
        assert again.reason in (NO_STREAM, NO_TOPIC)


@pytest.mark.parametrize("how", ["password", "logout", "deactivation", "deletion"])
def test_ended_credentials_end_the_watch(root: Caller, how: str) -> None:
    """Whatever ends a user's tokens ends its watches, and no change is shown behind that."""
    alice = person(root, everywhere(read_streams=True))
    own, me = alice.caller, named(alice.name)
    watching = Watching(own, **WATCHES["stream"]).opened()
    before = touch(root)
    ends: dict[str, Any] = {
        "password": lambda: own.call(
            own.users.ChangePassword,
            users.ChangePasswordRequest(current_password=PASSWORD, new_password=PASSWORD + "2"),
        ),
        "logout": lambda: own.call(own.users.Logout, users.LogoutRequest()),
        "deactivation": lambda: root.call(
            root.users.UpdateUser, users.UpdateUserRequest(user=me, status=USER_STATUS_INACTIVE)
        ),
        "deletion": lambda: root.call(root.users.DeleteUser, users.DeleteUserRequest(user=me)),
    }
    revision = ends[how]().header.revision
    touch(root)
    ended = watching.refused()
    assert (ended.code, ended.reason) == (grpc.StatusCode.ABORTED, "ACCESS_CHANGED")
    assert ended.details["revision"] == str(revision)
    assert [each.revision for each in watching.changes] == [before]
    again = Watching(own, from_revision=revision + 1, **WATCHES["stream"]).refused()
    assert again.reason == "UNAUTHENTICATED"


@pytest.mark.long
def test_a_watch_ends_with_its_token(root: Caller) -> None:
    """A token that expires ends its watch, although nothing happens, and nobody else's."""
    cluster = bytes.fromhex(root.status().cluster)
    expires_us = time.time_ns() // 1_000 + 2 * SECOND_US
    token = sign(bytes.fromhex(CLUSTER_KEY), cluster, ROOT_USER_ID, 1, expires_us)
    other = Watching(root, **WATCHES["stream"]).opened()
    watching = Watching(Caller(root.channel, token), **WATCHES["stream"]).opened()
    ended = watching.refused()
    assert (ended.code, ended.reason) == (
        grpc.StatusCode.UNAUTHENTICATED,
        "UNAUTHENTICATED",
    )
    assert time.time_ns() // 1_000 >= expires_us
    last = touch(root)
    assert [each.revision for each in other.until(last)] == [last]
    other.cancel()


@pytest.mark.long
def test_watches_of_a_service_that_keeps_no_changes() -> None:
    """Beside a service of an older build nothing is watched, and the refusal names it."""
    with replica(modules={"streams": "tests.processes.unwatched"}) as older, older.root() as root:
        root.create_stream("orders")
        for name in ("all", "users", "stream"):
            ended = Watching(root, **WATCHES[name]).refused()
            assert (ended.code, ended.reason) == (
                grpc.StatusCode.UNIMPLEMENTED,
                "UNIMPLEMENTED",
            )
            assert "the service of streams does not keep changes: upgrade it" in ended.message
        with refused() as failure:
            root.create_stream("orders")
        assert failure.it.reason == "STREAM_EXISTS"
