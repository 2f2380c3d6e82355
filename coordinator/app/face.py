"""The interface for clients of one replica, put together: unary calls, Submit, and file streams."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coordinator import vsr
from coordinator.app.config import Config
from coordinator.app.epochs import Epochs
from coordinator.app.members import Members
from coordinator.app.outside import Outside
from coordinator.app.past import past_turns
from coordinator.base.clock import monotonic_ms
from coordinator.base.errors import ConfigError
from coordinator.console.console import Console, ConsolePorts
from coordinator.gateway.audit import Audit
from coordinator.gateway.blames import Blames
from coordinator.gateway.caller_calls import Callers
from coordinator.gateway.change_feed import ChangeFeed
from coordinator.gateway.commands import CommandAdmission
from coordinator.gateway.forwarding import Forwarding
from coordinator.gateway.last_watches import end_with_membership
from coordinator.gateway.leading import Leading
from coordinator.gateway.member_notices import MemberNotices
from coordinator.gateway.normalize import Normalizer
from coordinator.gateway.past_access import PastAccess
from coordinator.gateway.past_reads import PastReads
from coordinator.gateway.primary_calls import PrimaryCalls
from coordinator.gateway.principal import Authenticator
from coordinator.gateway.quotas import Quotas
from coordinator.gateway.reader import MuxReader
from coordinator.gateway.reads import ReadStarter
from coordinator.gateway.registration import SessionRoom
from coordinator.gateway.replica_calls import ReplicaCalls
from coordinator.gateway.routes import Routes
from coordinator.gateway.server import GatewayServer, gateway_certificates
from coordinator.gateway.shares import Shares
from coordinator.gateway.snapshot_streams import SnapshotStreams
from coordinator.gateway.stored_catalog import StoredCatalog
from coordinator.gateway.submit import SubmitStreams
from coordinator.gateway.telemetry import GatewayWatch
from coordinator.gateway.timers import SessionTimers
from coordinator.gateway.unary import Elsewhere, UnaryCalls
from coordinator.gateway.watch_openings import OpeningPorts, WatchOpenings
from coordinator.gateway.watches import Watches
from coordinator.history.turns import PastTurns
from coordinator.mux import types as mux_types
from coordinator.mux.mux import Mux
from coordinator.replica.data_directory import ReplicaFiles
from coordinator.replica.driver import Driver
from coordinator.replica.writer import JournalWriter
from coordinator.snapshot.provider import StoredSnapshots
from coordinator.stages.client import StageClient
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.audit.files import DIRECTORY
from viewstamp.audit.log import AuditLog
from viewstamp.errors import Refusal


@dataclass(frozen=True, slots=True)
class FacePorts:
    """The parts that calls reach. `members` is None if this replica is alone.

    `supported_levels` are the highest feature levels by replica, 0 for one that was not heard;
    `watched_types` what each service shows to watchers. `start` runs work in the background, and
    `fail` ends the process.
    """

    files: ReplicaFiles
    routes: Routes
    driver: Driver
    mux: Mux
    services: Mapping[mux_types.Stage, StageClient]
    timers: SessionTimers
    authenticator: Authenticator
    watch: GatewayWatch | None
    members: Members | None
    epochs: Epochs
    supported_levels: Callable[[], Mapping[int, int]]
    watched_types: Callable[[], Mapping[mux_types.Stage, Collection[str]]]
    fail: Callable[[BaseException], None]
    writer: JournalWriter[Any]
    start: Callable[[Coroutine[Any, Any, None]], None]
    outside: Outside


class PublicFace:
    """The gateway of one replica, bound to `address`, HOST:PORT; it answers once it has started."""

    def __init__(self, config: Config, ports: FacePorts) -> None:
        """Raises ConfigError if it cannot listen as configured."""
        self._ports = ports
        self._data_directory = config.data_directory
        self._is_encrypted = config.tls_certificate is not None
        self._forwarding = self._make_forwarding()
        self._normalizer = Normalizer(
            ports.routes, {int(stage): client for stage, client in ports.services.items()}
        )
        self._shares = Shares(ports.mux.replies, ports.timers.evict)
        self._log = _audit_log(config, ports.outside.open_audit)
        self._audit = Audit(self._log, ports.routes, ports.authenticator)
        self._commands = CommandAdmission(
            ports.routes,
            self._normalizer,
            ports.driver.intake,
            ports.mux.sessions,
            ports.mux.admission,
            self._shares,
            Quotas(config.quotas, monotonic_ms),
            ports.timers.used,
            Leading(ports.driver.reads.confirm, ports.driver.serving.check).confirm,
        )
        past = past_turns(
            ports.outside.launch_past,
            *(ports.files, ports.mux, ports.driver, ports.writer, ports.start),
        )
        self.past_tally: Final = past.tally
        access = PastAccess(
            ports.routes, ports.driver.reads, ports.watched_types, is_served=config.history
        )
        self._reader = MuxReader(
            ports.driver.reads,
            ports.driver.serving,
            ports.mux.sessions,
            ports.services,
            PastReads(access, past),
        )
        self._reads = ReadStarter(ports.routes, self._reader, shares=self._shares)
        self._callers = Callers(ports.routes, ports.authenticator, self._commands, self._reads)
        self.submit = self._make_submit()
        self.notices: Final = MemberNotices(self.submit)
        progress = ports.driver.progress
        self.feed: Final = ChangeFeed(
            ports.driver.reads, lambda: progress.applied_revision, ports.fail
        )
        if ports.members is not None:
            end_with_membership(self.feed, ports.members.peers.roster)
        handlers = self._audit.administrative(
            {
                **self._make_streams().handlers(),
                **self._make_primary_calls().handlers(),
                **self._make_blames(access, past).handlers(),
            }
        )
        self.server = GatewayServer(
            self._make_unary(),
            self.submit,
            {**handlers, **self._make_watches().handlers()},
            reflection_is_open=config.reflection,
            channelz_is_open=config.channelz,
            connections_max=config.connections_max,
        )
        self.certificates: Final = gateway_certificates(config.tls_certificate, config.tls_key)
        port = self.server.listen(config.listen, self.certificates)
        self.address: Final = f"{config.listen.rpartition(':')[0]}:{port}"
        if config.health_listen is not None:
            self.server.listen_for_probes(config.health_listen)
        self._console = self._make_console(config)

    async def start(self) -> None:
        """Begin to serve: alive, not yet ready."""
        await self.server.start()
        if self._console is not None:
            await self._console.start()

    async def stop(self, grace_ms: int) -> None:
        """Finish what is under way, at most for `grace_ms`."""
        # Watches would go on for ever.
        self.feed.end_all(Refusal(Reason.REASON_VIEW_CHANGE, "this replica stops: watch elsewhere"))
        if self._console is not None:
            await self._console.stop()
        await self.server.stop(grace_ms)

    async def close(self) -> None:
        """Close the connections to other replicas, after the last call."""
        if self._forwarding is not None:
            await self._forwarding.close()
        if self._log is not None:
            self._log.close()

    def _make_forwarding(self) -> Forwarding | None:
        """Return the forwarding of calls; None with TLS, since the callers' authority is unknown
        here."""
        members, driver = self._ports.members, self._ports.driver
        if members is None or self._is_encrypted:
            return None
        return Forwarding(lambda: members.address_of(driver.progress.primary))

    def _make_unary(self) -> UnaryCalls:
        ports = self._ports
        return UnaryCalls(
            ports.files.cluster_id,
            ports.routes,
            ports.authenticator,
            self._commands,
            self._normalizer,
            self._reads,
            ports.driver.serving.check,
            ports.watch,
            None if ports.members is None else self._elsewhere(),
            self.submit.check_no_stream,
            SessionRoom(ports.mux.sessions, ports.timers, ports.driver.intake.submit),
            self._audit,
        )

    def _elsewhere(self) -> Elsewhere:
        driver, is_root = self._ports.driver, self._reader.is_root
        stored = StoredCatalog(self._data_directory, is_root, lambda: driver.progress.view)
        return Elsewhere(driver.serving.check_reading, self._forwarding, stored)

    def _make_submit(self) -> SubmitStreams:
        ports = self._ports
        return SubmitStreams(
            ports.files.cluster_id,
            ports.authenticator,
            self._commands,
            self._reads,
            ports.timers,
            ports.driver.serving.check,
            ports.watch,
            self._audit,
            tuple if ports.members is None else ports.members.client_addresses,
        )

    def _make_streams(self) -> SnapshotStreams:
        ports = self._ports
        return SnapshotStreams(
            ports.files.cluster_id,
            self._callers,
            StoredSnapshots(ports.files.snapshots),
            ports.driver.serving.check,
            ports.watch,
        )

    def _make_watches(self) -> Watches:
        ports = self._ports
        catalog = ports.mux.catalog
        openings = WatchOpenings(
            OpeningPorts(
                ports.files.cluster_id,
                ports.routes,
                ports.driver.reads,
                ports.watched_types,
                lambda: catalog.latest_completed().cut_revision,
            )
        )
        return Watches(
            ports.files.cluster_id,
            ports.authenticator,
            openings,
            ports.driver.reads,
            self.feed,
            ports.driver.serving.check_reading,
            self._audit,
        )

    def _make_blames(self, access: PastAccess, past: PastTurns) -> Blames:
        ports = self._ports
        return Blames(
            ports.files.cluster_id,
            ports.authenticator,
            access,
            past,
            ports.driver.serving.check_reading,
        )

    def _make_primary_calls(self) -> PrimaryCalls:
        ports = self._ports
        return PrimaryCalls(
            ports.files.cluster_id,
            ports.routes,
            self._callers,
            ports.driver.serving.check,
            self._forwarding,
            self._check_step_down,
            lambda reason: ports.driver.step(vsr.Abdicate(reason)),
            ports.supported_levels,
            ReplicaCalls(ports.routes, ports.epochs).answers(),
        )

    def _make_console(self, config: Config) -> Console | None:
        if config.console is None:
            return None
        ports = ConsolePorts(
            self._ports.files.cluster_id,
            config.replica_id,
            self.server.handler_of,
            self.certificates,
            lambda: self._reads.begun,
            config.written_directories,
        )
        try:
            return Console(config.console.listen, ports, self._ports.outside.make_thread)
        except OSError as error:
            raise ConfigError(str(error)) from error

    def _check_step_down(self) -> None:
        if self._ports.members is None:
            raise Refusal.of(Reason.REASON_NO_OTHER_REPLICA)


def _audit_log(config: Config, open_audit: Callable[[Path, int], AuditLog]) -> AuditLog | None:
    """Return the configured audit log. Raises ConfigError."""
    if not config.audit_bytes:
        return None
    directory = config.data_directory / DIRECTORY
    try:
        return open_audit(directory, config.audit_bytes)
    except OSError as error:
        raise ConfigError(
            f"the audit log {directory} cannot be written: {error}; make it writable, or give"
            " --audit-bytes 0"
        ) from error
