"""Replicas that talk over real gRPC: they connect, refuse, break and come back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc.aio
import pytest

from coordinator.base.errors import ConfigError
from coordinator.peers import link as link_module
from coordinator.peers import listener as listener_module
from coordinator.peers import peers as peers_module
from coordinator.peers.codec import Encoder
from coordinator.peers.hello import WIRE_VERSION, Hello, HelloRefusal, encode_hello
from coordinator.peers.link import (
    EXCHANGE_PATH,
    RETRY_DELAY_MAX_MS,
    RETRY_DELAY_MIN_MS,
    LinkStatus,
    PeerLink,
    retry_delay_ms,
)
from coordinator.peers.listener import DUPLICATE_SILENCE_MS
from coordinator.peers.messages import PeerMessage
from coordinator.peers.outbox import PACKET_MESSAGES_MAX
from coordinator.peers.peers import PeerEvents, Peers, PeersConfig
from coordinator.peers.routing import Receiver
from coordinator.peers.status import LinkState
from coordinator.vsr.messages import PrepareMessage
from tests.coordinator.peers.peer_trial import (
    CLUSTER,
    COUNT,
    OTHER_CLUSTER,
    WAIT_S,
    PeerTrial,
    cluster,
    config,
    free_addresses,
    heartbeat,
    restarted,
    sealed,
    serving,
    until,
)
from viewstamp.api.replication.v1 import replication_service_pb2 as pb
from viewstamp.limits import PREPARE_BODY_BYTES_MAX

AGREED = {"LIMIT": 1}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load a hello may take any time: no test here is about its timeout."""
    for module in (link_module, listener_module):
        monkeypatch.setattr(module, "HELLO_TIMEOUT_MS", 3_600_000)


async def test_everybody_hears_everybody() -> None:
    """Each of three replicas gets every other's messages, in order, entries included."""
    async with cluster() as trials:
        for sender, trial in enumerate(trials):
            for receiver in range(COUNT):
                if receiver != sender:
                    prepare = PrepareMessage(CLUSTER, sender, 3, sealed(body=b"x" * 100_000))
                    trial.peers.send(receiver, heartbeat(sender, receiver))
                    trial.peers.send(receiver, prepare)
        for receiver, trial in enumerate(trials):
            await trial.until(lambda trial=trial: len(trial.messages) == 4)  # type: ignore[misc]
            for sender in range(COUNT):
                if sender != receiver:
                    first, second = (m for m in trial.messages if m.from_replica == sender)
                    assert first == heartbeat(sender, receiver)
                    assert isinstance(second, PrepareMessage)
                    assert trial.status(sender).received == 2
                    assert trial.status(sender).is_heard


async def test_what_is_sent_together_goes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of messages of one step are a few packets, and arrive in order."""
    monkeypatch.setattr(link_module, "SIGN_OF_LIFE_MS", 3_600_000)
    async with cluster() as trials:
        before = trials[0].status(1).sent_packets
        for commit in range(400):
            trials[0].peers.send(1, heartbeat(0, commit))
        await trials[1].until(lambda: len(trials[1].messages) == 400)
        assert [message.commit for message in trials[1].messages] == list(range(400))  # type: ignore[union-attr]
        assert trials[0].status(1).sent == 400
        assert trials[0].status(1).sent_packets - before == 400 // PACKET_MESSAGES_MAX + 1


async def test_the_largest_entries_pass() -> None:
    """A whole pipeline of largest bodies goes to a backup, heartbeats in between."""
    async with cluster() as trials:
        for op in range(2, 10):
            body = bytes([op]) * PREPARE_BODY_BYTES_MAX
            trials[0].peers.send(1, PrepareMessage(CLUSTER, 0, 3, sealed(op, body)))
            trials[0].peers.send(1, heartbeat(0, op))
        await trials[1].until(lambda: len(trials[1].messages) == 16)
        assert trials[0].status(1).dropped == 0
        entries = [m.prepare.op for m in trials[1].messages if isinstance(m, PrepareMessage)]
        assert entries == list(range(2, 10))


async def test_a_killed_peer_is_found_again() -> None:
    """When a replica dies and comes back as a new process, both directions work again."""
    addresses = free_addresses()
    first, second = config(addresses, 0), config(addresses, 1)
    async with serving(first) as trial:
        async with serving(second) as other:
            await trial.until_connected(1)
            await other.until_connected(0)
        await trial.until(lambda: trial.status(1).state is LinkState.CONNECTING)
        await until(lambda: not trial.status(1).is_heard)
        async with serving(restarted(second)) as back:
            await trial.until_connected(1)
            await back.until_connected(0)
            trial.peers.send(1, heartbeat(0, 1))
            back.peers.send(0, heartbeat(1, 2))
            await back.until(lambda: heartbeat(0, 1) in back.messages)
            await trial.until(lambda: heartbeat(1, 2) in trial.messages)


async def test_a_hello_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that waits long between attempts connects once its peer says hello."""
    monkeypatch.setattr(link_module, "retry_delay_ms", lambda failures: 3_600_000)
    addresses = free_addresses()
    async with serving(config(addresses, 0)) as trial:
        await until(lambda: "not tried" not in trial.status(1).why)
        async with serving(config(addresses, 1)):
            await trial.until_connected(1)


async def test_an_absent_peer_is_told_the_newest() -> None:
    """For an absent peer only the last message of each kind waits, however often connecting
    fails."""
    addresses = free_addresses()
    async with serving(config(addresses, 0)) as trial:
        await until(lambda: "not tried" not in trial.status(1).why)
        link = trial.peers.links[1]
        for commit in range(10):
            trial.peers.send(1, heartbeat(0, commit))
        assert trial.status(1).queued_messages == 1
        assert trial.status(1).dropped == 9
        failures = link.failures
        await until(lambda: link.failures > failures + 1)
        assert trial.states == []
        async with serving(config(addresses, 1)) as peer:
            await peer.until(lambda: len(peer.messages) > 0)
            assert peer.messages == [heartbeat(0, 9)]


async def test_what_waits_is_given_up_with_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that comes back does not get the messages of before."""
    link = PeerLink(hello_of(config(free_addresses(), 0), 1), "", None, lambda: None)
    is_over = asyncio.Event()

    async def attempt(_: PeerLink) -> LinkStatus:
        await is_over.wait()
        return LinkStatus(LinkState.CONNECTING)

    monkeypatch.setattr(PeerLink, "attempt", attempt)
    link.standing = LinkStatus(LinkState.CONNECTED)
    for commit in range(3):
        link.send(Encoder(CLUSTER, 0).encode(heartbeat(0, commit)))
    running = asyncio.create_task(link.run())
    is_over.set()
    await until(lambda: not link.connected)
    running.cancel()
    assert (len(link.outbox), link.outbox.dropped) == (0, 3)


def test_one_that_refuses_is_asked_at_once_only_if_it_is_new() -> None:
    """A hello of the process that refuses us changes nothing: otherwise two replicas, of which
    one refuses, would keep each other busy for ever."""
    link = PeerLink(hello_of(config(free_addresses(), 0), 1), "", None, lambda: None)
    for refused, nonce, is_asked in (
        (False, b"1", True),
        (False, b"1", True),
        (True, b"1", False),
        (True, b"2", True),
        (True, b"2", False),
    ):
        link.standing = LinkStatus(LinkState.REFUSED if refused else LinkState.CONNECTING)
        link.retry.clear()
        link.heard_hello(nonce)
        assert link.retry.is_set() is is_asked


def test_delays_grow_and_are_bounded() -> None:
    """The wait doubles up to its bound, and half of it is random."""
    for failures in range(1, 40):
        due = min(RETRY_DELAY_MAX_MS, RETRY_DELAY_MIN_MS * 2 ** (failures - 1))
        delays = {retry_delay_ms(failures) for _ in range(50)}
        assert all(due // 2 <= delay <= due for delay in delays)
        assert len(delays) > 1


# --- Refusals ---


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ({"cluster_id": OTHER_CLUSTER}, {}, HelloRefusal.OTHER_CLUSTER),
        ({"replica_count": 4}, {}, HelloRefusal.OTHER_REPLICA_COUNT),
        ({}, {"agreed": {"LIMIT": 2}}, HelloRefusal.OTHER_CONFIGURATION),
    ],
)
async def test_different_replicas_refuse_each_other(
    changes: dict[str, Any], options: dict[str, Any], reason: HelloRefusal
) -> None:
    """Both sides give the reason in their status, and neither gets a message of the other."""
    addresses = free_addresses(4)
    settings = {"agreed": AGREED}
    mine, theirs = config(addresses, 0), replace(config(addresses, 1), **changes)
    async with serving(mine, **settings) as one, serving(theirs, **{**settings, **options}) as two:
        one.peers.send(1, heartbeat(0, 1))
        for trial, other in ((one, 1), (two, 0)):
            status = await trial.until_refused(other)
            assert status.refusal is reason
            assert status.why
            await until(lambda trial=trial: trial.peers.refused_hellos().get(reason.value, 0) > 0)  # type: ignore[misc]
            assert trial.status(other).refused_hello == reason.value
            assert not trial.status(other).is_heard
        assert two.messages == []


async def test_other_wire_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas of different versions of this protocol refuse each other."""
    addresses = free_addresses()
    async with serving(config(addresses, 0)) as one:
        monkeypatch.setattr(peers_module, "WIRE_VERSION", WIRE_VERSION + 1)
        async with serving(config(addresses, 1)) as two:
            for trial, other in ((one, 1), (two, 0)):
                refused = await trial.until_refused(other)
                assert refused.refusal is HelloRefusal.OTHER_WIRE_VERSION


async def test_own_address_under_another_id() -> None:
    """A replica that finds its own address under a peer's number refuses itself."""
    addresses = free_addresses()
    mine = config(addresses, 0)
    wrong = replace(mine.settings, addresses={1: addresses[0], 2: addresses[2]})
    async with serving(replace(mine, settings=wrong)) as trial:
        status = await trial.until_refused(1)
        assert status.refusal is HelloRefusal.OWN_REPLICA


async def test_swapped_addresses() -> None:
    """A replica reached under the address of another one says so."""
    addresses = free_addresses()
    mine = config(addresses, 0)
    swapped = replace(mine.settings, addresses={1: addresses[2], 2: addresses[1]})
    async with serving(config(addresses, 2)), serving(replace(mine, settings=swapped)) as trial:
        status = await trial.until_refused(1)
        assert status.refusal is HelloRefusal.WRONG_ADDRESSEE


async def test_a_second_process_of_one_replica() -> None:
    """A process with the id of one that is connected and alive is refused, and the first stays."""
    addresses = free_addresses()
    elsewhere = {**addresses, 1: free_addresses()[1]}
    async with serving(config(addresses, 0)) as trial, serving(config(addresses, 1)) as first:
        await first.until_connected(0)
        async with serving(config(elsewhere, 1)) as second:
            status = await second.until_refused(0)
            assert status.refusal is HelloRefusal.DUPLICATE_REPLICA
            assert trial.status(1).refused_hello == "duplicate_replica"
            first.peers.send(0, heartbeat(1, 5))
            await trial.until(lambda: heartbeat(1, 5) in trial.messages)


async def test_a_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """However often a peer tries, each side has one line about it."""
    addresses = free_addresses()
    other = replace(config(addresses, 1), cluster_id=OTHER_CLUSTER)
    with caplog.at_level(logging.INFO):
        async with serving(config(addresses, 0)) as one, serving(other):
            await until(lambda: one.peers.refused_hellos().get("other_cluster", 0) >= 3)
            await one.until_refused(1)
    about_replica_1 = [
        (record.message, record.fields.get("refusal", ""))  # type: ignore[attr-defined]
        for record in caplog.records
        if record.name.startswith("coordinator.peers") and record.fields["replica"] == 1  # type: ignore[attr-defined]
    ]
    assert about_replica_1.count(("link to peer changed", "other_cluster")) == 1
    assert about_replica_1.count(("a hello was refused", "")) == 1
    refused = [status for status in one.states if status.state is LinkState.REFUSED]
    assert len(refused) == 1


# --- What may come in on a stream ---


def hello_of(configuration: PeersConfig, to_replica: int) -> Hello:
    """Return the hello of a process with this configuration and the test's limits."""
    return replace(
        peers_module.hello_of(configuration, AGREED),
        to_replica=to_replica,
    )


class RawStream:
    """A stream whose messages the test writes itself."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call: Any = channel.stream_stream(EXCHANGE_PATH)()

    async def greet(self, hello: Hello) -> pb.ExchangeResponse:
        """Say hello; return the verdict."""
        request = pb.ExchangeRequest(hello=encode_hello(hello))
        await self.call.write(request.SerializeToString())
        return pb.ExchangeResponse.FromString(await self.call.read())

    async def ended(self) -> None:
        """Wait for the other side to end the stream."""
        assert await self.call.read() is grpc.aio.EOF


@contextlib.asynccontextmanager
async def raw_streams(trial_config: PeersConfig) -> AsyncIterator[Any]:
    """Return a function that opens streams to a replica."""
    async with grpc.aio.insecure_channel(trial_config.settings.listen) as channel:
        yield lambda: RawStream(channel)


@contextlib.asynccontextmanager
async def replica_0() -> AsyncIterator[tuple[PeerTrial, Any, PeersConfig]]:
    """Serve replica 0 alone; yield it, a way to open streams, and replica 1's configuration."""
    addresses = free_addresses()
    mine = config(addresses, 0)
    async with serving(mine, agreed=AGREED) as trial, raw_streams(mine) as opened:
        yield trial, opened, config(addresses, 1)


async def test_garbage_on_a_stream_is_counted() -> None:
    """Undecodable packets are dropped by name, and the stream goes on."""
    async with replica_0() as (trial, opened, theirs):
        stream = opened()
        assert not (await stream.greet(hello_of(theirs, 0))).detail
        await stream.call.write(b"\xff\xff\xff")
        message = pb.ExchangeRequest()
        message.messages.add().commit.checksum = b"short"
        await stream.call.write(message.SerializeToString())
        message.messages[0].commit.checksum = b"k" * 16
        await stream.call.write(message.SerializeToString())
        await trial.until(lambda: len(trial.messages) == 1)
        assert trial.status(1).undecodable == {"malformed_packet": 1, "wrong_length": 1}


@pytest.mark.parametrize("first", [b"", b"\xff\xff", pb.ExchangeRequest().SerializeToString()])
async def test_a_stream_without_hello_is_refused(first: bytes) -> None:
    """Without a hello no first message is accepted, whatever it is."""
    async with replica_0() as (trial, opened, _):
        stream = opened()
        await stream.call.write(first)
        verdict = pb.ExchangeResponse.FromString(await stream.call.read())
        assert verdict.refusal != pb.HELLO_REFUSAL_UNSPECIFIED
        await stream.ended()
        assert sum(trial.peers.refused_hellos().values()) == 1


async def test_a_newer_stream_replaces_the_older() -> None:
    """Of two streams of one process the newer is read, and the older ended."""
    async with replica_0() as (trial, opened, theirs):
        older, newer = opened(), opened()
        for stream in (older, newer):
            assert not (await stream.greet(hello_of(theirs, 0))).detail
        await older.ended()
        assert trial.status(1).is_heard
        message = pb.ExchangeRequest()
        message.messages.add().commit.checksum = b"k" * 16
        await newer.call.write(message.SerializeToString())
        await trial.until(lambda: len(trial.messages) == 1)


async def test_the_end_of_a_stream_is_told() -> None:
    """The shell learns when a peer's last stream ends, and not when a newer one replaces it."""
    async with replica_0() as (trial, opened, theirs):
        older, newer = opened(), opened()
        for stream in (older, newer):
            assert not (await stream.greet(hello_of(theirs, 0))).detail
        await older.ended()
        assert trial.states == []
        newer.call.cancel()
        await trial.until(lambda: trial.states != [])
        (told,) = trial.states
        assert (told.replica, told.is_heard, told.state) == (1, False, LinkState.CONNECTING)


async def test_a_silent_process_is_replaced() -> None:
    """A new process is accepted for a replica whose stream has been silent for long."""
    now_ms = 0
    addresses = free_addresses()
    mine, theirs = config(addresses, 0), config(addresses, 1)
    async with (
        serving(mine, agreed=AGREED, clock_ms=lambda: now_ms) as trial,
        raw_streams(mine) as opened,
    ):
        # Each is opened when it is used: a stream that long says no hello is refused for that.
        older = opened()
        assert not (await older.greet(hello_of(theirs, 0))).detail
        again = hello_of(restarted(theirs), 0)
        now_ms = DUPLICATE_SILENCE_MS - 1
        verdict = await opened().greet(again)
        assert verdict.refusal == pb.HELLO_REFUSAL_DUPLICATE_REPLICA
        assert trial.status(1).last_heard_ms == now_ms
        await older.call.write(b"")
        await until(lambda: trial.status(1).last_heard_ms == 0)
        now_ms += DUPLICATE_SILENCE_MS - 1
        assert (await opened().greet(again)).refusal == pb.HELLO_REFUSAL_DUPLICATE_REPLICA
        now_ms += 1
        latest = opened()
        assert not (await latest.greet(again)).detail
        await older.ended()
        assert trial.status(1).last_heard_ms == 0


async def test_idle_streams_show_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without messages carries empty packets, which do not count as messages."""
    monkeypatch.setattr(link_module, "SIGN_OF_LIFE_MS", 1)
    async with cluster() as trials:
        await until(lambda: trials[0].status(1).sent_packets > 3)
        assert trials[0].status(1).sent == 0
        assert trials[1].messages == []


# --- Defects ---


async def test_a_defect_of_the_shell_is_not_swallowed() -> None:
    """An exception of the message callback reaches the task that can end the process."""
    addresses = free_addresses()
    failures: asyncio.Queue[BaseException] = asyncio.Queue()

    def broken(message: PeerMessage) -> None:
        raise AssertionError("two histories")

    events = PeerEvents(dict.fromkeys(Receiver, broken), lambda status: None, failures.put_nowait)
    peers = Peers(config(addresses, 0), events)
    await peers.start()
    try:
        async with serving(config(addresses, 1)) as trial:
            await trial.until_connected(0)
            trial.peers.send(0, heartbeat(1, 1))
            error = await asyncio.wait_for(failures.get(), WAIT_S)
    finally:
        await peers.stop()
    assert str(error) == "two histories"


async def test_a_defect_of_a_link_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that ends by itself ends the process."""

    async def broken(link: PeerLink) -> None:
        raise AssertionError("no link")

    monkeypatch.setattr(PeerLink, "run", broken)
    failures: asyncio.Queue[BaseException] = asyncio.Queue()
    events = PeerEvents(dict.fromkeys(Receiver, print), lambda status: None, failures.put_nowait)
    peers = Peers(config(free_addresses(), 0), events)
    await peers.start()
    try:
        assert str(await asyncio.wait_for(failures.get(), WAIT_S)) == "no link"
    finally:
        await peers.stop()


async def test_an_address_that_is_taken() -> None:
    """The operator is told which flag names an address that cannot be bound."""
    addresses = free_addresses()
    async with serving(config(addresses, 0)):
        events = PeerEvents(dict.fromkeys(Receiver, print), lambda s: None, lambda e: None)
        with pytest.raises(ConfigError, match="--peer-listen"):
            await Peers(config(addresses, 0), events).start()


async def test_too_large_a_message_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message too large for any packet does not break the stream for the others."""
    monkeypatch.setattr(link_module, "ENCODED_BYTES_MAX", 200)
    async with cluster() as trials:
        trials[0].peers.send(1, PrepareMessage(CLUSTER, 0, 3, sealed(body=os.urandom(300))))
        trials[0].peers.send(1, heartbeat(0, 1))
        await trials[1].until(lambda: trials[1].messages == [heartbeat(0, 1)])
        assert trials[0].status(1).dropped == 1
