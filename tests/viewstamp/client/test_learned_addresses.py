"""A client learns where replicas serve, and loses little where that is of no use."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

import viewstamp
from tests.viewstamp.client.fake_feed import FakeFeed, stream_change
from tests.viewstamp.client.fake_gateway import PASSWORD, FakeGateway
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.client import Client, lookout, watching
from viewstamp.client.known_addresses import (
    ADDRESS_CHARACTERS_MAX,
    LEARNED_ADDRESSES_MAX,
    KnownAddresses,
)
from viewstamp.client.transport import Endpoints
from viewstamp.errors import Refusal

# Nothing listens there.
CLOSED: Final = "127.0.0.1:1"
UNKNOWN: Final = "viewstamp-1.nowhere.invalid:7400"
NO_ADDRESS: Final = "no address at all"
# Far longer than the tests' limit for a learned address, and far shorter than any other.
SOON_S: Final = 8.0
ANOTHER: Final = b"another cluster."


def not_primary(address: str) -> Refusal:
    """Return the hint of a backup."""
    return Refusal(Reason.REASON_NOT_PRIMARY, "send commands there", address=address)


@pytest.fixture
async def replicas() -> AsyncIterator[list[FakeGateway]]:
    """Three replicas of a cluster; the first one leads, and each tells of all."""
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(FakeGateway()) for _ in range(3)]
        for each in made:
            each.sessions, each.nonces = made[0].sessions, made[0].nonces
            each.addresses = [one.address for one in made]
        lead(made, 0)
        yield made


@pytest.fixture
def silent() -> Iterator[str]:
    """An address at which somebody listens who never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def lead(replicas: list[FakeGateway], number: int) -> None:
    """Have one replica lead from now on; the others name it."""
    for each in replicas:
        each.refuse_streams = not_primary(replicas[number].address)
    replicas[number].refuse_streams = None


async def connected(address: str, **options: Any) -> Client:
    """Return a client that was given one address."""
    return await viewstamp.connect(address, username="root", password=PASSWORD, **options)


async def leave(gateway: FakeGateway) -> None:
    """End a replica for good."""
    await gateway.__aexit__()


async def test_a_client_goes_on_without_the_one_that_it_was_given(
    replicas: list[FakeGateway],
) -> None:
    """Given one address of three, it finds the others when that replica is gone, in its session."""
    async with await connected(replicas[0].address) as client:
        await client.streams.create("before")
        session_id = client.session_id
        lead(replicas, 2)
        await leave(replicas[0])
        await client.streams.create("after")
        assert client.session_id == session_id
    assert [len(each.applied) for each in replicas] == [1, 0, 2]


async def test_a_silent_replica_is_left_for_a_learned_one(
    replicas: list[FakeGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client asks learned replicas, too, whether they lead while its own one says nothing."""
    monkeypatch.setattr(viewstamp.client.link, "STALL_CHECK_S", 0.01)
    monkeypatch.setattr(viewstamp.client.link, "LOOK_ELSEWHERE_S", 0.05)
    monkeypatch.setattr(viewstamp.client.link, "STALL_TIMEOUT_S", 1000)
    async with await connected(replicas[0].address) as client:
        replicas[0].gate.clear()
        sent = asyncio.ensure_future(client.streams.create("orders"))
        await replicas[0].until(lambda: len(replicas[0].received) > 0)
        lead(replicas, 1)
        await sent
        replicas[0].gate.set()
    assert replicas[1].received[0].number == 1  # the same request


async def test_without_learning_only_given_addresses_are_tried(
    replicas: list[FakeGateway],
) -> None:
    """The option keeps a client behind a proxy from trying what it cannot reach."""
    async with await connected(replicas[0].address, learn_addresses=False) as client:
        replicas[0].break_streams()
        await client.streams.create("orders")
    assert [each.streams_opened for each in replicas] == [2, 0, 0]


async def test_addresses_that_nobody_can_reach_do_not_stop_a_client(
    gateway: FakeGateway, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each disturbance one of them is tried, for a limited time, and each only once."""
    monkeypatch.setattr(lookout, "LEARNED_TIMEOUT_S", 0.05)
    gateway.addresses = [CLOSED, UNKNOWN, silent, NO_ADDRESS]
    # A connection that says nothing ends by itself, but later than this.
    async with await connected(gateway.address, timeout_s=SOON_S) as client:
        for number in range(len(gateway.addresses) + 2):
            gateway.break_streams()
            await client.streams.create(f"s{number}")
        assert len(gateway.domain.streams) == number + 1
        assert gateway.streams_opened == number + 2


@pytest.mark.parametrize("token", ["access-0", "of the stranger"])
async def test_another_cluster_at_a_learned_address_is_left(
    gateway: FakeGateway, token: str
) -> None:
    """Whether or not a stranger takes the token: session and calls of the right cluster go on."""
    async with FakeGateway() as stranger:
        stranger.told_cluster_id, stranger.valid_token = ANOTHER, token
        gateway.addresses = [stranger.address]
        async with await connected(gateway.address) as client:
            session_id, cluster_id = client.session_id, client.cluster_id
            gateway.break_streams()
            await stranger.until(lambda: stranger.streams_opened > 0)
            await client.streams.create("orders")
            assert (client.session_id, client.cluster_id) == (session_id, cluster_id)
        assert not stranger.sessions


async def test_no_session_is_registered_with_another_cluster(gateway: FakeGateway) -> None:
    """A client that has none yet looks first which cluster it is."""
    async with FakeGateway() as stranger:
        stranger.told_cluster_id = ANOTHER
        gateway.addresses = [stranger.address]
        async with await connected(gateway.address, register_session=False) as client:
            gateway.drop_registrations = 1  # so it looks for another replica
            await client.streams.create("orders")
            assert client.session_id in gateway.sessions
        assert (stranger.streams_opened, len(stranger.sessions)) == (1, 0)


async def test_the_primary_that_a_stranger_names_is_not_believed(gateway: FakeGateway) -> None:
    """A backup of another cluster names its primary: that one is looked at in the same way."""
    async with FakeGateway() as backup, FakeGateway() as primary:
        primary.told_cluster_id = ANOTHER
        backup.refuse_streams = not_primary(primary.address)
        gateway.addresses = [backup.address]
        async with await connected(gateway.address) as client:
            session_id = client.session_id
            gateway.break_streams()
            await primary.until(lambda: primary.streams_opened > 0)
            await client.streams.create("orders")
            assert client.session_id == session_id
        assert not primary.sessions


async def test_an_expired_token_is_renewed_at_a_learned_replica(
    replicas: list[FakeGateway],
) -> None:
    """A client whose given address is gone logs in where the cluster told it to go."""
    async with await connected(replicas[0].address) as client:
        lead(replicas, 1)
        for each in replicas:
            each.valid_token = "access-1"
        await leave(replicas[0])
        await client.streams.create("orders")
    assert [each.logins for each in replicas] == [1, 0, 1]


async def test_a_watch_goes_on_at_a_learned_address() -> None:
    """The replica that was given is gone, and the next revision comes from another one."""
    async with FakeFeed() as given, FakeFeed() as other:
        given.addresses = [given.address, other.address]
        given.commit(stream_change(1, 1))
        other.commit(stream_change(1, 1), stream_change(2, 2))
        async with (
            await connected(given.address, register_session=False) as client,
            client.watch(from_revision=1) as watch,
        ):
            assert (await anext(watch)).revision == 1
            await leave(given)
            assert (await anext(watch)).revision == 2


async def test_a_watch_goes_where_a_removed_replica_sends_it() -> None:
    """A replica that was removed names who leads, which the client has never heard of."""
    async with FakeFeed() as given, FakeFeed() as other:
        given.commit(stream_change(1, 1))
        other.commit(stream_change(1, 1), stream_change(2, 2))
        async with (
            await connected(given.address, register_session=False) as client,
            client.watch(from_revision=1) as watch,
        ):
            assert (await anext(watch)).revision == 1
            given.refuse_watches = lambda _: not_primary(other.address)
            given.end_watches()
            async with asyncio.timeout(SOON_S):
                assert (await anext(watch)).revision == 2


async def test_a_call_alone_goes_on_to_the_primary(replicas: list[FakeGateway]) -> None:
    """With TLS no backup passes a call on: the client follows the name, and does not follow for
    ever."""
    backup, leading = replicas[0], replicas[1]
    backup.refuse_alone = not_primary(leading.address)
    async with await connected(backup.address) as client:
        await client.step_down()
        leading.refuse_alone = not_primary(backup.address)
        with pytest.raises(Refusal, match="send commands there"):
            await client.step_down()


async def test_a_watch_passes_over_strangers_and_silence(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cluster at a learned address does not end a watch, nor does one that says nothing."""
    monkeypatch.setattr(watching, "LEARNED_TIMEOUT_S", 0.05)
    async with FakeFeed() as given, FakeFeed() as stranger:
        stranger.cluster_id = stranger.told_cluster_id = ANOTHER
        stranger.commit(stream_change(1, 9))
        given.addresses = [stranger.address, silent]
        given.commit(stream_change(1, 1))
        async with (
            await connected(given.address, register_session=False) as client,
            client.watch(from_revision=1) as watch,
        ):
            assert (await anext(watch)).revision == 1
            for revision in (2, 3, 4):
                given.end_watches()
                given.commit(stream_change(revision, revision))
                async with asyncio.timeout(SOON_S):
                    assert (await anext(watch)).revision == revision
        assert len(stranger.asked) == 1


def others(endpoints: Endpoints) -> list[str]:
    """Return which addresses are known beside the present one."""
    return [each.address for each in endpoints.others]


def test_a_removed_replica_leaves_the_list() -> None:
    """The list is that of the last opening; what the user gave stays, whatever is told."""
    endpoints = Endpoints(["a:1", "b:1"])
    endpoints.learn(["b:1", "c:1", "d:1"])
    assert others(endpoints) == ["b:1", "c:1", "d:1"]
    endpoints.learn(["d:1"])
    assert others(endpoints) == ["b:1", "d:1"]
    endpoints.learn([])  # an older build tells nothing, and means nothing by it
    assert others(endpoints) == ["b:1", "d:1"]


def test_a_client_moves_on_from_an_address_that_left_the_list() -> None:
    """Its next turn is at the beginning, and the address has no turn again."""
    endpoints = Endpoints(["a:1"])
    endpoints.learn(["b:1", "c:1"])
    endpoints.advance()
    assert endpoints.current.address == "b:1"
    endpoints.learn(["c:1"])
    visited = set()
    for _ in range(4):
        endpoints.advance()
        visited.add(endpoints.current.address)
    assert visited == {"a:1", "c:1"}


def test_the_number_of_learned_addresses_is_bounded() -> None:
    """However many are told, and however long, a client keeps those that a cluster may have."""
    known = KnownAddresses(["given:1"])
    known.learn(["", "x" * (ADDRESS_CHARACTERS_MAX + 1), *(f"h{each}:1" for each in range(1_000))])
    assert known.learned == [f"h{each}:1" for each in range(LEARNED_ADDRESSES_MAX)]


def failures(endpoints: Endpoints, count: int) -> list[str]:
    """Return where a client tries its luck, if nothing can be reached."""
    visited = []
    for _ in range(count):
        endpoints.failed()
        visited.append(endpoints.current.address)
    return visited


def test_given_addresses_have_their_turn_behind_each_learned_one() -> None:
    """One that cannot be reached costs one attempt, and comes again only if all others failed."""
    endpoints = Endpoints(["a:1", "b:1"])
    endpoints.learn(["c:1", "d:1"])
    assert failures(endpoints, 3) == ["b:1", "c:1", "a:1"]
    endpoints.reached()  # a leads again: c is passed over from now on
    assert failures(endpoints, 3) == ["b:1", "d:1", "a:1"]
    endpoints.reached()
    assert failures(endpoints, 2) == ["b:1", "a:1"]
    assert failures(endpoints, 3) == ["b:1", "c:1", "a:1"]


def test_what_a_watch_learns_its_client_knows() -> None:
    """Both share the addresses, and a watch begins at one that the user gave."""
    endpoints = Endpoints(["a:1"])
    spread = endpoints.spread()
    endpoints.learn(["b:1"])
    assert (spread.current.address, others(spread)) == ("a:1", ["b:1"])
