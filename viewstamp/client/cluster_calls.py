"""Calls about the cluster itself: status, leadership, feature level, description and members."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import Message

from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.client.consistency import LINEARIZABLE, Consistency
from viewstamp.client.field_levels import check_in_force
from viewstamp.client.methods import method_of

if TYPE_CHECKING:
    from viewstamp.client.identifiers import Answer
    from viewstamp.client.submitter import Submitter

CALL_TIMEOUT_S: Final = 30.0
# Means the timeout that was given to `connect`.
DEFAULT_TIMEOUT: Final = -1.0


class ClusterCalls(ABC):
    """The part of a client that is about the cluster."""

    _submitter: Submitter
    _timeout_s: float | None

    @abstractmethod
    async def call(
        self,
        request: Message,
        *,
        consistency: Consistency = LINEARIZABLE,
        timeout_s: float | None = DEFAULT_TIMEOUT,
    ) -> Any:
        """Call the method of `request` and return its response, header included."""

    def status(
        self,
        *,
        include_digests: bool = False,
        consistency: Consistency = LINEARIZABLE,
        timeout_s: float | None = DEFAULT_TIMEOUT,
    ) -> Answer[cluster_pb2.GetStatusResponse]:
        """Return the cluster's status; with digests it walks over the whole state."""
        request = cluster_pb2.GetStatusRequest(include_digests=include_digests)
        return self.call(request, consistency=consistency, timeout_s=timeout_s)

    async def step_down(self, *, validate_only: bool = False) -> cluster_pb2.StepDownResponse:
        """Have the primary hand over to another replica; or only try it, from feature level 8 on.

        Raises Refusal (FEATURE_LEVEL_REQUIRED, ...), grpc.aio.AioRpcError.
        """
        request = cluster_pb2.StepDownRequest(validate_only=validate_only)
        if validate_only:
            # An older primary would step down. Nothing lowers the level that is found here.
            status = await self._alone(cluster_pb2.GetStatusRequest())
            check_in_force(method_of(request), request, status.feature_level)
        response: cluster_pb2.StepDownResponse = await self._alone(request)
        return response

    def raise_feature_level(
        self, level: int, expected: int, *, validate_only: bool = False
    ) -> Answer[cluster_pb2.RaiseFeatureLevelResponse]:
        """Raise the feature level from `expected` to `level`, which is one higher, permanently.

        Raises Refusal, grpc.aio.AioRpcError.
        """
        request = cluster_pb2.RaiseFeatureLevelRequest(
            level=level, expected=expected, validate_only=validate_only
        )
        return self._alone(request)

    def describe_cluster(
        self,
        description: str,
        *,
        expected_revision: int | None = None,
        validate_only: bool = False,
    ) -> Answer[cluster_pb2.SetClusterDescriptionResponse]:
        """Set the description of the cluster, which its status shows; "" for none.

        Raises Refusal, ClientError.
        """
        request = cluster_pb2.SetClusterDescriptionRequest(
            description=description,
            expected_revision=expected_revision,
            validate_only=validate_only,
        )
        return self.call(request)

    # Repeating a change of the members does no harm: it finds itself done.

    def add_replica(
        self, peer_address: str, *, validate_only: bool = False
    ) -> Answer[cluster_pb2.AddReplicaResponse]:
        """Add a standby that listens for the others at `peer_address`; the answer has its id.

        Then start its process with that id. Needs feature level 9, as the next two. Raises Refusal
        (REPLICA_LIMIT, ...), grpc.aio.AioRpcError.
        """
        request = cluster_pb2.AddReplicaRequest(
            peer_address=peer_address, validate_only=validate_only
        )
        return self._alone(request)

    def promote_replica(
        self, replica_id: int, *, validate_only: bool = False
    ) -> Answer[cluster_pb2.PromoteReplicaResponse]:
        """Give a standby a vote, once it is up to date.

        Raises Refusal (REPLICA_NOT_READY, QUORUM_AT_RISK, ...), grpc.aio.AioRpcError.
        """
        request = cluster_pb2.PromoteReplicaRequest(
            replica_id=replica_id, validate_only=validate_only
        )
        return self._alone(request)

    def remove_replica(
        self, replica_id: int, *, validate_only: bool = False
    ) -> Answer[cluster_pb2.RemoveReplicaResponse]:
        """Remove a replica for good, with its vote if it has one.

        Raises Refusal (QUORUM_AT_RISK, NO_OTHER_REPLICA, ...), grpc.aio.AioRpcError.
        """
        request = cluster_pb2.RemoveReplicaRequest(
            replica_id=replica_id, validate_only=validate_only
        )
        return self._alone(request)

    def _alone(self, request: Message) -> Answer[Any]:
        """Call outside of the stream: only the primary answers, and a backup passes it on."""
        return self._submitter.call_alone(request, self._timeout_s or CALL_TIMEOUT_S)
