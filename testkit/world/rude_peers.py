"""Programs at the ports for replicas that are no replicas, and packets that no build sends.

Each hello has a reason with which it has to be refused, each packet a rule by which it has to be
dropped. Nothing of them may reach the core, and no replica may end by them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, Final

import grpc.aio

from coordinator.peers.agreement import agreed_limits
from coordinator.peers.files import SERVICE as FILES_SERVICE
from coordinator.peers.hello import HelloRefusal, decode_verdict, encode_hello
from coordinator.peers.link import EXCHANGE_PATH
from coordinator.peers.peers import PeersConfig, hello_of
from coordinator.peers.tls import certificate_name
from testkit.world.encryption import OUR_AUTHORITY, PemPair, authority_pem, issue, rsa_key
from testkit.world.process import telling
from testkit.world.replica import CLUSTER_ID
from testkit.world.rude_hellos import (
    FIRST_PACKETS,
    HELLOS,
    READS,
    RUDE_PACKETS,
    changed_hello,
    welcome_hello,
)
from viewstamp import grpc_transport
from viewstamp.api.replication.v1 import replication_service_pb2 as pb
from viewstamp.grpc_transport import TlsTexts
from viewstamp.limits import BOOT_NONCE_BYTES

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess
    from testkit.world.replica import WorldReplica
    from testkit.world.world import World

_PAUSE_MS: Final = (5, 50, 300)
_PATIENCE_S: Final = 4.0
# What faults do to calls.
_LIVED_WITH: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})
_MS_PER_S: Final = 1_000
REFUSED_HELLO: Final = "rude peer refused: {}"
DROPPED_PACKET: Final = "rude packet dropped: {}"


@cache
def _proof(names: tuple[str, ...]) -> PemPair:
    return issue(names, rsa_key("second"))


class RudePeer:
    """One program, which calls one replica after another until told to end."""

    def __init__(
        self,
        world: World,
        replicas: list[WorldReplica],
        failed: Callable[[str], None],
        counts: Counter[str],
    ) -> None:
        self.is_ending = False
        self._world = world
        self._replicas = replicas
        self._failed = failed
        self._counts = counts
        self._random = Random(f"rude peer {world.seed}")

    async def run(self) -> None:
        """Call, and wait a little, again and again."""
        acts = (
            *(self._say_hello, self._say_hello, self._say_nothing_right),
            *(self._pretend_to_be_it, self._read_a_file),
        )
        while not self.is_ending:
            replica = self._random.choice(self._replicas)
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await self._random.choice(acts)(replica)
            except (TimeoutError, EOFError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass  # of the faults of the run
            self._send_a_packet(self._random.choice(self._replicas))
            await asyncio.sleep(self._random.randint(0, self._random.choice(_PAUSE_MS)) / _MS_PER_S)

    # --- Hellos ---

    async def _say_hello(self, replica: WorldReplica) -> None:
        """Say one that is wrong, or one that the certificate does not prove."""
        rude = self._random.choice(HELLOS)
        hello, due = changed_hello(self._welcome(replica), rude.changed), rude.due
        names = self._names()
        if self._world.authority is not None and self._random.getrandbits(1):
            hello, due = self._welcome(replica), HelloRefusal.WRONG_CERTIFICATE
            names = self._random.choice(((), ("replica-9.viewstamp",)))
        packet = pb.ExchangeRequest(hello=hello).SerializeToString()
        await self._demand(replica, packet, due, names)

    async def _say_nothing_right(self, replica: WorldReplica) -> None:
        _, packet = self._random.choice(FIRST_PACKETS)
        await self._demand(replica, packet, HelloRefusal.OTHER_WIRE_VERSION, self._names())

    async def _pretend_to_be_it(self, replica: WorldReplica) -> None:
        hello = changed_hello(self._welcome(replica), {"replica_id": replica.number})
        packet = pb.ExchangeRequest(hello=hello).SerializeToString()
        await self._demand(replica, packet, HelloRefusal.OWN_REPLICA, self._names())

    async def _demand(
        self, replica: WorldReplica, packet: bytes, due: HelloRefusal, names: tuple[str, ...]
    ) -> None:
        """Open a stream with a packet, and demand the refusal that is due."""
        async with self._channel(replica, names) as channel:
            call: Any = channel.stream_stream(EXCHANGE_PATH)()
            await call.write(packet)
            answer = await call.read()
            if answer is grpc.aio.EOF:
                raise EOFError("the replica ended the stream")
            refusal = decode_verdict(pb.ExchangeResponse.FromString(answer))
        told = "a welcome" if refusal is None else refusal.reason.value
        self._counts[REFUSED_HELLO.format(told)] += 1
        if refusal is None or refusal.reason is not due:
            self._failed(f"a rude peer got {told}, and {due.value} is due")

    # --- Files and packets ---

    async def _read_a_file(self, replica: WorldReplica) -> None:
        """Ask for a file that nobody has, or with what is no request."""
        read = self._random.choice(READS)
        try:
            async with self._channel(replica, self._names()) as channel:
                path = f"/{FILES_SERVICE}/{read.method}"
                reading: Any = channel.unary_stream(path)
                call = reading(read.make(self._welcome(replica)))
                await call.read()
                told = (await call.code()).name
        except grpc.aio.AioRpcError as error:
            told = error.code().name
        self._counts[REFUSED_HELLO.format(f"file {told}")] += 1
        if told not in (read.due, *_LIVED_WITH):
            self._failed(f"a rude peer got {told} for a file {read.what}, and {read.due} is due")

    def _send_a_packet(self, replica: WorldReplica) -> None:
        """Let a packet arrive on the stream of another replica, as if that had a defect."""
        if replica.coordinator is None or replica.coordinator.members is None:
            return
        listener = replica.coordinator.members.peers.listener
        sender = self._random.choice(list(listener.heard))
        packet, rule = self._random.choice(RUDE_PACKETS)
        heard = listener.heard[sender]
        before = heard.undecodable[rule.value]
        listener.take(sender, heard, packet)
        self._counts[DROPPED_PACKET.format(rule.value)] += 1
        if heard.undecodable[rule.value] == before:
            self._failed(f"a packet was not dropped as {rule.value}")

    # --- Who it says that it is ---

    def _names(self) -> tuple[str, ...]:
        """Return the names in a certificate that every replica accepts of some replica."""
        return tuple(certificate_name(each.number) for each in self._replicas)

    def _channel(self, replica: WorldReplica, names: tuple[str, ...]) -> grpc.aio.Channel:
        if self._world.authority is None:
            return grpc_transport.open_channel(replica.peer_address, ())
        pair = _proof(names)
        texts = TlsTexts(authority_pem(OUR_AUTHORITY), pair.chain, pair.key)
        named = ("grpc.ssl_target_name_override", certificate_name(replica.number))
        return grpc_transport.open_channel(replica.peer_address, (named,), texts)

    def _welcome(self, replica: WorldReplica) -> pb.ReplicaHello:
        config = replica.config
        assert config.peers is not None, "it has peers"
        nonce = bytes(BOOT_NONCE_BYTES)
        peers = PeersConfig(CLUSTER_ID, replica.number, config.replica_count, nonce, config.peers)
        others = [each.number for each in self._replicas if each is not replica]
        own = encode_hello(hello_of(peers, agreed_limits()))
        return welcome_hello(own, replica.number, self._random.choice(others))


class RudePeers:
    """The process of such a program, if the run has one."""

    def __init__(self, world: World, failed: Callable[[str], None], counts: Counter[str]) -> None:
        self._world = world
        self._failed = failed
        self._counts = counts
        self._programs: dict[WorldProcess, RudePeer] = {}

    def begin(self, replicas: list[WorldReplica], count: int) -> None:
        """Start so many, if there are ports for replicas."""
        if len(replicas) == 1:
            return
        for number in range(count):
            name = f"rude{number}"
            process = self._world.process(name, self._world.machine(f"10.1.2.{number + 1}"))
            program = RudePeer(self._world, replicas, self._failed, self._counts)
            self._programs[process] = program
            process.ended = telling(self._failed, name)
            process.run(program.run)

    def end(self) -> None:
        """Let each end after its call."""
        for program in self._programs.values():
            program.is_ending = True

    @property
    def are_over(self) -> bool:
        """Whether each has ended."""
        return not any(process.is_alive for process in self._programs)
