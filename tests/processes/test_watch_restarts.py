"""Watches of a replica whose processes die, hang and restart: none misses a change, or waits for
ever."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, Final

import grpc
import pytest

from tests.processes import snapshots
from tests.processes.callers import Caller, Refused
from tests.processes.processes import COORDINATOR, ReplicaProcesses, eventually, replica, unique
from tests.processes.watching import CREATED, Watching, in_short
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.routing import SERVICE_NAMES

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("processes-watch-restarts")]

PASSWORD: Final = "some-password"
COMMANDS: Final = 5


@pytest.fixture(scope="module")
def shared() -> Iterator[ReplicaProcesses]:
    """A replica for the tests of this file."""
    with replica() as running:
        yield running


@pytest.fixture
def mortal(shared: ReplicaProcesses) -> Iterator[ReplicaProcesses]:
    """A replica whose processes are killed; after each test, even a failed one, all run again."""
    yield shared
    shared.mend()


def steps(root: Caller) -> list[tuple[int, int, str]]:
    """Do a few commands; return the changes that they make."""
    done: list[tuple[int, int, str]] = []
    for _ in range(COMMANDS):
        stream = root.create_stream(unique("stream")).header.revision
        user = root.create_user(unique("user"), PASSWORD).header.revision
        done += [(stream, CREATED, "Stream"), (user, CREATED, "User")]
    return done


def test_a_coordinator_that_restarts(mortal: ReplicaProcesses) -> None:
    """Its watches end with the connection, and go on at the next one behind the last header."""
    with mortal.root() as root:
        watching = Watching(root).opened()
        before = steps(root)
        watching.until(before[-1][0])
        mortal.kill(COORDINATOR)
        with pytest.raises(grpc.RpcError) as caught:
            watching.until(before[-1][0] + 1)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        mortal.start(COORDINATOR)
    with mortal.root() as root:
        after = steps(root)
        again = Watching(root, from_revision=watching.complete_revision + 1)
        assert watching.told == before
        assert in_short(again.until(after[-1][0])) == after
        again.cancel()


def test_a_coordinator_that_stops(mortal: ReplicaProcesses) -> None:
    """Open watches neither keep a coordinator from its end, nor make it a failure."""
    with mortal.root() as root:
        watching = [Watching(root).opened() for _ in range(3)]
        mortal.signal(COORDINATOR, signal.SIGTERM)
        assert mortal.wait(COORDINATOR) == 0
        for each in watching:
            with pytest.raises(grpc.RpcError) as caught:
                each.until(10**9)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    mortal.start(COORDINATOR)


@pytest.mark.parametrize("name", SERVICE_NAMES)
def test_a_service_that_is_killed(mortal: ReplicaProcesses, name: str) -> None:
    """Watches live on while a service restarts, and then show what it did meanwhile and since."""
    with mortal.root() as root:
        begin = Watching(root).opened()
        before = steps(root)
        begin.until(before[-1][0])
        mortal.kill(name)
        mortal.start(name)
        after = eventually(lambda: steps(root))
        told = in_short(begin.until(after[-1][0]))
        assert told == sorted(told, key=lambda each: each[0])
        assert [each for each in told if each in before + after] == before + after
        history = Watching(root, from_revision=1)
        assert history.until(after[-1][0])[-len(told) :] == begin.changes
        begin.cancel()
        history.cancel()


@pytest.mark.parametrize("name", SERVICE_NAMES)
def test_a_service_that_hangs(mortal: ReplicaProcesses, name: str) -> None:
    """A watch that needs it waits, or ends with a reason to try again: it misses nothing."""
    with mortal.root() as root:
        following = Watching(root).opened()
        mortal.signal(name, signal.SIGSTOP)
        resumed = Watching(root, from_revision=1)
        ended = resumed.refused()
        assert ended.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        mortal.signal(name, signal.SIGCONT)
        done = eventually(lambda: steps(root))
        found, at = list[Any](), following
        while not found or found[-1].revision < done[-1][0]:
            try:
                at.until(done[-1][0])
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
            found += at.changes
            at = Watching(root, from_revision=at.complete_revision + 1).opened()
        at.cancel()
        assert [each for each in in_short(found) if each in done] == done


def compacted(root: Caller, revision: int, **fields: Any) -> Refused:
    """Watch from a revision that is not kept; return the refusal."""

    def ended() -> Refused | None:
        found = Watching(root, from_revision=revision, **fields).refused()
        return None if found.reason == "DOMAIN_RESTARTING" else found

    found = eventually(ended)
    assert (found.code, found.reason) == (grpc.StatusCode.OUT_OF_RANGE, "REVISION_COMPACTED")
    return found


def test_a_snapshot_compacts_the_history() -> None:
    """From before the cut of the last snapshot nothing is watched; the same after a restart."""
    with replica() as running:
        with running.root() as root:
            steps(root)
            live = Watching(root).opened()
            generation = snapshots.take_and_adopt(running, root)
            cut = snapshots.get(root, generation).cut_revision
            after = steps(root)
            live.until(after[-1][0])
            assert live.told[-len(after) :] == after
            refusals = [compacted(root, revision) for revision in (1, cut)]
        running.stop()
        running.start()
        with running.root() as root:
            refusals += [compacted(root, revision) for revision in (1, cut)]
            watching = Watching(root, from_revision=cut + 1)
            assert in_short(watching.until(after[-1][0]))[-len(after) :] == after
            watching.cancel()
            last = root.create_stream(unique("stream")).header.revision
            again = Watching(root, from_revision=last)
            assert in_short(again.until(last)) == [(last, CREATED, "Stream")]
            again.cancel()
    assert [each.details["oldest"] for each in refusals] == [str(cut + 1)] * 4
    assert [each.details["revision"] for each in refusals] == ["1", str(cut)] * 2


def test_access_that_changed_before_a_snapshot_is_not_known(mortal: ReplicaProcesses) -> None:
    """When the last change of access is older than what is kept, only what is kept limits."""
    with mortal.root() as root:
        name = unique("user")
        permissions = users.CreateUserRequest(username=name, password=PASSWORD).permissions
        getattr(permissions, "global").read_streams = True  # a keyword
        request = users.CreateUserRequest(username=name, password=PASSWORD, permissions=permissions)
        created = root.call(root.users.CreateUser, request).header.revision
        alice = root.logged_in(name, PASSWORD)
        stream = root.create_stream(unique("stream")).header.revision
        only = {"entity_types": ["viewstamp.api.streams.v1.Stream"]}
        assert compacted(alice, created, **only).details["oldest"] == str(created + 1)
        generation = snapshots.take_and_adopt(mortal, root)
        cut = snapshots.get(root, generation).cut_revision
        later = root.create_stream(unique("stream")).header.revision
    mortal.kill("streams")
    mortal.start("streams")
    with mortal.root() as root:
        alice = eventually(lambda: root.logged_in(name, PASSWORD))
        for revision in (created, stream, cut):
            assert compacted(alice, revision, **only).details["oldest"] == str(cut + 1)
        watching = Watching(alice, from_revision=cut + 1, **only)
        assert in_short(watching.until(later)) == [(later, CREATED, "Stream")]
        watching.cancel()
