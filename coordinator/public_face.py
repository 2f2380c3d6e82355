"""What clients of one replica talk to, put together: unary calls, Submit, and streams of files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coordinator import vsr
from coordinator.config import Config
from coordinator.gateway.commands import Commands
from coordinator.gateway.forwarding import Forwarding
from coordinator.gateway.leading import Leading
from coordinator.gateway.normalize import Normalizer
from coordinator.gateway.principal import Authenticator
from coordinator.gateway.reader import MuxReader
from coordinator.gateway.reads import Reads
from coordinator.gateway.routes import Routes
from coordinator.gateway.server import GatewayServer, server_credentials
from coordinator.gateway.snapshot_streams import SnapshotStreams
from coordinator.gateway.step_down import StepDown
from coordinator.gateway.submit import SubmitStreams
from coordinator.gateway.timers import SessionTimers
from coordinator.gateway.unary import Elsewhere, UnaryCalls
from coordinator.members import Members
from coordinator.mux import types as mux_types
from coordinator.mux.mux import Mux
from coordinator.replica.driver import Driver
from coordinator.snapshot.provider import StoredSnapshots
from coordinator.stages.client import StageClient
from coordinator.telemetry.gateway import GatewayWatch


@dataclass(frozen=True, slots=True)
class FacePorts:
    """What callers are led to. `members` is None if this replica is alone."""

    cluster_id: bytes
    snapshots: StoredSnapshots
    routes: Routes
    driver: Driver
    mux: Mux
    services: Mapping[mux_types.Stage, StageClient]
    timers: SessionTimers
    authenticator: Authenticator
    watch: GatewayWatch | None
    members: Members | None


class PublicFace:
    """The gateway of one replica."""

    def __init__(self, config: Config, ports: FacePorts) -> None:
        self._ports = ports
        self._listen = config.listen
        self._encryption: tuple[Path | None, Path | None] = (config.tls_certificate, config.tls_key)
        self._forwarding = self._make_forwarding()
        self._normalizer = Normalizer(
            ports.routes, {int(stage): client for stage, client in ports.services.items()}
        )
        self._commands = Commands(
            ports.routes,
            self._normalizer,
            ports.driver,
            ports.mux.sessions,
            ports.mux.admission,
            lambda: ports.mux.replies.replies_bytes,
            ports.timers.used,
            Leading(ports.driver.reads.confirm, ports.driver.check_serving).confirm,
        )
        reader = MuxReader(ports.driver, ports.mux.sessions, ports.services)
        self._reads = Reads(ports.routes, reader)
        self.submit = self._make_submit()
        handlers = {**self._make_streams().handlers(), **self._step_down_handlers()}
        self.server = GatewayServer(self._make_unary(), self.submit, handlers)

    async def start(self) -> str:
        """Listen, alive and not yet ready; return the address. Raises ConfigError."""
        port = self.server.listen(self._listen, server_credentials(*self._encryption))
        await self.server.start()
        return f"{self._listen.rpartition(':')[0]}:{port}"

    async def stop(self, grace_ms: int) -> None:
        """Finish what is under way, at most for `grace_ms`."""
        await self.server.stop(grace_ms)

    async def close(self) -> None:
        """Close the connections to other replicas, once nobody is served."""
        if self._forwarding is not None:
            await self._forwarding.close()

    def _make_forwarding(self) -> Forwarding | None:
        """With TLS the callers' authority is unknown here: then calls are not passed on."""
        members, driver = self._ports.members, self._ports.driver
        if members is None or self._encryption[0] is not None:
            return None
        return Forwarding(lambda: members.address_of(driver.progress.primary))

    def _make_unary(self) -> UnaryCalls:
        ports, forwarding = self._ports, self._forwarding
        return UnaryCalls(
            ports.cluster_id,
            ports.routes,
            ports.authenticator,
            self._commands,
            self._normalizer,
            self._reads,
            ports.driver.check_serving,
            ports.watch,
            None if ports.members is None else Elsewhere(ports.driver.check_reading, forwarding),
        )

    def _make_submit(self) -> SubmitStreams:
        ports = self._ports
        return SubmitStreams(
            ports.cluster_id,
            ports.authenticator,
            self._commands,
            self._reads,
            ports.timers,
            ports.driver.check_serving,
            ports.watch,
        )

    def _make_streams(self) -> SnapshotStreams:
        ports = self._ports
        return SnapshotStreams(
            ports.cluster_id,
            ports.routes,
            ports.authenticator,
            self._commands,
            self._reads,
            ports.snapshots,
            ports.driver.check_serving,
            ports.watch,
        )

    def _step_down_handlers(self) -> Mapping[str, Callable[..., object]]:
        ports = self._ports
        if ports.members is None:
            return {}
        step_down = StepDown(
            ports.cluster_id,
            ports.routes,
            ports.authenticator,
            self._commands,
            self._reads,
            ports.driver.check_serving,
            self._forwarding,
            lambda reason: ports.driver.step(vsr.Abdicate(reason)),
        )
        return step_down.handlers()
