"""Killed, paused and fenced processes: nothing acknowledged is lost, nothing happens twice."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from tests.processes.callers import Caller, named, refused
from tests.processes.processes import (
    COORDINATOR,
    ReplicaProcesses,
    eventually,
    replica,
    short_directory,
    unique,
)
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups
from viewstamp.api.domain.v1 import domain_service_pb2 as domain
from viewstamp.api.domain.v1.domain_service_pb2_grpc import DomainServiceStub
from viewstamp.api.routing.v1.routing_pb2 import Stage
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.api.users.v1.users_pb2 import Permissions
from viewstamp.limits import STAGE_PING_TIMEOUT_MS
from viewstamp.routing import SERVICE_NAMES

pytestmark = pytest.mark.xdist_group("processes-deaths")

COMMANDS = 300
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture(scope="module")
def shared() -> Iterator[ReplicaProcesses]:
    """A replica with a group, for all tests of this file."""
    with replica() as running:
        with running.root() as root:
            root.create_stream("orders")
            root.create_topic("orders", "paid", partitions=4)
            where: dict[str, Any] = {"stream": named("orders"), "topic": named("paid")}
            request = groups.CreateConsumerGroupRequest(name="billing", **where)
            root.call(root.groups.CreateConsumerGroup, request)
        yield running


@pytest.fixture
def mortal(shared: ReplicaProcesses) -> Iterator[ReplicaProcesses]:
    """A replica whose processes are killed; after each test, even a failed one, all run again."""
    yield shared
    shared.mend()


class DeathLoad:
    """One session that creates streams, and sends each request until it is answered."""

    def __init__(self, mortal: ReplicaProcesses) -> None:
        """Register, and start the thread."""
        self.names = [unique("load") for _ in range(COMMANDS)]
        self.done = 0
        self._mortal = mortal
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def until(self, count: int) -> None:
        """Wait until that many commands were answered."""
        eventually(lambda: self.done >= count)

    def finish(self) -> None:
        """Wait for all commands."""
        self._thread.join()
        assert self.done == COMMANDS

    def _run(self) -> None:
        with self._mortal.root() as root:
            caller = root.with_session()
            for number, name in enumerate(self.names, start=1):
                eventually(lambda: self._send(caller, number, name))  # noqa: B023
                self.done = number

    def _send(self, caller: Caller, number: int, name: str) -> Any:
        return caller.create_stream(name, session=caller.session, request=number, acked=number - 1)


def restart(mortal: ReplicaProcesses, name: str) -> None:
    """SIGKILL a process and start it again."""
    mortal.kill(name)
    mortal.start(name)


def names_of(root: Caller, stem: str) -> list[str]:
    """Return the names of all streams that begin so, from every page."""
    found: list[str] = []
    cursor = ""
    while True:
        request = streams.ListStreamsRequest(page_size=1000, page_token=cursor)
        page = root.call(root.streams.ListStreams, request)
        found += [stream.name for stream in page.streams]
        cursor = page.next_page_token
        if not cursor:
            return [name for name in found if name.startswith(stem)]


@pytest.mark.long
@pytest.mark.parametrize("name", [*SERVICE_NAMES, COORDINATOR])
def test_killed_under_load(mortal: ReplicaProcesses, name: str) -> None:
    """Every command takes effect exactly once when any process dies, and digests agree."""
    load = DeathLoad(mortal)
    load.until(COMMANDS // 4)
    mortal.kill(name)
    at_death = load.done
    mortal.start(name)
    assert at_death < COMMANDS, "the load was over before the death"
    load.finish()
    with mortal.root() as root:
        found = names_of(root, "load")
        assert sorted(set(found) & set(load.names)) == sorted(load.names)
        assert len(found) == len(set(found))
        before = eventually(root.digests)
        restart(mortal, name)
        assert eventually(root.digests) == before


@pytest.mark.long
def test_from_scratch(mortal: ReplicaProcesses) -> None:
    """Fresh processes that replay a copy of the journal reach the digests of the survivors."""
    with mortal.root() as root:
        before = root.digests()
    mortal.stop()
    with short_directory() as directory:
        fresh = mortal.copy_to(directory)
        fresh.start()
        try:
            with fresh.root() as root:
                assert root.digests() == before
        finally:
            fresh.stop()
    mortal.start()
    with mortal.root() as root:
        assert root.digests() == before


def away(caller: Caller) -> list[str]:
    """Return the stages of the services that are not connected."""
    services = caller.status().services
    return [Stage.Name(s.stage).removeprefix("STAGE_") for s in services if not s.connected]


def get_group(root: Caller) -> Any:
    """Read the group."""
    request = groups.GetConsumerGroupRequest(
        stream=named("orders"), topic=named("paid"), group=named("billing")
    )
    return root.call(root.groups.GetConsumerGroup, request)


@pytest.mark.long
def test_other_domains_go_on(mortal: ReplicaProcesses) -> None:
    """Without groups, streams and users are served; reads of groups say DOMAIN_RESTARTING."""
    with mortal.root() as root:
        mortal.kill("consumer_groups")
        eventually(lambda: root.alarms() == ["ALARM_KIND_SERVICE_DOWN"])
        with refused() as failure:
            get_group(root)
        assert tuple(failure) == (UNAVAILABLE, "DOMAIN_RESTARTING")
        assert "consumer_groups is restarting: try again" in failure.it.message
        root.create_stream(unique("on"))
        root.create_user(unique("on"), "password")
        assert away(root) == ["CONSUMER_GROUPS"]
        mortal.start("consumer_groups")
        eventually(lambda: get_group(root))
        assert not root.alarms()


@pytest.mark.long
def test_without_users(mortal: ReplicaProcesses) -> None:
    """Without users nobody logs in and no secret can be hashed; streams are served."""
    with mortal.root() as root:
        mortal.kill("users")
        eventually(lambda: root.alarms() == ["ALARM_KIND_SERVICE_DOWN"])
        for attempt in (
            lambda: root.logged_in("root", mortal.root_password()),
            lambda: root.create_user(unique("on"), "password"),
            lambda: root.status(digests=True),
        ):
            with refused() as failure:
                attempt()
            assert tuple(failure) == (UNAVAILABLE, "DOMAIN_RESTARTING")
        root.create_stream(unique("on"))
        mortal.start("users")
        eventually(lambda: root.logged_in("root", mortal.root_password()))


@pytest.mark.long
def test_paused_service(mortal: ReplicaProcesses) -> None:
    """A service that hangs is reported down after a timeout, and recovers when it continues."""
    with mortal.root() as root:
        before = root.digests()
        restarts = root.status().services[2].restarts
        mortal.signal("consumer_groups", signal.SIGSTOP)
        begun = time.monotonic()
        with refused() as failure:
            get_group(root)
        assert tuple(failure) == (UNAVAILABLE, "DOMAIN_RESTARTING")
        assert time.monotonic() - begun >= STAGE_PING_TIMEOUT_MS / 1000
        assert root.alarms() == ["ALARM_KIND_SERVICE_DOWN"]
        root.create_stream(unique("on"))
        mortal.signal("consumer_groups", signal.SIGCONT)
        eventually(lambda: get_group(root))
        assert root.digests()[2:] == before[2:]
        assert root.status().services[2].restarts == restarts + 1
        assert not root.alarms()


@contextmanager
def pending(caller: Caller, method: Any, request: Any) -> Iterator[Any]:
    """Put a command into the log whose owner is silent; the command stays open in the block."""
    before = last_op(caller)
    sent = method.future(request, metadata=caller.metadata(), timeout=30)
    eventually(lambda: last_op(caller) > before)
    yield sent
    assert not sent.done()


def last_op(caller: Caller) -> int:
    """Return the last op that the stages got, by a read that only users answers."""
    found = caller.call(caller.users.GetUser, users.GetUserRequest(user=named("root")))
    return int(found.header.op)


def an_operator(mortal: ReplicaProcesses, root: Caller) -> Caller:
    """Return a new user who may see the cluster's status, logged in."""
    permissions = Permissions()
    getattr(permissions, "global").read_servers = True  # a keyword
    request = users.CreateUserRequest(
        username=unique("operator"),
        password="some-password",
        permissions=permissions,
    )
    root.call(root.users.CreateUser, request)
    return root.logged_in(request.username, request.password)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_status_while_a_group_command_is_pending(
    mortal: ReplicaProcesses, number: signal.Signals
) -> None:
    """With the permission to see it, the status is served all the while, and names the service."""
    with mortal.root() as root:
        operator = an_operator(mortal, root)
        mortal.signal("consumer_groups", number)
        create = groups.CreateConsumerGroupRequest(
            name=unique("late"), stream=named("orders"), topic=named("paid")
        )
        with pending(root, root.groups.CreateConsumerGroup, create) as created:
            for caller in (root, operator):
                assert len(caller.status().services) == len(SERVICE_NAMES)
                eventually(lambda: caller.alarms() == ["ALARM_KIND_SERVICE_DOWN"])  # noqa: B023
                assert away(caller) == ["CONSUMER_GROUPS"]
        if number is signal.SIGSTOP:
            mortal.signal("consumer_groups", signal.SIGCONT)
        else:
            mortal.wait("consumer_groups")
            mortal.start("consumer_groups")
        assert created.result().group_id
        eventually(lambda: not root.alarms())


@pytest.mark.long
def test_status_without_streams(mortal: ReplicaProcesses) -> None:
    """Root sees the alarm; other users need streams for their permissions; ended tokens fail."""
    with mortal.root() as outdated:
        change = users.ChangePasswordRequest(
            current_password=mortal.root_password(), new_password=mortal.root_password()
        )
        outdated.call(outdated.users.ChangePassword, change)
        root = outdated.logged_in("root", mortal.root_password())
        operator = an_operator(mortal, root)
        mortal.kill("streams")
        with pending(
            root, root.streams.CreateStream, streams.CreateStreamRequest(name=unique("l"))
        ):
            eventually(root.alarms)
            (alarm,) = root.status().alarms
            assert alarm.kind == cluster.ALARM_KIND_SERVICE_DOWN
            assert "service streams does not answer" in alarm.message
            assert away(root) == ["STREAMS"]
            for caller, code, reason in (
                (outdated, UNAUTHENTICATED, "UNAUTHENTICATED"),
                (operator, UNAVAILABLE, "DOMAIN_RESTARTING"),
            ):
                for ask in (caller.status, caller.alarms):
                    with refused() as failure:
                        ask()
                    assert tuple(failure) == (code, reason)
        mortal.start("streams")
        eventually(lambda: not operator.alarms())
        with refused() as failure:
            outdated.status()
        assert failure.it.reason == "UNAUTHENTICATED"


def test_a_caller_that_leaves_cancels_nothing(mortal: ReplicaProcesses) -> None:
    """A caller who leaves does not cancel the request, for other callers or for its own retry."""
    with mortal.root() as root:
        caller = root.with_session()
        before = last_op(root)
        mortal.signal("streams", signal.SIGSTOP)
        entries = caller.metadata(session=caller.session, request=1)
        request = streams.CreateStreamRequest(name=unique("left"))
        calls = [
            caller.streams.CreateStream.future(request, metadata=entries, timeout=30)
            for _ in range(4)
        ]
        users_alone = users.GetUserRequest(user=named("root"))
        eventually(lambda: root.call(root.users.GetUser, users_alone).header.op > before)
        calls[0].cancel()
        calls[1].cancel()
        # This answer comes after the cancellations, on the same connection.
        root.call(root.users.GetUser, users_alone)
        mortal.signal("streams", signal.SIGCONT)
        assert calls[2].result() == calls[3].result()
        again = caller.create_stream(request.name, session=caller.session, request=1)
        assert again == calls[2].result()


@pytest.mark.long
def test_proposals_after_a_restart(mortal: ReplicaProcesses) -> None:
    """The next coordinator proposes an Assign that the dead one could not propose."""
    with mortal.root() as root:
        caller = root.with_session()
        mortal.signal("consumer_groups", signal.SIGSTOP)
        join = groups.JoinConsumerGroupRequest(
            stream=named("orders"), topic=named("paid"), group=named("billing")
        )
        before = last_op(root)
        entries = caller.metadata(session=caller.session, request=1)
        joining = caller.groups.JoinConsumerGroup.future(join, metadata=entries)
        eventually(lambda: last_op(root) > before)
        assert not joining.done()
        mortal.kill(COORDINATOR)
        mortal.signal("consumer_groups", signal.SIGCONT)
        with pytest.raises(grpc.RpcError):
            joining.result(timeout=30)
        mortal.start(COORDINATOR)
        again = eventually(
            lambda: caller.call(
                caller.groups.JoinConsumerGroup, join, session=caller.session, request=1
            )
        )
        assert again.member_epoch
        group = eventually(lambda: _settled(get_group(root).group))
        (member,) = group.members
        assert (member.session_id, len(member.target_partitions)) == (caller.session, 4)


def _settled(group: Any) -> Any:
    return group if group.assignment_epoch == group.group_epoch else None


@pytest.mark.long
def test_a_replica_is_mended(mortal: ReplicaProcesses) -> None:
    """A dead and a paused process, such as a failed test leaves, serve again once mended."""
    mortal.kill("streams")
    mortal.signal("consumer_groups", signal.SIGSTOP)
    mortal.mend()
    with mortal.root() as root:
        eventually(lambda: get_group(root))
        assert away(root) == []


def hello(mortal: ReplicaProcesses, service: str, sequence: int) -> Any:
    """Open an Apply stream as a coordinator of that sequence; return its first answer."""
    with mortal.root() as root:
        cluster_id = bytes.fromhex(root.status().cluster)
    request = domain.ApplyRequest(
        hello=domain.Hello(cluster_id=cluster_id, replica_id=0, coordinator_sequence=sequence)
    )
    with grpc.insecure_channel(f"unix:{mortal.sockets}/{service}.sock") as channel:
        return next(iter(DomainServiceStub(channel).Apply(iter([request]))))


@pytest.mark.long
def test_older_coordinators_are_fenced(mortal: ReplicaProcesses) -> None:
    """A service serves the newest coordinator alone; the older one ends with exit code 2."""
    restart(mortal, COORDINATOR)  # the one that bootstrapped is the oldest
    with pytest.raises(grpc.RpcError, match="is fenced off") as caught:
        hello(mortal, "streams", 0)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    with mortal.root() as root:
        before = root.digests()
    assert hello(mortal, "streams", 10**6).HasField("hello")
    assert mortal.wait(COORDINATOR) == 2
    assert "coordinator 1000000 took over" in mortal.errors(COORDINATOR)
    mortal.spawn(COORDINATOR)
    assert mortal.wait(COORDINATOR) == 2
    assert "1000000 was here already" in mortal.errors(COORDINATOR)
    restart(mortal, "streams")
    mortal.start(COORDINATOR)
    with mortal.root() as root:
        assert root.digests() == before
