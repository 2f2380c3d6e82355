"""AddReplica, PromoteReplica and RemoveReplica: the primary ends the epoch for them.

A linearizable read checks the caller's permission. Then the primary plans the next epoch from what
it knows of the others, and has one entry of its own say it. So the log has no change that could
still be refused: the core goes by the entry as soon as it is committed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeAlias

from coordinator.base.decoded_requests import decoded_request
from coordinator.gateway.caller_calls import CallerCalls
from coordinator.gateway.routes import Routes
from coordinator.mux.catalog_types import BeginEpoch
from coordinator.replica import epoch_planning
from coordinator.replica.batcher import Reply
from coordinator.replica.epoch_planning import EpochView
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.routing import methods_of_file

SERVICE: Final = "/viewstamp.api.cluster.v1.ClusterService/"
ADD_PATH: Final = SERVICE + "AddReplica"
PROMOTE_PATH: Final = SERVICE + "PromoteReplica"
REMOVE_PATH: Final = SERVICE + "RemoveReplica"
_METHODS: Final = {method.path: method for method in methods_of_file(cluster_pb2.DESCRIPTOR)}

# Returns the response to a request's bytes. Raises Refusal.
Answer: TypeAlias = Callable[[CallerCalls, bytes], Awaitable[bytes]]


class EpochChanges(Protocol):
    """The epochs of the cluster, as seen from here."""

    def view(self) -> EpochView:
        """Return what the next epoch is planned by. Raises Refusal."""
        ...

    async def begin(self, change: BeginEpoch) -> Reply:
        """Have the log end the epoch, and return once that is applied. Raises Refusal."""
        ...


class ReplicaCalls:
    """Answers the three, one at a time."""

    def __init__(self, routes: Routes, epochs: EpochChanges) -> None:
        self._routes = routes
        self._epochs = epochs
        self._is_changing = False

    def answers(self) -> Mapping[str, Answer]:
        """Return what answers, by path."""
        return {ADD_PATH: self._add, PROMOTE_PATH: self._promote, REMOVE_PATH: self._remove}

    async def _add(self, calls: CallerCalls, payload: bytes) -> bytes:
        request = decoded_request(cluster_pb2.AddReplicaRequest, payload)
        await self._check(calls, ADD_PATH)
        replica, change = epoch_planning.addition(self._epochs.view(), request.peer_address)
        await self._carry_out(calls, change, request.validate_only)
        return cluster_pb2.AddReplicaResponse(replica_id=replica).SerializeToString()

    async def _promote(self, calls: CallerCalls, payload: bytes) -> bytes:
        request = decoded_request(cluster_pb2.PromoteReplicaRequest, payload)
        await self._check(calls, PROMOTE_PATH)
        change = epoch_planning.promotion(self._epochs.view(), request.replica_id)
        await self._carry_out(calls, change, request.validate_only)
        return b""

    async def _remove(self, calls: CallerCalls, payload: bytes) -> bytes:
        request = decoded_request(cluster_pb2.RemoveReplicaRequest, payload)
        await self._check(calls, REMOVE_PATH)
        change = epoch_planning.removal(self._epochs.view(), request.replica_id)
        await self._carry_out(calls, change, request.validate_only)
        return b""

    async def _check(self, calls: CallerCalls, path: str) -> None:
        """Raise Refusal unless the caller manages servers, and the level has the method."""
        await calls.check_manages_servers()
        self._routes.check_level(_METHODS[path])

    async def _carry_out(
        self, calls: CallerCalls, change: BeginEpoch | None, validate_only: bool
    ) -> None:
        if change is None or validate_only:
            return
        if self._is_changing:
            raise Refusal(
                Reason.REASON_OVERLOADED,
                "another replica is being added, promoted or removed: try again",
            )
        self._is_changing = True
        try:
            calls.newest = await self._epochs.begin(change)
        finally:
            self._is_changing = False
