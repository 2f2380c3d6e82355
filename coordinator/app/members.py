"""This replica among the others: messages both ways, entries for lagging replicas, and reports.

Reports are soft: how far each replica is, and where it serves clients. People see them in the
status, and a backup tells clients from them where the primary is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

from coordinator import vsr
from coordinator.app.digest_claims import ClaimAlarms, DigestClaims
from coordinator.app.disk_memory import KNOWN_DISKS_FILE, BlockingCalls, DiskMemory
from coordinator.app.reports import NO_VOTE, REPORT_INTERVAL_MS, SnapshotReports
from coordinator.app.scrubbing import PeerFiles
from coordinator.base.alarms import Alarms
from coordinator.base.roster import Roster
from coordinator.gateway.cluster import STATUSES
from coordinator.mux.applied_digests import AppliedDigests
from coordinator.peers import messages as peer_messages
from coordinator.peers.hello import NO_DISK, DiskMark, HelloRefusal
from coordinator.peers.introduction import Introduction
from coordinator.peers.known_disks_codec import MemoryOwner
from coordinator.peers.peers import PeerEvents, Peers, PeersConfig
from coordinator.peers.routing import Handler, Receiver
from coordinator.peers.status import LinkState, PeerStatus, is_name_unknown
from coordinator.replica.data_directory import ReplicaFiles
from coordinator.replica.driver import Driver
from coordinator.replica.peer_answers import JournalEntries, PeerAnswers, Position
from coordinator.replica.peers import PeerPorts
from coordinator.replica.slot_file import SlotFile
from coordinator.snapshot.provider import StoredSnapshots
from coordinator.snapshot.transfer import StateTransfer
from coordinator.snapshot.transfer_ports import TransferPorts
from coordinator.snapshot.work import Durable
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.format.superblock import NOT_ADMITTED
from viewstamp.wildcard_addresses import is_wildcard

# How long a replica that must not go on has to tell the others.
LAST_REPORT_MS: Final = 200
TRANSFER_FOLDER: Final = "transfer"


class MemberThread(JournalEntries, BlockingCalls, Protocol):
    """The thread of the journal: entries for others, and writes of what they told."""


class MemberClock(Protocol):
    """The clocks of all replicas, as seen from here."""

    def own_us(self) -> int:
        """Return the clock of this replica, for the others."""

    def heard(self, replica: int, clock_us: int) -> None:
        """Take the clock of another replica."""


@dataclass(frozen=True, slots=True)
class MemberPorts:
    """What the members act upon.

    `driver` returns this replica's driver. The driver is built from these members, so they call
    this only after that. `position` is how far this replica is, `digests` what the log led to here,
    `client_address` where it serves clients. `durable_elsewhere` is told what other replicas say
    of snapshots, `adopted_elsewhere` from which generation one would restart. `unfit` is what
    speaks against this replica as the primary.
    `level_in_force` is the feature level that the log has reached here, `level_supported` the
    highest that this replica supports.
    `clock` is told the clocks of others, and what others are told of this one's.
    `roster` says which others there are, `introduction` what newcomers are told. `start` runs work
    whose failure ends the process, as `fail` does.
    """

    driver: Callable[[], Driver]
    entries: MemberThread
    position: Callable[[], Position]
    digests: AppliedDigests
    client_address: Callable[[], str]
    durable_elsewhere: Callable[[peer_messages.SnapshotDurableMessage], None]
    adopted_elsewhere: Callable[[int, int], None]
    files: ReplicaFiles
    data_directory: Path
    unfit: Callable[[], str]
    level_in_force: Callable[[], int]
    level_supported: Callable[[], int]
    clock_ms: Callable[[], int]
    clock: MemberClock
    roster: Roster
    introduction: Callable[[], Introduction | None]
    alarms: Alarms
    start: Callable[[Coroutine[Any, Any, None]], None]
    fail: Callable[[BaseException], None]


class Members:
    """The other replicas."""

    def __init__(self, config: PeersConfig, ports: MemberPorts) -> None:
        self._ports = ports
        self.replica_id = config.replica_id
        self.reports = SnapshotReports(ports.roster, ports.clock_ms)
        self._claims = DigestClaims(ports.digests, ports.roster, self._claim_alarms())
        self._cluster_id = config.cluster_id
        self._boot_nonce = config.boot_nonce
        self._is_halted = False
        self._told_of: set[int] = set()
        events = PeerEvents(self._receivers(), self._link_changed, ports.fail)
        superblock = ports.files.superblock
        self._memory = self._make_memory(config)
        self.peers = Peers(
            config,
            events,
            StoredSnapshots(ports.files.snapshots),
            adopted=lambda: superblock.state.generation,
            level_in_force=ports.level_in_force,
            disk=self._disk,
            known_disks=self._memory.known_disks,
            introduction=ports.introduction,
        )
        self._answers = PeerAnswers(
            config.cluster_id,
            config.replica_id,
            ports.entries,
            self.peers.send,
            ports.position,
            self._found_faulty,
            ports.start,
        )
        self._transfer = self._make_transfer()
        ports.roster.follow(self._forget_removed)

    def driver_ports(self) -> PeerPorts:
        """Return what the driver needs of the other replicas."""
        return PeerPorts(
            replica_id=self.replica_id,
            send=self.peers.send,
            send_committed=self._answers.send_committed,
            send_held=self._answers.send_held,
            snapshot_needed=self._transfer.needed,
            stuck=self._stuck,
            address=self.address_of,
        )

    def _receivers(self) -> Mapping[Receiver, Handler]:
        return {
            Receiver.CORE: self._received_by_core,
            Receiver.SNAPSHOTS: self._ports.durable_elsewhere,
            Receiver.REPORTS: self._reported,
        }

    def _received_by_core(self, message: vsr.Message) -> None:
        self._ports.driver().entries.received(message)

    def _found_faulty(self, op: int) -> None:
        """Have a damaged record mended, unless no other voter is left whom the core could ask."""
        if not self._ports.roster.is_alone:
            self._ports.driver().found_faulty(op)

    async def run(self) -> None:
        """Listen, and report to the others until cancelled."""
        await self._memory.load()
        self._forget_removed()
        await self.peers.start()
        self._ports.start(self._memory.run())
        self._ports.start(self._transfer.run())
        while True:
            self.report()
            await asyncio.sleep(REPORT_INTERVAL_MS / 1000)

    async def tell_halted(self) -> None:
        """Tell the others that this replica halts, so that their status shows it."""
        self._is_halted = True
        self.report()
        await asyncio.sleep(LAST_REPORT_MS / 1000)

    async def stop(self) -> None:
        """Close every stream."""
        await self.peers.stop()

    def tell_primary(self, durable: Durable) -> None:
        """Tell the primary, if it is known and another, what is durable here."""
        progress = self._ports.driver().progress
        if progress.status is vsr.ReplicaStatus.NORMAL and progress.primary != self.replica_id:
            self._tell_durable(progress.primary, durable)

    def tell_others(self, durable: Durable) -> None:
        """Tell every other replica what is durable here."""
        for replica in self._ports.roster.others:
            self._tell_durable(replica, durable)

    def _tell_durable(self, replica: int, durable: Durable) -> None:
        message = peer_messages.SnapshotDurableMessage(
            cluster_id=self._cluster_id,
            from_replica=self.replica_id,
            generation=durable.generation,
            root=durable.root,
            tasks=durable.tasks,
        )
        self.peers.send(replica, message)

    def _claim_alarms(self) -> ClaimAlarms:
        kind, alarms = cluster_pb2.ALARM_KIND_REPLICA_DIVERGED, self._ports.alarms
        return ClaimAlarms(
            tell=lambda replica, text: alarms.tell(kind, text, f"digests of {replica}"),
            clear=lambda replica: alarms.clear(kind, f"digests of {replica}"),
        )

    def applied(self, op: int) -> None:
        """Compare this replica with what others told of an op that is applied now. Raises
        DivergedError."""
        self._claims.applied(op)

    def _make_memory(self, config: PeersConfig) -> DiskMemory:
        path = self._ports.data_directory / KNOWN_DISKS_FILE
        return DiskMemory(
            MemoryOwner(config.cluster_id, config.replica_id),
            SlotFile(self._ports.files.storage, str(path)),
            self._ports.entries,
        )

    def _make_transfer(self) -> StateTransfer:
        kind, alarms, files = (
            cluster_pb2.ALARM_KIND_STATE_TRANSFER,
            self._ports.alarms,
            self._ports.files,
        )
        ports = TransferPorts(
            fetcher=self.peers.fetcher,
            replicas=lambda: self.peers.with_address,
            cluster_id=self._cluster_id,
            held_op=lambda: self._ports.driver().core.recordable_commit,
            own_cut_op=lambda: self._ports.position().cut_op,
            adopted=lambda: files.superblock.state.generation,
            record=files.record_transferred,
            say=lambda text: alarms.tell(kind, text),
            ended=lambda: alarms.clear(kind),
        )
        directory = self._ports.data_directory / TRANSFER_FOLDER
        return StateTransfer(ports, files.snapshots, directory, files.storage)

    @property
    def peer_files(self) -> PeerFiles:
        """The others as senders of snapshot files."""
        return PeerFiles(self.peers.fetcher, lambda: self.peers.with_address)

    def address_of(self, replica: int) -> str:
        """Return where a replica serves clients; empty while that is unknown."""
        report = self.reports.last(replica)
        return "" if report is None else report.client_address

    def client_addresses(self) -> list[str]:
        """Return where the replicas of this epoch serve clients, as far as it is known."""
        own, members = self.replica_id, sorted(self._ports.roster.members)
        found = [
            self._ports.client_address() if each == own else self.address_of(each)
            for each in members
        ]
        return [address for address in found if address and not is_wildcard(address)]

    def is_connected(self) -> bool:
        """Return whether any other replica is connected."""
        return any(peer.state is LinkState.CONNECTED for peer in self.peers.status())

    def status(self) -> list[cluster_pb2.Replica]:
        """Return what is known of the others."""
        return [self._status_of(peer) for peer in self.peers.status()]

    def _status_of(self, peer: PeerStatus) -> cluster_pb2.Replica:
        found = cluster_pb2.Replica(
            replica_id=peer.replica, heard_ms=peer.last_heard_ms or 0, link=peer.state.value
        )
        if peer.refusal is not None:
            found.link = f"{peer.state.value}: {peer.refusal.value}"
        elif is_name_unknown(peer.why):
            found.link = f"{peer.state.value}: name_unknown"
        found.peer_address = peer.address
        report = self.reports.last(peer.replica)
        if report is not None:
            found.status = report.status  # type: ignore[assignment]
            found.view, found.op, found.commit = report.view, report.op, report.commit
            found.applied, found.generation = report.applied, report.generation
            found.address, found.unfit = report.client_address, report.unfit
            found.feature_level_max = report.feature_level_max
        return found

    def report(self) -> None:
        """Report to the others how far this replica is now."""
        progress = self._ports.driver().progress
        applied_digest, common_op, common_digest = self._claims.own(progress.applied_op)
        message = peer_messages.ReplicaReportMessage(
            cluster_id=self._cluster_id,
            from_replica=self.replica_id,
            status=STATUSES[vsr.ReplicaStatus.HALTED if self._is_halted else progress.status],
            view=progress.view,
            op=progress.op,
            commit=progress.committed_op,
            applied=progress.applied_op,
            generation=self._ports.position().generation,
            client_address=self._ports.client_address(),
            unfit=self._ports.unfit() or self._lack_of_vote(),
            feature_level_max=self._ports.level_supported(),
            clock_us=self._ports.clock.own_us(),
            applied_digest=applied_digest,
            common_op=common_op,
            common_digest=common_digest,
            disk=self._disk(),
            disk_id=self._ports.files.journal.public_id,
            lacks_vote=bool(self._lack_of_vote()),
        )
        for replica in self._ports.roster.others:
            self.peers.send(replica, message)

    def _disk(self) -> DiskMark:
        return disk_mark(self._ports.files, self._boot_nonce)

    def _lack_of_vote(self) -> str:
        is_standby = self._ports.roster.is_standby
        return "" if is_standby or self._ports.driver().core.is_voter else NO_VOTE

    def _reported(self, message: peer_messages.ReplicaReportMessage) -> None:
        self.reports.heard(message)
        self._ports.clock.heard(message.from_replica, message.clock_us)
        self.peers.known_disks.heard(message.from_replica, message.disk)
        self._ports.adopted_elsewhere(message.from_replica, message.generation)
        # A replica that is wrong does nothing more, however long its process takes to end.
        self._ports.driver().guard(lambda: self._claims.heard(message))

    def _forget_removed(self) -> None:
        """Forget the directories of who is no member any more, and end what is told of its link."""
        roster = self._ports.roster
        self.peers.known_disks.keep({*roster.members, *roster.former})
        for replica in self._told_of - self.peers.links.keys():
            self._told_of.discard(replica)
            for kind in (cluster_pb2.ALARM_KIND_PEER_REFUSED, cluster_pb2.ALARM_KIND_PEER_MENDING):
                self._ports.alarms.clear(kind, str(replica))

    def _stuck(self, effect: vsr.Stuck) -> None:
        self._ports.alarms.tell(cluster_pb2.ALARM_KIND_STUCK, f"op {effect.op}: {effect.reason}")

    def settled(self) -> None:
        """Clear the alarm of a stuck log: this replica has the log of a view."""
        self._ports.alarms.clear(cluster_pb2.ALARM_KIND_STUCK)

    def _link_changed(self, status: PeerStatus) -> None:
        if status.state is LinkState.CONNECTING and not status.is_heard:
            # The kernel reports the end of a process long before its silence would show it.
            self._ports.driver().step(vsr.Suspect(status.replica))
        self._told_of.add(status.replica)
        raised, says = _alarm_of(status.refusal)
        for kind in (cluster_pb2.ALARM_KIND_PEER_REFUSED, cluster_pb2.ALARM_KIND_PEER_MENDING):
            if status.state is LinkState.REFUSED and kind == raised:
                text = f"replica {status.replica} at {status.address} {says}: {status.why}"
                self._ports.alarms.tell(kind, text, str(status.replica))
            else:
                self._ports.alarms.clear(kind, str(status.replica))


def disk_mark(files: ReplicaFiles, boot_nonce: bytes) -> DiskMark:
    """Return how far the data directory has come; nothing as long as it has no vote."""
    if not files.superblock.exists or files.superblock.state.voting_view == NOT_ADMITTED:
        return NO_DISK
    journal, state = files.journal, files.superblock.state
    return DiskMark(
        journal.public_id,
        state.view,
        state.log_view,
        state.damaged_start,
        journal.sequence_for_superblock,
        journal.last_sequence,
        boot_nonce,
    )


_REFUSED: Final = (cluster_pb2.ALARM_KIND_PEER_REFUSED, "refuses this one")
_REFUSAL_ALARMS: Final = MappingProxyType(
    {
        HelloRefusal.MENDING: (cluster_pb2.ALARM_KIND_PEER_MENDING, "cannot start yet"),
        HelloRefusal.OLDER_DIRECTORY: (
            cluster_pb2.ALARM_KIND_PEER_REFUSED,
            "and this one exchange no messages",
        ),
        HelloRefusal.EXPIRED_CERTIFICATE: (
            cluster_pb2.ALARM_KIND_PEER_REFUSED,
            "and this one cannot connect",
        ),
    }
)


def _alarm_of(
    refusal: HelloRefusal | None,
) -> tuple[cluster_pb2.AlarmKind.ValueType, str]:
    """Return the kind of alarm for a refusal, and how it begins."""
    return _REFUSED if refusal is None else _REFUSAL_ALARMS.get(refusal, _REFUSED)
