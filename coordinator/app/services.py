"""The domain services of this replica: the links to them, and their reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from coordinator.app.config import Config
from coordinator.base.alarms import Alarms
from coordinator.base.credentials import read_certificates
from coordinator.base.slices import STEP_ITEMS, Steps
from coordinator.gateway.request_runs import mux_route
from coordinator.gateway.routes import Routes
from coordinator.mux import types as mux_types
from coordinator.mux.mux import Mux
from coordinator.replica.driver import Driver
from coordinator.replica.fitness import ServiceState
from coordinator.replica.proposals import Proposals
from coordinator.stages import codec
from coordinator.stages.base import InstalledSection
from coordinator.stages.channel import ServiceCredentials
from coordinator.stages.client import StageClient, StageEvents, WrongServiceError
from coordinator.stages.install_barrier import InstallBarrier
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.certificates.pem_files import PemFiles
from viewstamp.certificates.proven_names import service_name
from viewstamp.errors import Refusal

# Looked up once: each answer has up to thousands of errors to compare with it.
_INTERNAL: Final = Reason.REASON_INTERNAL


@dataclass(frozen=True, slots=True)
class LinkPorts:
    """The parts that the links call. `answered` takes the stage and the sequence of each answer."""

    driver: Driver
    mux: Mux
    routes: Routes
    alarms: Alarms
    proposals: Proposals
    answered: Callable[[mux_types.Stage, int], None]
    noticed: Callable[[Iterable[domain_pb2.Notice]], None]


@dataclass(frozen=True, slots=True)
class ServiceTls:
    """The files with which the coordinator of a replica proves to services who it is."""

    files: PemFiles
    replica_id: int


def service_tls_of(config: Config) -> ServiceTls | None:
    """Return the identity of this coordinator towards services, None without TLS."""
    files = config.service_tls
    return None if files is None else ServiceTls(files, config.replica_id)


class ServiceLinks:
    """One link per domain service. `targets` are their addresses, by name.

    `bases` are the sections that they start from; none: all start from the empty state.
    `all_described` is set once every service has said what it serves; `versions` are the versions
    of their sections, `feature_levels` the highest that each service knows, `watched_types` the
    types of entities that it shows to watchers. `certificates` are those of this coordinator for
    services over a network, None without TLS.
    """

    def __init__(
        self,
        ports: LinkPorts,
        targets: Mapping[str, str],
        bases: Mapping[mux_types.Stage, InstalledSection],
        identity: ServiceTls | None = None,
    ) -> None:
        self.all_described = asyncio.Event()
        self.versions: dict[mux_types.Stage, int] = {}
        self.feature_levels: dict[mux_types.Stage, int] = dict.fromkeys(mux_types.SERVICE_STAGES, 0)
        self.watched_types: dict[mux_types.Stage, tuple[str, ...]] = {}
        self.certificates = None if identity is None else read_certificates(identity.files)
        self._replica_id = 0 if identity is None else identity.replica_id
        self._ports = ports
        self._barrier = InstallBarrier(tuple(bases))
        self.clients = {
            stage: self._client(stage, targets[stage.name.lower()], bases.get(stage))
            for stage in mux_types.SERVICE_STAGES
        }

    def states(self) -> dict[str, ServiceState]:
        """Return the state of each service, by name."""
        return {stage.name.lower(): state_of(client) for stage, client in self.clients.items()}

    def _client(
        self, stage: mux_types.Stage, target: str, base: InstalledSection | None
    ) -> StageClient:
        events = StageEvents(
            replied=lambda reply: self._replied(stage, reply),
            decode=lambda reply: self._decode(stage, reply),
            deferred=self._followed,
            connected=lambda describe: self._connected(stage, describe),
            lost=lambda why: self._lost(stage, why),
            busy=lambda ms: self._busy(stage, ms),
            gave_up=lambda attempt: self._gave_up(stage, attempt),
            item_log_dropped=lambda is_dropped: self._item_log_dropped(stage, is_dropped),
        )
        credentials = self._credentials(stage)
        return StageClient(int(stage), target, events, self._barrier, base, credentials)

    def _credentials(self, stage: mux_types.Stage) -> ServiceCredentials | None:
        if self.certificates is None:
            return None
        due = service_name(stage.name.lower(), self._replica_id)
        return ServiceCredentials(self.certificates, due)

    def _decode(
        self, stage: mux_types.Stage, reply: domain_pb2.BatchReply
    ) -> Steps[mux_types.StageReply]:
        """Return an answer in the mux's form, in steps; pass on what else it tells.

        If the stream ends meanwhile, the next process gives the answer, and proposals and alarms
        are repeated. A repeated one equals the pending one; where each proposal would lead to
        another (Sweep), one is pending at a time.
        """
        for count, proposal in enumerate(reply.proposals, 1):
            self._ports.proposals.add(proposal)
            if count % STEP_ITEMS == 0:
                yield
        if reply.notices:
            self._ports.noticed(reply.notices)
        yield from self._look_for_defects(stage, reply)
        decoded = yield from codec.decode_reply(stage, reply)
        return decoded

    def _followed(self, outcome: domain_pb2.QueryOutcome) -> None:
        self._ports.driver.mux_effects.read_followed(codec.decode_query(outcome))

    def _replied(self, stage: mux_types.Stage, reply: mux_types.StageReply) -> None:
        self._ports.answered(stage, reply.sequence)
        self._ports.driver.mux_effects.stage_replied(reply)

    def _look_for_defects(
        self, stage: mux_types.Stage, reply: domain_pb2.BatchReply
    ) -> Steps[None]:
        seen = 0
        for outcome in reply.outcomes:
            errors = outcome.command.errors
            for error in errors:
                if error.error.reason == _INTERNAL:
                    self._tell_defect(stage, error.error)
            seen += 1 + len(errors)
            if seen >= STEP_ITEMS:
                seen = 0
                yield

    def _tell_defect(self, stage: mux_types.Stage, error: errors_pb2.Error) -> None:
        why = Refusal.from_error(error).message
        self._ports.alarms.raise_alarm(
            cluster_pb2.ALARM_KIND_COMMAND_REVERTED,
            f"service {stage.name.lower()} undid a command: {why}",
            why,
        )

    def _item_log_dropped(self, stage: mux_types.Stage, is_dropped: bool) -> None:
        name, kind = stage.name.lower(), cluster_pb2.ALARM_KIND_ITEM_LOG_DROPPED
        if not is_dropped:
            self._ports.alarms.clear(kind, name)
            return
        self._ports.alarms.raise_alarm(
            kind,
            f"the item log of {name} passed its limit: if that service ends before the next"
            " snapshot, the whole replica restarts",
            name,
        )

    def _connected(self, stage: mux_types.Stage, describe: domain_pb2.DescribeResponse) -> None:
        ports = self._ports
        try:
            ports.routes.update(describe)
        except ValueError as error:
            raise WrongServiceError(f"service {stage.name.lower()}: {error}") from error
        ports.mux.set_routes({m.code: mux_route(m) for m in ports.routes.methods()})
        ports.alarms.clear(cluster_pb2.ALARM_KIND_SERVICE_DOWN, stage.name.lower())
        self.versions[stage] = describe.section_version
        self.feature_levels[stage] = describe.feature_level_max
        self.watched_types[stage] = tuple(describe.watched_types)
        if self.versions.keys() >= frozenset(mux_types.SERVICE_STAGES):
            self.all_described.set()
        if ports.proposals.active:
            # The question of a new primary may have died with the process that was asked.
            ports.driver.mux_effects.ask_proposals()

    def _lost(self, stage: mux_types.Stage, why: str) -> None:
        name = stage.name.lower()
        self._ports.alarms.raise_alarm(
            cluster_pb2.ALARM_KIND_SERVICE_DOWN, f"service {name} does not answer: {why}", name
        )
        self._ports.driver.mux_effects.stage_lost(stage)

    def _busy(self, stage: mux_types.Stage, ms: int) -> None:
        """Report a live service without progress; `ms` is 0 once it makes progress."""
        name, kind = stage.name.lower(), cluster_pb2.ALARM_KIND_SERVICE_BUSY
        if not ms:
            self._ports.alarms.clear(kind, name)
            return
        self._ports.alarms.tell(
            kind,
            f"service {name} has worked on one batch for {ms // 1000} s, and calls to it"
            " wait. If it"
            " does not finish, end its process with SIGKILL (it does not react to other"
            " signals). The"
            " coordinator then sends the new process every batch again, and refuses a command that"
            " ends the process again",
            name,
        )

    def _gave_up(self, stage: mux_types.Stage, attempt: domain_pb2.Attempt) -> None:
        """Raise the alarm of a command that has ended too many processes."""
        what = f"{attempt.where} at revision {attempt.revision}"
        self._ports.alarms.raise_alarm(
            cluster_pb2.ALARM_KIND_COMMAND_REVERTED,
            f"{what}, in batch {attempt.sequence}, ends the process of service {stage.name.lower()}"
            " each time: the command is refused as a defect, here and on every replica where it"
            " does the same",
            what,
        )


def state_of(client: StageClient) -> ServiceState:
    """Return the state of a service."""
    if client.coming_back:
        return ServiceState.COMING_BACK
    # A service that is too long at one batch answers nobody, not even reads.
    gets_on = client.connected and not client.replaying and not client.is_busy
    return ServiceState.UP if gets_on else ServiceState.DOWN
