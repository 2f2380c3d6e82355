"""All peers of one replica, for the shell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import grpc.aio

from coordinator.base.clock import monotonic_ms
from coordinator.base.errors import ConfigError
from coordinator.base.roster import Roster
from coordinator.peers.agreement import agreed_limits, configuration_digest
from coordinator.peers.codec import Encoder
from coordinator.peers.fetch import SnapshotFetcher
from coordinator.peers.files import SnapshotFilesServer
from coordinator.peers.hello import WIRE_VERSION, DiskMark, Hello
from coordinator.peers.introduction import Introducer, Introduction
from coordinator.peers.known_disks import KnownDisks
from coordinator.peers.link import PeerLink
from coordinator.peers.listener import SERVER_OPTIONS, Heard, Listener
from coordinator.peers.messages import PeerMessage
from coordinator.peers.routing import Handler, Receiver, handlers_of
from coordinator.peers.send_shares import SendShares
from coordinator.peers.settings import PeerSettings
from coordinator.peers.status import PeerStatus
from coordinator.peers.tls import load_credentials
from coordinator.snapshot.ports import SnapshotProvider
from viewstamp import grpc_transport
from viewstamp.certificates.pem_files import Certificates
from viewstamp.format.epoch_members import STANDBYS_MAX, VOTERS_MAX
from viewstamp.limits import FEATURE_LEVEL_MAX, PEER_ADDRESS_BYTES_MAX
from viewstamp.wildcard_addresses import is_wildcard

STOP_GRACE_MS: Final = 100
# Replicas of later epochs that one which is behind hears: as many as an epoch can have.
GUESTS_MAX: Final = VOTERS_MAX + STANDBYS_MAX


# The line of the digest for the size of a ring; replicas with segments have no such line.
RING_LIMIT: Final = "JOURNAL_RING_BYTES"


@dataclass(frozen=True, slots=True)
class PeersConfig:
    """Who this replica is, and how it reaches the others. `boot_nonce` is new at each start.

    The cluster was founded by `replica_count` replicas with a vote; `settings` name the standbys.
    `roster` follows the members since, and without it they are still the same. Every replica must
    know the cluster's id before it can speak to another.
    """

    cluster_id: bytes
    replica_id: int
    replica_count: int
    boot_nonce: bytes
    settings: PeerSettings
    roster: Roster | None = None

    @property
    def members(self) -> Roster:
        """The members, as `roster` or the founding counts say."""
        counts = (self.replica_count, self.settings.standby_count)
        return self.roster or Roster.founding(self.replica_id, *counts)

    @property
    def others(self) -> tuple[int, ...]:
        """The ids of all other replicas, standbys included, in order."""
        return self.members.others


@dataclass(frozen=True, slots=True)
class PeerEvents:
    """What the shell is told, on the event loop.

    `receivers` take verified messages, as `routing` says; their exceptions go to `failed`. `state`:
    a peer's link changed, or its stream to us ended. `failed`: a defect; the process must end.
    """

    receivers: Mapping[Receiver, Handler]
    state: Callable[[PeerStatus], None]
    failed: Callable[[BaseException], None]


class Peers:
    """Sends to and receives from the other replicas, between `start` and `stop`."""

    def __init__(
        self,
        config: PeersConfig,
        events: PeerEvents,
        snapshots: SnapshotProvider | None = None,
        *,
        adopted: Callable[[], int] = lambda: 0,
        agreed: Mapping[str, int] | None = None,
        level_in_force: Callable[[], int] = lambda: 0,
        disk: Callable[[], DiskMark] = DiskMark,
        clock_ms: Callable[[], int] = monotonic_ms,
        known_disks: KnownDisks | None = None,
        introduction: Callable[[], Introduction | None] = lambda: None,
    ) -> None:
        """Read the certificates. `snapshots` are served to peers that need them; `adopted` is the
        generation that this replica would restart from.

        A build that does not know `level_in_force` is refused. `disk` tells how far the data
        directory of this replica has come, `known_disks` how far those of the others had.
        `introduction` is what newcomers are told. `agreed` are the limits to compare, by default
        those of `agreement`. Raises ConfigError.
        """
        self._config = config
        self._events = events
        self.handlers = handlers_of(events.receivers)
        self._clock_ms = clock_ms
        self._encoder = Encoder(config.cluster_id, config.replica_id)
        self.certificates = credentials_of(config)
        self._disk = disk
        self.known_disks = known_disks or KnownDisks()
        self._own = hello_of(config, agreed_limits() if agreed is None else agreed)
        self.roster = config.members
        self.addresses = dict(config.settings.addresses)
        """Where the others listen, by replica."""
        # Whom flags merely guess, the log and the replicas themselves correct.
        self._said_by_themselves = set(self.addresses) - set(config.settings.said_addresses)
        self.links: dict[int, PeerLink] = {}
        self.listener = Listener(
            self._own,
            self,
            clock_ms,
            level_in_force=level_in_force,
            disk=disk,
            known_disks=self.known_disks,
            roster=self.roster,
            introduce=Introducer(self.roster, introduction).introduce,
        )
        self._snapshots = snapshots
        self._send_shares = SendShares(config.settings.send_bytes_per_s)
        self._adopted = adopted
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._server: grpc.aio.Server | None = None
        self._is_stopping = False
        self._begun_ms: int | None = None
        self.fetcher = SnapshotFetcher(self._hello_now, self.addresses, self.certificates)
        """Reads snapshot files from peers."""
        self._follow_roster()
        self.roster.follow(self._follow_roster)

    # --- For the shell ---

    async def start(self) -> None:
        """Listen, and begin to connect. Raises ConfigError if the address cannot be bound."""
        server = grpc_transport.make_server(SERVER_OPTIONS)
        handlers = [self.listener.handlers()]
        if self._snapshots is not None:
            files = SnapshotFilesServer(
                self._snapshots, self.listener.refusal_of, self._adopted, self._send_shares
            )
            handlers.append(files.handlers())
        server.add_generic_rpc_handlers(handlers)
        bind(server, self._config.settings.listen, self.certificates)
        await server.start()
        self._server, self._begun_ms = server, self._clock_ms()
        for replica in self.links:
            self._run_link(replica)

    def _follow_roster(self) -> None:
        """Link to new members, and let those go that are no members any more.

        Who was removed by the last change keeps its link, so that it can be told.
        """
        known = (*self.roster.others, *self.roster.former)
        for replica in self.links.keys() - set(known):
            del self.links[replica]
            task = self._tasks.pop(replica, None)
            if task is not None:
                task.cancel()
            self._said_by_themselves.discard(replica)
            if replica not in self._config.settings.said_addresses:
                self.addresses.pop(replica, None)
        for replica in sorted(set(known) - self.links.keys()):
            self._add_link(replica)

    def has_place(self, hello: Hello) -> bool:
        """Link to a guest as well: a replica of a later epoch, which this one knows nothing of.

        It may be the only one that can tell how the present epoch ended here. A member whose
        address nobody has told says it by itself.
        """
        replica = hello.replica_id
        members = (*self.roster.others, *self.roster.former)
        if replica in self.links:
            self._learn_from(hello)
            return True
        guests = [each for each in self.links if each not in members]
        if hello.epoch <= self.roster.epoch or len(guests) >= GUESTS_MAX:
            return False
        self._learn_from(hello)
        self._add_link(replica)
        return True

    def _learn_from(self, hello: Hello) -> None:
        """Take where a peer says that it listens, if neither flags nor the log say it."""
        replica, address = hello.replica_id, hello.peer_address
        is_known = replica in self.addresses and replica not in self._said_by_themselves
        if is_known or is_wildcard(address) or len(address) > PEER_ADDRESS_BYTES_MAX:
            return
        self._said_by_themselves.add(replica)
        self.learn_addresses({replica: address})

    def _add_link(self, replica: int) -> None:
        self.links[replica] = self._link(replica)
        if self._server is not None and not self._is_stopping:
            self._run_link(replica)

    def learn_addresses(self, addresses: Mapping[int, str]) -> None:
        """Take where replicas listen, unless flags say otherwise; known links use it from their
        next attempt on."""
        flags = self._config.settings.said_addresses
        for replica, address in addresses.items():
            if replica not in flags and replica != self.roster.replica_id and address:
                self.addresses[replica] = address
        for replica, link in self.links.items():
            link.address = self.addresses.get(replica, "")

    def _run_link(self, replica: int) -> None:
        task = asyncio.get_running_loop().create_task(self.links[replica].run())
        task.add_done_callback(self._link_ended)
        self._tasks[replica] = task

    async def stop(self) -> None:
        """Close every stream. Nothing is received or sent any more."""
        self._is_stopping = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(STOP_GRACE_MS / 1000)

    @property
    def with_address(self) -> tuple[int, ...]:
        """The ids of the other replicas whose addresses are known, and of guests, in order."""
        others = {*self.roster.others, *self.links} - {*self.roster.former}
        return tuple(sorted(others & self.addresses.keys()))

    def send(self, to_replica: int, message: PeerMessage) -> None:
        """Send, soon and at most once: it may be lost, and may overtake entries of the log.

        Messages to who is no member any more are lost. Raises ValueError for one of another sender.
        """
        link = self.links.get(to_replica)
        if link is not None:
            link.send(self._encoder.encode(message))

    def status(self) -> tuple[PeerStatus, ...]:
        """Return what is known of every peer, by replica."""
        return tuple(self._status(replica) for replica in self.roster.others)

    def silences_ms(self) -> Mapping[int, int]:
        """How long each peer was not heard, or since we listen; any thread may ask."""
        begun_ms = self._begun_ms
        others = self.roster.others
        if begun_ms is None:
            return dict.fromkeys(others, 0)
        known = dict(self.listener.heard)
        heard = {replica: known[replica].last_ms for replica in others if replica in known}
        now_ms = self._clock_ms()
        return {
            replica: now_ms - (begun_ms if last_ms is None else last_ms)
            for replica, last_ms in heard.items()
        }

    def sent_snapshot_bytes(self) -> Mapping[int, int]:
        """How many bytes of layers each replica was sent; any thread may ask."""
        return self._send_shares.sent_bytes

    def refused_hellos(self) -> Mapping[str, int]:
        """How many hellos were refused here, by reason."""
        return dict(self.listener.refused)

    # --- For the listener ---

    def welcomed(self, replica: int, boot_nonce: bytes) -> None:
        """Try a peer that said hello again at once: it is reachable."""
        if replica in self.links:
            self.links[replica].heard_hello(boot_nonce)

    def fell_silent(self, replica: int) -> None:
        """Report to the shell that a peer's stream to us has ended, except during `stop`."""
        if self._is_stopping:
            return
        try:
            self._events.state(self._status(replica))
        except Exception as error:
            # gRPC would log it and continue; a defect of the core must end the process.
            self._events.failed(error)
            raise

    def failed(self, error: BaseException) -> None:
        """Pass on a defect after which continuing would be wrong."""
        self._events.failed(error)

    # --- Parts ---

    def _hello_now(self) -> Hello:
        return self._own.on(self._own.disk, self.roster.epoch)

    def _link(self, replica: int) -> PeerLink:
        def changed() -> None:
            if replica in self.links:
                self._events.state(self._status(replica))

        return PeerLink(
            self._own.to(replica),
            self.addresses.get(replica, ""),
            self.certificates,
            changed,
            self._disk,
            self.known_disks,
            lambda: self.roster.epoch,
        )

    def _link_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.failed(error)

    def _status(self, replica: int) -> PeerStatus:
        link, heard = self.links[replica], self.listener.heard.get(replica, Heard())
        age_ms = None if heard.last_ms is None else self._clock_ms() - heard.last_ms
        return PeerStatus(
            replica=replica,
            address=link.address,
            state=link.standing.state,
            refusal=link.standing.refusal,
            why=link.standing.why,
            is_heard=heard.stream is not None,
            refused_hello=heard.refused_hello,
            last_heard_ms=age_ms,
            queued_messages=len(link.outbox),
            queued_bytes=link.outbox.bytes,
            sent=link.sent,
            sent_packets=link.sent_packets,
            dropped=link.outbox.dropped + link.too_large,
            received=heard.received,
            undecodable=dict(heard.undecodable),
        )


def fetcher_of(config: PeersConfig, certificates: Certificates | None) -> SnapshotFetcher:
    """Return a reader of peers' snapshot files, for a replica that does not run yet."""
    own = hello_of(config, agreed_limits())
    return SnapshotFetcher(lambda: own, config.settings.addresses, certificates)


def credentials_of(config: PeersConfig) -> Certificates | None:
    """Return the TLS credentials, None without TLS. Raises ConfigError."""
    tls = config.settings.tls
    return None if tls is None else load_credentials(tls)


def hello_of(config: PeersConfig, agreed: Mapping[str, int]) -> Hello:
    """Return the hello of this replica, addressed to itself."""
    address = config.settings.own_address or config.settings.listen
    return Hello(
        cluster_id=config.cluster_id,
        wire_version=WIRE_VERSION,
        replica_id=config.replica_id,
        replica_count=config.replica_count,
        configuration_digest=configuration_digest(_with_ring(agreed, config.settings)),
        boot_nonce=config.boot_nonce,
        to_replica=config.replica_id,
        standby_count=config.settings.standby_count,
        feature_level_max=FEATURE_LEVEL_MAX,
        epoch=config.members.epoch,
        peer_address="" if is_wildcard(address) else address,
    )


def _with_ring(agreed: Mapping[str, int], settings: PeerSettings) -> Mapping[str, int]:
    """Return the limits with the size of the ring, where the journal is one.

    Replicas with rings need snapshots earlier than those with segments begin them, so all replicas
    of a cluster have rings of one size, or none has one.
    """
    ring_bytes = settings.journal_ring_bytes
    return {**agreed, RING_LIMIT: ring_bytes} if ring_bytes else agreed


def bind(server: grpc.aio.Server, address: str, certificates: Certificates | None) -> None:
    """Have a server listen for peers. Raises ConfigError."""
    try:
        if certificates is None:
            server.add_insecure_port(address)
        else:
            grpc_transport.add_tls_port(server, address, lambda: certificates.texts)
    except RuntimeError as error:
        raise ConfigError(f"--peer-listen {address}: cannot be bound ({error})") from error
