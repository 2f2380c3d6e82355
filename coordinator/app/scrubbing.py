"""The scrubber of one coordinator, put together, and its alarms."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from coordinator import vsr
from coordinator.base.alarms import Alarms
from coordinator.base.clock import monotonic_ms, wall_clock_us
from coordinator.scrub.patience import PatientThread
from coordinator.scrub.ports import ScrubAlarm, ScrubPorts
from coordinator.scrub.scrubber import Scrubber
from coordinator.snapshot.adoption import Adoption
from coordinator.snapshot.file_mending import DecidedManifests, FileMending
from coordinator.snapshot.pacing import Traffic
from coordinator.snapshot.transfer_ports import Fetcher
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.worker_thread import DiskHangsError, WorkerThread

if TYPE_CHECKING:
    from coordinator.app.snapshots import Surroundings

# What is fetched of files that are mended, in the data directory.
MENDING_FOLDER: Final = "mending"
# A replica that is this far behind its log has better things to do.
BEHIND_OPS_MAX: Final = 1_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PeerFiles:
    """The other replicas of the moment, and how files come from them."""

    fetcher: Fetcher
    replicas: Callable[[], Sequence[int]]


class CopyAlarms:
    """The alarms of snapshot files, each until its file was read and is whole, or is gone."""

    def __init__(self, alarms: Alarms) -> None:
        self._alarms = alarms
        self._names: set[str] = set()

    def tell(self, name: str, text: str) -> None:
        """Raise the alarm of a file, or change what it says."""
        self._names.add(name)
        self._alarms.tell(cluster_pb2.ALARM_KIND_SNAPSHOT_COPY_BAD, text, name)

    def clear(self, name: str) -> None:
        """End the alarm of a file, if there is one."""
        self._names.discard(name)
        self._alarms.clear(cluster_pb2.ALARM_KIND_SNAPSHOT_COPY_BAD, name)

    def keep(self, names: Collection[str]) -> None:
        """End the alarms of all other files."""
        for gone in sorted(self._names.difference(names)):
            self.clear(gone)


_KINDS: Final[Mapping[ScrubAlarm, cluster_pb2.AlarmKind.ValueType]] = MappingProxyType(
    {
        ScrubAlarm.JOURNAL_DAMAGED: cluster_pb2.ALARM_KIND_JOURNAL_DAMAGED,
        ScrubAlarm.SUPERBLOCK_DAMAGED: cluster_pb2.ALARM_KIND_SUPERBLOCK_DAMAGED,
        ScrubAlarm.STALLED: cluster_pb2.ALARM_KIND_SCRUB_STALLED,
    }
)


class ReplicaScrubAlarms:
    """The alarms of the scrubber among those of the replica (`scrub.ports.ScrubAlarms`)."""

    def __init__(self, alarms: Alarms, copies: CopyAlarms) -> None:
        self._alarms = alarms
        self._copies = copies

    def tell(self, kind: ScrubAlarm, text: str, subject: str = "") -> None:
        """Raise an alarm, or change what it says."""
        if kind is ScrubAlarm.COPY_BAD:
            self._copies.tell(subject, text)
        else:
            self._alarms.tell(_KINDS[kind], text, subject)

    def clear(self, kind: ScrubAlarm, subject: str = "") -> None:
        """End an alarm, if there is one."""
        if kind is ScrubAlarm.COPY_BAD:
            self._copies.clear(subject)
        else:
            self._alarms.clear(_KINDS[kind], subject)

    def keep_files(self, names: Collection[str]) -> None:
        """End the alarms of all other snapshot files."""
        self._copies.keep(names)


class RunningScrubber:
    """A scrubber with its thread."""

    def __init__(self, scrubber: Scrubber, thread: WorkerThread) -> None:
        self.run = scrubber.run
        self.tally = scrubber.tally
        self._thread = thread

    def close(self) -> None:
        """Finish what the thread does, after the scrubber was cancelled.

        A disk that hangs keeps nobody: what the thread has begun is then as after a crash.
        """
        try:
            self._thread.close()
        except DiskHangsError as error:
            _log.warning("the scrubber does not wait for the disk: %s", error)


class CommandsSeen:
    """Whether commands came since somebody last asked."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._applied = traffic.applied()

    def ask(self) -> bool:
        """Return whether some came, or are under way."""
        before, self._applied = self._applied, self._traffic.applied()
        return self._applied != before or self._traffic.waiting() > 0


def make_scrubber(
    around: Surroundings,
    traffic: Traffic,
    adoption: Adoption,
    copies: CopyAlarms,
    root_of: Callable[[int], bytes],
) -> RunningScrubber | None:
    """Return the scrubber of a replica, None if its interval is 0.

    `root_of` is the root of a generation as the cluster has decided it, empty if that is unknown.
    """
    interval_ms = around.config.scrub_interval_ms
    if interval_ms == 0:
        return None
    files = around.files
    thread = around.outside.make_thread("scrub")
    peers = around.peers
    told = ReplicaScrubAlarms(around.alarms, copies)
    patient = PatientThread(thread, told)
    mending = None if peers is None else _mending(around, peers, adoption, root_of, patient)
    ports = ScrubPorts(
        storage=files.storage,
        thread=thread,
        superblock=files.superblock,
        journal=files.journal,
        writer=around.writer,
        files=files.snapshots,
        is_lone=lambda: around.roster.is_alone,
        cut_op=lambda: 0 if adoption.adopted is None else adoption.adopted.cut_op,
        found_faulty=around.driver.found_faulty,
        manifest_of=lambda generation: _in_memory(adoption, generation),
        is_held=_is_held(around, traffic),
        is_busy=CommandsSeen(traffic).ask,
        alarms=told,
        bring=None if mending is None else mending.bring,
        clock_ms=monotonic_ms,
        wall_clock_us=wall_clock_us,
    )
    if mending is not None:
        thread.call(mending.clear)  # what an earlier process has left
    return RunningScrubber(Scrubber(ports, interval_ms), thread)


def _in_memory(adoption: Adoption, generation: int) -> SnapshotManifest | None:
    adopted = adoption.adopted
    return adopted if adopted is not None and adopted.generation == generation else None


def _mending(
    around: Surroundings,
    peers: PeerFiles,
    adoption: Adoption,
    root_of: Callable[[int], bytes],
    patient: PatientThread,
) -> FileMending:
    files = around.files
    return FileMending(
        files.snapshots,
        DecidedManifests(peers.fetcher, root_of),
        peers.replicas,
        files.cluster_id,
        lambda: files.superblock.state.generation,
        adoption.exchanged,
        around.config.data_directory / MENDING_FOLDER,
        files.storage,
        patient,
    )


def _is_held(around: Surroundings, traffic: Traffic) -> Callable[[], bool]:
    """Return what says that the replica has better things to do than being scrubbed."""
    progress = around.driver.progress

    def is_held() -> bool:
        is_behind = progress.committed_op - progress.applied_op > BEHIND_OPS_MAX
        return progress.status is not vsr.ReplicaStatus.NORMAL or is_behind or traffic.is_urgent()

    return is_held
