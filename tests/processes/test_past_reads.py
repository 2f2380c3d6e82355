"""Reads at earlier revisions of a real replica: who may, how far back, and what ends them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

import viewstamp
from tests.processes import snapshots
from tests.processes.callers import Caller, SubmitStream, named, refused
from tests.processes.processes import COORDINATOR, ReplicaProcesses, eventually, replica, unique
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster
from viewstamp.api.common.v1.common_pb2 import Consistency
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.api.users.v1.users_pb2 import Permissions
from viewstamp.client.blocking import connect_blocking
from viewstamp.framing import frame, unframe

pytestmark = pytest.mark.xdist_group("processes-past")

PASSWORD: Final = "some-password"
GET_STREAM_CODE: Final = 250


@pytest.fixture(scope="module")
def running() -> Iterator[ReplicaProcesses]:
    """A replica for the tests of this file."""
    with replica() as processes:
        yield processes


@pytest.fixture
def root(running: ReplicaProcesses) -> Iterator[Caller]:
    """Root, logged in there."""
    with running.root() as caller:
        yield caller


def stream_at(caller: Caller, name: str, revision: int) -> Any:
    """Read a stream at a revision."""
    request = streams.GetStreamRequest(stream=named(name))
    return caller.call(caller.streams.GetStream, request, consistency=f"at={revision}")


def rename(caller: Caller, name: str, to: str) -> int:
    """Rename a stream, and return the revision of that."""
    request = streams.UpdateStreamRequest(stream=named(name), name=to)
    return int(caller.call(caller.streams.UpdateStream, request).header.revision)


def past_processes(running: ReplicaProcesses) -> list[int]:
    """Return the ids of the processes of the past that the coordinator has."""
    coordinator = running.processes[COORDINATOR].pid
    children = [
        child
        for thread in Path(f"/proc/{coordinator}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    return [
        int(child)
        for child in children
        if "past" in Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
    ]


def test_what_was_is_read_as_it_was(root: Caller) -> None:
    """A read shows the state of its revision, whatever has happened since, forward and back."""
    first, second = unique("first"), unique("second")
    created = root.create_stream(first).header.revision
    renamed = rename(root, first, second)
    root.create_topic(second, "topic")
    assert stream_at(root, first, created).stream.name == first
    assert stream_at(root, second, renamed).stream.topics_count == 0
    assert stream_at(root, second, renamed + 1).stream.topics_count == 1
    found = stream_at(root, first, created)
    assert (found.stream.name, found.header.revision) == (first, created)
    for name, revision in ((first, created - 1), (first, renamed), (second, created)):
        with refused() as failure:
            stream_at(root, name, revision)
        assert failure.it.reason == "STREAM_NOT_FOUND"


def test_each_command_of_a_request_can_be_read(root: Caller) -> None:
    """The commands of one request have revisions of their own, and each is a state."""
    names = [unique("packed") for _ in range(3)]
    stream = SubmitStream(root.with_session())
    items = b"".join(frame(streams.CreateStreamRequest(name=n).SerializeToString()) for n in names)
    reply = stream.ask(1, submit.Span(code=200, count=3, items=items))
    stream.end()
    revision = reply.header.revision
    for index in range(3):
        found = stream_at(root, names[index], revision + index)
        assert found.header.revision == revision + index
        with refused() as failure:
            stream_at(root, names[index], revision + index - 1)
        assert failure.it.reason == "STREAM_NOT_FOUND"


def test_a_stream_of_reads(root: Caller) -> None:
    """Reads of a Submit stream name their revision as a consistency."""
    name = unique("submitted")
    created = root.create_stream(name).header.revision
    stream = SubmitStream(root)
    item = frame(streams.GetStreamRequest(stream=named(name)).SerializeToString())
    asked = submit.Span(code=GET_STREAM_CODE, count=1, items=item)
    stream.send_read(1, asked, consistency=Consistency(at_revision=created))
    read = stream.receive().read
    stream.end()
    assert read.header.revision == created
    (answer,) = unframe(read.spans[0].results)
    assert streams.GetStreamResponse.FromString(answer).stream.name == name


def test_what_has_no_past(root: Caller) -> None:
    """Status and signs of life are about the present, and say so."""
    calls: list[tuple[Any, Any]] = [
        (root.cluster.GetStatus, cluster.GetStatusRequest()),
        (root.groups.KeepAliveConsumerGroup, groups.KeepAliveConsumerGroupRequest()),
    ]
    for method, request in calls:
        with refused() as failure:
            root.call(method, request, consistency="at=1")
        assert failure.it.reason == "MALFORMED_REQUEST"
        assert "leave the revision out" in failure.it.message


def test_who_may_read_the_past(root: Caller) -> None:
    """A user reads back to the last change of what the user may do; root reads all."""
    username, name = unique("reader"), unique("stream")
    before = root.create_stream(name).header.revision
    root.create_user(username, PASSWORD)
    reads_streams = Permissions()
    getattr(reads_streams, "global").read_streams = True
    update = users.UpdatePermissionsRequest(user=named(username), permissions=reads_streams)
    granted = root.call(root.users.UpdatePermissions, update).header.revision
    after = rename(root, name, name + "-renamed")
    caller = root.logged_in(username, PASSWORD)
    assert stream_at(caller, name, granted).header.revision == granted
    assert stream_at(caller, name + "-renamed", after).header.revision == after
    with refused() as failure:
        stream_at(caller, name, before)
    assert failure.it.reason == "REVISION_COMPACTED"
    assert int(failure.it.details["oldest"]) == granted
    assert stream_at(root, name, before).header.revision == before


def test_who_has_no_permission(root: Caller) -> None:
    """Whoever may do nothing starts no build, not even for what everybody may read of itself."""
    username = unique("nobody")
    root.create_user(username, PASSWORD)
    caller = root.logged_in(username, PASSWORD)
    revision = root.create_stream(unique("stream")).header.revision
    request = users.GetUserRequest(user=named(username))
    assert caller.call(caller.users.GetUser, request).user.username == username
    with refused() as failure:
        caller.call(caller.users.GetUser, request, consistency=f"at={revision}")
    assert failure.it.reason == "PERMISSION_DENIED"
    assert "needs some permission" in failure.it.message


def test_ended_credentials_read_nothing(root: Caller) -> None:
    """Whoever may not read the present may not read the past, at which the token was good."""
    username = unique("leaver")
    root.create_user(username, PASSWORD)
    caller = root.logged_in(username, PASSWORD)
    revision = root.create_stream(unique("stream")).header.revision
    root.call(root.users.DeleteUser, users.DeleteUserRequest(user=named(username)))
    with refused() as failure:
        stream_at(caller, "any", revision)
    assert failure.it.reason == "UNAUTHENTICATED"


def test_a_process_that_dies(running: ReplicaProcesses, root: Caller) -> None:
    """The next read builds the state again in another process."""
    name = unique("stream")
    created = root.create_stream(name).header.revision
    stream_at(root, name, created)
    (process,) = past_processes(running)
    os.kill(process, signal.SIGKILL)

    def read_again() -> Any:
        try:
            return stream_at(root, name, created)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            return None

    assert eventually(read_again).stream.name == name
    assert past_processes(running) != [process]


def test_behind_a_snapshot(running: ReplicaProcesses, root: Caller) -> None:
    """A state is built from the newest snapshot before it, and the log behind that."""
    name = unique("stream")
    created = root.create_stream(name).header.revision
    generation = snapshots.take_and_adopt(running, root)
    renamed = rename(root, name, name + "-renamed")
    cut = snapshots.get(root, generation).cut_revision
    assert created < cut < renamed
    assert stream_at(root, name + "-renamed", renamed).header.revision == renamed
    assert stream_at(root, name, cut).stream.name == name
    assert snapshots.logged(running, "earlier state restored")[-1]["revision"] == cut


async def test_the_client_reads_at_a_revision(running: ReplicaProcesses) -> None:
    """A client at a revision reads all there, also each page of a list; commands are as ever."""
    prefix = unique("listed")
    async with await viewstamp.connect(
        running.address, username="root", password=running.root_password()
    ) as client:
        for number in range(3):
            created = await client.streams.create(f"{prefix}-{number}")
        for number in range(3):
            await client.streams.delete(f"{prefix}-{number}")
        then = client.at(created.header.revision).within(30)
        names = [stream.name async for stream in then.streams.list(page_size=1)]
        assert [name for name in names if name.startswith(prefix)] == [
            f"{prefix}-{number}" for number in range(3)
        ]
        assert (await then.streams.get(f"{prefix}-1")).name == f"{prefix}-1"
        again = await then.streams.create(f"{prefix}-again")
        assert again.header.revision > created.header.revision
        pages = [page async for page in client.blame(stream=f"{prefix}-1", page_size=1)]
        assert sum(len(page.changes) for page in pages) == 2


def test_the_blocking_client_reads_at_a_revision(running: ReplicaProcesses, root: Caller) -> None:
    """The client without asyncio does so, too."""
    name = unique("blocking")
    created = root.create_stream(name).header.revision
    rename(root, name, name + "-renamed")
    with connect_blocking(
        running.address, username="root", password=running.root_password()
    ) as client:
        assert client.at(created).streams.get(name).name == name
