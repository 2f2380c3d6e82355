"""How a replica with an empty directory learns of the cluster that it was added to.

It asks the replicas that its flags name, in turn, until one of them knows it as a member. Nothing
else tells it whose log it is to follow: with the founding flags alone it could found a cluster of
its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from coordinator.base.roster import Roster
from coordinator.mux import catalog_types as catalog
from coordinator.peers.link import dial
from coordinator.peers.listener import SERVICE
from coordinator.peers.tls import certificate_name
from coordinator.stages.entities import begin_epoch_message, epoch_members_of
from coordinator.vsr import epoch_of
from viewstamp.api.replication.v1 import replication_service_pb2 as pb
from viewstamp.cancellation import answer_of
from viewstamp.certificates.pem_files import Certificates
from viewstamp.certificates.proven_names import names_of
from viewstamp.limits import CLUSTER_ID_BYTES
from viewstamp.telemetry import fields

INTRODUCTION_TIMEOUT_MS: Final = 2_000
INTRODUCTION_RETRY_MS: Final = 500
# Who waits is told of in the log this often.
TOLD_INTERVAL_MS: Final = 10_000

_log = logging.getLogger(__name__)
_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Introduction:
    """A cluster, and who belongs to it now. It was founded with these counts."""

    cluster_id: bytes
    replica_count: int
    standby_count: int
    members: catalog.ClusterMembers
    began_checksum: bytes


@dataclass(frozen=True, slots=True)
class Newcomer:
    """Who asks: a replica that knows its id, or one that was added with an address."""

    replica_id: int
    address: str = ""

    def among(self, members: catalog.ClusterMembers) -> int | None:
        """Return the id of the newcomer, None if it is no member."""
        known = members.voters + members.standbys
        if not self.address:
            ids = [each.replica_id for each in known]
            return self.replica_id if self.replica_id in ids else None
        return next((each.replica_id for each in known if each.peer_address == self.address), None)

    def __str__(self) -> str:
        return f"at {self.address}" if self.address else str(self.replica_id)


async def introduced(
    newcomer: Newcomer,
    seeds: Mapping[int, str],
    certificates: Callable[[], Certificates | None],
    clock_ms: Callable[[], int],
) -> Introduction:
    """Return what the first of `seeds` says that knows this replica; ask until one does.

    `certificates` are looked at in each round: those at the start may be what is wrong.
    """
    told_ms = clock_ms()
    while True:
        answers: dict[int, str] = {}
        proofs = certificates()
        for seed, address in seeds.items():
            try:
                return await _ask(newcomer, seed, address, proofs)
            except grpc.RpcError as error:
                answers[seed] = f"{error.code().name}: {error.details()}"
            except (DecodeError, ValueError, TimeoutError) as error:
                answers[seed] = str(error) or f"nothing within {INTRODUCTION_TIMEOUT_MS} ms"
        if clock_ms() - told_ms >= TOLD_INTERVAL_MS:
            told_ms = clock_ms()
            _log.warning(
                "no replica introduces this one yet: add it by `viewstamp replica add`",
                extra=fields(replica=str(newcomer), answers=str(answers)),
            )
        await asyncio.sleep(INTRODUCTION_RETRY_MS / 1000)


async def _ask(
    newcomer: Newcomer, seed: int, address: str, certificates: Certificates | None
) -> Introduction:
    channel = dial(address, seed, certificates)
    try:
        call: Any = channel.unary_unary(f"/{SERVICE}/Introduce")
        request = pb.IntroduceRequest(replica_id=newcomer.replica_id, address=newcomer.address)
        answer = await answer_of(
            call(request.SerializeToString(), timeout=INTRODUCTION_TIMEOUT_MS / 1000)
        )
        told = introduction_of(pb.IntroduceResponse.FromString(answer))
        # A build that knows no addresses answers all the same, as to replica 0.
        if newcomer.among(told.members) is None:
            raise ValueError(f"replica {newcomer} is none of those that were named")
        return told
    finally:
        await channel.close()


def introduction_of(response: pb.IntroduceResponse) -> Introduction:
    """Return what a replica says of its cluster. Raises ValueError."""
    if len(response.cluster_id) != CLUSTER_ID_BYTES:
        raise ValueError(f"the cluster's id has {len(response.cluster_id)} bytes")
    named = response.members
    members = catalog.ClusterMembers(
        response.began_op,
        named.first_view,
        epoch_members_of(named.voters),
        epoch_members_of(named.standbys),
        named.next_replica_id,
    )
    # In the first epoch the members are those that founded the cluster.
    is_founding = epoch_of(members.first_view) == 0
    return Introduction(
        response.cluster_id,
        len(members.voters) if is_founding else response.replica_count,
        len(members.standbys) if is_founding else response.standby_count,
        members,
        response.began_checksum,
    )


class Introducer:
    """Answers newcomers. `introduction` is what this replica says of its cluster; None while it
    does not take part itself."""

    def __init__(self, roster: Roster, introduction: Callable[[], Introduction | None]) -> None:
        self._roster = roster
        self._introduction = introduction

    async def introduce(self, payload: bytes, context: _Context) -> bytes:
        """Serve the RPC."""
        try:
            request = pb.IntroduceRequest.FromString(payload)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request does not decode")
        newcomer = Newcomer(request.replica_id, request.address)
        if not newcomer.address:
            await _check_names(newcomer.replica_id, context)
        told = self._introduction()
        if told is None:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE,
                f"replica {self._roster.replica_id} does not take part itself yet",
            )
        assert told is not None
        replica = newcomer.among(told.members)
        if replica is None or replica not in self._roster.members:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"replica {newcomer} is no member of epoch {self._roster.epoch}",
            )
        assert replica is not None
        await _check_names(replica, context)
        return pb.IntroduceResponse(
            cluster_id=told.cluster_id,
            replica_count=told.replica_count,
            standby_count=told.standby_count,
            began_op=told.members.began_op,
            began_checksum=told.began_checksum,
            members=begin_epoch_message(told.members),
        ).SerializeToString()


async def _check_names(replica: int, context: _Context) -> None:
    """End the call if the caller's certificate is not that of a replica."""
    names = names_of(context)
    if names is not None and certificate_name(replica) not in names:
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED,
            f"the certificate of replica {replica} must name {certificate_name(replica)}",
        )
