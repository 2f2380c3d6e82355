"""Who belongs to the cluster, for all parts of one process: the roster, addresses, newcomers.

The core decides when an epoch begins. This tells the rest, before anything is sent in the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from coordinator import vsr
from coordinator.app.config import Config
from coordinator.app.members import Members
from coordinator.base.roster import Roster
from coordinator.mux.catalog_types import BeginEpoch, ClusterMembers, EpochMember
from coordinator.mux.types import BEGIN_EPOCH_CODE
from coordinator.peers.introduction import Introduction
from coordinator.peers.messages import ReplicaReportMessage
from coordinator.replica.batcher import LooseCommand, Reply
from coordinator.replica.data_directory import ReplicaFiles
from coordinator.replica.driver import Driver
from coordinator.replica.epoch_changes import ChangeReader
from coordinator.replica.epoch_planning import EpochView, SeenReplica
from coordinator.stages.catalog_codec import begin_epoch_request
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import SYSTEM_USER_ID
from viewstamp.wildcard_addresses import is_wildcard


@dataclass(frozen=True, slots=True)
class EpochPorts:
    """What epochs act upon. `catalog_members` are those that the catalog names; None in the first
    epoch. `members` are the other replicas; None if this one listens for no others."""

    config: Config
    files: ReplicaFiles
    driver: Callable[[], Driver]
    catalog_members: Callable[[], ClusterMembers | None]
    members: Callable[[], Members | None]


class Epochs:
    """Follows the members of one replica's cluster."""

    def __init__(self, roster: Roster, reader: ChangeReader, ports: EpochPorts) -> None:
        self._roster = roster
        self._reader = reader
        self._ports = ports

    def began(self, membership: vsr.Membership) -> None:
        """Go by the members of another epoch, at the addresses that are known by now."""
        self._reader.entered(membership)
        self.learn_addresses()
        self._roster.enter(membership.voters, membership.standbys, membership.epoch)
        self._ports.files.journal.is_alone = self._roster.is_alone

    def learn_addresses(self) -> None:
        """Have the links know what is known of addresses."""
        members = self._ports.members()
        if members is not None:
            members.peers.learn_addresses(self._reader.addresses)

    def introduction(self) -> Introduction | None:
        """Return what newcomers are told; None while this replica does not take part."""
        driver, state = self._ports.driver(), self._ports.files.superblock.state
        if driver.progress.status is not vsr.ReplicaStatus.NORMAL:
            return None
        return Introduction(
            state.cluster_id,
            state.replica_count,
            self._ports.config.standby_count,
            self._members(),
            driver.core.membership.began_checksum,
        )

    def view(self) -> EpochView:
        """Return what a primary plans the next epoch by. Raises Refusal."""
        named = self._ports.catalog_members()
        begun = self._ports.driver().core.membership.first_view
        if (0 if named is None else named.first_view) != begun:
            raise Refusal(
                Reason.REASON_VIEW_CHANGE, "the last change is still being applied: try again"
            )
        members = self._ports.members()
        if members is None or is_wildcard(self.own_address()):
            raise Refusal(
                Reason.REASON_INVALID_OPTION,
                "the other replicas could not reach this one: start it with --peer-listen, and with"
                f" --peer {self._roster.replica_id}=HOST:PORT if they reach it elsewhere",
                option="peer_listen",
            )
        seen = {replica: members.reports.fresh(replica) for replica in self._roster.others}
        return EpochView(
            self._members(),
            self._roster.replica_id,
            self._ports.driver().progress.committed_op,
            {replica: _seen(report) for replica, report in seen.items() if report is not None},
        )

    async def begin(self, change: BeginEpoch) -> Reply:
        """Have the log end the epoch, and return once that is applied here. Raises Refusal."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        payload = begin_epoch_request(change)
        self._ports.driver().intake.submit(
            LooseCommand(BEGIN_EPOCH_CODE, payload, SYSTEM_USER_ID, 0, "", future)
        )
        return await future

    def own_address(self) -> str:
        """Return where the others reach this replica; empty if it listens for none."""
        settings = self._ports.config.peers
        if settings is None:
            return ""
        logged = self._reader.addresses.get(self._roster.replica_id)
        return settings.own_address or logged or settings.listen

    def _members(self) -> ClusterMembers:
        """Return the members with all addresses that are known here."""
        membership = self._ports.driver().core.membership
        named = self._ports.catalog_members()
        disks = dict(membership.disks)
        config, state = self._ports.config, self._ports.files.superblock.state
        founders = state.replica_count + config.standby_count
        return ClusterMembers(
            membership.began_op,
            membership.first_view,
            tuple(self._member(each, disks.get(each, b"")) for each in membership.voters),
            tuple(self._member(each) for each in membership.standbys),
            founders if named is None else named.next_replica_id,
        )

    def _member(self, replica: int, disk_id: bytes = b"") -> EpochMember:
        if replica == self._roster.replica_id:
            return EpochMember(replica, self.own_address(), disk_id)
        members = self._ports.members()
        known = self._reader.addresses if members is None else members.peers.addresses
        return EpochMember(replica, known.get(replica, ""), disk_id)


def _seen(report: ReplicaReportMessage) -> SeenReplica:
    is_normal = report.status == cluster_pb2.REPLICA_STATUS_NORMAL
    return SeenReplica(is_normal, report.commit, report.disk_id, report.lacks_vote)
