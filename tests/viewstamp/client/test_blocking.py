"""The blocking client: the methods of the asynchronous one, for threads, and with their types."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

import pytest

import viewstamp
from tests.processes.processes import ReplicaProcesses, replica
from tests.viewstamp.client.fake_gateway import PASSWORD, FakeGateway
from viewstamp import BlockingClient, ClientClosed, Refusal, TimedOut, connect_blocking
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.client import blocking
from viewstamp.client.blocked import (
    ITEMS_TOGETHER_MAX,
    Blocked,
    BlockingFacade,
    Iterated,
    Wrapped,
    items_of,
)
from viewstamp.client.blocking_watch import BlockingMember, BlockingWatch
from viewstamp.client.brokers import Brokers
from viewstamp.client.client import Client
from viewstamp.client.groups import Groups
from viewstamp.client.loop_thread import LoopThread
from viewstamp.client.membership import GroupMember
from viewstamp.client.sessions import Sessions
from viewstamp.client.snapshots import ClientSnapshots
from viewstamp.client.streams import Streams, Topics
from viewstamp.client.users import Tokens, Users
from viewstamp.client.watching import Watch

T = TypeVar("T")

# Each class with the one that blocks, and what the blocking one leaves out on purpose.
PAIRS: Final[Sequence[tuple[type, type, set[str]]]] = (
    (Client, blocking.BlockingClient, {"informer"}),  # its handlers run in the event loop
    (Users, blocking.BlockingUsers, set()),
    (Tokens, blocking.BlockingTokens, set()),
    (Sessions, blocking.BlockingSessions, set()),
    (Streams, blocking.BlockingStreams, set()),
    (Topics, blocking.BlockingTopics, set()),
    (Groups, blocking.BlockingGroups, set()),
    (Brokers, blocking.BlockingBrokers, {"session"}),  # which a program with an event loop has
    (ClientSnapshots, blocking.BlockingSnapshots, set()),
    (GroupMember, BlockingMember, set()),
    (Watch, BlockingWatch, {"come_to", "cluster_id"}),  # of an informer, and the client
)


@pytest.fixture(scope="module")
def processes() -> Iterator[ReplicaProcesses]:
    """A running replica."""
    with replica() as running:
        yield running


@pytest.fixture
def client(processes: ReplicaProcesses) -> Iterator[BlockingClient]:
    """A blocking client of root."""
    password = processes.root_password()
    with connect_blocking(processes.address, username="root", password=password) as connected:
        yield connected


def public(kind: type) -> set[str]:
    """Return the public names of a class."""
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("asynchronous", "blocked", "left_out"), PAIRS)
def test_both_clients_have_the_same_methods(
    asynchronous: type, blocked: type, left_out: set[str]
) -> None:
    """A method that one client has, the other has, too; only what is named is left out."""
    own = {"loop", "target", "end_step"}
    assert public(blocked) - own == public(asynchronous) - left_out
    assert left_out <= public(asynchronous)


@pytest.mark.parametrize(("asynchronous", "blocked", "left_out"), PAIRS)
def test_each_method_blocks_on_its_namesake(
    asynchronous: type, blocked: type, left_out: set[str]
) -> None:
    """A name stands for the same method on both sides, with its signature and documentation."""
    anything: Any = None
    facade = BlockingFacade(anything, None)
    for name, made in vars(blocked).items():
        if isinstance(made, Blocked | Iterated | Wrapped):
            assert inspect.unwrap(made.__get__(facade)) is inspect.getattr_static(
                asynchronous, name
            )


def test_a_script_creates_and_lists(client: BlockingClient) -> None:
    """Commands, reads, lists, batches and transactions work without asyncio."""
    client.streams.create("script")
    for index in range(5):
        client.topics.create("script", f"topic-{index}", partitions_count=2)
    assert [topic.name for topic in client.topics.list("script", page_size=2)] == [
        f"topic-{index}" for index in range(5)
    ]
    assert client.topics.get("script", "topic-1").partitions_count == 2
    requests = [streams_api.CreateStreamRequest(name=name) for name in ("script", "script-2")]
    refused, created = client.batch(requests)
    assert isinstance(refused, Refusal)
    assert isinstance(created, streams_api.CreateStreamResponse)
    with pytest.raises(Refusal, match="script"):
        client.transact(requests)
    assert client.status().cluster == client.cluster_id.hex()
    assert client.session_id > 0


def test_a_watch_and_a_member_are_plain_iterators(client: BlockingClient) -> None:
    """A watch brings revisions, and a membership its changes; both end with their block."""
    client.streams.create("plain")
    with client.watch(stream="plain") as watch:
        made = client.topics.create("plain", "topic", partitions_count=3)
        assert next(watch).revision == made.header.revision
        assert watch.revision >= made.header.revision
    assert list(watch) == []
    client.groups.create("plain", "topic", "group")
    with client.groups.member("plain", "topic", "group") as member:
        change = next(member)
        assert set(change.assigned) == member.owned == {0, 1, 2}
        member.commit({0: 7}, allow_out_of_range=True)
        assert member.member_epoch > 0
    assert client.groups.get("plain", "topic", "group").members_count == 0
    (offset,) = client.groups.fetch_offsets("plain", "topic", "group")
    assert (offset.partition, offset.offset) == (0, 7)


def test_threads_share_a_client(client: BlockingClient) -> None:
    """Commands from several threads take effect once each."""
    names = [f"thread-{index}" for index in range(40)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(client.streams.create, names))
    assert set(names) <= {stream.name for stream in client.streams.list()}


def test_a_fork_needs_a_client_of_its_own(client: BlockingClient) -> None:
    """A forked process gets an error at once, and its exit leaves the parent's client alone."""
    child = os.fork()
    if not child:
        try:
            client.status()
        except ClientClosed as error:
            client.close()
            os._exit(7 if "connect behind the fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert client.status().primary == 0


def test_a_closed_client_says_so(processes: ReplicaProcesses) -> None:
    """After close each call is an error, closing again is none, and no thread is left."""
    password = processes.root_password()
    client = connect_blocking(processes.address, username="root", password=password)
    client.close()
    client.close()
    with pytest.raises(ClientClosed, match="the client was closed"):
        client.status()
    with pytest.raises(Refusal, match="password"):
        connect_blocking(processes.address, username="root", password="wrong")
    assert "viewstamp-client" not in {thread.name for thread in threading.enumerate()}


async def in_thread(work: Callable[[], T]) -> T:
    """Run work that blocks beside the event loop of the test."""
    return await asyncio.to_thread(work)


async def test_a_deadline_holds_for_each_method(gateway: FakeGateway) -> None:
    """`within` gives every method another deadline, in both clients, and leaves the client's."""

    def timed_out() -> int:
        options: Any = {"username": "root", "password": PASSWORD, "timeout_s": None}
        with connect_blocking(gateway.address, **options) as client:
            gateway.gate.clear()
            hurried = client.within(0.01)
            for call in (lambda: hurried.streams.get("a"), lambda: list(hurried.topics.list("a"))):
                with pytest.raises(TimedOut):
                    call()
            gateway.gate.set()
            return client.streams.create("a").stream_id

    assert await in_thread(timed_out) == 1


async def test_within_leaves_the_client_as_it_is(gateway: FakeGateway, client_of: Client) -> None:
    """A client with another deadline shares the session, and has facades of its own."""
    streams = client_of.streams
    hurried = client_of.within(0.01)
    assert hurried.streams is not streams is client_of.streams
    await client_of.streams.create("a")
    gateway.gate.clear()
    with pytest.raises(TimedOut):
        await hurried.streams.get("a")
    gateway.gate.set()
    assert hurried.session_id == client_of.session_id > 0
    assert (await client_of.streams.get("a")).name == "a"


@pytest.fixture
async def client_of(gateway: FakeGateway) -> AsyncIterator[Client]:
    """An asynchronous client of a gateway."""
    async with await viewstamp.connect(
        gateway.address, username="root", password=PASSWORD
    ) as connected:
        yield connected


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    """A loop in a thread."""
    running = LoopThread()
    yield running
    running.stop()


def test_a_list_is_fetched_as_it_is_read(loop: LoopThread) -> None:
    """Items come in steps that double up to a limit, and an error comes behind its items."""
    fetched: list[int] = []

    async def numbers() -> AsyncIterator[int]:
        for number in range(1000):
            fetched.append(number)
            yield number
        raise ValueError("the end")

    items = items_of(loop, numbers(), ITEMS_TOGETHER_MAX)
    assert next(items) == 0
    assert len(fetched) == 1
    assert [next(items) for _ in range(2)] == [1, 2]
    assert len(fetched) == 3
    found = []
    with pytest.raises(ValueError, match="the end"):
        for item in items:
            found.append(item)
            assert len(fetched) <= item + ITEMS_TOGETHER_MAX
    assert found == list(range(3, 1000))


def test_ctrl_c_ends_the_call_that_waits(loop: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted call is cancelled in the loop, and the next call works."""
    started, cancelled = threading.Event(), threading.Event()

    async def waits() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def answers() -> int:
        return 7

    def interrupted(_: object) -> None:
        started.wait()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.run(waits())
    assert cancelled.wait(timeout=10)
    assert loop.run(answers()) == 7


def test_a_call_in_the_own_thread_would_wait_for_itself(loop: LoopThread) -> None:
    """A blocking call from within the loop is an error instead of a deadlock."""

    async def nested() -> None:
        async def inner() -> None:
            return None

        loop.run(inner())

    with pytest.raises(RuntimeError, match="would wait for itself"):
        loop.run(nested())
