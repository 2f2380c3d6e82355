"""Deaths around snapshots: every process restarts from its section, and goes on from there."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.processes import snapshots
from tests.processes.callers import Caller, named
from tests.processes.held_section import MODULES, held
from tests.processes.processes import (
    COORDINATOR,
    ReplicaProcesses,
    eventually,
    replica,
    unique,
)
from tests.processes.test_reads_over_grpc import get
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.routing import SERVICE_NAMES

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("processes-snapshots")]

ORDERS: dict[str, Any] = {"stream": named("orders"), "topic": named("paid")}
# The bulk fills more than two segments, and more than the prepares that are always kept.
BULKS = 60


@pytest.fixture(scope="module")
def mortal() -> Iterator[ReplicaProcesses]:
    """A replica with entities in every section; each test leaves all its processes running."""
    with replica(modules=MODULES) as running:
        with running.root() as root:
            root.create_stream("orders")
            root.create_topic("orders", "paid", partitions=4)
            root.create_user("early", "password")
            request = groups.CreateConsumerGroupRequest(name="billing", **ORDERS)
            root.call(root.groups.CreateConsumerGroup, request)
        yield running


def change_everything(root: Caller) -> None:
    """Change every section, and delete entities of an earlier change."""
    name = unique("changed")
    root.create_stream(name)
    root.create_topic(name, "topic", partitions=3)
    root.call(root.streams.DeleteStream, streams.DeleteStreamRequest(stream=named(name)))
    root.create_stream(name)
    root.create_user(name, "password")
    request = groups.CreateConsumerGroupRequest(name=name, **ORDERS)
    root.call(root.groups.CreateConsumerGroup, request)


def reads(root: Caller) -> list[Any]:
    """Read from each domain and from the catalog; return the answers without headers."""
    root.call(root.users.GetUser, users.GetUserRequest(user=named("early")))
    group = groups.GetConsumerGroupRequest(group=named("billing"), **ORDERS)
    return [
        get(root, "orders").stream,
        root.call(root.users.GetUser, users.GetUserRequest(user=named("early"))).user,
        root.call(root.groups.GetConsumerGroup, group).group,
        snapshots.listed(root),
    ]


def joined(root: Caller) -> Caller:
    """Return a caller with a session that is a member of the group."""
    caller = root.with_session()
    request = groups.JoinConsumerGroupRequest(group=named("billing"), **ORDERS)
    caller.once(caller.groups.JoinConsumerGroup, request)
    return caller


def test_everything_dies_after_a_snapshot(mortal: ReplicaProcesses) -> None:
    """A restart from the snapshot and the later log loses nothing: state, sessions, replies.

    The journal before the cut is gone by then, so only the snapshot can give this state.
    """
    with mortal.root() as root:
        member = joined(root)
        snapshots.write_bulk(root, BULKS)
        old = unique("s")
        before_cut = member.create_stream(old, session=member.session, request=2, acked=1)
        generation = snapshots.take_and_adopt(mortal, root)
        assert snapshots.segments(mortal)[0] > 1
        kept_bytes = [service.item_log_bytes for service in root.status().services]
        assert max(kept_bytes) < snapshots.BULK_BYTES
        change_everything(root)
        request = {"session": member.session, "request": 3, "acked": 1}
        name = unique("after")
        after_cut = member.create_stream(name, **request)
        expected, digests = reads(root), root.digests()
    snapshots.restart_all(mortal)
    with mortal.root() as root:
        assert root.digests() == digests
        assert reads(root) == expected
        member = Caller(root.channel, root.token, member.session)
        assert member.create_stream(name, **request) == after_cut
        # Only the sessions section of the snapshot has the reply of this request.
        again = member.create_stream(old, session=member.session, request=2, acked=1)
        assert again == before_cut
        assert member.create_stream(unique("s"), session=member.session, request=4, acked=3)
        assert root.digests()[1:3] != digests[1:3]
        assert snapshots.verified(root, generation)[-1].is_intact
        assert not root.alarms()


@pytest.mark.parametrize("name", SERVICE_NAMES)
def test_service_dies_after_a_snapshot(mortal: ReplicaProcesses, name: str) -> None:
    """A service gets its section of the snapshot, and then the commands after the cut."""
    with mortal.root() as root:
        change_everything(root)
        snapshots.take_and_adopt(mortal, root)
        change_everything(root)
        expected, digests = reads(root), root.digests()
        mortal.kill(name)
        mortal.start(name)
        assert eventually(root.digests) == digests
        assert reads(root) == expected
        change_everything(root)
        check_next_snapshot(mortal, root)


def begun(replica: ReplicaProcesses, root: Caller) -> int:
    """Ask for a snapshot that is held; return its generation once every stage is frozen."""
    generation = snapshots.create(root)
    eventually(lambda: snapshots.get(root, generation).cut_op)
    return generation


def check_next_snapshot(mortal: ReplicaProcesses, root: Caller) -> None:
    """Take another snapshot, and compare its digests with those of the machines."""
    snapshots.take_and_adopt(mortal, root)
    assert snapshots.verified(root)[-1].is_intact
    newest, status = snapshots.current(root), root.status(digests=True)
    said = {task.stage: task.state_digest.hex() for task in newest.tasks}
    assert [said[service.stage] for service in status.services] == root.digests()[
        : len(SERVICE_NAMES)
    ]
    assert not root.alarms()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("users", marks=pytest.mark.long),
        "streams",
        "consumer_groups",
        COORDINATOR,
    ],
)
def test_death_behind_a_cut(mortal: ReplicaProcesses, name: str) -> None:
    """A process that dies after the cut restarts, freezes the same, and the snapshot completes."""
    with mortal.root() as root:
        change_everything(root)
        with held(mortal):
            generation = begun(mortal, root)
            change_everything(root)
            expected = reads(root)
            mortal.kill(name)
            mortal.start(name)
            assert eventually(lambda: reads(root)) == expected
            change_everything(root)
        assert snapshots.decided(root, generation).state == snapshots.COMPLETED
        check_next_snapshot(mortal, root)


@pytest.mark.parametrize("name", ["users", "consumer_groups"])
def test_death_before_a_cut(mortal: ReplicaProcesses, name: str) -> None:
    """A service that dies before it freezes restarts and freezes; the snapshot completes."""
    with mortal.root() as root:
        change_everything(root)
        mortal.signal(name, signal.SIGSTOP)
        generation = snapshots.create(root)
        # This command comes after the cut, so the snapshot must not contain it.
        behind = root.streams.CreateStream.future(
            streams.CreateStreamRequest(name=unique("behind")), metadata=root.metadata()
        )
        mortal.kill(name)
        mortal.start(name)
        assert behind.result(timeout=30).header.op
        assert snapshots.decided(root, generation).state == snapshots.COMPLETED
        check_next_snapshot(mortal, root)


def test_everyone_dies_during_a_cut(mortal: ReplicaProcesses) -> None:
    """A replay of the log freezes the same sections again, and the snapshot completes."""
    with held(mortal):
        with mortal.root() as root:
            change_everything(root)
            generation = begun(mortal, root)
            change_everything(root)
            digests = root.digests()
        snapshots.restart_all(mortal)
    with mortal.root() as root:
        assert root.digests() == digests
        assert snapshots.decided(root, generation).state == snapshots.COMPLETED
        check_next_snapshot(mortal, root)
    snapshots.restart_all(mortal)
    with mortal.root() as root:
        assert root.digests() == digests
