"""One coordinator process, put together: the only place that knows every part.

Start-up: open the directory, listen (alive, not ready), reach the services and install the
sections of the snapshot to start from, give the core what the disk holds, apply the inherited log,
and only then serve.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from coordinator import vsr
from coordinator.app.cluster_time import real_time
from coordinator.app.config import Config
from coordinator.app.core import change_reader, make_core, roster_of
from coordinator.app.epochs import EpochPorts, Epochs
from coordinator.app.face import FacePorts, PublicFace
from coordinator.app.fitness_parts import FitnessParts, make_fitness
from coordinator.app.gauges import Sources
from coordinator.app.hand_over import hand_over, hand_over_ports
from coordinator.app.journal_findings import log_findings
from coordinator.app.leadership import Leadership, LeadershipPorts
from coordinator.app.members import MemberPorts, Members
from coordinator.app.outside import OPERATING_SYSTEM, Outside
from coordinator.app.scrubbing import RunningScrubber
from coordinator.app.services import LinkPorts, ServiceLinks, service_tls_of
from coordinator.app.snapshots import SnapshotAssembly, Surroundings
from coordinator.app.telemetry import ReplicaTelemetry
from coordinator.base.alarms import Alarms
from coordinator.base.clock import monotonic_ms, wall_clock_us
from coordinator.base.errors import HaltedError
from coordinator.gateway.cluster import ClusterStage, StatusSources
from coordinator.gateway.member_checks import MemberChecks
from coordinator.gateway.principal import Authenticator
from coordinator.gateway.request_runs import mux_route
from coordinator.gateway.routes import Routes
from coordinator.gateway.session_reads import SessionReads
from coordinator.gateway.timers import SessionTimers
from coordinator.mux import types as mux_types
from coordinator.mux.mux import FROM_THE_BEGINNING, Mux
from coordinator.peers.messages import SnapshotDurableMessage
from coordinator.peers.peers import PeersConfig
from coordinator.replica.bootstrap import Bootstrap
from coordinator.replica.data_directory import ReplicaFiles
from coordinator.replica.driver import Driver
from coordinator.replica.fitness import Fitness
from coordinator.replica.peer_answers import Position
from coordinator.replica.peers import NO_PEERS
from coordinator.replica.ports import DriverEvents
from coordinator.replica.proposals import Proposals
from coordinator.replica.ring_room import room_watch
from coordinator.replica.writer import JournalWriter
from coordinator.snapshot.agreement import DurableReport
from coordinator.snapshot.bases import restored_mux, section_bases
from coordinator.snapshot.work import Durable
from coordinator.stages import codec
from coordinator.stages.greeting import CoordinatorIdentity
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.certificates.certificate_watch import CertificateWatch
from viewstamp.format.prepare import SealedPrepare
from viewstamp.limits import DISK_STALL_MS, FEATURE_LEVEL_MAX
from viewstamp.telemetry.settings import Telemetry

STOP_GRACE_MS: Final = 2_000


class Coordinator:
    """One replica's coordinator."""

    def __init__(
        self,
        config: Config,
        files: ReplicaFiles,
        cluster_key: bytes,
        telemetry: Telemetry | None = None,
        begun_ns: int | None = None,
        outside: Outside = OPERATING_SYSTEM,
    ) -> None:
        """Put the parts together; `begun_ns` is when the process began, for its telemetry."""
        self._outside = outside
        self._config = config
        self._files = files
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self.alarms = Alarms(wall_clock_us)
        self.roster = roster_of(config, files)
        files.journal.is_alone = self.roster.is_alone
        self._time = time = real_time(self.roster, self.alarms)
        self.routes = Routes(lambda: self._mux.feature_level)
        self._telemetry = ReplicaTelemetry(telemetry, self.routes, self.roster, begun_ns)
        restored = FROM_THE_BEGINNING if files.base is None else restored_mux(files.base)
        # What the coordinator serves by itself can be asked for before any service is there.
        routes = {method.code: mux_route(method) for method in self.routes.methods()}
        self._mux = Mux(routes, codec.ProtobufCodec(), restored=restored)
        self._writer: JournalWriter[vsr.CoreState] = JournalWriter(
            files.journal, files, outside.make_thread
        )
        self._space = room_watch(
            files.journal, self._became_full, self._has_room, config.record_bytes_max
        )
        self._changes = change_reader(config, files, self._mux.catalog.members)
        self._epochs = self._make_epochs()
        self.members = self._make_members()
        self._epochs.learn_addresses()
        peers = NO_PEERS if self.members is None else self.members.driver_ports()
        core = make_core(config, files, self._changes, self._mux.catalog.members)
        self.driver = Driver(core, self._mux, self._writer, self._events(), peers, time.driver)
        self._bootstrap = Bootstrap(
            files.cluster_id, config.data_directory, self.driver.found, files.storage, time.known
        )
        self._proposals = Proposals(self.driver.intake, self.routes, time.now_us)
        self._services = self._connect_services()
        self._clients = self._services.clients
        self._stages = {s: self._telemetry.link(s, client) for s, client in self._clients.items()}
        self._timers = SessionTimers(self._mux.sessions.live, self._proposals, monotonic_ms)
        self._member_checks = MemberChecks(self.driver.mux_effects.ask_proposals, monotonic_ms)
        self._snapshots = self._make_snapshots()
        if files.base is not None:
            files.base.close()  # everything in it was taken over
        self._face = self._make_face(Authenticator(cluster_key, files.cluster_id, time.now_us))
        self.client_address = config.advertise or self._face.address  # where others reach it
        self._cluster = self._make_cluster()
        self._leadership = self._make_leadership()
        self._fitness = self._make_fitness()
        peer_certificates = None if self.members is None else self.members.peers.certificates
        own = (self._face.certificates, peer_certificates, self._services.certificates)
        watch = CertificateWatch(own, self.alarms, wall_clock_us, make_thread=outside.make_thread)
        self._certificates = watch
        self._telemetry.serve(self._telemetry_sources())

    @property
    def scrubber(self) -> RunningScrubber | None:
        """What reads everything durable again; None if it was told not to."""
        return self._snapshots.scrubber

    # --- Life ---

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises whatever makes going on impossible."""
        await self._face.start()
        self._start(self._certificates.run())
        self._start(self._start_replica())
        stopped = asyncio.create_task(self._wait_for(stop))
        stopped.add_done_callback(self._ended)
        grace_ms = 0  # after a failure nothing that is under way can be finished
        try:
            await self._failure
            grace_ms = STOP_GRACE_MS
        except HaltedError:
            if self.members is not None:
                await self.members.tell_halted()
            raise
        finally:
            stopped.cancel()
            await self._stop(grace_ms)

    async def _wait_for(self, stop: asyncio.Event) -> None:
        await stop.wait()
        await self._face.server.leave()
        if self.members is not None:
            await hand_over(hand_over_ports(self.driver, self.members, self._fitness))
        if not self._failure.done():
            self._failure.set_result(None)

    async def _start_replica(self) -> None:
        log_findings(self._files.recovery)
        identity = CoordinatorIdentity(
            self._files.cluster_id, self._config.replica_id, self._files.superblock.sequence
        )
        for client in self._clients.values():
            self._start(client.run(identity))
        await self._services.all_described.wait()
        self._telemetry.start.reached("connect")
        driver = self.driver
        self._start(
            self._writer.run(driver.prepares_durable, driver.superblock_durable, driver.discarded)
        )
        self._start(self._space.run())
        self._start(self._timers.run())
        self._start(self._member_checks.run())
        self._snapshots.start()
        driver.start(self._files.start)
        if self.members is not None:
            self._start(self.members.run())
        self._start(self._fitness.run())

    async def _stop(self, grace_ms: int) -> None:
        await self._face.stop(grace_ms)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._face.close()
        if self.members is not None:
            await self.members.stop()
        for client in self._clients.values():
            await client.close()
        await self._snapshots.stop()
        if grace_ms:
            await self._record_commit()
        self._writer.close()
        self._files.close()
        self._leadership.stopped()

    async def _record_commit(self) -> None:
        committed_op = self.driver.core.recordable_commit
        with suppress(TimeoutError):  # of a disk that hangs, as closing says
            async with asyncio.timeout(DISK_STALL_MS / 1000):
                await self._writer.call(lambda: self._files.record_commit(committed_op))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    # --- Parts ---

    def _events(self) -> DriverEvents:
        return DriverEvents(
            bootstrap_ready=lambda nonces: self._start(self._bootstrap.make(nonces)),
            status_changed=self._status_changed,
            applied=self._applied,
            cut_taken=self._cut_taken,
            # Snapshots are made later.
            catalog_changed=lambda changed: self._snapshots.catalog_changed(changed),  # noqa: PLW0108
            fatal=self._fail,
            room=self._space.room,
            persisting=self._persisting,
            persisted=self._persisted,
            local_read=self._local_read,
            stage=lambda stage: self._stages[stage],
            committed=self._telemetry.committed,
            handed_over=self._telemetry.handed_over,
            epoch_began=self._epochs.began,
            entry_room=self._space.entry_room,
        )

    def _persisting(self, prepares: Sequence[SealedPrepare]) -> None:
        self._space.sent(prepares)
        self._snapshots.persisting(prepares)
        self._telemetry.persisting(prepares, self.driver.intake.batch_of)

    def _persisted(self, prepares: Sequence[SealedPrepare]) -> None:
        self._space.written(prepares)
        self._snapshots.persisted(prepares)
        self._telemetry.persisted(prepares)

    def _cut_taken(self, taken: mux_types.CutTaken) -> None:
        self._telemetry.cut_taken(taken)
        self._snapshots.cut_taken(taken)

    def _local_read(self, batch: mux_types.StageBatch) -> mux_types.StageReply:
        return self._cluster.read(batch)

    def _connect_services(self) -> ServiceLinks:
        told = (self._telemetry.answered, self._noticed)
        ports = LinkPorts(self.driver, self._mux, self.routes, self.alarms, self._proposals, *told)
        files = self._files
        bases = {} if files.base is None else section_bases(files.snapshots, files.base.manifest)
        return ServiceLinks(ports, self._config.services, bases, service_tls_of(self._config))

    def _noticed(self, notices: Iterable[domain_pb2.Notice]) -> None:
        self._face.notices.add(notices)

    def _telemetry_sources(self) -> Sources:
        return Sources(
            self.driver,
            self._clients,
            self.alarms,
            self._mux,
            self._snapshots.orchestrator,
            self.scrubber,
            None if self.members is None else self.members.peers,
            self._certificates,
            lambda: self._face.feed.followers,
            self._face.past_tally,
            self._config.replica_id,
            lambda: self._time.seen,
            list if self.members is None else self.members.status,
            self._config.written_directories,
        )

    def _make_cluster(self) -> ClusterStage:
        sources = StatusSources(
            address=self.client_address,
            generation=lambda: self._files.superblock.state.generation,
            unfit=lambda: self._fitness.reason,
            peer_address=self._epochs.own_address,
            level_in_force=lambda: self._mux.feature_level,
            level_supported=self._level_supported,
            description=lambda: self._mux.catalog.description,
        )
        return ClusterStage(
            self.driver.progress,
            self.driver.reads,
            self.driver.mux_effects.read_followed,
            self.alarms,
            dict(self._clients),
            lambda: len(self._mux.sessions),
            self._mux.entities,
            self.roster,
            self._files.cluster_id,
            tuple if self.members is None else self.members.status,
            sources,
            (
                self._snapshots.reads,
                SessionReads(self._mux.sessions, lambda: self._mux.feature_level),
            ),
        )

    def _make_snapshots(self) -> SnapshotAssembly:
        around = Surroundings(
            files=self._files,
            mux=self._mux,
            driver=self.driver,
            writer=self._writer,
            services=self._clients,
            proposals=self._proposals,
            alarms=self.alarms,
            space=self._space,
            versions=self._services.versions.__getitem__,
            clock_ms=monotonic_ms,
            start=self._start,
            watch=self._telemetry.snapshots,
            tell_primary=self._tell_primary,
            tell_others=self._tell_others,
            followers=tuple if self.members is None else self.members.reports.followers,
            config=self._config,
            outside=self._outside,
            peers=None if self.members is None else self.members.peer_files,
            roster=self.roster,
        )
        return SnapshotAssembly(around)

    def _make_epochs(self) -> Epochs:
        ports = EpochPorts(
            config=self._config,
            files=self._files,
            driver=lambda: self.driver,
            catalog_members=lambda: self._mux.catalog.members,
            members=lambda: self.members,
        )
        return Epochs(self.roster, self._changes, ports)

    def _make_members(self) -> Members | None:
        settings = self._config.peers
        if settings is None:
            return None
        files, config = self._files, self._config
        peers = PeersConfig(
            files.cluster_id,
            config.replica_id,
            config.replica_count,
            files.start.boot_nonce,
            settings,
            self.roster,
        )
        ports = MemberPorts(
            driver=lambda: self.driver,
            entries=self._writer,
            position=self._position,
            digests=self._mux.digests,
            client_address=lambda: self.client_address,
            durable_elsewhere=self._durable_elsewhere,
            adopted_elsewhere=self._adopted_elsewhere,
            files=files,
            data_directory=config.data_directory,
            unfit=lambda: self._fitness.reason,
            level_in_force=lambda: self._mux.feature_level,
            level_supported=self._level_supported,
            clock_ms=monotonic_ms,
            clock=self._time,
            roster=self.roster,
            introduction=self._epochs.introduction,
            alarms=self.alarms,
            start=self._start,
            fail=self._fail,
        )
        return Members(peers, ports)

    def _durable_elsewhere(self, message: SnapshotDurableMessage) -> None:
        report = DurableReport(message.root, message.tasks)
        orchestrator = self._snapshots.orchestrator
        orchestrator.durable_elsewhere(message.from_replica, message.generation, report)

    def _adopted_elsewhere(self, replica: int, generation: int) -> None:
        self._snapshots.adopted_elsewhere(replica, generation)

    def _tell_primary(self, durable: Durable) -> None:
        if self.members is not None:
            self.members.tell_primary(durable)

    def _tell_others(self, durable: Durable) -> None:
        if self.members is not None:
            self.members.tell_others(durable)

    def _position(self) -> Position:
        generation = self._files.superblock.state.generation
        committed_op = self.driver.progress.committed_op
        return Position(committed_op, generation, self._snapshots.cut_op(generation))

    def _level_supported(self) -> int:
        return min(FEATURE_LEVEL_MAX, *self._services.feature_levels.values())

    def _supported_levels(self) -> dict[int, int]:
        others = {} if self.members is None else self.members.reports.supported_levels()
        return {self._config.replica_id: self._level_supported(), **others}

    def _make_fitness(self) -> Fitness:
        parts = FitnessParts(
            driver=self.driver,
            services=self._services,
            space=self._space,
            writer=self._writer,
            reports=None if self.members is None else self.members.reports,
            time=self._time,
            roster=self.roster,
            alarms=self.alarms,
            stalled=self._leadership.stalled,
        )
        return make_fitness(parts)

    def _make_face(self, authenticator: Authenticator) -> PublicFace:
        ports = FacePorts(
            files=self._files,
            routes=self.routes,
            driver=self.driver,
            mux=self._mux,
            services=self._clients,
            timers=self._timers,
            authenticator=authenticator,
            watch=self._telemetry.gateway,
            members=self.members,
            epochs=self._epochs,
            supported_levels=self._supported_levels,
            watched_types=lambda: self._services.watched_types,
            fail=self._fail,
            writer=self._writer,
            start=self._start,
            outside=self._outside,
        )
        return PublicFace(self._config, ports)

    def _make_leadership(self) -> Leadership:
        driver, face = self.driver, self._face
        ports = LeadershipPorts(
            progress=lambda: driver.progress,
            is_primary=lambda: driver.serving.is_primary,
            lacks_vote=lambda: not (driver.core.is_voter or driver.core.is_standby),
            feature_level=lambda: self._mux.feature_level,
            ask_proposals=driver.mux_effects.ask_proposals,
            writer=self._writer,
            proposals=self._proposals,
            timers=(self._timers, self._member_checks),
            snapshots=self._snapshots.orchestrator,
            replayed=self._snapshots.replayed,
            streams=face.submit,
            set_ready=face.server.set_ready,
            address=face.address,
            members=self.members,
            data_directory=self._config.data_directory,
            start=self._start,
            outside=self._outside,
        )
        return Leadership(ports)

    # --- Replica ---

    def _status_changed(self, changed: vsr.StatusChanged) -> None:
        self._telemetry.status_changed(changed)
        self._leadership.status_changed(changed)

    def _applied(self, applied: mux_types.Applied) -> None:
        self._telemetry.applied(applied)
        self._leadership.applied(applied)
        if self.members is not None:
            self.members.applied(applied.op)

    def _became_full(self, why: str) -> None:
        self.alarms.raise_alarm(cluster_pb2.ALARM_KIND_NO_SPACE, why)

    def _has_room(self) -> None:
        if not self._space.full:
            self.alarms.clear(cluster_pb2.ALARM_KIND_NO_SPACE)
        self.driver.pump()
