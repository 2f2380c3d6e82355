"""`connect_blocking`: the client for programs without asyncio, such as scripts and notebooks.

Each call runs in the event loop of a thread, and the calling thread waits. The methods are those of
the asynchronous client, which `viewstamp.client.blocked` makes block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.client.blocked import Blocked, BlockingFacade, Iterated, Wrapped
from viewstamp.client.blocking_watch import BlockingMember, BlockingWatch
from viewstamp.client.brokers import Brokers
from viewstamp.client.client import Client, connect
from viewstamp.client.groups import Groups
from viewstamp.client.loop_thread import LoopThread
from viewstamp.client.sessions import Sessions
from viewstamp.client.snapshots import ClientSnapshots
from viewstamp.client.streams import Streams, Topics
from viewstamp.client.users import Tokens, Users
from viewstamp.client.watching import EntityType

if TYPE_CHECKING:
    from viewstamp.telemetry.settings import Telemetry


class ConnectOptions(TypedDict, total=False):
    """The options of `connect`."""

    username: str | None
    password: str | None
    access_token: str | None
    personal_access_token: str | None
    tls_ca: Path | str | None
    timeout_s: float | None
    connect_timeout_s: float
    register_session: bool
    learn_addresses: bool
    telemetry: Telemetry | None


class BlockingUsers(BlockingFacade):
    """Users; see `Users`."""

    create = Blocked(Users.create)
    update = Blocked(Users.update)
    delete = Blocked(Users.delete)
    change_password = Blocked(Users.change_password)
    update_permissions = Blocked(Users.update_permissions)
    get = Blocked(Users.get)
    who_am_i = Blocked(Users.who_am_i)
    list = Iterated(Users.list)


class BlockingTokens(BlockingFacade):
    """Personal access tokens; see `Tokens`."""

    create = Blocked(Tokens.create)
    revoke = Blocked(Tokens.revoke)
    delete = Blocked(Tokens.delete)
    list = Iterated(Tokens.list)


class BlockingSessions(BlockingFacade):
    """The sessions of clients; see `Sessions`."""

    own = Blocked(Sessions.own)
    end = Blocked(Sessions.end)
    list = Iterated(Sessions.list)


class BlockingStreams(BlockingFacade):
    """Streams; see `Streams`."""

    create = Blocked(Streams.create)
    update = Blocked(Streams.update)
    delete = Blocked(Streams.delete)
    purge = Blocked(Streams.purge)
    get = Blocked(Streams.get)
    list = Iterated(Streams.list)


class BlockingTopics(BlockingFacade):
    """Topics of streams, and their partitions; see `Topics`."""

    create = Blocked(Topics.create)
    update = Blocked(Topics.update)
    delete = Blocked(Topics.delete)
    purge = Blocked(Topics.purge)
    add_partitions = Blocked(Topics.add_partitions)
    remove_partitions = Blocked(Topics.remove_partitions)
    partitions = Blocked(Topics.partitions)
    report_partition_ends = Blocked(Topics.report_partition_ends)
    truncate_partitions = Blocked(Topics.truncate_partitions)
    watermarks = Iterated(Topics.watermarks)
    get = Blocked(Topics.get)
    list = Iterated(Topics.list)


class BlockingGroups(BlockingFacade):
    """Consumer groups of topics; see `Groups`."""

    create = Blocked(Groups.create)
    update = Blocked(Groups.update)
    delete = Blocked(Groups.delete)
    join = Blocked(Groups.join)
    member = Wrapped(Groups.member, BlockingMember)
    leave = Blocked(Groups.leave)
    keep_alive = Blocked(Groups.keep_alive)
    heartbeat = Blocked(Groups.heartbeat)
    sync = Blocked(Groups.sync)
    commit_offsets = Blocked(Groups.commit_offsets)
    reset_offsets = Blocked(Groups.reset_offsets)
    delete_offsets = Blocked(Groups.delete_offsets)
    fetch_offsets = Iterated(Groups.fetch_offsets)
    find_offsets = Iterated(Groups.find_offsets)
    get = Blocked(Groups.get)
    list = Iterated(Groups.list)
    list_all = Iterated(Groups.list_all)


class BlockingBrokers(BlockingFacade):
    """Brokers, and who has and leads the partitions of topics; see `Brokers`."""

    register = Blocked(Brokers.register)
    resign = Blocked(Brokers.resign)
    update = Blocked(Brokers.update)
    unregister = Blocked(Brokers.unregister)
    get = Blocked(Brokers.get)
    list = Iterated(Brokers.list)
    placements = Iterated(Brokers.placements)
    place = Blocked(Brokers.place)
    update_in_sync = Blocked(Brokers.update_in_sync)


class BlockingSnapshots(BlockingFacade):
    """Snapshots of the cluster; see `ClientSnapshots`."""

    create = Blocked(ClientSnapshots.create)
    decided = Blocked(ClientSnapshots.decided)
    current = Blocked(ClientSnapshots.current)
    latest = Blocked(ClientSnapshots.latest)
    get = Blocked(ClientSnapshots.get)
    list = Iterated(ClientSnapshots.list)
    lookup_generation = Blocked(ClientSnapshots.lookup_generation)
    delete = Blocked(ClientSnapshots.delete)
    prune = Blocked(ClientSnapshots.prune)
    set_retention = Blocked(ClientSnapshots.set_retention)
    verify = Iterated(ClientSnapshots.verify, together_max=1)
    download = Iterated(ClientSnapshots.download, together_max=1)


class BlockingClient(BlockingFacade):
    """One user's connection to a cluster; made by `connect_blocking`. See `Client`.

    Several threads may use it at once: their calls share messages. An iterator belongs to one
    thread at a time. Ctrl-C ends the call that waits; a command that was sent may take effect. A
    process that is forked off cannot use it, and connects by itself; until then every call raises
    ClientClosed there.
    """

    def __init__(self, loop: LoopThread, client: Client) -> None:
        super().__init__(loop, client)
        self._client = client

    def __enter__(self) -> BlockingClient:
        """Return the client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the client."""
        self.close()

    call = Blocked(Client.call)
    stream = Iterated(Client.stream, together_max=1)
    watch = Wrapped(Client.watch, BlockingWatch)
    batch = Blocked(Client.batch)
    transact = Blocked(Client.transact)
    blame = Iterated(Client.blame)
    status = Blocked(Client.status)
    step_down = Blocked(Client.step_down)
    raise_feature_level = Blocked(Client.raise_feature_level)
    describe_cluster = Blocked(Client.describe_cluster)
    add_replica = Blocked(Client.add_replica)
    promote_replica = Blocked(Client.promote_replica)
    remove_replica = Blocked(Client.remove_replica)

    @cached_property
    def users(self) -> BlockingUsers:
        """Users, their passwords and permissions."""
        return BlockingUsers(self.loop, self._client.users)

    @cached_property
    def tokens(self) -> BlockingTokens:
        """Personal access tokens."""
        return BlockingTokens(self.loop, self._client.tokens)

    @cached_property
    def sessions(self) -> BlockingSessions:
        """The sessions of clients."""
        return BlockingSessions(self.loop, self._client.sessions)

    @cached_property
    def streams(self) -> BlockingStreams:
        """Streams."""
        return BlockingStreams(self.loop, self._client.streams)

    @cached_property
    def topics(self) -> BlockingTopics:
        """Topics of streams, and their partitions."""
        return BlockingTopics(self.loop, self._client.topics)

    @cached_property
    def groups(self) -> BlockingGroups:
        """Consumer groups of topics."""
        return BlockingGroups(self.loop, self._client.groups)

    @cached_property
    def brokers(self) -> BlockingBrokers:
        """Brokers, and who has and leads the partitions of topics."""
        return BlockingBrokers(self.loop, self._client.brokers)

    @cached_property
    def snapshots(self) -> BlockingSnapshots:
        """Snapshots of the cluster."""
        return BlockingSnapshots(self.loop, self._client.snapshots)

    @property
    def session_id(self) -> int:
        """The session that carries commands now; 0 before the first one."""
        return self._client.session_id

    @property
    def cluster_id(self) -> bytes:
        """The cluster connected to: 16 bytes."""
        return self._client.cluster_id

    def within(self, timeout_s: float | None) -> BlockingClient:
        """Return this client with another deadline for each call; see `Client.within`."""
        return BlockingClient(self.loop, self._client.within(timeout_s))

    def at(self, revision: int) -> BlockingClient:
        """Return this client with each read at an earlier revision; see `Client.at`."""
        return BlockingClient(self.loop, self._client.at(revision))

    def close(self, *, end_session: bool = True) -> None:
        """Finish outstanding calls, end the session, the connection and the thread.

        In a process that was forked off, nothing is left to close.
        """
        if self.loop.is_usable:
            try:
                self.loop.run(self._client.close(end_session=end_session))
            finally:
                self.loop.stop()


def connect_blocking(
    address: str | Iterable[str], **options: Unpack[ConnectOptions]
) -> BlockingClient:
    """Connect, and return a client whose methods block. Takes the options of `connect`.

    Use it as `with connect_blocking(...) as client`, or close it. Raises the errors of `connect`.
    """
    loop = LoopThread()
    try:
        return BlockingClient(loop, loop.run(connect(address, **options)))
    except BaseException:
        loop.stop()
        raise


@contextmanager
def watch_blocking(
    address: str | Iterable[str],
    *,
    from_revision: int = 0,
    stream: int | str | None = None,
    topic: int | str | None = None,
    group: int | str | None = None,
    domains: Iterable[routing_pb2.Stage.ValueType] = (),
    entity_types: Iterable[EntityType] = (),
    **identity: Unpack[ConnectOptions],
) -> Iterator[BlockingWatch]:
    """Open a watch with a connection of its own, for `with`; see `Client.watch` and `connect`.

    Raises the errors of both.
    """
    identity.setdefault("register_session", False)
    with (
        connect_blocking(address, **identity) as client,
        client.watch(
            from_revision=from_revision,
            stream=stream,
            topic=topic,
            group=group,
            domains=domains,
            entity_types=entity_types,
        ) as watch,
    ):
        yield watch
