"""The catalog stage's reads, answered by this replica: about the cluster, and added methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from google.protobuf.message import Message

from coordinator.base.alarms import Alarms
from coordinator.base.roster import Roster
from coordinator.gateway.local_reads import LocalReads, parsed
from coordinator.gateway.status_digests import Digests, StatusDigests, Walks
from coordinator.mux import types as mux
from coordinator.mux.catalog_types import NO_DESCRIPTION, Description
from coordinator.replica.ports import Progress
from coordinator.vsr import ReplicaStatus
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import frame
from viewstamp.routing import MethodKind, methods_of_file

_METHODS: Final = {m.code: m for m in methods_of_file(cluster_pb2.DESCRIPTOR)}
# What a replica reports of itself in any status.
STATUS_CODES: Final = frozenset(m.code for m in _METHODS.values() if m.kind is MethodKind.QUERY)

STATUSES: Final = {
    ReplicaStatus.BLANK: cluster_pb2.REPLICA_STATUS_BLANK,
    ReplicaStatus.RECOVERING: cluster_pb2.REPLICA_STATUS_RECOVERING,
    ReplicaStatus.VIEW_CHANGE: cluster_pb2.REPLICA_STATUS_VIEW_CHANGE,
    ReplicaStatus.NORMAL: cluster_pb2.REPLICA_STATUS_NORMAL,
    ReplicaStatus.HALTED: cluster_pb2.REPLICA_STATUS_HALTED,
    ReplicaStatus.REMOVED: cluster_pb2.REPLICA_STATUS_REMOVED,
}


class StatusService(Protocol):
    """A domain service as seen from here."""

    connected: bool
    restarts: int

    @property
    def item_log_bytes(self) -> int:
        """Bytes kept for its restart."""
        ...


@dataclass(frozen=True, slots=True)
class _Asked:
    """A query without its requests: the indexes answered, and the errors of others."""

    query_id: int
    count: int
    answered: frozenset[int]
    errors: tuple[mux.IndexedError, ...]

    def answer(self, response: Message) -> mux.QueryOutcome:
        """Answer all with one response."""
        encoded = frame(response.SerializeToString())
        results = (encoded if i in self.answered else mux.EMPTY_FRAME for i in range(self.count))
        return mux.QueryOutcome(self.query_id, b"".join(results), self.errors)

    def refuse(self, refusal: Refusal) -> mux.QueryOutcome:
        """Refuse all."""
        error = refusal.to_answer().SerializeToString()
        failed = (*self.errors, *(mux.IndexedError(index, error) for index in self.answered))
        errors = tuple(sorted(failed, key=lambda each: each.index))
        return mux.QueryOutcome(self.query_id, mux.EMPTY_FRAME * self.count, errors)


@dataclass(frozen=True, slots=True)
class StatusSources:
    """The sources of the rest of the status, read for each request.

    `address` is where clients reach this replica, `generation` the snapshot from which it would
    restart, `unfit` what speaks against it as primary, `peer_address` where the others reach it,
    `level_supported` the highest feature level that it supports.
    """

    address: str = ""
    generation: Callable[[], int] = lambda: 0
    unfit: Callable[[], str] = lambda: ""
    peer_address: Callable[[], str] = lambda: ""
    level_in_force: Callable[[], int] = lambda: 0
    level_supported: Callable[[], int] = lambda: 0
    description: Callable[[], Description] = lambda: NO_DESCRIPTION


class ClusterStage:
    """Answers GetStatus and ListAlarms, and passes other reads to those of `reads`.

    Digests need a walk over every stage, so they follow (`status_digests`).
    """

    def __init__(
        self,
        progress: Progress,
        walks: Walks,
        follow: Callable[[mux.QueryOutcome], None],
        alarms: Alarms,
        services: dict[mux.Stage, StatusService],
        session_count: Callable[[], int],
        session_entities: Callable[[], Iterable[tuple[int, bytes, bytes]]],
        roster: Roster,
        cluster_id: bytes,
        others: Callable[[], Iterable[cluster_pb2.Replica]] = tuple,
        sources: StatusSources | None = None,
        reads: Iterable[LocalReads] = (),
    ) -> None:
        """Raises ValueError if two of `reads` answer the same code."""
        self._sources = sources or StatusSources()
        self._others = others
        self._progress = progress
        self._follow = follow
        self._alarms = alarms
        self._services = services
        self._session_count = session_count
        self._digests = StatusDigests(walks, session_entities)
        self._roster = roster
        self._cluster_id = cluster_id
        self._queries = dict.fromkeys(_METHODS, self._query)
        for each in reads:
            self._add(each)

    def _add(self, reads: LocalReads) -> None:
        taken = [code for code in reads.codes if code in self._queries]
        if taken:
            raise ValueError(f"reads of code {taken[0]} are answered already")
        self._queries |= dict.fromkeys(reads.codes, reads.query)

    def read(self, batch: mux.StageBatch) -> mux.StageReply:
        """Answer a batch of reads."""
        outcomes = []
        for item in batch.items:
            if not isinstance(item, mux.QueryItem):
                raise mux.MuxError(f"the catalog stage takes reads alone, not {item}")
            outcomes.append(self._queries[item.code](item))
        return mux.StageReply(batch.stage, batch.sequence, tuple(outcomes))

    def _query(self, item: mux.QueryItem) -> mux.QueryOutcome:
        requests, errors = parsed(item, _METHODS)
        asked = _Asked(item.query_id, item.count, frozenset(requests), errors)
        if _METHODS[item.code].name == "ListAlarms":
            return asked.answer(cluster_pb2.ListAlarmsResponse(alarms=self._alarms.all()))
        if any(request.include_digests for request in requests.values()):
            return self._follow_with_digests(asked, item.user_id)
        return asked.answer(self._status({}))

    def _follow_with_digests(self, asked: _Asked, user_id: int | None) -> mux.QueryOutcome:
        """Answer once the digests are there, or refuse now if too many wait for them."""

        def tell(found: Digests | Refusal) -> None:
            if isinstance(found, Refusal):
                self._follow(asked.refuse(found))
            else:
                self._follow(asked.answer(self._status(found)))

        try:
            self._digests.ask(user_id, tell)
        except Refusal as refusal:
            return asked.refuse(refusal)
        return mux.QueryOutcome(asked.query_id, deferred=True)

    def _status(self, digests: Digests) -> cluster_pb2.GetStatusResponse:
        progress = self._progress
        description = self._sources.description()
        return cluster_pb2.GetStatusResponse(
            cluster=self._cluster_id.hex(),
            primary=progress.primary,
            replicas=self._replicas(),
            services=[self._service_status(stage, digests) for stage in mux.SERVICE_STAGES],
            alarms=self._alarms.all(),
            sessions=self._session_count(),
            feature_level=self._sources.level_in_force(),
            description=description.text,
            description_revision=description.modified_revision,
            sessions_digest=digests.get(mux.Stage.SESSIONS, ""),
            epoch=self._roster.epoch,
        )

    def _replicas(self) -> list[cluster_pb2.Replica]:
        found = sorted(
            (self._replica_status(), *self._others()), key=lambda replica: replica.replica_id
        )
        committed_op = max(replica.commit for replica in found)
        for replica in found:
            replica.role = self._role_of(replica.replica_id)
            replica.lag = committed_op - replica.applied
        return found

    def _role_of(self, replica_id: int) -> cluster_pb2.ReplicaRole.ValueType:
        if replica_id in self._roster.standbys:
            return cluster_pb2.REPLICA_ROLE_STANDBY
        if replica_id not in self._roster.voters:
            return cluster_pb2.REPLICA_ROLE_UNSPECIFIED  # it was removed
        if replica_id == self._progress.primary:
            return cluster_pb2.REPLICA_ROLE_PRIMARY
        return cluster_pb2.REPLICA_ROLE_BACKUP

    def _replica_status(self) -> cluster_pb2.Replica:
        progress = self._progress
        return cluster_pb2.Replica(
            replica_id=self._roster.replica_id,
            status=STATUSES[progress.status],
            view=progress.view,
            op=progress.op,
            commit=progress.committed_op,
            applied=progress.applied_op,
            address=self._sources.address,
            generation=self._sources.generation(),
            unfit=self._sources.unfit(),
            feature_level_max=self._sources.level_supported(),
            peer_address=self._sources.peer_address(),
        )

    def _service_status(self, stage: mux.Stage, digests: Digests) -> cluster_pb2.ServiceStatus:
        service = self._services[stage]
        return cluster_pb2.ServiceStatus(
            stage=int(stage),  # type: ignore[arg-type]
            connected=service.connected,
            settled_revision=self._progress.applied_revision,
            state_digest=digests.get(stage, ""),
            item_log_bytes=service.item_log_bytes,
            restarts=service.restarts,
        )
