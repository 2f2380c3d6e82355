"""The members of the fake gateway's cluster: one that leads, and those that were added."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import Message

from viewstamp.api.cluster.v1 import cluster_service_pb2 as pb
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

# How often a standby is asked before it is ready.
ATTEMPTS_BEFORE_READY: Final = 2
# A standby at an address that begins so is never ready.
NEVER_READY: Final = "away"
REQUESTS: Final = (pb.AddReplicaRequest, pb.PromoteReplicaRequest, pb.RemoveReplicaRequest)


class ChangingMembers:
    """Adds, promotes and removes replicas by the rules of the contract."""

    def __init__(self) -> None:
        first = pb.Replica(
            status=pb.REPLICA_STATUS_NORMAL,
            role=pb.REPLICA_ROLE_PRIMARY,
            view=3,
            op=9,
            peer_address="a.example.com:7410",
        )
        self.epoch = 0
        self.replicas = {0: first}
        self._attempts: dict[int, int] = {}

    def answer(self, request: Any) -> Message:
        """Carry out a change of the members. Raises Refusal."""
        if isinstance(request, pb.AddReplicaRequest):
            return pb.AddReplicaResponse(replica_id=self._add(request))
        if request.replica_id not in self.replicas:
            raise Refusal(Reason.REASON_REPLICA_NOT_FOUND, "the cluster has no such replica")
        if isinstance(request, pb.PromoteReplicaRequest):
            self._promote(request)
            return pb.PromoteReplicaResponse()
        self._remove(request)
        return pb.RemoveReplicaResponse()

    def _add(self, request: pb.AddReplicaRequest) -> int:
        for replica_id, each in self.replicas.items():
            if each.peer_address == request.peer_address:
                return replica_id
        replica_id = max(self.replicas) + 1
        if not request.validate_only:
            self.epoch += 1
            self.replicas[replica_id] = pb.Replica(
                replica_id=replica_id,
                role=pb.REPLICA_ROLE_STANDBY,
                status=pb.REPLICA_STATUS_BLANK,
                lag=9,
                peer_address=request.peer_address,
            )
        return replica_id

    def _promote(self, request: pb.PromoteReplicaRequest) -> None:
        replica = self.replicas[request.replica_id]
        attempts = self._attempts.get(request.replica_id, 0)
        self._attempts[request.replica_id] = attempts + 1
        is_away = replica.peer_address.startswith(NEVER_READY)
        if is_away or attempts < ATTEMPTS_BEFORE_READY:
            raise Refusal(Reason.REASON_REPLICA_NOT_READY, "the standby is behind")
        if not request.validate_only:
            self.epoch += 1
            replica.role = pb.REPLICA_ROLE_BACKUP
            replica.status = pb.REPLICA_STATUS_NORMAL

    def _remove(self, request: pb.RemoveReplicaRequest) -> None:
        voters = [each for each in self.replicas.values() if each.role != pb.REPLICA_ROLE_STANDBY]
        replica = self.replicas[request.replica_id]
        if voters == [replica]:
            raise Refusal(Reason.REASON_NO_OTHER_REPLICA, "the cluster has only one replica")
        if not request.validate_only:
            self.epoch += 1
            replica.status = pb.REPLICA_STATUS_REMOVED
            replica.role = pb.REPLICA_ROLE_UNSPECIFIED
