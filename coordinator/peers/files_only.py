"""What a replica offers its peers before it can start: the intact ones of its snapshot files.

If it offered nothing, replicas that all start with damage, each in another file, would wait for
each other. A peer that wants to exchange messages is told why it has to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import grpc.aio

from coordinator.base.clock import monotonic_ms
from coordinator.peers.agreement import agreed_limits
from coordinator.peers.files import SnapshotFilesServer
from coordinator.peers.hello import Hello
from coordinator.peers.listener import SERVER_OPTIONS, Listener
from coordinator.peers.peers import STOP_GRACE_MS, PeersConfig, bind, credentials_of, hello_of
from coordinator.peers.routing import Handler
from coordinator.peers.send_shares import SendShares
from coordinator.snapshot.ports import SnapshotProvider
from viewstamp import grpc_transport


class FilesOnly:
    """Listens where the replica will listen for its peers, between `start` and `stop`."""

    def __init__(
        self,
        config: PeersConfig,
        snapshots: SnapshotProvider,
        adopted: Callable[[], int],
        mends: Callable[[], str],
    ) -> None:
        """Serve `snapshots`; `adopted` is the generation that this replica would restart from.

        `mends` tells people at other replicas what it has to do first. Raises ConfigError.
        """
        self._config = config
        self.certificates = credentials_of(config)
        """What was read last; whoever runs this has renewed files taken."""
        self._mends = mends
        own = hello_of(config, agreed_limits())
        listener = Listener(own, _Nobody(), monotonic_ms, mends=self._why)
        shares = SendShares(config.settings.send_bytes_per_s)
        files = SnapshotFilesServer(snapshots, listener.refusal_of, adopted, shares)
        self._handlers = (listener.handlers(), files.handlers())
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises ConfigError if the address cannot be bound."""
        server = grpc_transport.make_server(SERVER_OPTIONS)
        server.add_generic_rpc_handlers(self._handlers)
        bind(server, self._config.settings.listen, self.certificates)
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Let the address go; a peer that was reading asks again."""
        if self._server is not None:
            await self._server.stop(STOP_GRACE_MS / 1000)

    def _why(self) -> str:
        return f"replica {self._config.replica_id} makes its snapshot whole first: {self._mends()}"


class _Nobody:
    """Receives nothing: no stream is accepted."""

    def welcomed(self, replica: int, boot_nonce: bytes) -> None:
        raise AssertionError("a replica that cannot start has accepted a stream")

    def has_place(self, hello: Hello) -> bool:
        return True  # it is told what is to be mended first

    @property
    def handlers(self) -> Mapping[type, Handler]:
        raise AssertionError("a replica that cannot start has received a message")

    def fell_silent(self, replica: int) -> None:
        raise AssertionError("a replica that cannot start has lost a stream")

    def failed(self, error: BaseException) -> None:
        raise AssertionError("no stream was accepted that could fail") from error
