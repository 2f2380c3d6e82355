"""One coordinator process, put together: the only place that knows every part.

Start-up: open the directory, listen (alive, not ready), reach the three services and install the
sections of the snapshot to start from, give the core what the disk holds, apply the inherited log,
and only then serve.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from coordinator import vsr
from coordinator.config import Config
from coordinator.gateway.alarms import Alarms
from coordinator.gateway.cluster import DOMAIN_STAGES, ClusterStage
from coordinator.gateway.commands import Commands
from coordinator.gateway.normalize import Normalizer
from coordinator.gateway.principal import Authenticator
from coordinator.gateway.reads import Consistency, Reads, ReadSpan
from coordinator.gateway.routes import Routes
from coordinator.gateway.server import GatewayServer, server_credentials
from coordinator.gateway.snapshot_streams import SnapshotStreams
from coordinator.gateway.submit import SubmitStreams
from coordinator.gateway.timers import SessionTimers
from coordinator.gateway.unary import UnaryCalls
from coordinator.mux import types as mux_types
from coordinator.mux.mux import FROM_THE_BEGINNING, Mux
from coordinator.replica.batcher import Reply
from coordinator.replica.bootstrap import ReplicaFiles
from coordinator.replica.driver import Driver, DriverEvents, wall_clock_us
from coordinator.replica.founding import ROOT_PASSWORD_FILE, founding_body, write_root_password
from coordinator.replica.proposals import Proposals
from coordinator.replica.space import SpaceWatch
from coordinator.replica.writer import Writer
from coordinator.snapshot.assembly import Snapshots, Surroundings
from coordinator.snapshot.bases import restored_mux
from coordinator.snapshot.provider import StoredSnapshots
from coordinator.snapshot.triggers import TriggerSettings
from coordinator.stages import codec
from coordinator.stages.client import Identity, StageClient, StageEvents, WrongServiceError
from coordinator.stages.gathering import SectionGathering
from coordinator.telemetry.replica import ReplicaTelemetry, Sources
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.format.prepare import Prepare, seal
from viewstamp.limits import FEATURE_LEVEL, ROOT_USER_ID
from viewstamp.routing import Method, MethodKind
from viewstamp.telemetry import fields
from viewstamp.telemetry.settings import Telemetry
from viewstamp.tokens import AccessToken

STOP_GRACE_MS: Final = 2_000
READY_FILE: Final = Path("run", "coordinator.json")

_log = logging.getLogger(__name__)


class Coordinator:
    """One replica's coordinator."""

    def __init__(
        self,
        config: Config,
        files: ReplicaFiles,
        cluster_key: bytes,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._config = config
        self._files = files
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._address = ""
        self._section_versions: dict[mux_types.Stage, int] = {}
        self._all_described = asyncio.Event()
        self.alarms = Alarms(wall_clock_us)
        self.routes = Routes()
        self._telemetry = ReplicaTelemetry(telemetry, self.routes, config.replica_count)
        restored = FROM_THE_BEGINNING if files.base is None else restored_mux(files.base)
        self._mux = Mux({}, codec.ProtobufCodec(), restored=restored)
        self._writer: Writer[vsr.SuperblockState] = Writer(files.journal, files.superblock)
        self._space = SpaceWatch(files.journal, self._became_full, self._has_room)
        self.driver = Driver(_core(config, files), self._mux, self._writer, self._events())
        self._gathering = SectionGathering(DOMAIN_STAGES if files.base is not None else ())
        self._clients = {stage: self._client(stage) for stage in DOMAIN_STAGES}
        self._proposals = Proposals(self.driver)
        self._timers = SessionTimers(self._mux.sessions.live, self._proposals, _monotonic_ms)
        self._cluster = ClusterStage(
            self.driver,
            self.alarms,
            dict(self._clients),
            lambda: len(self._mux.sessions),
            self._mux.entities,
            config.replica_id,
            files.cluster_id,
        )
        self._snapshots = self._make_snapshots()
        self._cluster.add(self._snapshots.reads)
        if files.base is not None:
            files.base.close()  # everything in it was taken over
        self._commands = self._make_commands()
        self.server = self._make_server(Authenticator(cluster_key, wall_clock_us))
        orchestrator = self._snapshots.orchestrator
        self._telemetry.serve(
            Sources(self.driver, self._clients, self.alarms, self._mux, orchestrator)
        )

    # --- Life ---

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises whatever makes going on impossible."""
        port = self.server.listen(
            self._config.listen,
            server_credentials(self._config.tls_certificate, self._config.tls_key),
        )
        host = self._config.listen.rpartition(":")[0]
        self._address = self._cluster.address = f"{host}:{port}"
        await self.server.start()
        self._start(self._start_replica())
        stopped = asyncio.create_task(self._wait_for(stop))
        grace_ms = 0  # after a failure nothing that is under way can be finished
        try:
            await self._failure
            grace_ms = STOP_GRACE_MS
        finally:
            stopped.cancel()
            await self._stop(grace_ms)

    async def _wait_for(self, stop: asyncio.Event) -> None:
        await stop.wait()
        if not self._failure.done():
            self._failure.set_result(None)

    async def _start_replica(self) -> None:
        if self._files.recovery.cut is not None:
            _log.warning(
                "a torn tail, never acknowledged, was cut off the journal",
                extra=fields(cut=str(self._files.recovery.cut)),
            )
        identity = Identity(
            self._files.cluster_id, self._config.replica_id, self._files.superblock.sequence
        )
        for client in self._clients.values():
            self._start(client.run(identity))
        await self._all_described.wait()
        self._start(self._writer.run(self.driver.prepares_durable, self.driver.superblock_durable))
        self._start(self._space.run())
        self._start(self._timers.run())
        self._snapshots.start()
        self.driver.start(self._files.start)

    async def _stop(self, grace_ms: int) -> None:
        await self.server.stop(grace_ms)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients.values():
            await client.close()
        await self._snapshots.stop()
        if grace_ms:
            await self._writer.call(self._record_commit)
        self._writer.close()
        self._files.close()
        (self._config.data_directory / READY_FILE).unlink(missing_ok=True)

    def _record_commit(self) -> None:
        self._files.record_commit(self.driver.progress.committed_op)

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
            founding_ready=lambda nonces: self._start(self._found(nonces)),
            status_changed=self._status_changed,
            retired=self._retired,
            cut_taken=self._cut_taken,
            catalog_changed=self._catalog_changed,
            fatal=self._fail,
            room=self._space.room,
            persisting=self._persisting,
            persisted=self._persisted,
            local_read=self._local_read,
            committed=self._telemetry.committed,
            handed_over=self._telemetry.handed_over,
        )

    def _persisting(self, prepares: Sequence[Prepare]) -> None:
        self._space.sent(prepares)
        self._telemetry.persisting(prepares, self.driver.batch_of)

    def _persisted(self, prepares: Sequence[Prepare]) -> None:
        self._space.written(prepares)
        self._telemetry.persisted(prepares)

    def _cut_taken(self, taken: mux_types.CutTaken) -> None:
        self._telemetry.cut_taken(taken)
        self._snapshots.cut_taken(taken)

    def _catalog_changed(self, changed: mux_types.CatalogChanged) -> None:
        self._snapshots.catalog_changed(changed)

    def _local_read(self, batch: mux_types.StageBatch) -> mux_types.StageReply:
        return self._cluster.read(batch)

    def _client(self, stage: mux_types.Stage) -> StageClient:
        target = self._config.services[stage.name.lower()]
        client = StageClient(
            int(stage),
            target,
            StageEvents(
                replied=lambda reply: self._replied(stage, reply),
                deferred=lambda outcome: self.driver.read_followed(codec.decode_query(outcome)),
                connected=lambda describe: self._connected(stage, describe),
                lost=lambda why: self._lost(stage, why),
            ),
            self._gathering,
        )
        self.driver.connect(stage, self._telemetry.link(stage, client))
        return client

    def _make_snapshots(self) -> Snapshots:
        around = Surroundings(
            files=self._files,
            mux=self._mux,
            driver=self.driver,
            writer=self._writer,
            services=self._clients,
            proposals=self._proposals,
            alarms=self.alarms,
            space=self._space,
            versions=self._section_versions.__getitem__,
            clock_ms=_monotonic_ms,
            start=self._start,
            watch=self._telemetry.snapshots,
        )
        limits = self._config.snapshots
        settings = TriggerSettings(
            commands=limits.commands,
            journal_bytes=limits.journal_bytes,
            interval_ms=limits.interval_ms,
            keep_last=limits.keep_last,
            keep_daily=limits.keep_daily,
        )
        return Snapshots(around, settings, self._config.data_directory, limits.deadline_ms)

    def _make_commands(self) -> Commands:
        self._normalizer = Normalizer(
            self.routes, {int(stage): client for stage, client in self._clients.items()}
        )
        return Commands(
            self.routes,
            self._normalizer,
            self.driver,
            self._mux.sessions,
            self._mux.admission,
            lambda: self._mux.replies.replies_bytes,
            self._timers.used,
        )

    def _make_server(self, authenticator: Authenticator) -> GatewayServer:
        reads = Reads(self.routes, self)
        cluster_id = self._files.cluster_id
        unary = UnaryCalls(
            cluster_id,
            self.routes,
            authenticator,
            self._commands,
            self._normalizer,
            reads,
            self._check_serving,
            self._telemetry.gateway,
        )
        self._submit = SubmitStreams(
            cluster_id,
            authenticator,
            self._commands,
            reads,
            self._timers,
            self._check_serving,
            self._telemetry.gateway,
        )
        streams = SnapshotStreams(
            cluster_id,
            self.routes,
            authenticator,
            self._commands,
            reads,
            StoredSnapshots(self._files.snapshots),
            self._check_serving,
        )
        return GatewayServer(unary, self._submit, streams.handlers())

    def _check_serving(self) -> None:
        status = self.driver.progress.status
        if status is not vsr.Status.NORMAL:
            raise Refusal(
                Reason.REASON_VIEW_CHANGE,
                f"the replica is not in service ({status.value}): try again",
                status=status.value,
            )

    # --- Services ---

    def _replied(self, stage: mux_types.Stage, reply: domain_pb2.BatchReply) -> None:
        for proposal in reply.proposals:
            self._proposals.add(proposal)
        self._telemetry.answered(stage, reply.sequence)
        self.driver.stage_replied(codec.decode_reply(stage, reply))
        self._look_for_trouble(stage, reply)

    def _look_for_trouble(self, stage: mux_types.Stage, reply: domain_pb2.BatchReply) -> None:
        name = stage.name.lower()
        for outcome in reply.outcomes:
            for error in outcome.command.errors:
                if error.error.reason == Reason.REASON_INTERNAL:
                    message = f"service {name} took a command back: {error.error.message}"
                    self.alarms.raise_alarm(
                        cluster_pb2.ALARM_KIND_COMMAND_REVERTED, message, error.error.message
                    )
        if self._clients[stage].item_log.dropped:
            self.alarms.raise_alarm(
                cluster_pb2.ALARM_KIND_ITEM_LOG_DROPPED,
                f"the item log of {name} passed its limit: should that service die before the next"
                " snapshot, the whole replica restarts",
                name,
            )
        else:
            self.alarms.clear(cluster_pb2.ALARM_KIND_ITEM_LOG_DROPPED, name)

    def _connected(self, stage: mux_types.Stage, describe: domain_pb2.DescribeResponse) -> None:
        try:
            self.routes.update(describe)
        except ValueError as error:
            raise WrongServiceError(f"service {stage.name.lower()}: {error}") from error
        self._mux.set_routes({m.code: mux_route(m) for m in self.routes.methods()})
        self.alarms.clear(cluster_pb2.ALARM_KIND_SERVICE_DOWN, stage.name.lower())
        self._section_versions[stage] = describe.section_version
        if self._section_versions.keys() >= frozenset(DOMAIN_STAGES):
            self._all_described.set()
        if self._proposals.active:
            # The question of a new primary may have died with the process that was asked.
            self.driver.ask_proposals()

    def _lost(self, stage: mux_types.Stage, why: str) -> None:
        name = stage.name.lower()
        self.alarms.raise_alarm(
            cluster_pb2.ALARM_KIND_SERVICE_DOWN, f"service {name} does not answer: {why}", name
        )
        self.driver.stage_lost(stage)

    # --- Replica ---

    async def _found(self, nonces: Sequence[bytes]) -> None:
        password = write_root_password(self._config.data_directory)
        body = await asyncio.to_thread(founding_body, self._files.cluster_id, password, nonces)
        self.driver.found(body)

    def _status_changed(self, changed: vsr.StatusChanged) -> None:
        _log.info("status changed", extra=fields(status=changed.status.value, view=changed.view))
        self._telemetry.status_changed(changed)
        ready = changed.status is vsr.Status.NORMAL
        self._start(self.server.set_ready(ready))
        if ready:
            self._start(self._became_ready())

    async def _became_ready(self) -> None:
        self._proposals.activate()
        self.driver.ask_proposals()
        self._start(self._snapshots.became_ready())
        ready = {"address": self._address, "pid": os.getpid()}
        path = self._config.data_directory / READY_FILE
        await asyncio.to_thread(_write_ready_file, path, ready)
        password = self._config.data_directory / ROOT_PASSWORD_FILE
        print(json.dumps({"ready": True, "service": "coordinator", **ready}), flush=True)  # noqa: T201
        _log.info("ready", extra=fields(**ready, root_password_file=str(password)))

    def _retired(self, retired: mux_types.Retired) -> None:
        self._telemetry.retired(retired)
        for session_id in retired.ended_sessions:
            self._submit.session_ended(session_id)

    def _became_full(self, why: str) -> None:
        self.alarms.raise_alarm(
            cluster_pb2.ALARM_KIND_NO_SPACE,
            f"commands are refused once the journal's last segment is full: {why}",
        )

    def _has_room(self) -> None:
        if not self._space.full:
            self.alarms.clear(cluster_pb2.ALARM_KIND_NO_SPACE)
        self.driver.pump()

    def read(
        self,
        spans: Sequence[ReadSpan],
        principal: AccessToken | None,
        session_id: int,
        consistency: Consistency,
    ) -> asyncio.Future[Reply]:
        """Start reads for the gateway. Raises Refusal DOMAIN_RESTARTING."""
        read = mux_types.Read(
            token=self.driver.next_token(),
            spans=tuple(self._read_span(span, principal) for span in spans),
            user_id=None if principal is None else principal.user_id,
            credential_revision=0 if principal is None else principal.credential_revision,
            session_id=session_id,
        )
        return self.driver.read(
            read, linearizable=consistency.linearizable, revision=consistency.at_least_revision
        )

    def _read_span(self, span: ReadSpan, principal: AccessToken | None) -> mux_types.ReadSpan:
        method = span.method
        is_authorized = method.owner == mux_types.Stage.CATALOG and self._is_root(principal)
        if not is_authorized:
            self._check_connected(method)
        return mux_types.ReadSpan(method.code, span.count, span.items, is_authorized=is_authorized)

    def _is_root(self, principal: AccessToken | None) -> bool:
        """Whether it is root, by credentials that sessions holds for current.

        Root may read all that catalog tells, and asks for it when streams, which decides about
        everybody else, does not answer.
        """
        if principal is None or principal.user_id != ROOT_USER_ID:
            return False
        stamp = mux_types.LoggedSpan(0, 0, b"", principal.user_id, principal.credential_revision)
        return self._mux.sessions.check_principal(stamp) is None

    def _check_connected(self, method: Method) -> None:
        for number in (method.resolve_stage, method.owner):
            client = self._clients.get(mux_types.Stage(number)) if number else None
            if client is not None and not client.connected:
                raise Refusal(
                    Reason.REASON_DOMAIN_RESTARTING,
                    f"the service of {mux_types.Stage(number).name.lower()} is restarting: try"
                    " again",
                    stage=mux_types.Stage(number).name.lower(),
                )


def mux_route(method: Method) -> mux_types.Route:
    """Return a method's options in the mux's form."""
    resolve = mux_types.Stage(method.resolve_stage) if method.resolve_stage else None
    return mux_types.Route(
        code=method.code,
        owner=mux_types.Stage(method.owner),
        resolve_stage=resolve,
        gate=method.gate,
        emits_backward=frozenset(mux_types.Stage(stage) for stage in method.emits_backward),
        sets_grants=method.sets_grants,
        internal=method.internal,
        is_query=method.kind is MethodKind.QUERY,
    )


def _core(config: Config, files: ReplicaFiles) -> vsr.Replica:
    configuration = vsr.Configuration(
        cluster_id=files.cluster_id,
        replica=config.replica_id,
        replica_count=config.replica_count,
        feature_level=FEATURE_LEVEL,
    )
    return vsr.Replica(configuration, seal=seal)


def _write_ready_file(path: Path, ready: dict[str, Any]) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(ready) + "\n")
    temporary.replace(path)


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
