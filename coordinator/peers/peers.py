"""All peers of one replica, for the shell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import grpc.aio

from coordinator.base.clock import monotonic_ms
from coordinator.base.errors import ConfigError
from coordinator.peers.agreement import agreed_limits, configuration_digest
from coordinator.peers.codec import Encoder
from coordinator.peers.fetch import SnapshotFetcher
from coordinator.peers.files import SnapshotFilesServer
from coordinator.peers.hello import WIRE_VERSION, DiskMark, Hello
from coordinator.peers.known_disks import KnownDisks
from coordinator.peers.link import PeerLink
from coordinator.peers.listener import SERVER_OPTIONS, Listener
from coordinator.peers.messages import PeerMessage
from coordinator.peers.routing import Handler, Receiver, handlers_of
from coordinator.peers.settings import PeerSettings
from coordinator.peers.status import PeerStatus
from coordinator.peers.tls import load_credentials
from coordinator.snapshot.ports import SnapshotProvider
from viewstamp import grpc_transport
from viewstamp.certificates.pem_files import Certificates
from viewstamp.limits import FEATURE_LEVEL_MAX

STOP_GRACE_MS: Final = 100


@dataclass(frozen=True, slots=True)
class PeersConfig:
    """Who this replica is, and how it reaches the others. `boot_nonce` is new at each start.

    `replica_count` replicas vote; `settings` name the standbys. Every replica must know the
    cluster's id before it can speak to another.
    """

    cluster_id: bytes
    replica_id: int
    replica_count: int
    boot_nonce: bytes
    settings: PeerSettings

    @property
    def others(self) -> tuple[int, ...]:
        """The ids of all other replicas, standbys included, in order."""
        members = range(self.replica_count + self.settings.standby_count)
        return tuple(replica for replica in members if replica != self.replica_id)


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
    ) -> None:
        """Read the certificates. `snapshots` are served to peers that need them; `adopted` is the
        generation that this replica would restart from.

        A build that does not know `level_in_force` is refused. `disk` tells how far the data
        directory of this replica has come, `known_disks` how far those of the others had.
        `agreed` are the limits to compare, by default those of `agreement`. Raises ConfigError.
        """
        self._config = config
        self._events = events
        self.handlers = handlers_of(events.receivers)
        self._clock_ms = clock_ms
        self._encoder = Encoder(config.cluster_id, config.replica_id)
        self.certificates = credentials_of(config)
        self._disk = disk
        self.known_disks = known_disks or KnownDisks()
        own = hello_of(config, agreed_limits() if agreed is None else agreed)
        self.links = {replica: self._link(own, replica) for replica in config.others}
        self.listener = Listener(
            own,
            self,
            clock_ms,
            level_in_force=level_in_force,
            disk=disk,
            known_disks=self.known_disks,
        )
        self._snapshots = snapshots
        self._adopted = adopted
        self._tasks: list[asyncio.Task[None]] = []
        self._server: grpc.aio.Server | None = None
        self._is_stopping = False
        self._begun_ms: int | None = None
        self.fetcher = SnapshotFetcher(own, config.settings.addresses, self.certificates)
        """Reads snapshot files from peers."""

    # --- For the shell ---

    async def start(self) -> None:
        """Listen, and begin to connect. Raises ConfigError if the address cannot be bound."""
        server = grpc_transport.make_server(SERVER_OPTIONS)
        handlers = [self.listener.handlers()]
        if self._snapshots is not None:
            files = SnapshotFilesServer(self._snapshots, self.listener.refusal_of, self._adopted)
            handlers.append(files.handlers())
        server.add_generic_rpc_handlers(handlers)
        bind(server, self._config.settings.listen, self.certificates)
        await server.start()
        self._server, self._begun_ms = server, self._clock_ms()
        for link in self.links.values():
            task = asyncio.get_running_loop().create_task(link.run())
            task.add_done_callback(self._link_ended)
            self._tasks.append(task)

    async def stop(self) -> None:
        """Close every stream. Nothing is received or sent any more."""
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(STOP_GRACE_MS / 1000)

    def send(self, to_replica: int, message: PeerMessage) -> None:
        """Send, soon and at most once: it may be lost, and may overtake entries of the log.

        Raises ValueError for a message of another sender, KeyError for an unknown replica.
        """
        self.links[to_replica].send(self._encoder.encode(message))

    def status(self) -> tuple[PeerStatus, ...]:
        """Return what is known of every peer, by replica."""
        return tuple(self._status(replica) for replica in self.links)

    def silences_ms(self) -> Mapping[int, int]:
        """How long each peer was not heard, or since we listen; any thread may ask."""
        begun_ms = self._begun_ms
        if begun_ms is None:
            return dict.fromkeys(self.links, 0)
        heard = {replica: self.listener.heard[replica].last_ms for replica in self.links}
        now_ms = self._clock_ms()
        return {
            replica: now_ms - (begun_ms if last_ms is None else last_ms)
            for replica, last_ms in heard.items()
        }

    def refused_hellos(self) -> Mapping[str, int]:
        """How many hellos were refused here, by reason."""
        return dict(self.listener.refused)

    # --- For the listener ---

    def welcomed(self, replica: int, boot_nonce: bytes) -> None:
        """Try a peer that said hello again at once: it is reachable."""
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

    def _link(self, own: Hello, replica: int) -> PeerLink:
        def changed() -> None:
            self._events.state(self._status(replica))

        address = self._config.settings.addresses[replica]
        return PeerLink(
            own.to(replica),
            address,
            self.certificates,
            changed,
            self._disk,
            self.known_disks,
        )

    def _link_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.failed(error)

    def _status(self, replica: int) -> PeerStatus:
        link, heard = self.links[replica], self.listener.heard[replica]
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
    return SnapshotFetcher(own, config.settings.addresses, certificates)


def credentials_of(config: PeersConfig) -> Certificates | None:
    """Return the TLS credentials, None without TLS. Raises ConfigError."""
    tls = config.settings.tls
    return None if tls is None else load_credentials(tls)


def hello_of(config: PeersConfig, agreed: Mapping[str, int]) -> Hello:
    """Return the hello of this replica, addressed to itself."""
    return Hello(
        cluster_id=config.cluster_id,
        wire_version=WIRE_VERSION,
        replica_id=config.replica_id,
        replica_count=config.replica_count,
        configuration_digest=configuration_digest(agreed),
        boot_nonce=config.boot_nonce,
        to_replica=config.replica_id,
        standby_count=config.settings.standby_count,
        feature_level_max=FEATURE_LEVEL_MAX,
    )


def bind(server: grpc.aio.Server, address: str, certificates: Certificates | None) -> None:
    """Have a server listen for peers. Raises ConfigError."""
    try:
        if certificates is None:
            server.add_insecure_port(address)
        else:
            grpc_transport.add_tls_port(server, address, lambda: certificates.texts)
    except RuntimeError as error:
        raise ConfigError(f"--peer-listen {address}: cannot be bound ({error})") from error
