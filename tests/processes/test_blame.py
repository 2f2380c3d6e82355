"""Who changed an entity, asked of a real replica: what it tells, to whom, and from where on."""

from __future__ import annotations

from typing import Any, Final

import grpc
import pytest

from tests.processes.callers import Caller, named, refused
from tests.processes.processes import unique
from viewstamp.api.history.v1 import history_service_pb2 as history
from viewstamp.api.history.v1.history_service_pb2_grpc import HistoryServiceStub
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.streams.v1.streams_pb2 import Topic
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.api.users.v1.users_pb2 import Permissions, PersonalAccessToken
from viewstamp.api.watch.v1.watch_service_pb2 import (
    CHANGE_KIND_CREATED,
    CHANGE_KIND_DELETED,
    CHANGE_KIND_UPDATED,
)

pytestmark = pytest.mark.xdist_group("processes")

PASSWORD: Final = "some-password"


def blame(caller: Caller, **fields: Any) -> history.BlameEntityResponse:
    """Ask who changed an entity."""
    request = history.BlameEntityRequest(**fields)
    answer: history.BlameEntityResponse = caller.call(
        HistoryServiceStub(caller.channel).BlameEntity, request
    )
    return answer


def in_short(answer: history.BlameEntityResponse) -> list[tuple[int, str, str, int]]:
    """Return revision, user, method and kind of each change."""
    return [
        (each.revision, each.username, each.method.rpartition("/")[2], each.kind)
        for each in answer.changes
    ]


def reader(root: Caller, *permissions: str) -> Caller:
    """Return a user with some permissions everywhere, logged in."""
    username = unique("reader")
    root.create_user(username, PASSWORD)
    granted = Permissions()
    for permission in permissions:
        setattr(getattr(granted, "global"), permission, True)
    update = users.UpdatePermissionsRequest(user=named(username), permissions=granted)
    root.call(root.users.UpdatePermissions, update)
    return root.logged_in(username, PASSWORD)


def test_who_changed_a_topic(root: Caller) -> None:
    """Each change has its revision, user, session and method, and the topic before and after."""
    stream, name = unique("stream"), unique("topic")
    root.create_stream(stream)
    created = root.create_topic(stream, name).header.revision
    manager = reader(root, "manage_streams").with_session()
    update = streams.UpdateTopicRequest(
        stream=named(stream), topic=named(name), name=name + "-renamed"
    )
    updated = manager.once(manager.streams.UpdateTopic, update).header.revision
    root.create_topic(stream, unique("other"))
    deletion = streams.DeleteStreamRequest(stream=named(stream))
    deleted = root.call(root.streams.DeleteStream, deletion).header.revision
    again = root.create_stream(stream)
    answer = blame(root, stream={"id": again.stream_id - 1}, topic={"name": name})
    told = in_short(answer)
    assert [each[0] for each in told] == [created, updated, deleted]
    assert [each[2] for each in told] == ["CreateTopic", "UpdateTopic", "DeleteStream"]
    assert [each[3] for each in told] == [
        CHANGE_KIND_CREATED,
        CHANGE_KIND_UPDATED,
        CHANGE_KIND_DELETED,
    ]
    assert (told[0][1], told[2][1]) == ("root", "root")
    assert answer.changes[1].session_id == manager.session
    before, after = (
        Topic.FromString(encoded) for encoded in (answer.changes[1].before, answer.changes[1].after)
    )
    assert (before.name, after.name) == (name, name + "-renamed")
    assert answer.oldest_revision <= created
    assert answer.next_revision == 0
    assert answer.header.revision >= deleted


def test_pages(root: Caller) -> None:
    """An answer has as many changes as were asked for, and says from where to go on."""
    name = unique("stream")
    revisions = [root.create_stream(name).header.revision]
    for number in range(3):
        update = streams.UpdateStreamRequest(stream=named(name), name=f"{name}{number}")
        name = update.name
        revisions.append(root.call(root.streams.UpdateStream, update).header.revision)
    found: list[int] = []
    from_revision = 0
    while True:
        answer = blame(root, stream=named(name), page_size=1, from_revision=from_revision)
        found += [each.revision for each in answer.changes]
        from_revision = answer.next_revision
        if not from_revision:
            break
    assert found == revisions


def test_who_may_ask(root: Caller) -> None:
    """It takes the right to read the entity and to list users, and shows what came after the last
    change of that."""
    name, gone = unique("stream"), unique("gone")
    root.create_stream(name)
    root.create_stream(gone)
    root.call(root.streams.DeleteStream, streams.DeleteStreamRequest(stream=named(gone)))
    for permissions, asked, reason in (
        (["read_streams"], name, "PERMISSION_DENIED"),
        (["read_users"], name, "STREAM_NOT_FOUND"),
        (["read_users"], gone, "STREAM_NOT_FOUND"),
        (["read_users", "read_streams"], name, ""),
        (["read_users", "read_streams"], gone, ""),
    ):
        caller = reader(root, *permissions)
        if reason:
            with refused() as failure:
                blame(caller, stream=named(asked))
            assert failure.it.reason == reason
        else:
            answer = blame(caller, stream=named(asked))
            assert not answer.changes
            assert answer.oldest_revision > 1
            with refused() as failure:
                blame(caller, stream=named(asked), from_revision=1)
            assert failure.it.reason == "REVISION_COMPACTED"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"topic": {"name": "orders"}},
        {"user": {"id": 0}, "broker": {"id": 1}},
        {"stream": {}},
    ],
)
def test_what_names_nothing(root: Caller, fields: dict[str, Any]) -> None:
    """A request that does not name one entity is refused, and told what to name."""
    with refused() as failure:
        blame(root, **fields)
    assert (failure.it.code, failure.it.reason) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "MALFORMED_REQUEST",
    )


def test_who_changed_what_belongs_to_an_entity(root: Caller) -> None:
    """Tokens of a user, members of a group: who made them, who took them away, and whose."""
    username = unique("owner")
    created = root.create_user(username, PASSWORD)
    owner = root.logged_in(username, PASSWORD)
    token = users.CreatePersonalAccessTokenRequest(name="deploy")
    made = owner.call(owner.users.CreatePersonalAccessToken, token).header.revision
    deletion = users.DeleteUserTokenRequest(user=named(username), name="deploy")
    revoked = root.call(root.users.DeleteUserToken, deletion).header.revision
    answer = blame(root, user=named(username), part=history.BLAMED_PART_TOKENS)
    assert in_short(answer) == [
        (made, username, "CreatePersonalAccessToken", CHANGE_KIND_CREATED),
        (revoked, "root", "DeleteUserToken", CHANGE_KIND_DELETED),
    ]
    assert [each.owner_id for each in answer.changes] == [created.user_id] * 2
    assert answer.part == history.BLAMED_PART_TOKENS
    assert PersonalAccessToken.FromString(answer.changes[0].after).name == "deploy"
    root.call(root.users.DeleteUser, users.DeleteUserRequest(user=named(username)))
    gone = blame(root, user=named(username), part=history.BLAMED_PART_TOKENS)
    assert in_short(gone)[:2] == in_short(answer)
    # What can be read of the entity can be read of what belongs to it, and nothing else.
    with refused() as failure:
        blame(reader(root, "read_users"), stream={"id": 1}, topic={"id": 1}, part=3)
    assert failure.it.reason in {"STREAM_NOT_FOUND", "PERMISSION_DENIED"}
